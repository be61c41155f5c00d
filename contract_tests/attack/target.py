"""The attacked server: this repository's, a genuine llama-server, or a running one."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from contract_tests.attack.shape import Harm, Launch
from contract_tests.kit.server import API_KEY, OwnServer, Server, alive
from contract_tests.own import servers
from contract_tests.peer import genuine
from specllama.engine.shipped import model_path
from tests.support.model_files import damaged

MIB = 1 << 20
RENDERER = "specllama.engine.helpers.render.render_main"
"""The module of a template process."""
COMMON = ("--jinja", "--reasoning", "off")
OPTIONS = (*COMMON, "--parallel", "4", "--ctx-size", "8192", "--cache-ram", "64", "--timeout", "5")
OWN = ("--head-timeout", "2")
HOSTILE = Path(__file__).parents[2] / "tests" / "support" / "mcp_servers" / "hostile.py"
SICK = ("is_endless", "floods", "never", "dies")
"""MCP servers of `HOSTILE`."""
STOPPED = 40.0
"""Seconds: longer than an engine process may go without a heartbeat."""


class Target:
    """A running server, with unknown processes."""

    name = "server"
    ours = True
    """True if the answers have to match the description."""

    def __init__(self, server: Server) -> None:
        self.server = server

    def can(self, _: Harm | Launch) -> bool:
        return False

    def ids(self) -> list[int]:
        """Returns the ids of the processes that have to stay."""
        return []

    def memory(self) -> int:
        """Returns the resident bytes of all processes."""
        return 0

    def alive(self) -> bool:
        return True

    def harm(self, what: Harm) -> None:
        """Does the harm, if `can` allows it."""
        raise TypeError(f"{what}: this command didn't start the server, so it can't do that")

    def launch(self, what: Launch) -> Server:
        """Starts a separate server, if `can` allows it."""
        raise TypeError(f"{what}: there is no program to start, only an address")

    def restart(self) -> None:
        """Does nothing: this command didn't start the server."""

    def close(self) -> None:
        self.server.close()


class Started(Target):
    """This repository's server or, with a `command`, a genuine one. Each process has a limited
    address space."""

    server: OwnServer

    def __init__(self, directory: Path, command: Sequence[str] = (), limit: int = 0) -> None:
        self.name = "llama-server" if command else "specllama"
        self.ours = not command
        self._directory = directory
        self._command = command
        self._limit = limit
        super().__init__(self._start(*OPTIONS))

    def _start(self, *options: str, model: str = "") -> OwnServer:
        if self._command:
            options = ("--model", model or str(model_path()), "--threads", "1", *options)
            server: OwnServer = genuine.start(
                self._directory, self._command, *options, api_key=API_KEY
            )
        else:
            options = (*(("--model", model) if model else ()), *OWN, *self._tools(), *options)
            server = servers.start(self._directory, *options, api_key=API_KEY, named=bool(model))
            if not model:
                server.get("/tools")  # starts the MCP servers
        if self._limit and hasattr(psutil, "RLIMIT_AS"):
            for each in _family(server):
                # Processes that are started later inherit the limit.
                with contextlib.suppress(psutil.NoSuchProcess):
                    if each.rlimit(psutil.RLIMIT_AS)[1] == psutil.RLIM_INFINITY:
                        each.rlimit(psutil.RLIMIT_AS, (self._limit, self._limit))
        return server

    def _tools(self) -> tuple[str, ...]:
        """Returns options for tools that read a directory with links and devices, and for sick MCP
        servers."""
        root = self._directory / "tools"
        if not root.exists():
            root.mkdir()
            (root / "evil").write_text("a" * 60 + "!")
            (root / "link").symlink_to("/etc/passwd")
            (root / "zero").symlink_to("/dev/zero")
            os.mkfifo(root / "fifo")
        sick = {
            mode: {
                "command": sys.executable,
                "args": [str(HOSTILE), mode, os.devnull],
                "timeout_ms": 5000,
            }
            for mode in SICK
        }
        names = "read_file,grep_search,get_info"
        mcp = json.dumps({"mcpServers": sick})
        return ("--tools", names, "--tools-dir", str(root), "--mcp-servers-json", mcp)

    def can(self, what: Harm | Launch) -> bool:
        if isinstance(what, Launch):
            return True
        return os.name == "posix" and (self.ours or what is Harm.PAUSE)

    def ids(self) -> list[int]:
        return sorted({self.server.process.pid, *(each.pid for each in self.server.engines())})

    def memory(self) -> int:
        total = 0
        for each in _family(self.server):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += each.memory_info().rss
        return total

    def alive(self) -> bool:
        return self.server.process.poll() is None

    def harm(self, what: Harm) -> None:
        match what:
            case Harm.KILL_ENGINE:
                self.server.kill_engine()
            case Harm.KILL_TEMPLATES:
                for each in _family(self.server):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if RENDERER in each.cmdline() and alive(each):
                            each.kill()
            case Harm.PAUSE:
                self.server.process.send_signal(signal.SIGSTOP)
                time.sleep(STOPPED)
                self.server.process.send_signal(signal.SIGCONT)

    def launch(self, what: Launch) -> Server:
        model = ""
        if what.broken_weights:
            model = str(damaged(model_path(), self._directory / "broken.gguf"))
        return self._start(*COMMON, *what.options, model=model)

    def restart(self) -> None:
        self.server.close()
        self.server = self._start(*OPTIONS)


def _family(server: OwnServer) -> list[psutil.Process]:
    try:
        root = psutil.Process(server.process.pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
