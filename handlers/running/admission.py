"""Admission of calls by the quotas of their API keys, and the record of what each call uses.

A call is refused if too many wait. It takes a request from its key's bucket before its model is
leased. The tokens of its texts are taken when the engine has accepted them, and reports exactly
what they may use; if the key doesn't have that many, the texts are cancelled. A text gives back at
its end what it didn't use.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import msgspec
from starlette.types import Scope

from specllama.engine.errors import EngineError
from specllama.engine.models.generation import Meter
from specllama.engine.wire.replies import Timings
from specllama.engine.wire.requests import Terms
from specllama.handlers.http.api_keys import ApiKey, key_of
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.rate_limits import RateLimit
from specllama.handlers.options.tables.general import UsageOptions
from specllama.handlers.running.buckets import (
    Bucket,
    BucketStore,
    Demand,
    MemoryBuckets,
    SqliteBuckets,
    Taken,
)
from specllama.handlers.running.concurrency import RunningCalls
from specllama.handlers.running.quotas import Balance, counts_tokens
from specllama.handlers.running.stores import (
    UnavailableStoreError,
    is_redis,
    opened,
    unavailable_store,
)
from specllama.handlers.running.usage import Usage, UsageLog
from specllama.handlers.running.waiting import CallPlace, WaitingCalls

log = logging.getLogger(__name__)

MEMORY = "memory"


def open_buckets(where: str) -> BucketStore:
    """Returns the store that `--quota-store` names: `memory`, the URL of a Redis server, or the
    path of an SQLite file. Raises OptionError."""

    def open_store() -> BucketStore:
        if where == MEMORY:
            return MemoryBuckets()
        if not is_redis(where):
            return SqliteBuckets(where)
        from specllama.handlers.running.redis_buckets import RedisBuckets

        return RedisBuckets(where)

    return opened("--quota-store", open_store)


_STATE = "admitted_call"
"""The entry in the state of the ASGI scope that has a request's call."""


class Admission:
    """Decides which calls begin. There is one for each server."""

    def __init__(
        self, buckets: BucketStore, usage: UsageLog, waiting: WaitingCalls | None = None
    ) -> None:
        self._buckets = buckets
        self.usage = usage
        self.waiting = waiting or WaitingCalls()
        self._running = RunningCalls(buckets)
        self._tasks: set[asyncio.Task[None]] = set()

    @classmethod
    def of(
        cls,
        options: UsageOptions,
        waiting: WaitingCalls,
        open_buckets: Callable[[str], BucketStore] = open_buckets,
    ) -> "Admission":
        """Raises OptionError if a database can't be opened."""
        usage = opened("--usage-db", lambda: UsageLog(options.usage_db))
        return cls(open_buckets(options.quota_store), usage, waiting)

    async def admit(self, call: "AdmittedCall", leases: ExitStack, n_tokens: int = 0) -> None:
        """Returns if the call may begin. It lasts until the end of `leases`. `n_tokens` are taken
        at once: an estimate, for a call whose texts are never cached.

        Raises EngineError: rate_limit_error if its key has reached a limit, unavailable_error if
        too many calls wait, or the key's quotas can't be checked.
        """
        try:
            call.place = self.waiting.enter(call.model, leases, call.owner)
            if n_tokens:
                call.place.expect(n_tokens)
            if call.key is not None:
                if call.key.concurrency:
                    await self._begin(call.key, leases)
                await call.take(n_tokens, leases)
        except EngineError:
            call.count(Usage(refused=1))
            raise
        call.count(Usage(requests=1))

    async def _begin(self, key: ApiKey, leases: ExitStack) -> None:
        """Counts a running call of the key. Raises EngineError, see `admit`."""
        try:
            await self._running.begin(key, leases)
        except UnavailableStoreError as error:
            raise _unchecked(error) from error

    async def take(self, demands: Sequence[Demand]) -> Taken:
        """Raises EngineError (unavailable_error) if the store of the buckets fails."""
        try:
            return await self._buckets.take(demands)
        except UnavailableStoreError as error:
            raise _unchecked(error) from error

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Starts a task for which `close` waits."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Waits for all changes. To be called after the engines have ended."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._running.close()
        await self._buckets.close()
        await self.usage.close()


def _unchecked(error: UnavailableStoreError) -> EngineError:
    log.error("requests of API keys with quotas are refused: %s", error)
    return unavailable_store(
        "the quotas of the API key can't be checked; the server's log says why"
    )


class AdmittedCall:
    """One call of a client: its terms for the engine, and what it takes from its key's buckets."""

    def __init__(self, admission: Admission, key: ApiKey | None, model: str) -> None:
        self._admission = admission
        self.key = key
        self.model = model
        self.place: CallPlace | None = None  # since its admission
        self.balance = None if key is None else Balance(key)
        self._n_held = 0  # tokens that were taken, and are for texts that aren't accepted yet
        self._n_wanted = 0  # tokens to be taken
        self._n_denied = 0.0  # tokens that weren't taken, of texts that haven't ended yet
        self._n_unused = 0.0  # tokens to be given back
        self._charging: asyncio.Task[None] | None = None
        self._refusal: EngineError | None = None
        self.on_refusal: Callable[[EngineError], None] | None = None
        """Cancels the texts, because the key doesn't have their tokens."""

    @property
    def _limits_tokens(self) -> bool:
        return self.balance is not None and bool(self.balance.of_tokens)

    @property
    def owner(self) -> int:
        """The owner of the call's texts, for the engine; 0 without a key."""
        return 0 if self.key is None else self.key.owner

    @property
    def is_metered(self) -> bool:
        """True if the engine reports exactly what the call uses, also if it is cancelled."""
        return self._limits_tokens or self._admission.usage.is_kept

    def limited(self, terms: Terms) -> Terms:
        """Returns `terms` with what depends on the other calls of the key."""
        if self.place is not None and self.place.is_only:
            terms = msgspec.structs.replace(terms, is_only=True)
        if self.balance is None or (n_tokens := self.balance.n_tokens) < 0:
            return terms
        return msgspec.structs.replace(terms, allowance=n_tokens + self._n_held)

    def meter(self, n_texts: int = 1) -> Meter | None:
        """Returns the receiver of what `n_texts` texts use; None if that needn't be exact."""
        return TextMeter(self, n_texts) if self.is_metered else None

    def count(self, usage: Usage) -> None:
        name = "" if self.key is None else self.key.name
        self._admission.usage.add(name, self.model, usage)

    def count_unmetered(self, timings: Sequence[Timings | None]) -> None:
        """Counts what the texts have used, by their last known timings, unless they have meters."""
        if not self.is_metered:
            for each in filter(None, timings):
                self.count(Usage.of(each))

    # ---- its wait -------------------------------------------------------------------------

    def expect(self, n_tokens: int) -> None:
        """Sets the approximate tokens of the call's prompts. Raises EngineError, see
        `Admission.admit`."""
        if self.place is None:
            return
        try:
            self.place.expect(n_tokens)
        except EngineError as error:
            raise self.explained(error) from error

    def begun(self) -> None:
        """The engine has begun a text of the call."""
        if self.place is not None:
            self.place.begin()

    # ---- the key's buckets ----------------------------------------------------------------

    async def take(self, n_tokens: int, leases: ExitStack) -> None:
        """Takes a request, and `n_tokens` until the end of `leases`. There has to be one token.
        Raises EngineError, see `Admission.admit`."""
        balance = self.balance
        if balance is None or not balance.buckets:
            return
        demands = [
            Demand(each, n_tokens, max(1, n_tokens)) if counts_tokens(each) else Demand.of(each, 1)
            for each in balance.buckets
        ]
        taken = await self._admission.take(demands)
        balance.note(demands, taken)
        if not taken.is_granted:
            raise balance.refusal(demands)
        self._n_held = n_tokens
        leases.callback(self._give_back)

    def _give_back(self) -> None:
        """Gives back the tokens that no text has reserved."""
        self._n_unused, self._n_held = self._n_unused + self._n_held, 0
        self._charge_soon()

    def reserve(self, n_tokens: int) -> None:
        """Takes `n_tokens` for a text that the engine has accepted."""
        held = min(self._n_held, n_tokens)
        self._n_held -= held
        self._n_wanted += n_tokens - held
        self._charge_soon()

    def settle(self, n_reserved: float, used: Timings | None) -> None:
        """Gives back what a text hasn't used of `n_reserved` tokens, and counts what it has
        used."""
        n_used = 0
        if used is not None:
            n_used = used.prompt_n + used.predicted_n
            self.count(Usage.of(used))
        n_denied = min(self._n_denied, n_reserved)
        self._n_denied -= n_denied
        self._n_unused += n_reserved - n_denied - n_used
        self._charge_soon()

    def _charge_soon(self) -> None:
        if self._limits_tokens and self._charging is None and (self._n_wanted or self._n_unused):
            self._charging = self._admission.start(self._charge())

    async def _charge(self) -> None:
        """Changes the buckets by everything that was collected until now, and meanwhile.

        Both sums are one change: tokens that are given back to a full bucket would be lost."""
        while self._n_wanted or self._n_unused:
            n_wanted, self._n_wanted = self._n_wanted, 0
            n_unused, self._n_unused = self._n_unused, 0.0
            if n_wanted:
                try:
                    await self._change(n_wanted - n_unused, Demand.of)
                    continue
                except EngineError as error:
                    self._n_denied += n_wanted
                    self._refuse(error)
            if n_unused:
                with suppress(EngineError):  # it isn't given back
                    await self._change(-n_unused, Demand.owed)
        self._charging = None

    async def _change(self, n_tokens: float, kind: Callable[[Bucket, float], Demand]) -> None:
        """Takes `n_tokens`. Raises EngineError, see `Admission.admit`."""
        assert self.balance is not None
        demands = [kind(each, n_tokens) for each in self.balance.of_tokens]
        taken = await self._admission.take(demands)
        self.balance.note(demands, taken)
        if not taken.is_granted:
            raise self.balance.refusal(demands)

    def _refuse(self, error: EngineError) -> None:
        if self._refusal is None:
            self._refusal = error
            self.count(Usage(refused=1))
        if self.on_refusal is not None:
            self.on_refusal(self._refusal)

    async def reserved(self) -> None:
        """Waits until the tokens of all accepted texts have been taken. Raises EngineError, see
        `Admission.admit`."""
        if self._charging is not None:
            await asyncio.wait({self._charging})
        if self._refusal is not None:
            raise self._refusal

    def explained(self, error: EngineError) -> EngineError:
        """Counts a refusal by the engine, and returns it with the time until a retry."""
        info = error.info
        if self._refusal is not None or info.type not in ("rate_limit_error", "unavailable_error"):
            return error
        self._refusal = error
        self.count(Usage(refused=1))
        if info.type == "rate_limit_error" and self.balance is not None:
            return self.balance.shortage(info.n_tokens)
        return error


class TextMeter:
    """Receives what `n_texts` texts of a call may use and have used. They have equal shares of what
    was reserved for them."""

    def __init__(self, call: AdmittedCall, n_texts: int) -> None:
        self._call = call
        self._n_open = n_texts
        self._n_reserved = 0.0

    def accepted(self, n_tokens: int) -> None:
        self._n_reserved += n_tokens
        self._call.reserve(n_tokens)

    def ended(self, timings: Timings | None) -> None:
        share = self._n_reserved / self._n_open
        self._n_open -= 1
        self._n_reserved -= share
        self._call.settle(share, timings)


async def admit(model: str, n_tokens: int = 0) -> None:
    """Admits the call of the current request, unless that has happened. The arguments and the
    errors are those of `Admission.admit`."""
    scope = current_scope()
    state = scope["state"]
    if _STATE not in state:
        admission: Admission = state["runtime"].admission
        call = state[_STATE] = AdmittedCall(admission, key_of(scope), model)
        await admission.admit(call, state["leases"], n_tokens)


def admitted_call() -> AdmittedCall:
    """Returns the call of the current request, which was admitted."""
    call: AdmittedCall = current_scope()["state"][_STATE]
    return call


def leased() -> None:
    """The current request has the engine of its model; if it has a call, that may wait no more."""
    call: AdmittedCall | None = current_scope()["state"].get(_STATE)
    if call is not None and call.place is not None:
        call.place.leased()


def has_quotas(scope: Scope) -> bool:
    """True if the request has an API key with quotas of requests or tokens."""
    key = key_of(scope)
    return key is not None and bool(
        key.requests_per_minute or key.tokens_per_minute or key.tokens_per_day
    )


async def rate_limits(scope: Scope) -> list[RateLimit]:
    """Returns what is left of the quotas of a request with quotas; nothing if they can't be read.
    A call that has taken something has its own view of them; for other requests, they are
    read."""
    state = scope["state"]
    call: AdmittedCall | None = state.get(_STATE)
    key = key_of(scope)
    if call is not None and call.balance is not None and (known := call.balance.rate_limits()):
        return known
    if key is None:
        return []
    balance, admission = Balance(key), state["runtime"].admission
    demands = [Demand.owed(each, 0) for each in balance.buckets]
    with suppress(EngineError):
        balance.note(demands, await admission.take(demands))
    return balance.rate_limits()
