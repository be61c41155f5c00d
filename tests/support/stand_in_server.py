"""The whole server as a process, with a stand-in for its engine process.

Only the command of the engine process differs: supervisor, pipes, template processes and sockets
are those of the program.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from contract_tests.kit.server import SECONDS, wait_until
from specllama.engine.shipped import MODEL_NAME
from tests.support.paper_server import DescribedServer
from tests.support.stand_in_engine import Script

ROOT = Path(__file__).parents[2]
PROGRAM = """
import runpy, sys
import specllama.engine.wire.commands as commands
command = (sys.executable, "-P", "-m", "tests.support.stand_in_engine", sys.argv.pop(1))
commands.engine_command = lambda: command
runpy.run_module("specllama.tethered", run_name="__main__", alter_sys=True)
"""
"""The function is replaced before anything has imported it."""
ADDRESS = re.compile(r"listening on (http://[^\s\",]+)")


class StandInServer(DescribedServer):
    """A client of such a server, and the model's answers to its requests."""

    def __init__(self, url: str, script: Script) -> None:
        super().__init__(url)
        self.script = script


@contextmanager
def stand_in_server(folder: Path, *options: str) -> Iterator[StandInServer]:
    """Yields a ready server with these command-line `options`. Its log and its script are in
    `folder`."""
    log = folder / "server.log"
    script = Script(folder)
    script.begin()
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", PROGRAM, str(folder), "--port", "0", "--model", MODEL_NAME]
    with (
        log.open("wb") as sink,
        subprocess.Popen(  # the server ends with its stdin, and so with this process
            [*command, *options],
            env={**os.environ, "PYTHONPATH": path},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
        ) as process,
    ):

        def address() -> str | None:
            text = log.read_text("utf-8", "replace")
            assert process.poll() is None, f"the server ended: {process.returncode}\n{text}"
            found = ADDRESS.search(text)
            return found[1] if found else None

        try:
            server = StandInServer(wait_until(address, "the server prints its address"), script)
            with server.http as http:
                wait_until(lambda: http.get("/health").status_code == 200, "it is ready")
                yield server
        finally:
            process.terminate()
            process.wait(SECONDS)
