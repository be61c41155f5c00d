"""Checks a fuzzed server's processes, memory and log."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

import psutil

from contract_tests.fuzz.configurations import Configuration
from contract_tests.fuzz.judging import Fault
from contract_tests.kit.server import OwnServer, wait_until

MIB = 1 << 20
MARGIN = {"engine": 384, "server": 192, "helpers": 128}
"""MiB of allowed growth from the first third of a run to its end. An engine process keeps up to 256
MiB of compiled grammars and 64 MiB of texts; a server process keeps responses and streams; and
allocators keep memory, some 110 MiB after a body of 48 MB."""
ALARMS = re.compile(r"Traceback|\b(ERROR|CRITICAL|FATAL)\b|GGML_ASSERT|panicked at|coroutine '")
"""Texts in the log that no request may cause."""
EXPECTED = re.compile("the model '[^']+/[^']+' could not be loaded: .* has no GGUF files")
"""Allowed errors in the log. A request for a model that a hub doesn't have causes one, because an
operator has to see it."""
QUOTED = re.compile("(DEBUG|INFO) http: ")
"""The log line about a request, which repeats paths that clients chose."""
FAILED = "WARNING http: "
"""The log line about a request that failed with 500, after the head of a stream, or for a client
that had left."""
LEVEL = re.compile("(DEBUG|INFO|WARNING|ERROR|CRITICAL) ")
"""The beginning of every log entry."""
LINES = 14
"""The number of last lines of a log entry that a fault repeats."""


class Watch:
    """Checks a server between two rounds, when it has no requests."""

    def __init__(self, server: OwnServer, configuration: Configuration) -> None:
        self._server = server
        self._configuration = configuration
        self._read = 0
        self.memory: list[Mapping[str, int]] = []
        self.ids = self._ids() if configuration.lasting else []

    def is_alive(self) -> bool:
        return self._server.process.poll() is None

    def look(self) -> Iterator[Fault]:
        """Yields the faults of the server since the last check."""
        code = self._server.process.poll()
        if code is not None:
            yield Fault("death", f"the server process ended with code {code}")
        yield from self._log()
        if code is not None:
            return
        if self._configuration.lasting and self._ids() != self.ids:
            yield Fault("death", "the engine process is another one")
            self.ids = self._ids()
        self.memory.append(self._sizes())

    def wait_until_idle(self) -> None:
        """Waits until no slot works."""
        if not self._configuration.is_router and self._server.process.poll() is None:
            wait_until(self._is_idle, "all slots are free")

    def _is_idle(self) -> bool:
        response = self._server.get("/slots")
        slots = response.json() if response.status_code == 200 else []
        return not any(slot["is_processing"] for slot in slots)

    def growth(self) -> Mapping[str, int]:
        """Returns the growth in MiB from the end of the first third to the end, by kind of
        process."""
        third = self.memory[len(self.memory) // 3 :]
        if len(third) < 2:
            return {}
        return {kind: (third[-1][kind] - third[0][kind]) // MIB for kind in MARGIN}

    def judged_growth(self) -> Iterator[Fault]:
        for kind, grown in self.growth().items():
            if grown > MARGIN[kind]:
                yield Fault("memory", f"{kind} grew by {grown} MiB, more than {MARGIN[kind]}")

    def _ids(self) -> Sequence[int]:
        return sorted(each.pid for each in self._server.engines())

    def _sizes(self) -> Mapping[str, int]:
        """Returns the resident bytes by kind of process."""
        found = dict.fromkeys(MARGIN, 0)
        root = psutil.Process(self._server.process.pid)
        found["server"] = root.memory_info().rss
        for each in root.children(recursive=True):
            with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                kind = "engine" if "specllama.engine.worker" in each.cmdline() else "helpers"
                found[kind] += each.memory_info().rss
        return found

    def _log(self) -> Iterator[Fault]:
        """Yields the faults in the log since the last check."""
        with self._server.log.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._read += end
        lines = text[:end].decode("utf-8", "replace").splitlines()
        yield from alarms(lines)


def alarms(lines: Sequence[str]) -> Iterator[Fault]:
    """Yields the faults in a log, each with the lines that belong to it."""
    at = 0
    while at < len(lines):
        end = at + 1
        while end < len(lines) and not LEVEL.match(lines[end]):
            end += 1
        entry = lines[at:end]
        allowed = QUOTED.match(entry[0]) or EXPECTED.search(entry[0])
        if not allowed and (entry[0].startswith(FAILED) or any(map(ALARMS.search, entry))):
            said = [*entry[:2], *entry[2:][-LINES:]]
            yield Fault("log", "\n".join(said)[:3000])
        at = end
