"""The connection to a Redis server, which the servers of several machines may share.

Each change is one script in the Redis server, by the clock of that server. So changes of several
server processes never mix, and their clocks needn't agree. This module needs the library `redis`,
which is an extra of the package.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from specllama.handlers.running.stores import UnavailableStoreError

SECONDS: Final = 2.0
"""The time limit of a connection to the Redis server, of a command on its way there, and of each
pause in an answer."""
MAX_SECONDS: Final = 20.0
"""The time limit of a command and its whole answer, however many megabytes they have."""
MAX_CONNECTIONS: Final = 32
"""Commands that find no free connection wait for one, at most `SECONDS`."""
MAX_TEXT: Final = 300

Argument = str | bytes | int | float


class RedisServer:
    """The Redis server at a URL. It is connected when it is needed, also after its restart.

    Methods raise UnavailableStoreError while the server can't be reached, is too slow or full, or
    answers with something else than Redis would."""

    def __init__(self, url: str) -> None:
        """Raises ValueError for an invalid URL."""
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=SECONDS,
            socket_timeout=SECONDS,
            socket_connect_timeout=SECONDS,
            retry=Retry(NoBackoff(), 1),  # for a connection that was closed meanwhile
        )
        self.client = Redis.from_pool(pool)
        parts = urlsplit(url)
        self._name = parts.hostname or parts.path  # without a password

    async def run(self, script: str, *arguments: Argument, keys: Sequence[str] = ()) -> Any:
        """Runs a script with `keys` and `arguments`, and returns its result."""
        run = self.client.register_script(script)
        try:
            async with asyncio.timeout(MAX_SECONDS):
                return await run(keys, arguments)
        # The library ends with others than its own for an answer that Redis would never send.
        except (RedisError, OSError, ValueError, TypeError, LookupError) as error:
            raise UnavailableStoreError(f"the Redis server {self._name}: {_text(error)}") from error

    async def check(self) -> None:
        """Waits for a sign of life of the server."""
        await self.run("return 1")

    async def close(self) -> None:
        await self.client.aclose()


def _text(error: Exception) -> str:
    """Returns one line for the log. Redis repeats the arguments of a command that it doesn't know,
    which may be a password."""
    text = " ".join(str(error).split()).partition(", with args beginning")[0]
    return text[:MAX_TEXT] or type(error).__name__
