"""Builds a wheel of the pinned llama-cpp-python that runs on every processor of its architecture.

    python packaging/portable_wheel.py [--output DIRECTORY]

`pip install .` compiles kernels for the processor of the machine that builds. This wheel has a
library for each kind of processor, and ggml loads the best one when a process starts
(`engine.worker.backend.ggml.load_backends`). The build needs a C++ compiler, cmake, ninja and
17 minutes of processor time. The compiler's output is shown meanwhile.

On Linux, auditwheel adds libgomp and names the oldest glibc that the wheel runs with: that of the
machine that builds. So a release is built in an old container.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = "llama_cpp/lib"
"""Where llama-cpp-python looks for its libraries."""

CMAKE_ARGS = (
    "-DGGML_NATIVE=OFF",
    "-DGGML_BACKEND_DL=ON",
    "-DGGML_CPU_ALL_VARIANTS=ON",
    # ggml installs its variants to these folders; llama-cpp-python installs only a fixed list.
    f"-DCMAKE_INSTALL_BINDIR={FOLDER}",
    f"-DCMAKE_INSTALL_LIBDIR={FOLDER}",
    "-DCMAKE_INSTALL_INCLUDEDIR=llama_cpp/include",
    # Its variants find ggml-base in their own folder.
    f"-DCMAKE_INSTALL_RPATH={'@loader_path' if sys.platform == 'darwin' else '$ORIGIN'}",
    # Only downloads by llama.cpp's own programs need it, and the wheel has no such program.
    "-DLLAMA_OPENSSL=OFF",
    # One file for each library. A wheel has no links: libllama.so.0 would be a second copy.
    "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
)
CXXFLAGS = "-fno-dse -fno-tree-dse"
"""For GCC, which otherwise miscompiles the variant for AMX (`engine.worker.backend.kernels`)."""

MIN_VARIANTS = 3
"""Libraries for kinds of processors; each architecture has more."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=Path("dist"), help="folder (default: dist)")
    parser.add_argument("--quiet", action="store_true", help="hide the compiler's output")
    given = parser.parse_args(argv)
    # cmake, ninja, auditwheel and patchelf may be in this environment without being activated.
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    tools = ["cmake", "ninja", *(["auditwheel", "patchelf"] if sys.platform == "linux" else [])]
    if missing := [tool for tool in tools if shutil.which(tool) is None]:
        parser.error(f"not found: {', '.join(missing)} (pip install {' '.join(missing)})")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        built = build(Path(scratch), verbose=not given.quiet)
        check(files(built))
        given.output.mkdir(parents=True, exist_ok=True)
        wheel = Path(shutil.copy2(repaired(built), given.output))
    minutes = (time.monotonic() - began) / 60
    print(f"{wheel} ({wheel.stat().st_size / 1e6:.1f} MB, built in {minutes:.0f} minutes)")
    return 0


def requirement() -> str:
    """llama-cpp-python as pyproject.toml pins it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    [pinned] = [each for each in project["dependencies"] if each.startswith("llama-cpp-python==")]
    return str(pinned)


def build(directory: Path, *, verbose: bool) -> Path:
    """The wheel as pip builds it from the source distribution."""
    environ = dict(os.environ)
    environ["CMAKE_ARGS"] = " ".join((*CMAKE_ARGS, environ.get("CMAKE_ARGS", ""))).strip()
    if sys.platform == "linux":
        environ["CXXFLAGS"] = f"{CXXFLAGS} {environ.get('CXXFLAGS', '')}".strip()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-cache-dir"]
    command += ["--no-binary", "llama-cpp-python", "--wheel-dir", str(directory), requirement()]
    subprocess.run([*command, *(["--verbose"] if verbose else [])], env=environ, check=True)
    [wheel] = directory.glob("llama_cpp_python-*.whl")
    return wheel


def files(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def check(names: Iterable[str]) -> None:
    """Ends the program if libraries of llama.cpp are missing, or are where they are not found."""
    libraries = [name for name in names if re.search(r"\.(so|dylib|dll)(\.[\d.]+)?$", name)]
    misplaced = [name for name in libraries if not name.startswith(f"{FOLDER}/")]
    if misplaced:
        sys.exit(f"libraries outside of {FOLDER}: {', '.join(misplaced)}")
    stems = [Path(name).name.removeprefix("lib").partition(".")[0] for name in libraries]
    if twice := sorted({stem for stem in stems if stems.count(stem) > 1}):
        sys.exit(f"more than one file each: {', '.join(twice)}")
    if missing := {"llama", "ggml", "ggml-base", "mtmd"} - set(stems):
        sys.exit(f"missing libraries: {', '.join(sorted(missing))}")
    variants = sorted(stem for stem in stems if stem.startswith("ggml-cpu-"))
    if len(variants) < MIN_VARIANTS:
        sys.exit(f"variants for {platform.machine()}: {', '.join(variants) or 'none'}")
    print("variants:", ", ".join(name.removeprefix("ggml-cpu-") for name in variants))


def repaired(wheel: Path) -> Path:
    """On Linux the wheel with libgomp in it and with the tag of the glibc it needs."""
    if sys.platform != "linux":
        return wheel
    directory = wheel.parent / "repaired"
    subprocess.run(["auditwheel", "repair", "--wheel-dir", str(directory), str(wheel)], check=True)
    [result] = directory.glob("*.whl")
    return result


if __name__ == "__main__":
    sys.exit(main())
