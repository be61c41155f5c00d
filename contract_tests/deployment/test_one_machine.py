"""A deployment on a cluster of one machine, which `specllama deploy` starts."""

import contextlib
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from contract_tests.deployment.crowd import LOST, crowd
from contract_tests.deployment.launching import TINY, Local, described, local
from contract_tests.kit.server import SECONDS, alive, wait_until
from specllama.engine.shipped import model_path

GREETING = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
N_LONG = 1900
LONG = {"prompt": "Once upon a time", "n_predict": N_LONG, "ignore_eos": True}
REPLICA = "ray::ServeReplica:specllama:specllama-tiny"
INGRESS = "ray::ServeReplica:specllama:ingress"


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[Local]:
    with local(directory, described(replicas=2)) as running:
        yield running


def whole(server: Local) -> bool:
    """Returns whether all slots of both replicas are there."""
    try:
        return len(server.slots()) == 4
    except (AssertionError, httpx.TransportError):
        return False


def n_predicted(server: Local) -> float:
    """Returns the number of tokens that all replicas together have generated."""
    name = "llamacpp:tokens_predicted_total "
    lines = server.get("/metrics").text.splitlines()
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


def test_a_chat(server: Local) -> None:
    answer = server.ask("/v1/chat/completions", {**GREETING, "max_tokens": 40})
    assert "Hello" in answer["choices"][0]["message"]["content"]


def test_a_stream_has_the_same_text(server: Local) -> None:
    body = {**GREETING, "max_tokens": 40}
    plain = server.ask("/v1/chat/completions", body)["choices"][0]["message"]["content"]
    events = server.events("/v1/chat/completions", body)
    chunks = [each.json["choices"] for each in events if each.data != "[DONE]"]
    deltas = [choices[0]["delta"].get("content") or "" for choices in chunks if choices]
    assert "".join(deltas) == plain


def test_both_replicas_have_slots_in_one_list(server: Local) -> None:
    wait_until(lambda: whole(server), "all slots are there")
    assert [slot["id"] for slot in server.slots()] == [0, 1, 2, 3]


def test_as_many_requests_as_slots_run_at_once(server: Local) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = [
            pool.submit(server.ask, "/completion", {**LONG, "prompt": f"Story {n}"})
            for n in range(4)
        ]
        wait_until(
            lambda: all(slot["is_processing"] for slot in server.slots()), "all slots are taken"
        )
        assert {each.result()["tokens_predicted"] for each in answers} == {N_LONG}


def test_health_and_metrics(server: Local) -> None:
    assert server.get("/health").json() == {"status": "ok"}
    assert n_predicted(server) > 0


def test_a_client_that_goes_away_frees_its_slot(server: Local) -> None:
    before = n_predicted(server)
    with server.stream("/completion", LONG) as (_, events):
        next(events)
    wait_until(
        lambda: not any(slot["is_processing"] for slot in server.slots()), "all slots are free"
    )
    assert n_predicted(server) - before < N_LONG


def test_an_engine_process_dies(server: Local) -> None:
    """Only its own running requests fail, with the documented error."""
    with crowd(server) as clients:
        clients.wait_for(12)
        [first, _] = server.engines()
        first.kill()
        wait_until(lambda: len(server.engines()) == 2, "another engine process is there")
        wait_until(lambda: whole(server), "all slots are there again")
        clients.wait_for(12)
    assert clients.failures.keys() <= {"500 server_error"}
    assert sum(clients.failures.values()) <= 2, clients.outcomes


def test_a_replica_dies(server: Local) -> None:
    """Serve starts another one; only the running requests of the first one fail."""
    with crowd(server) as clients:
        clients.wait_for(12)
        [first, _] = server.processes(REPLICA)
        first.kill()
        wait_until(lambda: not alive(first), "the replica is gone")
        wait_until(lambda: len(server.processes(REPLICA)) == 2, "another replica is there")
        wait_until(lambda: whole(server), "all slots are there again")
        clients.wait_for(12)
    assert clients.failures.keys() <= {"500 server_error"}
    assert sum(clients.failures.values()) <= 2, clients.outcomes


def test_the_ingress_dies(server: Local) -> None:
    """Serve starts another one, with the same replicas; their slots are free again."""
    engines = {each.pid for each in server.engines()}
    with crowd(server) as clients:
        clients.wait_for(12)
        [ingress] = server.processes(INGRESS)
        ingress.kill()
        clients.wait_for(1, LOST)
        wait_until(lambda: whole(server), "the server answers again, with all slots")
        clients.wait_for(12)
    # Until the new one is connected to the replicas, it answers that the model is loading.
    assert LOST in clients.failures
    assert clients.failures.keys() <= {LOST, "503 unavailable_error"}
    assert {each.pid for each in server.engines()} == engines
    wait_until(
        lambda: not any(slot["is_processing"] for slot in server.slots()), "all slots are free"
    )


def test_serve_s_controller_dies(server: Local) -> None:
    """No client notices. Ray starts another controller, which goes on with the same processes."""
    replicas = {each.pid for each in server.processes("ray::ServeReplica")}
    with crowd(server) as clients:
        clients.wait_for(12)
        [controller] = server.processes("ray::ServeController")
        controller.kill()
        wait_until(lambda: not alive(controller), "the controller is gone")
        clients.wait_for(12)
        wait_until(lambda: server.processes("ray::ServeController"), "another one is there")
        clients.wait_for(12)
    assert not clients.failures
    assert {each.pid for each in server.processes("ray::ServeReplica")} == replicas


def test_the_machine_of_an_ingress_needs_no_model(directory: Path) -> None:
    model = directory / "moved.gguf"
    model.write_bytes(model_path().read_bytes())
    deployment = described(options={**TINY, "model": str(model)})
    with local(directory, deployment) as server:
        model.unlink()
        [ingress] = server.processes(INGRESS)
        ingress.kill()
        wait_until(lambda: not alive(ingress), "the ingress is gone")

        def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return server.get("/health").status_code == 200
            return False

        wait_until(answers, "another ingress is ready")
        assert server.ask("/v1/chat/completions", {**GREETING, "max_tokens": 8})


def test_a_signal_lets_running_requests_end(directory: Path) -> None:
    with local(directory, described()) as server:
        processes = server.processes("")
        with server.stream("/completion", LONG) as (_, events):
            next(events)
            server.process.send_signal(signal.SIGTERM)
            last = list(events)[-1].json
        assert last["tokens_predicted"] == N_LONG
        assert server.process.wait(SECONDS) == 0
        assert not any(map(alive, processes))


def test_a_second_signal_ends_everything_at_once(directory: Path) -> None:
    """The first one comes from a terminal, to all processes of the group."""
    with local(directory, described()) as server:
        processes = server.processes("")
        with server.stream("/completion", LONG) as (_, events):
            next(events)
            os.killpg(server.process.pid, signal.SIGINT)
            wait_until(lambda: "again to stop" in server.log.read_text(), "it is ending")
            server.process.send_signal(signal.SIGINT)
            assert server.process.wait(SECONDS) == 130
        wait_until(lambda: not any(map(alive, processes)), "all processes have ended")
