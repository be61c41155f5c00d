"""A Python environment whose llama.cpp computes with Vulkan, and the requirements for building it.

Mesa's software device (llvmpipe) is sufficient: it has device buffers, offloading and a queue of
its own, so it behaves like a GPU in everything except speed.
"""

import ctypes.util
import glob
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from contract_tests.clients.environments import MissingError

INCLUDE = Path("/usr/include")
DRIVERS = ("/usr/share/vulkan/icd.d/*.json", "/etc/vulkan/icd.d/*.json")
NEW_ENOUGH = "VK_EXT_LAYER_SETTINGS_EXTENSION_NAME"
"""A name in the headers from version 1.3.272 on, which llama.cpp needs."""
PINNED = "llama-cpp-python=="


def missing(include: Path = INCLUDE, drivers: Sequence[str] = DRIVERS) -> list[str]:
    """Returns what this machine lacks, with the names of Debian's packages; empty if nothing is
    missing."""
    header = include / "vulkan" / "vulkan_core.h"
    found = []
    if shutil.which("cmake") is None:
        found.append("cmake (cmake)")
    if shutil.which("glslc") is None:
        found.append("a compiler for shaders, glslc (glslc)")
    if not any((path / "spirv").is_dir() for path in (include, INCLUDE)):
        found.append("headers of SPIR-V (spirv-headers)")
    if not header.is_file():
        found.append(f"headers of Vulkan in {include} (libvulkan-dev)")
    elif NEW_ENOUGH not in header.read_text("utf-8"):
        found.append(
            f"newer headers of Vulkan than those in {include}, 1.3.272 at least (libvulkan-dev of "
            "trixie, which may be unpacked into a folder: --vulkan-include FOLDER)"
        )
    if ctypes.util.find_library("vulkan") is None:
        found.append("Vulkan's loader (libvulkan1, libvulkan-dev)")
    if not any(glob.glob(each) for each in drivers):
        found.append(
            "a driver (a GPU's, or mesa-vulkan-drivers, 23 or later: bookworm-backports has one)"
        )
    return found


def pinned(pyproject: str) -> str:
    """Returns the project's requirement of the bindings."""
    return next(part for part in pyproject.split('"') if part.startswith(PINNED))


def make(folder: Path, root: Path, include: Path) -> Path:
    """Returns the interpreter of the environment in `folder`. Creates it, with a newly compiled
    llama.cpp (a quarter of an hour on two processors), if it doesn't exist or has another version.
    Raises `MissingError`."""
    requirement = pinned((root / "pyproject.toml").read_text("utf-8"))
    python, made = folder / "bin" / "python", folder / "made-of.txt"
    if made.is_file() and made.read_text("utf-8") == requirement:
        return python
    if lacks := missing(include):
        raise MissingError(f"this machine lacks {'; '.join(lacks)}")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    build = f"-DGGML_VULKAN=ON -DGGML_RPC=ON -DVulkan_INCLUDE_DIR={include}"
    subprocess.run(
        [str(python), "-m", "pip", "install", "--no-cache-dir", "--no-binary", "llama-cpp-python",
         requirement],
        env={**os.environ, "CMAKE_ARGS": build},
        check=True,
    )  # fmt: skip
    install = [str(python), "-m", "pip", "install", "-q", "-e", f"{root}[dev]"]
    subprocess.run(install, check=True)
    made.write_text(requirement, "utf-8")
    return python
