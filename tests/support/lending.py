"""A process that lends its CPU to others, as llama.cpp's `rpc-server` does."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LENDING = """
import ctypes, sys
from specllama.engine.worker.backend import ggml, initialize, rpc
initialize()
pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
find = ggml.function("ggml_backend_reg_get_proc_address", pointer, pointer, text)
start = find(rpc._backend(), b"ggml_backend_rpc_start_server")
cpu = ggml.function("ggml_backend_dev_by_name", pointer, text)(b"CPU")
devices = (pointer * 1)(cpu)
ctypes.CFUNCTYPE(None, text, text, size, size, pointer)(start)(
    sys.argv[1].encode(), None, 1, 1, ctypes.cast(devices, pointer)
)
"""


@contextmanager
def lending() -> Iterator[str]:
    """Yields the address of such a process, which is ready and runs until the end of the block."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-c", _LENDING, f"127.0.0.1:{port}"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            _wait_until_it_answers(port, process)
            yield f"127.0.0.1:{port}"
        finally:
            process.kill()


def _wait_until_it_answers(port: int, process: subprocess.Popen[bytes]) -> None:
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        assert process.poll() is None, "it can't lend anything"
        time.sleep(0.05)
