"""Checks of a device's memory: several models, and a device that other processes have filled."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import psutil

from contract_tests.kit import contract
from contract_tests.kit.server import wait_until
from contract_tests.own.servers import ROOT, Specllama
from tools.models.zoo import CHAT, OTHER_CHAT

CPU = "CPU"
"""A `--device` for trials of the tests, on a machine without any device."""
PROMPT = "for name in sorted(found):\n    print(name, len(found[name]))\n"
_FREE = """
from specllama.engine.worker.backend import device_memory, initialize
initialize()
print(sum(each.free for each in device_memory()))
"""
_FILL = """
import ctypes, sys
from specllama.engine.worker.backend import device_memory, ggml, initialize
initialize()
pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
device = ggml.function("ggml_backend_dev_by_name", pointer, text)(sys.argv[1].encode())
kind = ggml.function("ggml_backend_dev_buffer_type", pointer, pointer)(device)
allocate = ggml.function("ggml_backend_buft_alloc_buffer", pointer, pointer, size)
touch = ggml.function("ggml_backend_buffer_clear", None, pointer, ctypes.c_uint8)
n_left, n_bytes = int(sys.argv[2]) << 20, 1 << 34
while n_bytes >= 1 << 20:
    [n_free] = [each.free for each in device_memory() if each.name == sys.argv[1]]
    buffer = allocate(kind, n_bytes) if n_free - n_left >= n_bytes or not n_left else None
    if buffer is None:
        n_bytes //= 2
    else:
        touch(buffer, 1)
print("full", flush=True)
sys.stdin.read()
"""


def free() -> int:
    """Returns the free bytes of all devices as a new process sees them; of the host if there is no
    device."""
    command = [sys.executable, "-c", _FREE]
    found = int(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)
    return found or psutil.virtual_memory().available


@contextmanager
def filled(device: str, n_left: int) -> Iterator[None]:
    """Fills the device's memory, except for about `n_left` MiB, until the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", _FILL, device, str(n_left)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        encoding="utf-8",
    ) as process:
        assert process.stdout is not None
        try:
            said = process.stdout.readline().strip()
            assert said == "full", f"{device} can't be filled: {process.poll()}"
            yield
        finally:
            process.kill()


def several(router: Specllama) -> None:
    """Two models are on the device at the same time, and answer alike when the other one is gone.
    Memory is returned when a model is unloaded, and when one sleeps."""
    empty = free()
    first = {name: _text(router, name) for name in (CHAT, OTHER_CHAT)}
    held = {name: _held(router, name) for name in first}
    both = free()
    contract.check(router.post("/models/unload", {"model": CHAT}))
    wait_until(lambda: free() - both > held[CHAT] // 2, "the memory of one model is free")
    assert _text(router, OTHER_CHAT) == first[OTHER_CHAT], "another text than beside a model"
    wait_until(lambda: not router.engines(), "the other model sleeps")
    wait_until(lambda: empty - free() < held[CHAT] // 2, "all memory is free")
    assert _text(router, CHAT) == first[CHAT], "another text after loading it again"


def crowded(device: Specllama, name: str) -> None:
    """While another process fills the device, each request ends with a text or with an error that
    has a reason. Afterwards the server answers as before, and is on the device."""
    before = _text(device)
    with filled(name, 0), ThreadPoolExecutor(8) as pool:
        for answer in pool.map(lambda n: _answer(device, PROMPT * n), (1, 4, 8, 16, 24, 2, 12, 20)):
            if answer.status_code != 200:
                contract.check_envelope(answer, answer.status_code)
                print(f"a full device: {contract.message(answer)}", flush=True)
                assert answer.status_code in (500, 503), answer.text
    wait_until(lambda: _answer(device, PROMPT).status_code == 200, "the server answers again")
    assert _text(device) == before, "another text than before"
    uses = device.get("/props").json()["devices"]
    assert any(each["name"] == name and each["n_layers"] for each in uses), f"not there: {uses}"


def _answer(server: Specllama, prompt: str, model: str = "") -> httpx.Response:
    body: dict[str, Any] = {"prompt": prompt, "n_predict": 16, "temperature": 0}
    body |= {"ignore_eos": True, "cache_prompt": False}
    return server.post("/completion", {**body, **({"model": model} if model else {})})


def _text(server: Specllama, model: str = "") -> str:
    return str(contract.check(_answer(server, PROMPT, model))["content"])


def _held(router: Specllama, name: str) -> int:
    devices = router.get("/props", params={"model": name}).json()["devices"]
    there = [each for each in devices if each["name"] != CPU] or devices
    return sum(int(each["model"] + each["kv_cache"]) for each in there)


Check = Callable[[Specllama, str], None]
CHECKS: dict[str, Check] = {
    "several": lambda router, _device: several(router),
    "crowded": crowded,
}
"""Checks of a single server, with the device's name."""
