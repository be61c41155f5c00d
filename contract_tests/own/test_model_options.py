"""Options for loading and computing the model, from the command line to the answers."""

import os
import re
from pathlib import Path

import pytest

from contract_tests.kit.server import Start
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
