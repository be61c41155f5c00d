"""llama.cpp's libraries in one process: each once, and all from one folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import llama_cpp
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend import loaded

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
    folder = tmp_path_factory.mktemp("build") / "lib"
    shutil.copytree(LIBRARIES, folder, symlinks=True)
    return folder


def probe(folder: Path, *args: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROBE, *args],
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


def test_the_libraries_may_be_in_several_folders_but_each_once() -> None:
    paths = [Path("/a/libggml.so.0"), Path("/b/libggml-base.so.0.9"), Path("/a/libllama.so")]
    loaded.check(paths)
    with pytest.raises(BackendError, match="two copies of ggml-base"):
        loaded.check([*paths, Path("/a/libggml-base.so")])
