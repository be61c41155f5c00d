"""`specllama doctor`, with stand-ins for what llama.cpp's process says and for the machine."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from specllama.cli import main
from specllama.commands import doctor
from specllama.engine.host import Processor
from specllama.engine.wire.build_report import BuildError, BuildReport, Device, ask
from tests.support.model_files import GGUF
from tests.support.model_files import cache as hub_files

pytestmark = pytest.mark.slow

PROCESSOR = Processor("Some Processor", frozenset({"avx", "avx2", "avx512f"}))
REPORT = BuildReport(
    library="/lib/libggml-cpu.so",
    libraries=["/lib/libggml-cpu.so", "/lib/libllama.so"],
    conflict="",
    features={"AVX": "1", "AVX2": "1", "AVX512": "1", "OPENMP": "1"},
    tried=[],
    measure="as-built",
    reason="",
    remark="",
    error="",
    devices=[],
)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"LLAMA_CACHE": str(tmp_path / "cache"), "LLAMA_ARG_PORT": str(free_port())}


def examine(
    environ: dict[str, str],
    processor: Processor = PROCESSOR,
    ask_build: Callable[[], BuildReport] | None = None,
    **changes: object,
) -> dict[str, doctor.Check]:
    report = msgspec.structs.replace(REPORT, **changes)
    checks = doctor.examine(environ, processor, ask_build or (lambda: report))
    return {check.name: check for check in checks}


def test_all_is_well(environ: dict[str, str]) -> None:
    checks = examine(environ)
    assert [name for name, check in checks.items() if check.status == "fault"] == []
    assert checks["processor"].text.startswith("Some Processor")
    assert checks["instruction sets"].text == "AVX, AVX2, AVX512"
    assert checks["libraries"].text == "from /lib"
    assert checks["kernels"].status == "ok"
    assert checks["model cache"].data["models"] == 0
    assert checks["port"].data["port"] == int(environ["LLAMA_ARG_PORT"])


def test_two_copies_of_a_library_are_a_fault(environ: dict[str, str]) -> None:
    check = examine(environ, conflict="two copies of ggml are loaded")["libraries"]
    assert (check.status, check.text) == ("fault", "two copies of ggml are loaded")


def test_an_instruction_set_that_the_processor_lacks_is_a_fault(environ: dict[str, str]) -> None:
    old = Processor("An Old One", frozenset({"avx"}))
    check = examine(environ, old)["instruction sets"]
    assert check.status == "fault"
    assert "needs AVX2, AVX512" in check.text
    assert "pip install --force-reinstall" in check.text
    assert check.data["missing"] == ["AVX2", "AVX512"]


def test_one_that_llama_cpp_does_not_use_is_a_remark(environ: dict[str, str]) -> None:
    new = PROCESSOR._replace(flags=PROCESSOR.flags | {"avx512_vnni"})
    check = examine(environ, new)["instruction sets"]
    assert check.status == "remark"
    assert "faster with AVX512_VNNI" in check.text


def test_a_new_build_needs_the_devices_requirements(environ: dict[str, str]) -> None:
    new = PROCESSOR._replace(flags=PROCESSOR.flags | {"avx512_vnni"})
    plain = examine(environ, new)["instruction sets"].text
    there = examine(environ, new, devices=[Device("CUDA0", "a GPU", 1 << 30, 1 << 31)])
    assert "CMAKE_ARGS" not in plain
    assert "set the CMAKE_ARGS in docs/gpu.md" in there["instruction sets"].text


def test_a_system_with_unknown_instruction_sets(environ: dict[str, str]) -> None:
    check = examine(environ, Processor("", frozenset()))["instruction sets"]
    assert (check.status, check.text) == ("ok", "AVX, AVX2, AVX512")


def test_kernels_that_are_off_are_a_remark(environ: dict[str, str]) -> None:
    check = examine(environ, tried=["AMX_INT8"], remark="they are off", reason="SIGILL")["kernels"]
    assert (check.status, check.text) == ("remark", "they are off")
    assert check.data["reason"] == "SIGILL"


def test_kernels_that_compute_rightly(environ: dict[str, str]) -> None:
    check = examine(environ, tried=["AMX_INT8"])["kernels"]
    assert check.status == "ok"
    assert "the kernels for AMX_INT8 compute correctly" in check.text


def test_a_library_that_can_not_compute_is_a_fault(environ: dict[str, str]) -> None:
    check = examine(environ, error="can't compute on this processor")["kernels"]
    assert check.status == "fault"


def test_a_library_that_ends_its_process_is_reported(environ: dict[str, str]) -> None:
    code = f"import os; os.kill(os.getpid(), {int(signal.SIGILL)})"

    def dies() -> BuildReport:
        return ask((sys.executable, "-c", code))

    checks = examine(environ, ask_build=dies)
    assert checks["llama.cpp"].status == "fault"
    assert "SIGILL" in checks["llama.cpp"].text
    assert "built for another processor" in checks["llama.cpp"].text
    assert checks["memory"].status == "ok"  # the rest is still shown


def test_so_is_one_that_is_not_there() -> None:
    with pytest.raises(BuildError, match=r"ended with code 1: ImportError: no llama"):
        ask((sys.executable, "-c", "raise ImportError('no llama')"))


def test_devices_are_listed(environ: dict[str, str]) -> None:
    found = [Device("Vulkan0", "Some GPU", 1 << 30, 2 << 30)]
    check = examine(environ, devices=found)["devices"]
    assert check.text == "Vulkan0: Some GPU (1.0 GiB of 2.0 GiB free)"
    assert check.data["devices"][0]["total"] == 2 << 30


def test_a_port_in_use_is_a_fault(environ: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", int(environ["LLAMA_ARG_PORT"]))):
        check = examine(environ)["port"]
    assert check.status == "fault"
    assert "--port" in check.text


def test_a_wrong_variable_is_a_fault(environ: dict[str, str]) -> None:
    checks = examine({**environ, "LLAMA_ARG_PORT": "many"})
    assert checks["environment"].status == "fault"


def test_models_of_both_caches_count(environ: dict[str, str]) -> None:
    cache = Path(environ["LLAMA_CACHE"])
    cache.mkdir()
    (cache / "model.gguf").write_bytes(b"12345")
    data = examine(environ)["model cache"].data
    assert (data["models"], data["size"]) == (1, 5)


def test_a_model_of_the_hub_counts_once(environ: dict[str, str]) -> None:
    hub_files(Path(environ["LLAMA_CACHE"]), "u/r", "x-Q8_0.gguf")
    data = examine(environ)["model cache"].data
    assert (data["models"], data["size"]) == (1, len(GGUF))


@pytest.mark.parametrize("text", ["", "MemTotal: many kB\nMemAvailable: 1 kB\n"])
def test_a_system_with_unknown_memory(tmp_path: Path, text: str) -> None:
    file = tmp_path / "meminfo"
    file.write_text(text)
    assert doctor.memory(file).data == {}
    assert doctor.memory(tmp_path / "none").status == "ok"


def test_memory_is_in_bytes(tmp_path: Path) -> None:
    file = tmp_path / "meminfo"
    file.write_text("MemTotal:       2048 kB\nMemFree: 5 kB\nMemAvailable:   1024 kB\n")
    assert doctor.memory(file).data == {"total": 2 << 20, "available": 1 << 20}


@pytest.mark.skipif(sys.platform == "win32", reason="no such limit")
@pytest.mark.parametrize(("soft", "status"), [(256, "remark"), (4096, "ok")])
def test_few_open_files_are_a_remark(
    monkeypatch: pytest.MonkeyPatch, soft: int, status: str
) -> None:
    import resource

    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, resource.RLIM_INFINITY))
    check = doctor.open_files()
    assert (check.status, check.data["soft"], check.data["hard"]) == (status, soft, None)


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("LLAMA_ARG_PORT", str(free_port()))
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert main(["doctor", "--json"]) == 0
    as_json = json.loads(capsys.readouterr().out)
    assert as_json["ok"] is True
    names = [check["name"] for check in as_json["checks"]]
    assert names == [line.partition(":")[0] for line in lines]
    assert {"versions", "instruction sets", "kernels", "devices", "port"} <= set(names)


def test_the_command_fails_if_something_will_not_work(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setitem(os.environ, "LLAMA_ARG_PORT", str(server.getsockname()[1]))
        assert main(["doctor"]) == 1
        assert "FAULT" in capsys.readouterr().out
        assert main(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_it_does_not_load_llama_cpp_itself() -> None:
    code = "import sys, specllama.commands.doctor; print('llama_cpp' in sys.modules)"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
