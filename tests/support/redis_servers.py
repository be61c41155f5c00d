"""A real Redis server for tests, if it is installed: apt-get install redis-server."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contract_tests.kit.server import SECONDS, wait_until


class RedisProcess:
    """A Redis server at a Unix socket in `folder`, which keeps nothing over its end."""

    def __init__(self, folder: Path, *options: str) -> None:
        pytest.importorskip("redis", reason="the library of the extra `redis` isn't installed")
        if (program := shutil.which("redis-server")) is None:
            pytest.skip("there is no Redis server: apt-get install redis-server")
        self._path = folder / "redis.sock"
        self._command = [program, "--port", "0", "--unixsocket", str(self._path), "--save", ""]
        self._command += ["--dir", str(folder), *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._path}"

    def start(self) -> None:
        """Returns when the server listens."""
        self._path.unlink(missing_ok=True)  # of a killed server
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        wait_until(self._path.exists, "the Redis server listens")

    def kill(self) -> None:
        """Returns when the server has ended."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(SECONDS)
            self._process = None


@contextmanager
def redis_server(folder: Path, *options: str) -> Iterator[RedisProcess]:
    """A context with a running Redis server, which has further command-line `options`."""
    server = RedisProcess(folder, *options)
    server.start()
    try:
        yield server
    finally:
        server.kill()
