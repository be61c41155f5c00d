"""Kernels of llama.cpp that are tried before they are trusted.

They need instruction sets that a compiler may get wrong. llama.cpp built by GCC 12 on an Intel
processor with AMX dies of an illegal instruction at its first prompt: the compiler takes most of
the tiles' configuration for dead stores (llama.cpp's pull request 26954 mends it). So where both
the processor and the library have such a set, a child process multiplies some matrices
(`engine.worker.backend.probe`), and what fails there is switched off here.
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
    """An instruction set whose kernels are tried, and how to do without.

    It is `flag` among those of the processor in /proc/cpuinfo, `feature` among those that ggml
    was built with; its kernels multiply weights in buffers of `buffer_type`. `cost`: what it is to
    be without; `rebuild`: environment variables for a build that gets it right.
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
        # Measured with Q8_0: 0.48 of the speed in prompts, 0.4 in generating.
        cost="about half of the speed with quantized models",
        # GCC then keeps the stores of the tiles' configuration.
        rebuild='CXXFLAGS="-fno-dse -fno-tree-dse"',
    ),
)
"""`refuse` knows how to keep ggml from all of them."""


class Settled(NamedTuple):
    """The measure that is taken, and one line for the log about it; "" if none is needed."""

    measure: Measure
    remark: str = ""


@functools.cache
def settle() -> Settled:
    """Switch off the kernels that don't work: once per process, before anything else uses ggml.
    After `Measure.PLAIN` weights must not be rearranged.

    Raises `BackendError` if products come out wrong whatever is switched off."""
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
    if not possible:  # then the library needn't be asked
        return []
    built = features()
    return [each for each in possible if each.feature in built]


def explain(found: KernelVerdict, tried: Collection[InstructionSet]) -> str:
    """One line: what happened, what it costs, and what to do."""
    from importlib.metadata import version  # slow to import, and rarely needed

    names = " and ".join(each.buffer_type for each in tried)
    kernels = f"{names} kernels are off"
    if found.measure is Measure.PLAIN:
        kernels = f"{names} kernels and all others for rearranged weights are off (--no-repack)"
    costs = " and ".join(each.cost for each in tried)
    rebuild = " ".join(each.rebuild for each in tried)
    return (
        f"llama.cpp's {kernels}, as they failed a test ({found.reason}), which costs {costs}; to "
        f"build it anew with kernels that work: {rebuild} pip install --force-reinstall "
        f"--no-cache-dir --no-deps llama-cpp-python=={version('llama-cpp-python')}"
    )


# ---- queries and calls of ggml -------------------------------------------------------------


def features() -> dict[str, str]:
    """The features that ggml's CPU backend was built with, by its own names."""

    class Feature(ctypes.Structure):
        _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))

    get = of_cpu("ggml_backend_get_features", ctypes.POINTER(Feature), ctypes.c_void_p)
    listed = get(None)
    found: dict[str, str] = {}
    while (feature := listed[len(found)]).name is not None:
        found[feature.name.decode()] = feature.value.decode()
    return found


def library() -> Path:
    """The file that holds ggml's kernels for the CPU. Linux only."""

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
    """Keep ggml from `sets` for the life of this process. False if that comes too late, or is
    of no use: then weights must not be rearranged at all.

    ggml asks Linux for the use of AMX's tiles (arch_prctl, ARCH_REQ_XCOMP_PERM) once, when it
    makes its list of buffer types. It is refused if a thread has an alternate signal stack
    without room for them, as this one has for that moment.
    """
    with _small_signal_stack(), _silence():  # ggml says on stderr that AMX isn't ready
        listed = extra_buffer_types()
    return not listed.keys() & {each.buffer_type for each in sets}


class _Stack(ctypes.Structure):
    """stack_t"""

    _fields_ = (("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


_SMALL = 8192  # bytes: a signal's frame has room there without tiles, and hasn't with them


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
