"""Stored responses, conversations and quotas of a small cluster, in the memory of one actor of Ray.

The actor outlives ingresses and deployments, but not its machine: what has to survive that belongs
into Redis (`--responses-db redis://...`, `--quota-store redis://...`).
"""

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import ray
from ray.exceptions import RayActorError, RayError

from specllama.handlers.http import schemas
from specllama.handlers.running.buckets import BucketStore, Demand, MemoryBuckets, Taken
from specllama.handlers.running.response_store import (
    ClaimedResponse,
    Item,
    ResponseStore,
    StoredConversation,
    StoredResponse,
)
from specllama.handlers.running.sqlite_responses import SqliteResponses
from specllama.handlers.running.stores import StoreError, UnavailableStoreError

NAMESPACE: Final = "specllama"
CALLS: Final = 1000  # at the same time
SECONDS: Final = 10.0
"""The time limit of a call. Each takes about a millisecond, but the actor may have to start."""


class Stores:
    """The actor's object: one store of responses and one of quotas. Their methods are called by
    name, with their arguments."""

    def __init__(self) -> None:
        self._stores: dict[str, Any] = {
            "responses": SqliteResponses(""),
            "buckets": MemoryBuckets(),
        }

    async def call(self, store: str, method: str, *arguments: Any, **options: Any) -> Any:
        """Returns the result of a method of the store `responses` or `buckets`, or its StoreError:
        Ray would wrap a raised one."""
        try:
            return await getattr(self._stores[store], method)(*arguments, **options)
        except StoreError as error:
            return error


def actor_name(application: str) -> str:
    """Returns the name of the actor of an application, in NAMESPACE."""
    return f"{application} stores"


def stores_of(application: str) -> Any:
    """Returns the actor of an application, which is started if there is none. It isn't ended with
    the process that has started it; `end_stores` ends it."""
    options = {
        "name": actor_name(application),
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "get_if_exists": True,
        "max_restarts": -1,
        "max_concurrency": CALLS,
        "num_cpus": 0,
    }
    return ray.remote(Stores).options(**options).remote()


def end_stores(application: str) -> None:
    """Ends the actor of an application, with all that it stores, if there is one."""
    try:
        ray.kill(ray.get_actor(actor_name(application), namespace=NAMESPACE))
    except ValueError:
        return  # there is none


class _Remote:
    """One store of the actor."""

    store = ""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    async def _call(self, method: str, *arguments: Any, **options: Any) -> Any:
        try:
            async with asyncio.timeout(SECONDS):
                found = await self._actor.call.remote(self.store, method, *arguments, **options)
        except TimeoutError:
            text = f"the actor with the stores did not answer in {SECONDS:.0f} s"
            raise UnavailableStoreError(text) from None
        except RayActorError as error:
            raise UnavailableStoreError(f"the actor with the stores has ended: {error}") from error
        except RayError as error:
            raise StoreError(f"the actor with the stores failed: {error}") from error
        if isinstance(found, StoreError):
            raise found
        return found

    async def close(self) -> None:
        """Does nothing: other ingresses use the actor."""


class ActorResponses(_Remote):
    """The `ResponseStore` of the actor."""

    store = "responses"

    async def save(
        self,
        owner: str,
        response: schemas.ResponseObject,
        input: Sequence[Item],
        *,
        claim: float = 0.0,
        if_claimed: bool = False,
        append_to: str = "",
    ) -> bool:
        saved: bool = await self._call(
            "save",
            owner,
            response,
            list(input),
            claim=claim,
            if_claimed=if_claimed,
            append_to=append_to,
        )
        return saved

    async def renew(
        self, claimed: Sequence[ClaimedResponse], seconds: float
    ) -> list[ClaimedResponse]:
        ended: list[ClaimedResponse] = await self._call("renew", list(claimed), seconds)
        return ended

    async def chain(self, owner: str, id: str, limit: int) -> list[StoredResponse]:
        found: list[StoredResponse] = await self._call("chain", owner, id, limit)
        return found

    async def delete(self, owner: str, id: str) -> bool:
        deleted: bool = await self._call("delete", owner, id)
        return deleted

    async def item(self, owner: str, id: str) -> Item | None:
        found: Item | None = await self._call("item", owner, id)
        return found

    async def create(
        self, owner: str, conversation: schemas.ConversationObject, items: Sequence[Item]
    ) -> None:
        await self._call("create", owner, conversation, list(items))

    async def conversation(self, owner: str, id: str) -> StoredConversation | None:
        found: StoredConversation | None = await self._call("conversation", owner, id)
        return found

    async def update(self, owner: str, conversation: schemas.ConversationObject) -> bool:
        is_there: bool = await self._call("update", owner, conversation)
        return is_there

    async def append(self, owner: str, id: str, items: Sequence[Item]) -> bool:
        is_there: bool = await self._call("append", owner, id, list(items))
        return is_there

    async def remove_item(self, owner: str, id: str, item: str) -> bool:
        is_there: bool = await self._call("remove_item", owner, id, item)
        return is_there

    async def delete_conversation(self, owner: str, id: str) -> bool:
        deleted: bool = await self._call("delete_conversation", owner, id)
        return deleted

    async def secret(self, candidate: bytes) -> bytes:
        found: bytes = await self._call("secret", candidate)
        return found

    async def check(self) -> None:
        await self._call("check")


class ActorBuckets(_Remote):
    """The `BucketStore` of the actor."""

    store = "buckets"

    async def take(self, demands: Sequence[Demand]) -> Taken:
        taken: Taken = await self._call("take", list(demands))
        return taken

    async def begin(self, key: str, call: str, limit: int) -> int:
        n: int = await self._call("begin", key, call, limit)
        return n

    async def renew(self, calls: Sequence[tuple[str, str]]) -> None:
        await self._call("renew", list(calls))

    async def end(self, key: str, call: str) -> None:
        await self._call("end", key, call)


def responses_of(actor: Any) -> ResponseStore:
    """Returns the stored responses of the actor."""
    return ActorResponses(actor)


def buckets_of(actor: Any) -> BucketStore:
    """Returns the quotas of the actor."""
    return ActorBuckets(actor)
