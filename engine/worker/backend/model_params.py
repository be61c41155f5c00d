"""llama.cpp's parameters for loading a model, from the options."""

import ctypes
from collections.abc import Sequence
from typing import Any

from llama_cpp import llama_cpp as C

from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions
from specllama.engine.options.tables.model import ModelOptions
from specllama.engine.worker.backend.ggml import function as ggml
from specllama.engine.worker.backend.ggml import tensor_overrides
from specllama.engine.worker.backend.kernels import settle
from specllama.engine.worker.backend.library import devices
from specllama.engine.worker.backend.verdict import Measure

# ---- The way in which a model's file is read into memory.


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


_SPLIT_MODES = {
    "none": C.LLAMA_SPLIT_MODE_NONE,
    "layer": C.LLAMA_SPLIT_MODE_LAYER,
    "row": C.LLAMA_SPLIT_MODE_ROW,
}


def model_params(options: EngineOptions) -> tuple[Any, Any]:
    """The parameters, and the objects that they point to, which the caller must keep alive, as
    ctypes keeps no reference. Raises `BackendError` for an unknown device or buffer type."""
    params = C.llama_model_default_params()
    layers = options.compute.n_gpu_layers
    params.n_gpu_layers = -1 if layers in ("auto", "all") else int(layers)
    params.split_mode = _SPLIT_MODES[options.compute.split_mode]
    params.main_gpu = options.compute.main_gpu
    params.load_mode, params.lazy_mode = modes(options.model)
    params.check_tensors = options.model.check_tensors
    params.use_extra_bufts = options.model.repack and settle().measure is not Measure.PLAIN
    params.no_host = options.model.no_host
    split = _tensor_split(options)
    if split is not None:
        params.tensor_split = split
    overrides = kv_overrides(options.model.override_kv)
    if overrides is not None:
        params.kv_overrides = overrides
    placed = tensor_overrides(options)
    if placed is not None:
        params.tensor_buft_overrides = ctypes.cast(placed, ctypes.c_void_p)
    chosen = _device_list(options.compute.device)
    if chosen is not None:
        params.devices = ctypes.cast(chosen, ctypes.c_void_p)
    return params, (split, overrides, placed, chosen)


def _tensor_split(options: EngineOptions) -> Any:
    if not options.compute.tensor_split:
        return None
    shares = (ctypes.c_float * C.llama_max_devices())()
    for i, share in enumerate(options.compute.tensor_split[: len(shares)]):
        shares[i] = share
    return shares


def kv_overrides(texts: Sequence[str]) -> Any:
    """A zero-terminated array of KEY=TYPE:VALUE texts, which the options have validated."""
    if not texts:
        return None
    array = (C.llama_model_kv_override * (len(texts) + 1))()
    for entry, text in zip(array, texts, strict=False):
        key, _, typed = text.partition("=")
        kind, _, value = typed.partition(":")
        entry.key = key.encode()
        if kind == "int":
            entry.tag = C.LLAMA_KV_OVERRIDE_TYPE_INT
            entry.value.val_i64 = int(value)
        elif kind == "float":
            entry.tag = C.LLAMA_KV_OVERRIDE_TYPE_FLOAT
            entry.value.val_f64 = float(value)
        elif kind == "bool":
            entry.tag = C.LLAMA_KV_OVERRIDE_TYPE_BOOL
            entry.value.val_bool = value == "true"
        else:
            entry.tag = C.LLAMA_KV_OVERRIDE_TYPE_STR
            entry.value.val_str = value.encode()
    return array


def _device_list(names: Sequence[str]) -> Any:
    if not names:
        return None
    if list(names) == ["none"]:
        return (ctypes.c_void_p * 1)()
    handles = [device_handle(name) for name in names]
    return (ctypes.c_void_p * (len(handles) + 1))(*handles)


def device_handle(name: str) -> int:
    """llama.cpp's handle of a device. Raises `BackendError` for an unknown one."""
    by_name = ggml("ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)
    handle: int | None = by_name(name.encode())
    if not handle:
        known = ", ".join(device[0] for device in devices()) or "none"
        raise BackendError(f"unknown device {name!r} (available: {known})")
    return handle
