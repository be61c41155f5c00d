"""Options for loading and computing the model, from the command line to the answers."""

import os
import re
from pathlib import Path

import pytest

from contract_tests.kit.server import Server, Start
from contract_tests.own.launching import one_line
from contract_tests.own.servers import run
from specllama.engine.shipped import model_path

gguf = pytest.importorskip("gguf", reason="the test writes GGUF files")

REQUEST = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "ignore_eos": True}


def control_vector(path: Path, n_embd: int) -> str:
    import numpy as np

    writer = gguf.GGUFWriter(path, "controlvector")
    writer.add_tensor("direction.1", np.linspace(-9, 9, n_embd, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_they_work_together(own_server: Start) -> None:
    options = ["--direct-io", "--no-repack", "--n-cpu-moe", "2", "--perf", "--fit", "on"]
    options += ["--override-tensor", "blk=CPU", "--poll", "0"]
    if hasattr(os, "sched_getaffinity"):
        options += ["--cpu-range", "0-511", "--prio", "-1"]
    server = own_server(*options)
    assert server.ask("/completion", REQUEST)["tokens_predicted"] == 12
    assert server.stop() == 0
    assert "specllama.engine.perf: prompts: " in server.log.read_text()


def test_a_control_vector_changes_the_text(own_server: Start, tmp_path: Path) -> None:
    plain = own_server()
    n_embd = plain.get("/v1/models").json()["data"][0]["meta"]["n_embd"]
    path = control_vector(tmp_path / "vector.gguf", n_embd)
    steered = own_server("--control-vector", path)
    outside = own_server(
        "--control-vector-scaled", f"{path}:2", "--control-vector-layer-range", "90", "95"
    )
    texts = [each.ask("/completion", REQUEST)["content"] for each in (plain, steered, outside)]
    assert texts[0] != texts[1]
    assert texts[0] == texts[2]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--control-vector", "{small}"], "{small}"),
        (["--control-vector", "{damaged}"], "{damaged}"),
        (["--control-vector-scaled", "{missing}:1"], "{missing}"),
        (["--control-vector-layer-range", "3"], "--control-vector-layer-range"),
        (["--override-tensor", "a=nowhere"], "nowhere"),
        (["--override-tensor", "[=CPU"], "cannot load the model"),
        (["--direct-io", "--mlock"], "--direct-io"),
        (["--cpu-range", "511-"], "--cpu-range"),
    ],
)
@pytest.mark.usefixtures("launcher")
def test_impossible_options_fail(options: list[str], named: str, tmp_path: Path) -> None:
    names = {name: str(tmp_path / f"{name}.gguf") for name in ("small", "damaged", "missing")}
    control_vector(Path(names["small"]), 5)
    Path(names["damaged"]).write_bytes(b"GGUF\x03\0\0\0" + b"\xff" * 100)
    done = run(*(option.format(**names) for option in options))
    assert named.format(**names) in one_line(done)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux reports the free memory")
@pytest.mark.parametrize("fit", ["on", "off"])
@pytest.mark.usefixtures("launcher")
def test_a_context_that_memory_has_no_room_for_is_refused_with_one_that_fits(fit: str) -> None:
    line = one_line(run("-m", str(model_path()), "-c", str(2**31 - 1), "--fit", fit))
    assert "there is no memory for this: " in line
    assert "a context of 2147483647 tokens needs " in line
    assert re.search(r"; -c [1-9]\d* (or -ctk q8_0 -ctv q8_0 )?would fit", line)


def test_a_limit_of_each_slot_of_a_common_cache(own_server: Start) -> None:
    server = own_server("-np", "3", "-kvu", "--kv-unified-per-slot", "300")
    assert server.get("/props").json()["default_generation_settings"]["n_ctx"] == 300
    assert [slot["n_ctx"] for slot in server.slots()] == [300] * 3
    answer = server.post("/completion", {"prompt": [5] * 301, "n_predict": 0})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert (error["type"], error["n_ctx"]) == ("exceed_context_size_error", 300)
    text = {**REQUEST, "n_predict": -1}
    ended = server.ask("/completion", text)
    assert ended["tokens_evaluated"] + ended["tokens_predicted"] == 300


def bytes_saved(server: Server) -> float:
    metrics = server.get("/metrics").text
    [found] = re.findall(r"(?m)^specllama_cache_ram_bytes(?:\{.*\})? (\S+)$", metrics)
    return float(found)


@pytest.mark.parametrize("options", [(), ("--no-cache-idle-slots",)], ids=["default", "off"])
def test_long_idle_texts_are_found_again(own_server: Start, options: tuple[str, ...]) -> None:
    """By default, the server's own times decide whether a text stays in the KV cache: all of its
    tokens are cached in both cases."""
    server = own_server(*("-np", "2", "-kvu", "-c", "8192", "--metrics", *options))
    prompts = [[*range(first, first + 90)] * 16 for first in (10, 20, 30, 40)]
    for prompt in prompts:
        server.ask("/completion", {**REQUEST, "prompt": prompt})
    for prompt in prompts:
        timings = server.ask("/completion", {**REQUEST, "prompt": prompt})["timings"]
        assert timings["cache_n"] == len(prompt) - 1
        assert timings["cache_n"] == timings["cache_kv_n"] + timings["cache_ram_n"]
    if options:
        assert "specllama_cache_ram_bytes 0" in re.sub(
            r"\{.*\}|\.0", "", server.get("/metrics").text
        )


def test_texts_of_idle_slots_leave_a_common_cache(own_server: Start) -> None:
    """What a user of llama-server sees: a cleared slot's text is in the host's memory, and its
    prompt can be used again."""
    server = own_server(*("-np", "2", "-kvu", "--cache-idle-slots", "--metrics", "-c", "2048"))
    prompt = "Once upon a time in a land far away, there lived a brave knight. " * 3
    server.ask("/completion", {**REQUEST, "prompt": prompt, "id_slot": 0})
    assert bytes_saved(server) == 0
    server.ask("/completion", {**REQUEST, "id_slot": 1})
    assert bytes_saved(server) > 0
    timings = server.ask("/completion", {**REQUEST, "prompt": prompt})["timings"]
    assert timings["cache_n"] == timings["cache_kv_n"] + timings["cache_ram_n"]
