"""The stores of responses: in memory, in a file and in Redis, they all answer alike."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.options import OptionError
from specllama.handlers.running import response_store
from specllama.handlers.running.response_store import (
    MAX_CHAIN,
    ClaimedResponse,
    LocalResponses,
    Responses,
    ResponseStore,
    StoredConversation,
    StoredResponse,
    check_room,
    page_of,
    shared_secret,
)
from specllama.handlers.running.runtime import open_responses
from specllama.handlers.running.sqlite_responses import Database, SqliteResponses
from specllama.handlers.running.stores import StoreError, UnavailableStoreError
from tests.support.redis_servers import redis_server

T = TypeVar("T")
Open = Callable[..., ResponseStore]
"""Opens the store of a test. Several stores of one test have the same responses, except in
memory."""

AN_INSTANT = 1e-6  # s
AGES = 1e9  # s
ME = "me"


def message(id: str, text: str = "") -> Any:
    return {"id": id, "type": "message", "text": text}


def response(
    id: str,
    previous: str | None = None,
    output: list[Any] | None = None,
    status: str = "completed",
) -> Any:
    return {
        "id": id,
        "previous_response_id": previous,
        "output": [message(f"out of {id}")] if output is None else output,
        "status": status,
        "background": False,
        "model": "m",
    }


async def save(store: ResponseStore, id: str, previous: str | None = None, text: str = "") -> None:
    await store.save(ME, response(id, previous), [message(f"in of {id}", text)])


async def get(store: ResponseStore, id: str, owner: str = ME) -> StoredResponse | None:
    found = await store.chain(owner, id, 1)
    return found[0] if found else None


async def kept(store: ResponseStore, ids: str) -> str:
    """Returns those of `ids` that are stored. Looks at their items, which doesn't use them."""
    return "".join([id for id in ids if await store.item(ME, f"in of {id}") is not None])


def talk(id: str = "conv_1", **metadata: Any) -> Any:
    return {"id": id, "object": "conversation", "created_at": 5, "metadata": metadata}


async def ids(store: ResponseStore, id: str = "conv_1", owner: str = ME) -> list[str] | None:
    """Returns the ids of a conversation's items."""
    found = await store.conversation(owner, id)
    return None if found is None else [item["id"] for item in found.items]


# ---- the stores ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as server:
        yield server.url


_numbers = itertools.count()


def opener(kind: str, request: pytest.FixtureRequest) -> Callable[[], Open]:
    if kind == "memory":
        return lambda: SqliteResponses
    if kind == "file":
        folder: Path = request.getfixturevalue("tmp_path")

        def file() -> Open:
            path = str(folder / f"{next(_numbers)}.db")
            return lambda **bounds: SqliteResponses(path, **bounds)

        return file
    url: str = request.getfixturevalue("redis_url")
    from redis import Redis

    from specllama.handlers.running.redis_responses import RedisResponses

    def server() -> Open:
        with closing(Redis.from_url(url)) as client:
            client.flushall()
        return lambda **bounds: RedisResponses(url, **bounds)

    return server


REDIS = pytest.param("redis", marks=pytest.mark.slow)


@pytest.fixture(params=["memory", "file", REDIS])
def anywhere(request: pytest.FixtureRequest) -> Callable[[], Open]:
    return opener(request.param, request)


@pytest.fixture(params=["memory", REDIS])
def with_bounds(request: pytest.FixtureRequest) -> Callable[[], Open]:
    return opener(request.param, request)


@pytest.fixture(params=["file", REDIS])
def shared(request: pytest.FixtureRequest) -> Callable[[], Open]:
    return opener(request.param, request)


def use(
    place: Callable[[], Open], work: Callable[..., Awaitable[T]], n: int = 1, **bounds: int
) -> T:
    """Returns the result of `work` on `n` new stores with the same responses."""

    async def run() -> T:
        open_store = place()
        stores = [open_store(**bounds) for _ in range(n)]
        try:
            return await work(*stores)
        finally:
            for each in stores:
                await each.close()

    return asyncio.run(run())


# ---- stored responses ----------------------------------------------------------------------------

texts = st.text(max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
items = st.lists(
    st.dictionaries(texts, values, max_size=3).flatmap(
        lambda rest: st.text(min_size=1, max_size=4).map(lambda id: {**rest, "id": id})
    ),
    max_size=4,
)
history = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@history
@given(texts, texts, items, items, st.dictionaries(texts, values, max_size=3))
def test_saved_responses_are_loaded(
    anywhere: Callable[[], Open],
    owner: str,
    id: str,
    input: list[Any],
    output: list[Any],
    rest: dict[str, Any],
) -> None:
    async def work(store: ResponseStore) -> None:
        saved: Any = {**rest, **response(id, None, output)}
        assert await store.save(owner, saved, input)
        assert await store.chain(owner, id, 5) == [StoredResponse(saved, input)]
        for each in input + output:
            assert await store.item(owner, each["id"]) is not None
        assert await store.delete(owner, id)
        assert await store.chain(owner, id, 5) == []
        for each in input + output:
            assert await store.item(owner, each["id"]) is None

    use(anywhere, work)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 9), st.integers(1, 4), st.sampled_from(["asc", "desc"]))
def test_pages_put_together_are_the_whole_input(n: int, limit: int, order: Any) -> None:
    expected = [message(str(i)) for i in range(n)]
    seen: list[Any] = []
    after = None
    while True:
        page = page_of(expected, after=after, limit=limit, order=order)
        assert len(page.items) <= limit
        seen += page.items
        if not page.has_more:
            break
        after = seen[-1]["id"]
    assert seen == (expected if order == "asc" else expected[::-1])
    with pytest.raises(EngineError, match="after"):
        page_of(expected, after="x", limit=1, order=order)


def test_a_chain_is_in_its_order(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        for id, previous in (("a", None), ("b", "a"), ("c", "b"), ("other", "a")):
            await save(store, id, previous)

        async def chain(id: str, limit: int = 9) -> list[str]:
            return [each.response["id"] for each in await store.chain(ME, id, limit)]

        assert await chain("c") == ["c", "b", "a"]
        assert await chain("c", 2) == ["c", "b"]
        assert await chain("other") == ["other", "a"]
        assert await chain("x") == []
        assert await store.delete(ME, "a")
        assert not await store.delete(ME, "a")
        assert not await store.delete(ME, "x")
        assert await chain("c") == ["c", "b"]
        assert await store.item(ME, "in of a") is None
        assert await store.item(ME, "in of b") == message("in of b")

    use(anywhere, work)


def test_another_owner_finds_nothing(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        await save(store, "a")
        for other in ("", "you", "m", "me:a"):
            assert await get(store, "a", other) is None
            assert await store.item(other, "in of a") is None
            assert not await store.delete(other, "a")
            claimed = ClaimedResponse(other, "a", "queued")
            assert await store.renew([claimed], AGES) == [claimed]
            with pytest.raises(StoreError):
                await store.save(other, response("a"), [])
            assert not await store.save(other, response("a"), [], if_claimed=True)
        assert await get(store, "a") == StoredResponse(response("a"), [message("in of a")])

    use(anywhere, work)


def test_a_chain_ends_at_a_response_of_another_owner(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        await store.save("you", response("a"), [])
        await save(store, "b", "a")
        assert len(await store.chain(ME, "b", 9)) == 1

    use(anywhere, work)


def test_an_item_may_be_in_several_responses(anywhere: Callable[[], Open]) -> None:
    """A client may send items of earlier answers with their ids."""

    async def work(store: ResponseStore) -> None:
        for id in "abc":
            await store.save(ME, response(id, None, [message("same"), message("same")]), [])
        for id in "bca":
            assert await store.item(ME, "same") == message("same")
            assert await store.delete(ME, id)
        assert await store.item(ME, "same") is None

    use(anywhere, work)


def test_a_response_is_replaced(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        await save(store, "a")
        await store.save(ME, response("a", None, []), [message("new")])
        assert await get(store, "a") == StoredResponse(response("a", None, []), [message("new")])
        assert await store.item(ME, "in of a") is None

    use(anywhere, work)


def test_ids_from_requests_may_be_no_text(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        for id in ("", "\0", "a:b", "*", "x" * 1024, "ä\U0001f600"):
            assert await store.chain(ME, id, 1) == []
            assert await store.item(ME, id) is None
            assert not await store.delete(ME, id)
        await store.check()

    use(anywhere, work)


# ---- bounds ----------------------------------------------------------------------------------


@history
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["save", "read", "go on", "delete"]), st.integers(0, 7)),
        max_size=30,
    )
)
def test_the_least_recently_used_go_first(
    with_bounds: Callable[[], Open], steps: list[tuple[str, int]]
) -> None:
    async def work(store: ResponseStore) -> None:
        expected: list[str] = []  # by use
        previous: dict[str, str | None] = {}
        for n, (what, which) in enumerate(steps):
            id = expected[which % len(expected)] if expected else "none"
            if what == "save":
                previous[str(n)] = id if id in expected and which % 2 else None
                await save(store, str(n), previous[str(n)])
                expected = [*expected, str(n)][-4:]
            elif what == "delete":
                assert await store.delete(ME, id) == (id in expected)
                expected = [each for each in expected if each != id]
            else:
                chain = chain_of(id, previous, expected)
                found = await store.chain(ME, id, 1 if what == "read" else 9)
                used = chain[:1] if what == "read" else chain
                assert [each.response["id"] for each in found] == used
                expected = [e for e in expected if e not in used] + sorted(used, key=int)
        assert {id for id in previous if await get(store, id) is not None} == {*expected}

    use(with_bounds, work, max_responses=4)


def chain_of(id: str, previous: dict[str, str | None], stored: list[str]) -> list[str]:
    chain: list[str] = []
    next_: str | None = id
    while next_ is not None and next_ in stored:
        chain.append(next_)
        next_ = previous[next_]
    return chain


def test_large_responses_make_room_for_larger_ones(with_bounds: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        for id in "abcd":
            await save(store, id, text="x" * 3000)
        assert await kept(store, "abcd") == "bcd"
        await save(store, "e", text="x" * 100_000)  # the last one stays in any case
        assert await kept(store, "abcde") == "e"
        for id in "fgh":
            await save(store, id, text="x" * 3000)
        assert await kept(store, "efgh") == "fgh"
        await store.save(ME, response("g"), [message("in of g", "x" * 6000)])
        assert await kept(store, "fgh") == "gh"

    use(with_bounds, work, max_bytes=10_000)


def test_a_claim_is_a_use(with_bounds: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        running = response("a", status="queued")
        await store.save(ME, running, [message("in of a")], claim=AGES)
        for id in "bcdefg":
            await save(store, id)
            assert await store.renew([ClaimedResponse(ME, "a", "queued")], AGES) == []
        assert await kept(store, "abcdefg") == "afg"

    use(with_bounds, work, max_responses=3)


@pytest.mark.slow
def test_the_bounds_hold_for_all_servers_together(redis_url: str) -> None:
    from redis import Redis

    async def work(*stores: ResponseStore) -> int:
        everything = [(store, f"{n}{i}") for i, store in enumerate(stores) for n in range(40)]
        await asyncio.gather(*(save(store, id) for store, id in everything))
        found = [await get(stores[0], id) for _, id in everything]
        return sum(each is not None for each in found)

    def place() -> Open:
        from specllama.handlers.running.redis_responses import RedisResponses

        with closing(Redis.from_url(redis_url)) as client:
            client.flushall()
        return lambda **bounds: RedisResponses(redis_url, **bounds)

    assert use(place, work, 3, max_responses=50) == 50
    with closing(Redis.from_url(redis_url)) as client:
        # 50 responses, the items of each, and three keys for the bounds
        assert client.dbsize() == 50 * 3 + 3


# ---- claims --------------------------------------------------------------------------------------


def test_a_claim_ends_once(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        claimed, input = ClaimedResponse(ME, "a", "in_progress"), [message("i")]
        assert not await store.save(ME, response("a"), input, if_claimed=True)
        await store.save(ME, response("a", None, [], "queued"), input, claim=AGES)
        found = await get(store, "a")
        assert found == StoredResponse(response("a", None, [], "queued"), input)
        assert found.is_running
        assert await store.renew([claimed], AGES) == []
        found = await get(store, "a")
        assert found == StoredResponse(response("a", None, [], "in_progress"), input)
        assert found.is_running
        assert await store.save(ME, response("a"), input, if_claimed=True)
        found = await get(store, "a")
        assert found == StoredResponse(response("a"), input)
        assert not found.is_running
        assert await store.item(ME, "out of a") == message("out of a")
        assert await store.renew([claimed], AGES) == [claimed]
        assert not await store.save(ME, response("a", status="cancelled"), input, if_claimed=True)
        assert await get(store, "a") == found

    use(anywhere, work)


def test_claims_that_have_ended_are_listed(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        for id in "abcde":
            await store.save(ME, response(id, status="queued"), [], claim=AGES)
        await store.delete(ME, "b")
        await store.save(ME, response("d", status="cancelled"), [], if_claimed=True)
        claimed = [ClaimedResponse(ME, id, "queued") for id in "abcdex"]
        ended = await store.renew(claimed, AGES)
        assert [each.id for each in ended] == ["b", "d", "x"]
        assert await store.renew([], AGES) == []

    use(anywhere, work)


def test_a_lost_response_never_changes(shared: Callable[[], Open]) -> None:
    """Its process has ended, or works on without the store. All processes see the same."""

    async def work(owner: ResponseStore, other: ResponseStore) -> None:
        await owner.save(ME, response("a", None, [], "queued"), [], claim=AN_INSTANT)
        for store in (owner, other):
            while not (found := await get(store, "a")) or not found.is_lost:
                pass
            assert not found.is_running
        claimed = ClaimedResponse(ME, "a", "in_progress")
        assert await owner.renew([claimed], AGES) == [claimed]
        assert not await owner.save(ME, response("a"), [], if_claimed=True)
        assert await get(other, "a") == found
        assert await other.delete(ME, "a")

    use(shared, work, 2)


def test_of_several_ends_the_first_counts(shared: Callable[[], Open]) -> None:
    async def work(*stores: ResponseStore) -> None:
        await stores[0].save(ME, response("a", None, [], "queued"), [], claim=AGES)
        ends = [response("a", None, [message(str(n))]) for n in range(len(stores))]
        pairs = zip(stores, ends, strict=True)
        saved = await asyncio.gather(
            *(store.save(ME, end, [], if_claimed=True) for store, end in pairs)
        )
        assert sum(saved) == 1
        assert await get(stores[0], "a") == StoredResponse(ends[saved.index(True)], [])

    use(shared, work, 4)


def test_several_servers_share_responses(shared: Callable[[], Open]) -> None:
    async def work(first: ResponseStore, second: ResponseStore) -> None:
        await save(first, "a")
        await save(second, "b", "a")
        assert [each.response["id"] for each in await first.chain(ME, "b", 9)] == ["b", "a"]
        assert await first.item(ME, "in of b") == message("in of b")
        assert await first.delete(ME, "b")
        assert await get(second, "b") is None

    use(shared, work, 2)


def test_many_at_once(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        await asyncio.gather(*(save(store, str(n)) for n in range(50)))
        found = await asyncio.gather(*(get(store, str(n)) for n in range(50)))
        assert [each and each.response["id"] for each in found] == [str(n) for n in range(50)]

    use(anywhere, work)


# ---- the responses of one owner --------------------------------------------------------------


def test_a_conversation_has_all_items(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        for id, previous in (("a", None), ("b", "a")):
            await save(store, id, previous)
        mine = Responses(store, ME)
        conversation = await mine.conversation("b")
        expected = ["in of a", "out of a", "in of b", "out of b"]
        assert [item["id"] for item in conversation] == expected
        await mine.begin(response("c", "b", status="queued"), [])
        with pytest.raises(EngineError, match="'c' has not ended") as caught:
            await mine.conversation("c")
        assert caught.value.info.type == "invalid_request_error"
        await mine.end(response("c", "b"), [])
        assert len(await mine.conversation("c")) == 5
        await mine.delete("a")
        for id, missing in (("b", "a"), ("x", "x")):
            with pytest.raises(EngineError, match=f"no response '{missing}'") as caught:
                await mine.conversation(id)
            assert caught.value.info.type == "invalid_request_error"
        with pytest.raises(EngineError, match="there is no response 'b'"):
            await Responses(store).conversation("b")
        for unknown in (mine.find("a"), mine.delete("a"), Responses(store, "you").find("b")):
            with pytest.raises(EngineError, match="there is no response") as caught:
                await unknown
            assert caught.value.info.type == "not_found_error"

    use(anywhere, work)


def test_a_chain_has_an_end(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        for i in range(MAX_CHAIN + 1):
            await save(store, str(i), str(i - 1) if i else None)
        mine = Responses(store, ME)
        assert len(await mine.conversation(str(MAX_CHAIN - 1))) == 2 * MAX_CHAIN
        with pytest.raises(EngineError, match=str(MAX_CHAIN)):
            await mine.conversation(str(MAX_CHAIN))
        await save(store, "0", "5")  # a circle
        with pytest.raises(EngineError, match=str(MAX_CHAIN)):
            await mine.conversation("3")

    use(anywhere, work)


class FailingStore(SqliteResponses):
    """Fails with the next `errors`."""

    def __init__(self, *errors: StoreError) -> None:
        super().__init__()
        self.errors = [*errors]

    async def save(self, *args: Any, **options: Any) -> bool:
        if self.errors:
            raise self.errors.pop(0)
        return await super().save(*args, **options)


@pytest.mark.parametrize(
    ("error", "type_", "retry_after"),
    [(StoreError("x"), "server_error", 0), (UnavailableStoreError("x"), "unavailable_error", 5)],
)
def test_errors_of_a_store_are_reported(error: StoreError, type_: str, retry_after: int) -> None:
    async def run() -> None:
        store = FailingStore(error, error)
        for write in (Responses(store).save, Responses(store).end):
            with pytest.raises(EngineError) as caught:
                await write(response("a"), [])
            assert (caught.value.info.type, caught.value.info.retry_after) == (type_, retry_after)
        await store.close()

    asyncio.run(run())


def test_a_patient_end_waits_for_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "HEARTBEAT", 0.0)

    async def run() -> None:
        store = FailingStore()
        responses = Responses(store)
        await responses.begin(response("a", status="queued"), [])
        store.errors = [UnavailableStoreError("x")] * 3
        await responses.end(response("a"), [], patient=True)
        assert (await responses.find("a")).response["status"] == "completed"
        store.errors = [UnavailableStoreError("x")] * 1_000_000
        monkeypatch.setattr(response_store, "CLAIM_SECONDS", 0.0)
        with pytest.raises(EngineError, match="can't be used"):
            await responses.end(response("a"), [], patient=True)
        await store.close()

    asyncio.run(run())


def test_stores_of_the_option(tmp_path: Path) -> None:
    for where in ("", str(tmp_path / "r.db")):
        store = open_responses(where)
        assert isinstance(store, SqliteResponses)
        asyncio.run(store.close())
    Database(str(tmp_path / "r.db")).close()
    for where in (str(tmp_path), "redis://:sec/ret@host"):
        with pytest.raises(OptionError, match=r"^--responses-db") as caught:
            open_responses(where)
        assert "sec" not in str(caught.value)


# ---- responses of one WebSocket


def local(
    id: str, previous: str | None = None, text: str = "", *, store: bool = False
) -> tuple[Any, list[Any]]:
    return {**response(id, previous), "store": store}, [message(f"in of {id}", text)]


def test_a_chain_may_have_local_and_stored_responses() -> None:
    async def test(store: ResponseStore) -> None:
        kept = LocalResponses()
        mine, other = Responses(store, ME, kept), Responses(store, ME)
        await mine.save(*local("a", store=True))
        await mine.save(*local("b", "a"))
        await mine.save(*local("c", "b", store=True))
        await mine.save(*local("d", "c"))
        items = [item["id"] for item in await mine.conversation("d")]
        assert items == [f"{way} of {id}" for id in "abcd" for way in ("in", "out")]
        found = await mine.item("in of b")
        assert found is not None
        assert await other.item("in of b") is None
        for id in "bcd":
            with pytest.raises(EngineError, match=r"there is no response '[bd]'") as missing:
                await other.conversation(id)
            assert missing.value.info.reason == "previous_response_not_found"

    use(lambda: SqliteResponses, test)


def test_local_responses_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalResponses, "MAX", 2)
    kept = LocalResponses()
    for id in "abc":
        kept.save(*local(id))
    assert [bool(kept.chain(id, 9)) for id in "abc"] == [False, True, True]
    monkeypatch.setattr(LocalResponses, "MAX_BYTES", 1000)
    kept.save(*local("d", text="x" * 900))
    assert [bool(kept.chain(id, 9)) for id in "bcd"] == [False, False, True]
    kept.save(*local("e", text="x" * 2000))
    assert not kept.chain("e", 9), "it is larger than the room"
    assert not kept._n_bytes


def test_a_discarded_local_response_is_gone() -> None:
    kept = LocalResponses()
    kept.save(*local("a"))
    kept.discard("a")
    kept.discard("a")
    assert not kept.chain("a", 9)
    assert kept.item("in of a") is None
    assert not kept._n_bytes


def test_a_chain_of_local_responses_has_a_limit() -> None:
    kept = LocalResponses()
    for id, previous in ("a", None), ("b", "a"), ("c", "b"):
        kept.save(*local(id, previous))
    assert [each.response["id"] for each in kept.chain("c", 2)] == ["c", "b"]


# ---- conversations -------------------------------------------------------------------------------


@history
@given(texts, texts, items, items, st.dictionaries(texts, values, max_size=3))
def test_conversations_grow_and_shrink(
    anywhere: Callable[[], Open],
    owner: str,
    id: str,
    first: list[Any],
    more: list[Any],
    metadata: dict[str, Any],
) -> None:
    async def work(store: ResponseStore) -> None:
        await store.create(owner, talk(id), first)
        assert await store.update(owner, talk(id, **metadata))
        assert await store.append(owner, id, more)
        expected = [*first, *more]
        found = await store.conversation(owner, id)
        assert found == StoredConversation(talk(id, **metadata), expected)
        while expected:
            gone = expected[0]["id"]
            assert await store.item(owner, gone) is not None
            assert await store.remove_item(owner, id, gone)
            assert not await store.remove_item(owner, id, gone)
            assert await store.item(owner, gone) is None
            expected = [each for each in expected if each["id"] != gone]
            found = await store.conversation(owner, id)
            assert found is not None
            assert found.items == expected
        assert await store.append(owner, id, more)
        found = await store.conversation(owner, id)
        assert found is not None
        assert found.items == more
        assert await store.delete_conversation(owner, id)
        assert await store.conversation(owner, id) is None
        for each in more:
            assert await store.item(owner, each["id"]) is None

    use(anywhere, work)


def test_another_owner_has_no_part_in_a_conversation(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        await store.create(ME, talk(), [message("a")])
        await save(store, "r")
        for owner, id in (("", "conv_1"), ("other", "conv_1"), (ME, "conv_2"), (ME, "r")):
            assert await store.conversation(owner, id) is None
            assert not await store.append(owner, id, [message("b")])
            assert not await store.update(owner, talk(id, a=1))
            assert not await store.remove_item(owner, id, "a")
            assert not await store.delete_conversation(owner, id)
            await store.save(owner, response("other"), [message("b")], append_to=id)
            await store.delete(owner, "other")
        assert await store.chain(ME, "conv_1", 5) == []
        assert not await store.delete(ME, "conv_1")
        assert await store.item("other", "a") is None
        assert await ids(store) == ["a"]

    use(anywhere, work)


def test_a_response_that_ends_is_added_to_its_conversation(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        await store.create(ME, talk(), [message("a")])
        await store.save(ME, response("1"), [message("b")], append_to="conv_1")
        await store.save(ME, response("2", status="queued"), [message("c")], claim=AGES)
        assert await ids(store) == ["a", "b", "out of 1"]
        for _ in range(2):  # the second one finds no claim
            await store.save(ME, response("2"), [message("c")], if_claimed=True, append_to="conv_1")
        assert await ids(store) == ["a", "b", "out of 1", "c", "out of 2"]
        await store.delete(ME, "1")
        assert await ids(store) == ["a", "b", "out of 1", "c", "out of 2"]
        await store.delete_conversation(ME, "conv_1")
        assert await get(store, "2") is not None
        assert await store.item(ME, "c") is not None
        assert await store.item(ME, "a") is None

    use(anywhere, work)


@pytest.mark.parametrize(
    ("status", "n"), [("completed", 2), ("incomplete", 2), ("failed", 0), ("cancelled", 0)]
)
def test_only_whole_answers_are_added(status: str, n: int) -> None:
    async def work(store: ResponseStore) -> None:
        await store.create(ME, talk(), [])
        ended: Any = {**response("1", status=status), "conversation": {"id": "conv_1"}}
        await Responses(store, ME).save(ended, [message("a")])
        found = await ids(store)
        assert found is not None
        assert len(found) == n
        await Responses(store, ME).save(response("2"), [])  # of an earlier version
        ended = {**response("3"), "conversation": None}
        await Responses(store, ME).save(ended, [])

    use(lambda: SqliteResponses, work)


def test_responses_that_end_at_once_do_not_mix(shared: Callable[[], Open]) -> None:
    n = 12

    async def work(*stores: ResponseStore) -> None:
        await stores[0].create(ME, talk(), [])
        saves = [
            stores[i % len(stores)].save(
                ME,
                response(str(i), output=[message(f"{i} c"), message(f"{i} d")]),
                [message(f"{i} a"), message(f"{i} b")],
                append_to="conv_1",
            )
            for i in range(n)
        ]
        assert all(await asyncio.gather(*saves))
        found = await ids(stores[0])
        assert found is not None
        groups = [found[i : i + 4] for i in range(0, len(found), 4)]
        numbers = [each[0].split()[0] for each in groups]
        assert sorted(numbers, key=int) == [str(i) for i in range(n)]
        assert groups == [[f"{number} {part}" for part in "abcd"] for number in numbers]

    use(shared, work, 3)


def test_conversations_count_with_the_responses(with_bounds: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        await save(store, "a")
        await store.create(ME, talk(), [message("1")])
        await save(store, "b")
        assert await kept(store, "ab") == "ab"
        await store.append(ME, "conv_1", [message("2")])  # a use
        await save(store, "c")
        assert await kept(store, "abc") == "bc"
        assert await ids(store) == ["1", "2"]  # a use
        await save(store, "d")
        await save(store, "e")
        assert await kept(store, "bcde") == "de"
        assert await store.item(ME, "1") is not None
        await save(store, "f")
        assert await ids(store) is None
        assert await store.item(ME, "1") is None

    use(with_bounds, work, max_responses=3)


def test_a_long_conversation_makes_room_for_itself(with_bounds: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        await save(store, "a")
        await store.create(ME, talk(), [message("1", "x" * 2000)])
        await save(store, "b")
        assert await kept(store, "ab") == "ab"
        await store.append(ME, "conv_1", [message("2", "x" * 2000)])
        assert await kept(store, "ab") == ""
        assert await ids(store) == ["1", "2"]
        assert await store.remove_item(ME, "conv_1", "2")
        await save(store, "c", text="x" * 1500)  # there is room again
        assert await ids(store) == ["1"]
        assert await kept(store, "c") == "c"
        await store.delete_conversation(ME, "conv_1")
        await save(store, "d", text="x" * 2000)
        assert await kept(store, "cd") == "cd"
        await store.create(ME, talk("conv_2"), [])
        await store.update(ME, talk("conv_2", a="x" * 4500))
        assert await kept(store, "cd") == ""

    use(with_bounds, work, max_bytes=4300)


def test_conversations_of_an_owner(anywhere: Callable[[], Open]) -> None:
    async def work(store: ResponseStore) -> None:
        mine, others = (Responses(store, owner).conversations for owner in (ME, "other"))
        made = await mine.create("conv_1", {"a": 1}, [message("1"), message("2")])
        assert made["metadata"] == {"a": 1}
        assert (await mine.find("conv_1")).conversation == made
        assert await mine.item("conv_1", "2") == message("2")
        assert (await mine.update("conv_1", {}))["metadata"] == {}
        await mine.append("conv_1", [message("3")])
        assert (await mine.remove_item("conv_1", "2"))["id"] == "conv_1"
        assert await ids(store) == ["1", "3"]
        missing: list[Callable[[], Awaitable[Any]]] = [
            lambda: others.find("conv_1"),
            lambda: others.update("conv_1", {}),
            lambda: others.append("conv_1", []),
            lambda: others.item("conv_1", "1"),
            lambda: others.remove_item("conv_1", "1"),
            lambda: others.delete("conv_1"),
            lambda: mine.item("conv_1", "2"),
            lambda: mine.remove_item("conv_1", "2"),
            lambda: mine.find("a\0b"),
        ]
        for call in missing:
            with pytest.raises(EngineError, match="there is no") as caught:
                await call()
            assert caught.value.info.type == "not_found_error"
        await mine.delete("conv_1")
        assert await ids(store) is None

    use(anywhere, work)


def test_a_conversation_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_store, "MAX_ITEMS", 3)
    check_room([message("1")], [message("2"), message("3")])
    with pytest.raises(EngineError, match="at most 3 items"):
        check_room([message("1")], [message("2"), message("3"), message("4")])
    monkeypatch.setattr(response_store, "MAX_CONVERSATION_BYTES", 1000)
    check_room([], [message("1", "x" * 900)])
    with pytest.raises(EngineError, match="at most 0 MiB"):
        check_room([message("1", "x" * 900)], [message("2", "x" * 100)])


def test_the_first_secret_of_a_store_counts(shared: Callable[[], Open]) -> None:
    async def work(*stores: ResponseStore) -> None:
        found = [await shared_secret(store, bytes([n])) for n, store in enumerate(stores)]
        assert found == [b"\0"] * len(stores)

    use(shared, work, 3)
