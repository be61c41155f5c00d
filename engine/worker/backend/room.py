"""One sentence for a model or a KV cache that a device has no room for: how much is there, what was
asked, and what would fit."""

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
"""llama.cpp rounds contexts up to these many tokens."""
_F16 = 1  # GGML_TYPE_F16
_MOST = 50  # of bits in a tensor's size
REMEDIES = (
    "-ctk q8_0 -ctv q8_0 halve the KV cache, -nkvo keeps it in host memory, "
    "a smaller -ngl keeps layers there"
)


class OutOfMemoryError(BackendError):
    """There is no memory for what a batch needs while it is computed."""

    def __init__(self) -> None:
        free = [
            f"{name} has {mib(free)} of {mib(total)} free" for name, _, free, total in devices()
        ]
        reason = failure("there is no memory left to evaluate this")
        remedy = "a smaller -ub or -c needs less"
        super().__init__("; ".join([str(reason), *free, remedy]))


@contextmanager
def last_words(say: Callable[[str], None]) -> Iterator[None]:
    """While a model is loaded: `say` gets a sentence about an assertion that fails in llama.cpp, as
    where a device takes no tensor as large as a part of the KV cache. Then this process ends."""

    def explained(message: str) -> None:
        parts = [f"llama.cpp gives up: {message}", explain(holdings, fits_in_tensors(holdings))]
        say("; ".join(filter(None, parts)))

    with on_abort(explained):
        yield


def is_short(error: str) -> bool:
    """Whether llama.cpp's reason is that there is no memory: most backends fail or are unable to
    allocate, and CUDA's cudaMalloc failed, out of memory. The error has a path in it, too."""
    return any(sign in error for sign in ("to allocate", "out of memory"))


def explain(told: Holdings, fits: int = 0) -> str:
    """The sentence on the newest context; "" if no device holds anything of the model. `fits` is a
    number of tokens that would fit, 0 if that is unknown."""
    parts = [
        f"{name} has {mib(free)} of {mib(total)} free beside {mib(use.model)} of weights"
        + (f" and {mib(use.kv_cache)} of KV cache" if use.kv_cache else "")
        for name, _, free, total in devices()
        for use in told.by_device({name: ""})
        if use.name == name
    ]
    if not parts or not told.n_ctx:
        return ""
    smaller = f"-c {fits} would fit" if fits else "less may fit with a smaller -c"
    asked = f"{told.n_ctx} tokens were asked for"
    return f"{'; '.join(parts)}; {asked}: {smaller}, {REMEDIES}"


def explain_host() -> str:
    """The end of a sentence on what the machine has no memory for."""
    host = host_memory()
    free = f"{mib(host.available)} of {mib(host.total)} are free; " if host else ""
    return f"{free}a smaller -c, or -ctk q8_0 -ctv q8_0, needs less"


def explain_weights(told: Holdings, path: str) -> str:
    """The sentence on the weights of the file at `path` and its other parts; "" if no layer was to
    be on a device."""
    n_bytes = _size(path)
    there = [each for each in devices() if told.layers.get(each[0])]
    n_layers = sum(told.layers.values())
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


def fits_in_tensors(told: Holdings) -> int:
    """The tokens for which every device takes the tensors of the KV cache; 0 if that is unknown, or
    the newest context is no larger."""
    most = most_in_tensors(told)
    return int(most) // STEP * STEP if most < told.n_ctx else 0


def most_in_tensors(told: Holdings) -> float:
    """The same for any context, judged by the tensors of the newest one; infinite if no device has
    any.

    A device may have memory for a buffer, and still refuse a tensor as large as that."""
    found = math.inf
    for use in told.by_device({name: "" for name, *_ in devices()}):
        n_layers = told.cached_layers.get(use.name, 0)
        if use.kv_cache and n_layers:
            each = use.kv_cache / (2 * n_layers)
            found = min(found, told.n_ctx * largest_tensor(use.name) / each)
    return found


def fits_by_trial(n_ctx: int, least: int, works: Callable[[int], bool]) -> int:
    """A number of tokens below `n_ctx` for which `works` is true, to a sixteenth of it; 0 if there
    is none from `least` on."""
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
    """Bytes of a tensor that `device` can work with."""
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
