"""The libraries of llama.cpp that this process has loaded.

Each must be loaded only once: buffers, devices and thread pools of one copy of ggml are invalid in
another one.
"""

import ctypes
import sys
from collections.abc import Iterable
from pathlib import Path

from specllama.engine.errors import BackendError

_LLAMA = {"llama", "mtmd"}
"""The libraries that must be from the same build, as structs of llama.cpp change between builds."""


def libraries() -> list[Path]:
    """The loaded files of llama.cpp and ggml; empty where the system doesn't list them."""
    return sorted({path for path in _files() if _is_ours(_name(path))})


def check(paths: Iterable[Path]) -> None:
    """Raises `BackendError` if a library is loaded twice, or if those of llama.cpp are from
    different folders."""
    by_name: dict[str, Path] = {}
    for path in paths:
        if (other := by_name.setdefault(_name(path), path)) != path:
            raise BackendError(f"two copies of {_name(path)} are loaded: {_both(other, path)}")
    llama, mtmd = by_name.get("llama"), by_name.get("mtmd")
    if llama and mtmd and llama.parent != mtmd.parent:
        raise BackendError(f"libraries of two builds are loaded: {_both(llama, mtmd)}")


def _both(one: Path, other: Path) -> str:
    return (
        f"{one} and {other}; LLAMA_CPP_LIB_PATH names the folder for all of them "
        "(and MTMD_CPP_LIB, if set, the same)"
    )


def _name(path: Path) -> str:
    """`ggml-base` of `libggml-base.so.0.25.3`."""
    return path.name.partition(".")[0].removeprefix("lib")


def _is_ours(name: str) -> bool:
    return name in _LLAMA or name == "ggml" or name.startswith("ggml-")


def _files() -> list[Path]:
    if sys.platform == "linux":
        lines = Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines()
        fields = [line.split(maxsplit=5) for line in lines]
        return [Path(each[5]) for each in fields if len(each) == 6 and each[5].startswith("/")]
    if sys.platform == "darwin":
        loader = ctypes.CDLL(None)
        name = loader._dyld_get_image_name
        name.restype, name.argtypes = ctypes.c_char_p, [ctypes.c_uint32]
        return [Path(name(i).decode()) for i in range(loader._dyld_image_count())]
    return []
