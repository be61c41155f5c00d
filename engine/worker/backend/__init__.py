"""llama.cpp behind a small typed surface: the only package that touches its C API.

`Model` owns weights and vocabulary, `Context` the KV cache and the batch, `Sampler` one
sampler chain. Each frees what it allocated in `close()`. Every bound that the C code asserts
on is the caller's to keep, and is named in the docstrings: a failed assertion ends the
process. Signatures and struct layouts are those of the pinned llama-cpp-python release.
"""

import specllama.engine.worker.backend.bindings  # noqa: F401  # before anybody imports llama_cpp
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend.batch import PreparedChunk, Rows
from specllama.engine.worker.backend.context import (
    MAX_SEQUENCES,
    Context,
    OutOfCellsError,
    StateArray,
    Vectors,
)
from specllama.engine.worker.backend.embedding_context import EmbeddingContext
from specllama.engine.worker.backend.library import (
    device_memory,
    device_uses,
    holdings,
    initialize,
    list_devices,
)
from specllama.engine.worker.backend.model import LoraFile, Model
from specllama.engine.worker.backend.offload import Offload, OffloadedSampler
from specllama.engine.worker.backend.projector import Projector
from specllama.engine.worker.backend.room import OutOfMemoryError, last_words
from specllama.engine.worker.backend.row_scan import RowScan
from specllama.engine.worker.backend.rpc import add_rpc_servers
from specllama.engine.worker.backend.sampler import NoTokenError, Sampler
from specllama.engine.worker.backend.warming import warm_up

__all__ = [
    "MAX_SEQUENCES",
    "BackendError",
    "Context",
    "EmbeddingContext",
    "LoraFile",
    "Model",
    "NoTokenError",
    "Offload",
    "OffloadedSampler",
    "OutOfCellsError",
    "OutOfMemoryError",
    "PreparedChunk",
    "Projector",
    "RowScan",
    "Rows",
    "Sampler",
    "StateArray",
    "Vectors",
    "add_rpc_servers",
    "device_memory",
    "device_uses",
    "holdings",
    "initialize",
    "last_words",
    "list_devices",
    "warm_up",
]
