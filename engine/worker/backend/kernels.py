"""Kernels of llama.cpp that are tested before they are used.

They need instruction sets for which a compiler may generate wrong code. llama.cpp built by GCC 12
on an Intel processor with AMX ends with an illegal instruction at its first prompt: the compiler
treats most of the tiles' configuration as dead stores (fixed by llama.cpp's pull request 26954). So
if both the processor and the library have such an instruction set, a child process multiplies some
matrices (`engine.worker.backend.probe`), and kernels that fail there are switched off here.
"""

import ctypes
import functools
import os
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from specllama.engine.errors import BackendError
from specllama.engine.host import Processor, this_processor
from specllama.engine.worker.backend import verdict
from specllama.engine.worker.backend.ggml import address_of_cpu, extra_buffer_types, of_cpu
from specllama.engine.worker.backend.verdict import KernelVerdict, Measure


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """An instruction set whose kernels are tested.

    `flag` is its name in /proc/cpuinfo, `feature` its name among ggml's build features; its kernels
    multiply weights in buffers of `buffer_type`. `cost` describes the loss without it; `rebuild`
    has the environment variables for a correct build.
    """

    flag: str
    feature: str
    buffer_type: str
    cost: str
    rebuild: str


TRIED = (
    InstructionSet(
        flag="amx_int8",
        feature="AMX_INT8",
        buffer_type="AMX",
        # Measured with Q8_0: 0.48 of the speed for prompts, 0.4 for generating.
        cost="about half of the speed with quantized models",
        # GCC then keeps the stores of the tiles' configuration.
        rebuild='CXXFLAGS="-fno-dse -fno-tree-dse"',
    ),
)
"""The tested instruction sets. `refuse` can switch off all of them."""


class Settled(NamedTuple):
    """The applied measure, and a warning about it; "" if none is needed."""

    measure: Measure
    remark: str = ""


@functools.cache
def settle() -> Settled:
    """Switch off the kernels that don't work: once per process, before anything else uses ggml.
    After `Measure.PLAIN`, weights must not be rearranged.

    Raises `BackendError` if products are wrong under every measure."""
    processor = this_processor()
    tried = to_try(processor)
    if not tried:
        return Settled(Measure.AS_BUILT)
    found = verdict.find(library(), processor, os.environ)
    if found.measure is Measure.REFUSED and not refuse(tried):
        found = KernelVerdict(Measure.PLAIN, found.reason)
    remark = "" if found.measure is Measure.AS_BUILT else explain(found, tried)
    return Settled(found.measure, remark)


def to_try(processor: Processor) -> list[InstructionSet]:
    """The features of `TRIED` that both this library and `processor` have."""
    possible = [each for each in TRIED if each.flag in processor.flags]
    if not possible:  # saves reading the library's features
        return []
    built = features()
    return [each for each in possible if each.feature in built]


def explain(found: KernelVerdict, tried: Collection[InstructionSet]) -> str:
    """The warning in one line: the failure, its cost, and the remedy."""
    from importlib.metadata import version  # slow to import, and rarely needed

    names = " and ".join(each.buffer_type for each in tried)
    kernels = f"{names} kernels are off"
    if found.measure is Measure.PLAIN:
        kernels = f"{names} kernels and all others for rearranged weights are off (--no-repack)"
    costs = " and ".join(each.cost for each in tried)
    rebuild = " ".join(each.rebuild for each in tried)
    return (
        f"llama.cpp's {kernels}, as they failed a test ({found.reason}), which costs {costs}; to "
        f"rebuild it with working kernels: {rebuild} pip install --force-reinstall "
        f"--no-cache-dir --no-deps llama-cpp-python=={version('llama-cpp-python')}"
    )


# ---- queries and calls of ggml -------------------------------------------------------------


def features() -> dict[str, str]:
    """The build features of ggml's CPU backend, with ggml's names."""

    class Feature(ctypes.Structure):
        _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))

    get = of_cpu("ggml_backend_get_features", ctypes.POINTER(Feature), ctypes.c_void_p)
    listed = get(None)
    found: dict[str, str] = {}
    while (feature := listed[len(found)]).name is not None:
        found[feature.name.decode()] = feature.value.decode()
    return found


def library() -> Path:
    """The file with ggml's CPU kernels. Linux only."""

    class Info(ctypes.Structure):
        _fields_ = (
            ("path", ctypes.c_char_p),
            ("base", ctypes.c_void_p),
            ("symbol", ctypes.c_char_p),
            ("address", ctypes.c_void_p),
        )

    info = Info()
    function = ctypes.c_void_p(address_of_cpu("ggml_backend_get_features"))
    if not ctypes.CDLL(None).dladdr(function, ctypes.byref(info)):
        raise BackendError("the file of llama.cpp's kernels can't be found")
    return Path(os.fsdecode(info.path))


def refuse(sets: Collection[InstructionSet]) -> bool:
    """Prevent ggml from using `sets` in this process. Returns False if that had no effect: then
    weights must not be rearranged at all.

    ggml requests the use of AMX's tiles from Linux (arch_prctl, ARCH_REQ_XCOMP_PERM) once, when it
    makes its list of buffer types. Linux refuses it if a thread has an alternate signal stack that
    is too small for them, as this thread has during the call.
    """
    with _small_signal_stack(), _silence():  # ggml prints to stderr that AMX isn't ready
        listed = extra_buffer_types()
    return not listed.keys() & {each.buffer_type for each in sets}


class _Stack(ctypes.Structure):
    """stack_t"""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_SMALL = 8192  # bytes: enough for a signal frame without tiles, too small with them


@contextmanager
def _small_signal_stack() -> Iterator[None]:
    libc = ctypes.CDLL(None)
    room = ctypes.create_string_buffer(_SMALL)
    small, before = _Stack(ctypes.addressof(room), 0, _SMALL), _Stack()
    is_set = libc.sigaltstack(ctypes.byref(small), ctypes.byref(before)) == 0
    try:
        yield
    finally:
        if is_set:
            libc.sigaltstack(ctypes.byref(before), None)


@contextmanager
def _silence() -> Iterator[None]:
    sys.stderr.flush()
    stderr, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        os.close(null)
