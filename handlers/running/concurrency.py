"""The running calls of API keys with a limit for them, of all servers that share a store."""

import asyncio
import itertools
import logging
import math
import secrets
from contextlib import ExitStack, suppress

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo
from specllama.handlers.http.api_keys import ApiKey
from specllama.handlers.running.buckets import RUNNING_SECONDS, BucketStore
from specllama.handlers.running.stores import StoreError

log = logging.getLogger(__name__)

RENEW_SECONDS = RUNNING_SECONDS / 3
SETTLE_SECONDS = 0.1
"""The time in which the end of a call reaches the store. A client may send its next request before:
so calls that this server doesn't have are counted a second time before they are a reason to refuse
a request."""


class RunningCalls:
    """The calls of this server in the store. It renews them while they run, so that the calls of a
    server that has died end in the store as well."""

    def __init__(self, store: BucketStore) -> None:
        self._store = store
        self._names = map(f"{secrets.token_hex(8)}-{{}}".format, itertools.count())
        self._calls: dict[str, tuple[str, float]] = {}  # by name: the key's id, the start
        self._renewing: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._calls)

    async def begin(self, key: ApiKey, leases: ExitStack) -> None:
        """Adds a call of a key until the end of `leases`. Raises UnavailableStoreError, and
        EngineError (rate_limit_error) if the key has as many calls as it may have."""
        call = next(self._names)
        try:
            n = await self._store.begin(key.id, call, key.concurrency)
            if n and n > len(self._ages(key.id)):
                await asyncio.sleep(SETTLE_SECONDS)
                n = await self._store.begin(key.id, call, key.concurrency)
        except asyncio.CancelledError:
            self._end_soon(key.id, call)  # it may have been added
            raise
        if n:
            text = f"the API key {key.name!r} has {n} running requests, as many as it may have"
            wait = self._wait(key.id, n)
            raise EngineError(ErrorInfo("rate_limit_error", text, retry_after=wait))
        self._calls[call] = (key.id, system.now())
        leases.callback(self._end, call)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew(), name="running calls")

    def _wait(self, key: str, n: int) -> int:
        """Returns the seconds until one of `n` calls of a key ends: on average, a call will last
        for as long as it has lasted. The calls of other servers count as those of this one."""
        ages = self._ages(key)
        return max(1, math.ceil(sum(ages) / len(ages) / n)) if ages else 1

    def _ages(self, key: str) -> list[float]:
        now = system.now()
        return [now - began for owner, began in self._calls.values() if owner == key]

    def _end(self, call: str) -> None:
        key, _ = self._calls.pop(call)
        self._end_soon(key, call)
        if not self._calls and self._renewing is not None:
            self._renewing.cancel()
            self._renewing = None

    def _end_soon(self, key: str, call: str) -> None:
        task = asyncio.create_task(self._end_in_store(key, call))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _end_in_store(self, key: str, call: str) -> None:
        try:
            await self._store.end(key, call)
        except StoreError as error:  # the call ends there in RUNNING_SECONDS
            log.warning("a call of an API key could not be ended: %s", error)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with suppress(StoreError):  # the next renewal may be in time
                await self._store.renew([(key, call) for call, (key, _) in self._calls.items()])

    async def close(self) -> None:
        """Waits for all ends. To be called when no call runs any more."""
        if self._renewing is not None:
            self._renewing.cancel()
        while self._ending:
            await asyncio.wait(self._ending)
