"""Devices of other machines (--rpc). Successful connections are tested only if llama.cpp has the
RPC backend, built in or by GGML_BACKEND_PATH (docs/rpc.md)."""

import asyncio
import functools
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.options import OptionError, Options
from specllama.engine.params import GenerationParams
from specllama.handlers.options import parse
from tests.support.engines import generate
from tests.support.lending import lending
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow

_PROBE = """
import sys
from specllama.engine.worker.backend import BackendError, add_rpc_servers, initialize, list_devices
initialize()
try:
    add_rpc_servers(sys.argv[1:])
except BackendError as error:
    print(error)
else:
    print(*list_devices(), sep="\\n")
"""


def probe(*addresses: str) -> str:
    """The devices with those of the servers, or the error."""
    command = [sys.executable, "-c", _PROBE, *addresses]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@functools.cache
def has_backend() -> bool:
    with closed_port() as address:
        return "built without" not in probe(address)


@contextmanager
def closed_port() -> Iterator[str]:
    """An address that is reserved, and at which no server answers."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{holder.getsockname()[1]}"


def needs_backend() -> None:
    if not has_backend():
        pytest.skip("llama.cpp without the RPC backend")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "host",
        "host:",
        ":1",
        "host:0",
        "host:65536",
        "host:x",
        "[::1]:1",
        "a b:1",
        "a:1,b",
        "a:1/",
    ],
)
def test_addresses_are_checked_first(text: str) -> None:
    with pytest.raises(OptionError, match=r"^--rpc: "):
        parse([f"--rpc={text}"], {})


def test_several_addresses() -> None:
    options = parse(["--rpc", "a:1, b.c-d:65535", "--rpc", "127.0.0.1:50052"], {})
    assert options.model.engine.compute.rpc == ("a:1", "b.c-d:65535", "127.0.0.1:50052")
    assert parse([], {"LLAMA_ARG_RPC": "a:1"}).model.engine.compute.rpc == ("a:1",)


def test_without_the_backend_the_model_is_not_loaded() -> None:
    if has_backend():
        pytest.skip("llama.cpp with the RPC backend")

    async def failure() -> str:
        supervisor = Supervisor(model_options(rpc=("127.0.0.1:1",)))
        supervisor.start()
        try:
            await supervisor.loaded()
            return supervisor.failure
        finally:
            await supervisor.stop()

    assert "without the RPC backend; docs/rpc.md" in asyncio.run(failure())


def test_a_server_of_one_model_says_so_and_ends() -> None:
    if has_backend():
        pytest.skip("llama.cpp with the RPC backend")
    command = [sys.executable, "-m", "specllama", "-m", "specllama-tiny", "--port", "0"]
    done = subprocess.run(
        [*command, "--rpc", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 1
    assert re.search(r"^specllama: error: --rpc: .* without the RPC backend", done.stderr, re.M)
    assert done.stderr.count("without the RPC backend") == 1


def test_listing_devices_fails_likewise() -> None:
    command = [sys.executable, "-m", "specllama", "--list-devices", "--rpc", "nowhere.invalid:1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("specllama: error: --rpc: ")
    assert not done.stdout


def test_a_backend_that_is_none_is_refused() -> None:
    # Whatever GGML_BACKEND_PATH names, the error is about --rpc.
    environ = {**os.environ, "GGML_BACKEND_PATH": __file__}
    command = [sys.executable, "-c", _PROBE, "127.0.0.1:1"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=True, env=environ
    )
    assert "--rpc: " in done.stdout


def test_no_server_answers() -> None:
    needs_backend()
    with closed_port() as address:
        assert probe(address).startswith(f"--rpc: no server answers at {address}: ")
    assert "no server answers at nowhere.invalid:1" in probe("nowhere.invalid:1")


def test_a_model_runs_on_a_lent_device() -> None:
    needs_backend()

    async def text(options: Options) -> str:
        supervisor = Supervisor(options)
        supervisor.start()
        try:
            await supervisor.loaded()
            assert supervisor.state == "ready", supervisor.failure
            engine = await supervisor.engine()
            params = GenerationParams(n_predict=20, temperature=0.0, ignore_eos=True)
            return (await generate(engine, ["def add("], params).result()).text
        finally:
            await supervisor.stop()

    here = asyncio.run(text(model_options()))
    with lending() as address:
        assert address in probe(address)
        there = asyncio.run(text(model_options(rpc=(address,), n_gpu_layers="all")))
    assert there == here
