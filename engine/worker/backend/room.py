"""Explains in one sentence that a device has no room for a model or a KV cache: the free memory,
the requested size, and what would fit."""

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specllama.engine.errors import BackendError
from specllama.engine.formats.gguf_names import part
from specllama.engine.wire.devices import mib
from specllama.engine.worker.backend.ggml import InitParams
from specllama.engine.worker.backend.ggml import function as ggml
from specllama.engine.worker.backend.library import devices, failure, holdings, on_abort
from specllama.engine.worker.backend.memory import Holdings, host_memory

STEP = 256
"""llama.cpp rounds contexts up to a multiple of this many tokens."""
_F16 = 1  # GGML_TYPE_F16
_MOST = 50  # bits of the largest tensor size to try
REMEDIES = (
    "-ctk q8_0 -ctv q8_0 halve the KV cache, -nkvo keeps it in host memory, "
    "a smaller -ngl keeps layers there"
)


class OutOfMemoryError(BackendError):
    """There is no memory for computing a batch."""

    def __init__(self) -> None:
        free = [
            f"{name} has {mib(free)} of {mib(total)} free" for name, _, free, total in devices()
        ]
        reason = failure("there is no memory left to evaluate this")
        remedy = "a smaller -ub or -c needs less"
        super().__init__("; ".join([str(reason), *free, remedy]))


@contextmanager
def reported_abort(say: Callable[[str], None]) -> Iterator[None]:
    """A context for loading a model. If an assertion fails in llama.cpp, for instance because a
    device doesn't support a tensor as large as a part of the KV cache, a sentence about it is
    passed to `say`, and this process ends."""

    def explained(message: str) -> None:
        parts = [f"llama.cpp aborted: {message}", explain(holdings, fits_in_tensors(holdings))]
        say("; ".join(filter(None, parts)))

    with on_abort(explained):
        yield


def is_short(error: str) -> bool:
    """True if llama.cpp's reason is a lack of memory. Most backends log "failed to allocate" or
    "unable to allocate", CUDA logs "cudaMalloc failed: out of memory". The error also contains a
    path, so these phrases are matched as a whole."""
    return any(sign in error for sign in ("to allocate", "out of memory"))


def explain(held: Holdings, fits: int = 0) -> str:
    """The sentence about the newest context; "" if no device holds a part of the model. `fits` is a
    number of tokens that would fit, 0 if unknown."""
    parts = [
        f"{name} has {mib(free)} of {mib(total)} free beside {mib(use.model)} of weights"
        + (f" and {mib(use.kv_cache)} of KV cache" if use.kv_cache else "")
        for name, _, free, total in devices()
        for use in held.by_device({name: ""})
        if use.name == name
    ]
    if not parts or not held.n_ctx:
        return ""
    smaller = f"-c {fits} would fit" if fits else "less may fit with a smaller -c"
    asked = f"{held.n_ctx} tokens were asked for"
    return f"{'; '.join(parts)}; {asked}: {smaller}, {REMEDIES}"


def explain_host() -> str:
    """The end of the sentence if the host has no memory for a context."""
    host = host_memory()
    free = f"{mib(host.available)} of {mib(host.total)} are free; " if host else ""
    return f"{free}a smaller -c, or -ctk q8_0 -ctv q8_0, needs less"


def explain_weights(held: Holdings, path: str) -> str:
    """The sentence about the weights of the file at `path`, including its other parts; "" if no
    layer was to be on a device."""
    n_bytes = _size(path)
    there = [each for each in devices() if held.layers.get(each[0])]
    n_layers = sum(held.layers.values())
    if not there:
        return ""
    parts = [f"{name} has {mib(free)} of {mib(total)} free" for name, _, free, total in there]
    n_fit = int(n_layers * sum(free for _, _, free, _ in there) / max(1, n_bytes))
    most = f"about -ngl {n_fit} would fit" if n_fit < n_layers else "a smaller -ngl may fit"
    return f"{'; '.join(parts)}; {n_layers} layers take {mib(n_bytes)}: {most}"


def _size(path: str) -> int:
    split = part(path)
    files = [split.file_name(i + 1) for i in range(split.count)] if split else [path]
    return sum(os.path.getsize(file) for file in files)


def fits_in_tensors(held: Holdings) -> int:
    """The largest context in tokens for which every device supports the tensors of the KV cache; 0
    if unknown, or if the newest context isn't larger than that."""
    most = most_in_tensors(held)
    return int(most) // STEP * STEP if most < held.n_ctx else 0


def most_in_tensors(held: Holdings) -> float:
    """As `fits_in_tensors`, without rounding or limit, computed from the tensors of the newest
    context; infinite if no device has any.

    A device may have memory for a buffer, but not support a tensor of that size."""
    found = math.inf
    for use in held.by_device({name: "" for name, *_ in devices()}):
        n_layers = held.cached_layers.get(use.name, 0)
        if use.kv_cache and n_layers:
            each = use.kv_cache / (2 * n_layers)
            found = min(found, held.n_ctx * largest_tensor(use.name) / each)
    return found


def fits_by_trial(n_ctx: int, least: int, works: Callable[[int], bool]) -> int:
    """The largest number of tokens below `n_ctx` for which `works` is true, to about a sixteenth; 0
    if there is none from `least` on."""
    bad, good = n_ctx, 0
    while not good:
        half = bad // 2 // STEP * STEP
        if half < least:
            return 0
        good, bad = (half, bad) if works(half) else (0, half)
    for _ in range(3):
        middle = (good + bad) // 2 // STEP * STEP
        if middle > good:
            good, bad = (middle, bad) if works(middle) else (good, middle)
    return good


def largest_tensor(device: str) -> int:
    """The size in bytes of the largest tensor that `device` supports."""
    pointer = ctypes.c_void_p
    handle = ggml("ggml_backend_dev_by_name", pointer, ctypes.c_char_p)(device.encode())
    supports = ggml("ggml_backend_dev_supports_op", ctypes.c_bool, pointer, pointer)
    new = ggml("ggml_new_tensor_1d", pointer, pointer, ctypes.c_int, ctypes.c_int64)
    context = ggml("ggml_init", pointer, InitParams)(InitParams(1 << 20, None, True))
    low, high = 0, 1 << _MOST
    try:
        while high - low > 1 << 10:
            middle = (low + high) // 2
            fine = supports(handle, new(context, _F16, middle // 2))
            low, high = (middle, high) if fine else (low, middle)
    finally:
        ggml("ggml_free", None, pointer)(context)
    return low
