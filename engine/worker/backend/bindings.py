"""Imports llama-cpp-python's bindings of the C API, without the rest of that package.

Must be imported before any other module of it: the package also imports a high-level API with
template engines and caches, which takes as long as importing numpy.

`LLAMA_CPP_LIB_PATH` names another folder to load libllama from. libmtmd, which has a variable of
its own, is then loaded from there as well. So are ggml's backends, if they are separate
libraries.
"""

import os
import sys
from types import ModuleType

from specllama.engine.worker.backend.ggml import load_backends

_HIGH_LEVEL = "llama_cpp.llama"


def _import_low_level() -> None:
    if "llama_cpp" in sys.modules:
        return
    sys.modules[_HIGH_LEVEL] = ModuleType(_HIGH_LEVEL)
    try:
        import llama_cpp
    finally:
        del sys.modules[_HIGH_LEVEL]
    vars(llama_cpp).pop("llama", None)  # a later import gets the real module


if _folder := os.environ.get("LLAMA_CPP_LIB_PATH"):
    os.environ.setdefault("MTMD_CPP_LIB", _folder)
_import_low_level()
load_backends()
