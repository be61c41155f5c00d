"""Starts a genuine llama-server like one of this repository's."""

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from contract_tests.kit.server import OwnServer
from contract_tests.own.servers import environment, free_port, until_healthy


class LlamaServer(OwnServer):
    def engines(self) -> list[psutil.Process]:
        """Returns the server process itself, which has the model."""
        return [psutil.Process(self.process.pid)]


def start(
    directory: Path,
    command: Sequence[str],
    *options: str,
    api_key: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> LlamaServer:
    """Starts `command` with the options, and waits until it is ready. `variables` are added to its
    environment."""
    port = free_port()
    log = directory / "peer.log"
    keys = ("--api-key", api_key) if api_key else ()
    with log.open("ab") as sink:
        process = subprocess.Popen(
            [*command, *options, *keys, "--port", str(port)],
            env=environment(LD_LIBRARY_PATH=str(Path(command[0]).parent), **(variables or {})),
            stdout=sink,
            stderr=sink,
        )
    url = f"http://127.0.0.1:{port}"
    server = LlamaServer(process, log, url, api_key=api_key)
    until_healthy(server, "the peer")
    return server
