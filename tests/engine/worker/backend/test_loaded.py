"""llama.cpp's libraries in one process: each once, and all from one folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import llama_cpp
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend import ggml, loaded

pytestmark = pytest.mark.slow

LIBRARIES = Path(llama_cpp.__file__).parent / "lib"
_PROBE = """
import sys
from specllama.engine.worker.backend import BackendError, ggml, initialize, list_devices, loaded
if "mtmd" in sys.argv:
    import llama_cpp.mtmd_cpp
if "second" in sys.argv:
    import llama_cpp._ggml
try:
    initialize()
    list_devices()
    ggml.function("ggml_type_size", None)  # of ggml-base
except BackendError as error:
    print(error)
else:
    print(*loaded.libraries(), sep="\\n")
"""
linux = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another build: the same libraries in another folder."""
    packages = tmp_path_factory.mktemp("build")
    folder = packages / "llama_cpp" / "lib"
    shutil.copytree(LIBRARIES, folder, symlinks=True)
    # auditwheel puts libgomp there, beside the package.
    bundled = LIBRARIES.parents[1] / "llama_cpp_python.libs"
    if bundled.is_dir():
        shutil.copytree(bundled, packages / bundled.name)
    return folder


def probe(folder: Path, *args: str, cwd: Path | None = None, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, *args],
        cwd=cwd,
        env={**os.environ, "LLAMA_CPP_LIB_PATH": str(folder), **environ},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@linux
def test_all_libraries_are_from_the_folder_that_is_named(elsewhere: Path) -> None:
    files = [Path(line) for line in probe(elsewhere, "mtmd").splitlines()]
    assert {path.name.partition(".")[0] for path in files} >= {"libllama", "libggml", "libmtmd"}
    assert {path.parent for path in files} == {elsewhere}


@linux
def test_a_second_copy_of_ggml_is_refused(elsewhere: Path) -> None:
    said = probe(elsewhere, "second")
    assert said.startswith("two copies of ggml")
    assert str(elsewhere) in said
    assert str(LIBRARIES) in said


@linux
def test_libraries_of_two_builds_are_refused(elsewhere: Path) -> None:
    said = probe(elsewhere, "mtmd", MTMD_CPP_LIB=str(LIBRARIES))
    assert said.startswith("libraries of two builds are loaded")


@linux
def test_no_backend_is_loaded_from_the_working_directory(tmp_path: Path) -> None:
    """ggml itself searches there, where backends are separate libraries."""
    variants = [path for path in map(Path, probe(LIBRARIES).splitlines()) if _is_variant(path)]
    if not variants:
        pytest.skip("this llama.cpp has its backend for the CPU linked in")
    [best] = variants
    shutil.copy(best, tmp_path / "libggml-cpu-x.so")
    assert [
        Path(p) for p in probe(LIBRARIES, cwd=tmp_path).splitlines() if _is_variant(Path(p))
    ] == [best]


def _is_variant(path: Path) -> bool:
    return path.name.startswith("libggml-cpu-")


@pytest.mark.parametrize(("n_backends", "loaded_from"), [(0, [b"/somewhere/lib"]), (1, [])])
def test_backends_are_loaded_from_the_folder_of_libllama(
    monkeypatch: pytest.MonkeyPatch, n_backends: int, loaded_from: list[bytes]
) -> None:
    folders: list[bytes] = []
    functions = {
        "ggml_backend_reg_count": lambda: n_backends,
        "ggml_backend_load_all_from_path": folders.append,
        "ggml_log_set": lambda *callback: None,
    }
    monkeypatch.setattr(ggml, "function", lambda name, *types: functions[name])
    library = SimpleNamespace(_name="/somewhere/lib/libllama.so")
    monkeypatch.setattr(llama_cpp.llama_cpp, "_lib", library)
    ggml.load_backends()
    assert folders == loaded_from


def test_the_libraries_may_be_in_several_folders_but_each_once() -> None:
    paths = [Path("/a/libggml.so.0"), Path("/b/libggml-base.so.0.9"), Path("/a/libllama.so")]
    loaded.check(paths)
    with pytest.raises(BackendError, match="two copies of ggml-base"):
        loaded.check([*paths, Path("/a/libggml-base.so")])
