"""Tests whether ggml multiplies matrices correctly on this processor. Runs in a separate process,
since instructions that the processor or the system refuses end it.

    python -m specllama.engine.worker.backend.probe as-built|refused|plain      (started by
    engine.worker.backend.verdict)

Multiplies quantized weights in every kind of buffer that llama.cpp may use for a model, with batch
sizes for each of their kernels, and compares the products with numpy's. Exit status: 0 if all are
right, `WRONG` with one line on stdout if one isn't.
"""

import ctypes
import sys
from collections.abc import Iterable
from contextlib import suppress

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType as Type
from gguf.quants import dequantize, quant_shape_to_byte_shape

from specllama.engine.worker.backend.ggml import (
    CPU_DEVICE,
    InitParams,
    cpu_buffer_type,
    extra_buffer_types,
)
from specllama.engine.worker.backend.ggml import function as ggml
from specllama.engine.worker.backend.kernels import TRIED, refuse
from specllama.engine.worker.backend.verdict import WRONG, Measure

Floats = npt.NDArray[np.float32]

TYPES = (Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.Q4_K, Type.Q5_K, Type.Q6_K, Type.IQ4_XS, Type.F16)
"""Types in common files that have separate kernels for whole blocks of a matrix."""
N_OUT, N_IN = 64, 512
"""The shape of the weights: whole tiles of every kernel, at least two in each dimension, for
several threads."""
BATCHES = (1, 5, 67)
"""Numbers of rows: one token, a part of a tile, and two tiles plus a remainder."""
TOLERANCE = 0.1
"""Maximum error relative to the products' root mean square. Kernels round the activations to 8
bits, which causes errors up to 0.04 here; a wrong product is off by about 1."""

_MEMORY = 1 << 20  # bytes for the descriptors of a few tensors


class CpuDevice:
    """ggml's CPU device, for one product after the other."""

    def __init__(self) -> None:
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        device = ggml("ggml_backend_dev_by_type", pointer, ctypes.c_int)(CPU_DEVICE)
        self._device = device
        self._backend = ggml("ggml_backend_dev_init", pointer, pointer, ctypes.c_char_p)(
            device, None
        )
        self.plain = cpu_buffer_type()
        self._init = ggml("ggml_init", pointer, InitParams)
        self._free = ggml("ggml_free", None, pointer)
        self._free_buffer = ggml("ggml_backend_buffer_free", None, pointer)
        self._tensor = ggml(
            "ggml_new_tensor_2d", pointer, pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64
        )
        self._mul_mat = ggml("ggml_mul_mat", pointer, pointer, pointer, pointer)
        self._graph = ggml("ggml_new_graph", pointer, pointer)
        self._expand = ggml("ggml_build_forward_expand", None, pointer, pointer)
        self._allocate = ggml("ggml_backend_alloc_ctx_tensors_from_buft", pointer, pointer, pointer)
        self._supports = ggml("ggml_backend_dev_supports_op", ctypes.c_bool, pointer, pointer)
        self._set = ggml("ggml_backend_tensor_set", None, pointer, pointer, size, size)
        self._get = ggml("ggml_backend_tensor_get", None, pointer, pointer, size, size)
        self._compute = ggml("ggml_backend_graph_compute", ctypes.c_int, pointer, pointer)
        self._quantize = ggml(
            "ggml_quantize_chunk", size, ctypes.c_int, pointer, pointer, *[ctypes.c_int64] * 3,
            pointer,
        )  # fmt: skip

    def quantize(self, type: Type, weights: Floats) -> npt.NDArray[np.uint8]:
        """The rows of `weights` in ggml's format of `type`."""
        rows, columns = weights.shape
        data = np.zeros(quant_shape_to_byte_shape(weights.shape, type), np.uint8)
        self._quantize(type, weights.ctypes.data, data.ctypes.data, 0, rows, columns, None)
        return data

    def multiply(
        self, type: Type, weights: npt.NDArray[np.uint8], buffer_type: int, x: Floats
    ) -> Floats | None:
        """`x` (batch, N_IN) times the transposed weights, which are placed in a buffer of
        `buffer_type`; None if it has no kernel for `type`."""
        of_weights = self._init(InitParams(_MEMORY, None, True))
        of_rest = self._init(InitParams(_MEMORY, None, True))
        w = self._tensor(of_weights, type, N_IN, N_OUT)
        a = self._tensor(of_rest, Type.F32, N_IN, len(x))
        product = self._mul_mat(of_rest, w, a)
        graph = self._graph(of_rest)
        self._expand(graph, product)
        buffers = [self._allocate(of_weights, buffer_type), self._allocate(of_rest, self.plain)]
        try:
            if not all(buffers):
                raise MemoryError
            if not self._supports(self._device, product):
                return None
            self._set(w, weights.ctypes.data, 0, weights.nbytes)
            self._set(a, x.ctypes.data, 0, x.nbytes)
            if self._compute(self._backend, graph) != 0:
                raise MemoryError
            y = np.empty((len(x), N_OUT), np.float32)
            self._get(product, y.ctypes.data, 0, y.nbytes)
            return y
        finally:
            for buffer in filter(None, buffers):
                self._free_buffer(buffer)
            self._free(of_rest)
            self._free(of_weights)


def wrong_products(buffer_types: Iterable[tuple[str, int]]) -> Iterable[str]:
    """One line for each product that differs from numpy's."""
    processor = CpuDevice()
    random = np.random.default_rng(0)
    weights = random.standard_normal((N_OUT, N_IN), np.float32)
    places = [("CPU", processor.plain), *buffer_types]
    for type in TYPES:
        data = processor.quantize(type, weights)
        exact = dequantize(data.view(np.float16) if type == Type.F16 else data, type)
        for n in BATCHES:
            x = random.standard_normal((n, N_IN), np.float32)
            expected = x @ exact.T
            scale = float(np.sqrt(np.mean(expected**2)))
            for name, buffer_type in places:
                y = processor.multiply(type, data, buffer_type, x)
                if y is None:
                    continue
                error = float(np.max(np.abs(y - expected))) / scale
                if not error <= TOLERANCE:  # also for NaN
                    yield f"{type.name} in {name}, batch of {n}: off by {error:.2g}"


def main(measure: Measure) -> int:
    with suppress(ImportError, ValueError):
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a crash is expected
    if measure is Measure.REFUSED:
        refuse(TRIED)
    buffers = {} if measure is Measure.PLAIN else extra_buffer_types()
    for line in wrong_products(buffers.items()):
        print(line)
        return WRONG
    return 0


if __name__ == "__main__":
    sys.exit(main(Measure(sys.argv[1])))
