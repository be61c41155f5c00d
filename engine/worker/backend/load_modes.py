"""How a model's file comes into memory, in llama.cpp's terms."""

from llama_cpp import llama_cpp as C

from specllama.engine.options.tables.model import ModelOptions

_LOAD_MODES = {
    "none": C.LLAMA_LOAD_MODE_NONE,
    "mmap": C.LLAMA_LOAD_MODE_MMAP,
    "mlock": C.LLAMA_LOAD_MODE_MLOCK,
    "mmap+mlock": C.LLAMA_LOAD_MODE_MMAP_MLOCK,
    "dio": C.LLAMA_LOAD_MODE_DIRECT_IO,
}
_LAZY_MODES = {
    "on": C.LLAMA_LAZY_MODE_ON,
    "off": C.LLAMA_LAZY_MODE_OFF,
    "auto": C.LLAMA_LAZY_MODE_AUTO,
}


def modes(options: ModelOptions) -> tuple[int, int]:
    """llama.cpp's `load_mode` and `lazy_mode`."""
    return int(_LOAD_MODES[options.how_to_load()]), int(_LAZY_MODES[options.lazy_mode])
