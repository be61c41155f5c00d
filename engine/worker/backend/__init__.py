"""A small typed interface to llama.cpp: the only package that uses its C API.

`Model` owns weights and vocabulary, `Context` the KV cache and the batch, `Sampler` one sampler
chain. Each frees its resources in `close()`. The caller must keep every bound that the C code
asserts, since a failed assertion ends the process; the docstrings state these bounds. Signatures
and struct layouts are those of the pinned llama-cpp-python release.
"""

import specllama.engine.worker.backend.bindings  # noqa: F401  # before any import of llama_cpp
from specllama.engine.errors import BackendError
from specllama.engine.worker.backend.batch import PreparedChunk, Rows
from specllama.engine.worker.backend.context import (
    Context,
    OutOfCellsError,
    StateArray,
    Vectors,
)
from specllama.engine.worker.backend.context_setup import sequence_count, sequence_ids
from specllama.engine.worker.backend.embedding_context import EmbeddingContext
from specllama.engine.worker.backend.library import (
    device_memory,
    device_uses,
    holdings,
    initialize,
    list_devices,
)
from specllama.engine.worker.backend.model import LoraFile, Model
from specllama.engine.worker.backend.offload import Offload
from specllama.engine.worker.backend.projector import Projector
from specllama.engine.worker.backend.room import OutOfMemoryError, reported_abort
from specllama.engine.worker.backend.row_scan import RowScan
from specllama.engine.worker.backend.rpc import add_rpc_servers
from specllama.engine.worker.backend.sampler import NoTokenError, Sampler
from specllama.engine.worker.backend.warming import warm_up

__all__ = [
    "BackendError",
    "Context",
    "EmbeddingContext",
    "LoraFile",
    "Model",
    "NoTokenError",
    "Offload",
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
    "list_devices",
    "reported_abort",
    "sequence_count",
    "sequence_ids",
    "warm_up",
]
