"""Slots, LoRA adapters and metrics of a server with everything switched on."""

import contextlib
import json
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import SECONDS, OwnServer, Server, Start, wait_until
from contract_tests.own.servers import run
from specllama.engine.shipped import model_path
from tools.models.build import ensure, ensure_adapter

REQUEST = {
    "prompt": "def read(self, path):",
    "n_predict": 12,
    "temperature": 0,
    "ignore_eos": True,
    "id_slot": 0,
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    directory = tmp_path_factory.mktemp("adapters")
    return [ensure_adapter(name, directory) for name in ("lora-a", "lora-b")]


@pytest.fixture(scope="module")
def admin(module_server: Start, directory: Path, adapters: list[Path]) -> OwnServer:
    """A server with everything switched on, and two adapters with the scale 0."""
    lora = ("--lora", f"{adapters[0]}", "--lora-scaled", f"{adapters[1]}:0.5")
    options = ("--slot-save-path", str(directory), "--metrics", "--props", "--slots-text")
    slots = ("-np", "4", "-c", "32768")  # long enough that a text still runs when it is checked
    return module_server(*options, *lora, *slots, "--lora-init-without-apply", api_key="key")


def act(server: Server, action: str, name: str | None = "a.bin", slot: int = 0) -> Any:
    body = {"filename": name} if name else None
    return contract.check(server.post(f"/slots/{slot}?action={action}", body))


def refused(server: Server, name: str, action: str = "restore") -> str:
    response = server.post(f"/slots/0?action={action}", {"filename": name})
    message: str = contract.check(response, 400)["error"]["message"]
    return message


# ---- slots ---------------------------------------------------------------------------------


def test_a_restored_slot_saves_the_work(admin: OwnServer, directory: Path) -> None:
    first = admin.ask("/completion", REQUEST)
    saved = act(admin, "save")
    path = directory / "a.bin"
    assert saved["id_slot"] == 0
    assert saved["filename"] == "a.bin"
    assert saved["n_written"] == path.stat().st_size
    assert saved["n_saved"] >= first["tokens_evaluated"]
    erased = act(admin, "erase", None)
    assert erased == {"id_slot": 0, "n_erased": saved["n_saved"]}
    assert admin.ask("/completion", REQUEST)["timings"]["cache_n"] == 0
    act(admin, "erase", None)
    restored = act(admin, "restore")
    assert restored["n_restored"] == saved["n_saved"]
    assert restored["n_read"] == saved["n_written"]
    again = admin.ask("/completion", REQUEST)
    assert again["timings"]["cache_n"] == first["tokens_evaluated"] - 1
    assert again["content"] == first["content"]


def test_a_restored_slot_outlives_its_engine(
    own_server: Start, directory: Path, admin: OwnServer, adapters: list[Path]
) -> None:
    first = admin.ask("/completion", REQUEST)
    act(admin, "save", "b.bin")
    lora = ("--lora", ",".join(map(str, adapters)), "--lora-init-without-apply")
    other = own_server("--slot-save-path", str(directory), "-np", "4", *lora)
    act(other, "restore", "b.bin")
    again = other.ask("/completion", REQUEST)
    assert again["timings"]["cache_n"] == first["tokens_evaluated"] - 1
    assert again["content"] == first["content"]


def test_damaged_and_foreign_files_are_refused_and_nothing_dies(
    admin: OwnServer, directory: Path
) -> None:
    admin.ask("/completion", REQUEST)
    act(admin, "save", "good.bin")
    good = (directory / "good.bin").read_bytes()
    engine = admin.engine().pid
    bad = {
        "truncated": good[:-1],
        "half": good[: len(good) // 2],
        "head": good[:20],
        "empty": b"",
        "longer": good + b"x",
        "foreign": os.urandom(5000),
        "gguf": model_path().read_bytes()[:100_000],
        # llama.cpp's own files begin like this.
        "genuine": b"qsgg\x02\x00\x00\x00" + good[8:],
    }
    step = max(1, len(good) // 40)
    for at in range(0, len(good), step):
        bad[f"bit {at}"] = good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :]
    for name, data in bad.items():
        (directory / name).write_bytes(data)
        assert refused(admin, name)
    assert admin.engine().pid == engine
    assert admin.ask("/completion", REQUEST)["timings"]["cache_n"] > 0, "the slot kept its text"


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_links_lead_nowhere(admin: OwnServer, directory: Path, tmp_path: Path) -> None:
    act(admin, "save", "linked.bin")
    outside = tmp_path / "outside.bin"
    outside.write_bytes((directory / "linked.bin").read_bytes())
    before = outside.read_bytes()
    (directory / "link").symlink_to(outside)
    (directory / "dangling").symlink_to(tmp_path / "new.bin")
    (directory / "sub").mkdir()
    for name in ("link", "dangling", "sub"):
        for action in ("save", "restore"):
            assert refused(admin, name, action)
    assert outside.read_bytes() == before
    assert not (tmp_path / "new.bin").exists()


def test_other_models_and_caches_are_refused(
    own_server: Start, directory: Path, admin: OwnServer, tmp_path: Path
) -> None:
    act(admin, "save", "c.bin")
    here = ("--slot-save-path", str(directory), "-np", "4")
    other_model = own_server(*here, "-m", str(ensure("tiny-nochat", tmp_path)))
    assert "another model" in refused(other_model, "c.bin")
    other_cache = own_server(*here, "--cache-type-k", "f32")
    assert "--cache-type-k" in refused(other_cache, "c.bin")
    assert other_cache.ask("/completion", REQUEST)["stop"]


def test_actions_wait_for_a_busy_slot(admin: OwnServer) -> None:
    request = {**REQUEST, "n_predict": 1500}
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(act(admin, "save", "w.bin")))
    with admin.stream("/completion", request) as (_, events):
        next(events)
        thread.start()
        assert act(admin, "erase", None, slot=3)["n_erased"] >= 0
        *_, last = (event.json for event in events)
    thread.join(SECONDS)
    n_tokens = last["tokens_evaluated"] + last["tokens_predicted"]
    assert answers[0]["n_saved"] == n_tokens - 1, "the whole text was saved, not a part of it"


def test_a_client_that_stops_waiting_cancels_its_action(admin: OwnServer, directory: Path) -> None:
    request = {**REQUEST, "n_predict": 1500}
    body = b'{"filename": "never.bin"}'
    engine = admin.engine()
    with admin.stream("/completion", request) as (_, events):
        next(events)
        engine.suspend()
        try:
            connection = admin.raw(admin.head("/slots/0?action=save", len(body)) + body)
            admin.get("/health")
            connection.close()
            for _ in range(20):  # answered after the action
                admin.get("/health")
        finally:
            engine.resume()
        for _ in events:
            pass
    act(admin, "save", "after.bin")  # files are written in order
    assert (directory / "after.bin").exists()
    assert not (directory / "never.bin").exists()


def test_slots_show_all_of_their_state(admin: OwnServer) -> None:
    request = {**REQUEST, "n_predict": 2000, "lora": [{"id": 1, "scale": 0.25}]}
    with admin.stream("/completion", request) as (_, events):
        text = "".join(next(events).json["content"] for _ in range(10))
        slot = contract.check(admin.get("/slots"))[0]
        assert slot["is_processing"]
        assert slot["prompt"] == request["prompt"]
        assert slot["generated"].startswith(text)
        assert slot["next_token"]["has_next_token"]
        n_decoded = slot["next_token"]["n_decoded"]
        assert n_decoded >= 10
        assert slot["next_token"]["n_remain"] == 2000 - n_decoded
        processed, cached = slot["n_prompt_tokens_processed"], slot["n_prompt_tokens_cache"]
        assert processed + cached + n_decoded - 1 == slot["n_prompt_tokens"]
        assert slot["params"]["lora"] == [{"id": 0, "scale": 0}, {"id": 1, "scale": 0.25}]
    slot = admin.wait_until_idle()[0]
    assert not slot["is_processing"]
    assert not slot["next_token"]["has_next_token"]


# ---- LoRA adapters -------------------------------------------------------------------------


def say(server: Server, lora: list[dict[str, float]] | None, **changes: Any) -> str:
    request = {**REQUEST, "id_slot": -1, **changes}
    if lora is not None:
        request["lora"] = lora
    text: str = server.ask("/completion", request)["content"]
    return text


def test_adapters_are_listed_and_scaled(admin: OwnServer, adapters: list[Path]) -> None:
    listed = contract.check(admin.get("/lora-adapters"))
    assert [(each["id"], each["path"]) for each in listed] == list(enumerate(map(str, adapters)))
    assert [each["scale"] for each in listed] == [0, 0]
    assert listed[0]["task_name"] == "test lora-a"
    base, with_a = say(admin, None), say(admin, [{"id": 0, "scale": 1}])
    assert base != with_a
    scales = [{"id": 0, "scale": 1.0}]
    assert contract.check(admin.post("/lora-adapters", scales)) == {"success": True}
    try:
        assert [each["scale"] for each in admin.get("/lora-adapters").json()] == [1, 0]
        assert say(admin, None) == say(admin, []) == with_a
        assert say(admin, [{"id": 0, "scale": 0}]) == base
        engine = admin.engine().pid
        admin.kill_engine()
        wait_until(lambda: [e.pid for e in admin.engines()] not in ([], [engine]), "a new engine")
        wait_until(lambda: admin.get("/health").status_code == 200, "it is ready")
        assert say(admin, None) == with_a, "the scales outlive the engine"
    finally:
        contract.check(admin.post("/lora-adapters", []))
    assert say(admin, None) == base


def test_adapters_on_the_command_line_are_applied(own_server: Start, adapters: list[Path]) -> None:
    server = own_server("--lora-scaled", f"{adapters[1]}:0.5", "--lora", str(adapters[0]))
    listed = contract.check(server.get("/lora-adapters"))
    assert [(each["path"], each["scale"]) for each in listed] == [
        (str(adapters[1]), 0.5),
        (str(adapters[0]), 1.0),
    ]


def test_simultaneous_requests_get_their_own_adapters(admin: OwnServer) -> None:
    sets: list[list[dict[str, float]]] = [[], [{"id": 0, "scale": 1}], [{"id": 1, "scale": 1}]]
    alone = [say(admin, lora, n_predict=40) for lora in sets]
    assert len(set(alone)) == 3
    said: dict[int, str] = {}

    def ask(i: int) -> None:
        said[i] = say(admin, sets[i % 3], n_predict=40)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    # The batches of requests are random, and rounding depends on them. The beginnings of the texts
    # distinguish the adapters.
    assert [said[i][:8] for i in range(9)] == [text[:8] for text in alone] * 3


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_unknown_adapters_have_no_effect(admin: OwnServer, path: str, stream: bool) -> None:
    def texts(*adapters: dict[str, int]) -> list[str]:
        body = {**REQUEST, "lora": list(adapters), "stream": stream}
        return re.findall(r'"(?:content|text)": ?"(.*?)"', admin.post(path, body).text)

    alone = texts()
    assert alone
    for id in (2, 2**31 - 1, -1):
        assert texts({"id": id, "scale": 1}) == alone


def test_adapters_that_cannot_be_loaded_end_the_start(adapters: list[Path], tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    other = str(ensure_adapter("lora-bench-100m", tmp_path))
    for path, message in (
        (str(tmp_path / "missing.gguf"), "cannot open"),
        (str(text), "not a GGUF file"),
        (str(model_path()), "adapter"),
        (other, "base model"),
    ):
        ended = run("--lora", path)
        assert ended.returncode == 1, ended.stderr
        assert message in ended.stderr
        assert "Traceback" not in ended.stderr


# ---- metrics -------------------------------------------------------------------------------


def metrics(server: Server) -> dict[str, float]:
    response = server.get("/metrics")
    contract.check(response)
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in response.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_metrics_count_the_work(admin: OwnServer) -> None:
    admin.wait_until_idle()
    before = metrics(admin)
    request = {**REQUEST, "cache_prompt": False}
    first = admin.ask("/completion", request)
    second = admin.ask("/completion", {**request, "cache_prompt": True})
    contract.check(admin.post("/completion", {"prompt": 7}), 400)
    after = metrics(admin)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    evaluated = sum(each["timings"]["prompt_n"] for each in (first, second))
    assert grown("llamacpp:prompt_tokens_total") == evaluated
    assert grown("llamacpp:prompt_tokens_cached_total") == second["timings"]["cache_n"] > 0
    assert grown("llamacpp:tokens_predicted_total") == 24
    assert grown("llamacpp:n_decode_total") == 24
    assert grown("llamacpp:prompt_seconds_total") > 0
    assert grown("specllama_inter_token_latency_seconds_count") == 22
    assert grown("specllama_time_to_first_token_seconds_count") == 2
    assert grown("specllama_request_queue_seconds_count") == 2
    name = "specllama_request_duration_seconds_count"
    assert grown(f'{name}{{operation="create_completion",status="200"}}') == 2
    assert grown(f'{name}{{operation="create_completion",status="400"}}') == 1
    assert after["llamacpp:n_tokens_max"] >= first["tokens_evaluated"] + 11
    assert after["llamacpp:prompt_tokens_seconds"] > 0
    assert after["llamacpp:predicted_tokens_seconds"] > 0
    assert 0 < after["llamacpp:kv_cache_usage_ratio"] <= 1
    assert after["llamacpp:kv_cache_tokens"] >= first["tokens_evaluated"]
    assert after["llamacpp:requests_processing"] == 0
    assert metrics(admin)["llamacpp:predicted_tokens_seconds"] == 0, "nothing since the last time"


def test_metrics_count_working_and_waiting_requests(admin: OwnServer) -> None:
    body = json.dumps({**REQUEST, "n_predict": 6000}).encode()
    with contextlib.ExitStack() as connections:
        for _ in range(10):
            connections.enter_context(admin.raw(admin.head("/completion", len(body)) + body))

        def one_works_and_others_wait() -> bool:
            seen = metrics(admin)
            processing = seen["llamacpp:requests_processing"]
            assert processing <= 1, "all need the same slot"
            return processing == 1 and seen["llamacpp:requests_deferred"] >= 1

        wait_until(one_works_and_others_wait, "one works and others wait")
    admin.wait_until_idle()


def test_a_server_that_embeds_has_them_too(
    own_server: Start, adapters: list[Path], tmp_path: Path
) -> None:
    options = ("--embeddings", "--pooling", "mean", "--metrics", "--slot-save-path", str(tmp_path))
    server = own_server(*options, "--lora", str(adapters[0]), "--lora-init-without-apply")

    def vector() -> list[float]:
        found = server.ask("/v1/embeddings", {"input": "def read(self):"})["data"][0]["embedding"]
        return [round(x, 3) for x in found]

    plain = vector()
    contract.check(server.post("/lora-adapters", [{"id": 0, "scale": 1}]))
    adapted = vector()
    contract.check(server.post("/lora-adapters", []))
    assert plain == vector() != adapted
    seen = metrics(server)
    assert seen["llamacpp:n_decode_total"] == 3
    assert seen["llamacpp:prompt_tokens_total"] >= 3
    for action in ("erase", "save", "restore"):
        contract.check(server.post(f"/slots/0?action={action}", {"filename": "a"}), 501)


def test_the_log_shows_the_start(admin: OwnServer) -> None:
    one, other = (admin.get("/metrics").headers["process-start-time-unix"] for _ in range(2))
    assert one == other


def test_props_show_what_is_switched_on(admin: OwnServer, server: Server) -> None:
    props = admin.get("/props").json()
    assert (props["endpoint_props"], props["endpoint_metrics"]) == (True, True)
    assert contract.check(admin.post("/props", {"anything": [1]})) == {"success": True}
    assert contract.check(admin.post("/props")) == {"success": True}
