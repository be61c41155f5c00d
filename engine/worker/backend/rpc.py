"""Devices of other machines, lent by llama.cpp's rpc-server."""

import ctypes
import os
import socket
from collections.abc import Sequence

from specllama.engine.errors import BackendError
from specllama.engine.worker.backend.ggml import function as ggml

_TIMEOUT = 10.0
"""Seconds to wait for a server to accept a connection."""


def add_rpc_servers(addresses: Sequence[str]) -> None:
    """Adds the devices of the servers at `addresses` (HOST:PORT) to this process, for models that
    are loaded later.

    Raises `BackendError` if llama.cpp was built without the RPC backend, or if no server answers at
    an address. The server must be an rpc-server of the same version: otherwise ggml ends the
    process.
    """
    if not addresses:
        return
    backend = _backend()
    find = ggml(
        "ggml_backend_reg_get_proc_address", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p
    )
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(
        find(backend, b"ggml_backend_rpc_add_server")
    )
    register = ggml("ggml_backend_register", None, ctypes.c_void_p)
    for address in addresses:
        _check_answers(address)
        server = add(address.encode())
        if not server:
            raise BackendError(f"--rpc: the server at {address} has no device")
        register(server)


def _backend() -> int:
    """The RPC backend's handle."""
    by_name = ggml("ggml_backend_reg_by_name", ctypes.c_void_p, ctypes.c_char_p)
    found: int | None = by_name(b"RPC")
    path = os.environ.get("GGML_BACKEND_PATH")
    if not found and path:
        # ggml's variable, which ggml itself only reads if it has no built-in backend.
        ggml("ggml_backend_load", ctypes.c_void_p, ctypes.c_char_p)(os.fsencode(path))
        found = by_name(b"RPC")
    if not found:
        raise BackendError(
            "--rpc: the installed llama.cpp was built without the RPC backend; "
            "docs/rpc.md explains how to get one that has it"
        )
    return found


def _check_answers(address: str) -> None:
    # ggml ends the process if it can't connect. Like ggml, this supports only IPv4.
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(_TIMEOUT)
        try:
            connection.connect((host, int(port)))
        except (OSError, UnicodeError) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            raise BackendError(f"--rpc: no server answers at {address}: {reason}") from None
