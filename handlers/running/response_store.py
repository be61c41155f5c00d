"""Stored responses of the Responses API, in an SQLite database.

SQLite blocks, so one thread does all its work, in the order of the calls. In a file, responses stay
until they are deleted. In memory, the least recently used responses are removed to keep the bounds.
"""

import asyncio
import copy
import itertools
import json
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias, TypeVar

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, invalid_request, server_error
from specllama.handlers.http import schemas
from specllama.handlers.running.sqlite_files import DatabaseKind, value_of

log = logging.getLogger(__name__)

T = TypeVar("T")
Item: TypeAlias = schemas.ResponseStoredItem
Order: TypeAlias = schemas.ResponseItemOrder

MAX_CHAIN = 1000
"""The longest chain of responses by `previous_response_id`."""

MAX_RESPONSES = 10_000
MAX_BYTES = 256 << 20  # of JSON text
"""Bounds of a database in memory."""

_INPUT, _OUTPUT = 0, 1  # the parts that the items of a response belong to

_SCHEMA = """
    CREATE TABLE responses (
        id TEXT PRIMARY KEY,
        previous TEXT,
        used INTEGER NOT NULL,
        size INTEGER NOT NULL,
        body TEXT NOT NULL,
        owner TEXT NOT NULL DEFAULT ''
    );
    CREATE INDEX responses_by_use ON responses (used);
    CREATE TABLE items (
        response TEXT NOT NULL REFERENCES responses (id) ON DELETE CASCADE,
        part INTEGER NOT NULL,
        position INTEGER NOT NULL,
        id TEXT NOT NULL,
        body TEXT NOT NULL,
        PRIMARY KEY (response, part, position)
    ) WITHOUT ROWID;
    CREATE INDEX items_by_id ON items (id);
"""
_ADD_OWNERS = "ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT ''"
KIND = DatabaseKind(
    name="responses",
    application_id=0x73706C72,
    version=2,
    schema=_SCHEMA,
    upgrades={1: _ADD_OWNERS},
)


class ItemPage(msgspec.Struct, frozen=True):
    """Consecutive items of a list; `has_more`: the list continues after them."""

    items: list[Item]
    has_more: bool


def page_of(items: Sequence[Item], *, after: str | None, limit: int, order: Order) -> ItemPage:
    """Returns up to `limit` of the `items` after the item `after`, in the given `order`. Raises
    EngineError (invalid_request_error) for an unknown `after`."""
    listed = list(items) if order == "asc" else list(reversed(items))
    start = 0
    if after is not None:
        positions = [i for i, item in enumerate(listed) if item["id"] == after]
        if not positions:
            raise invalid_request(f"after: the response has no input item {after!r}")
        start = positions[0] + 1
    return ItemPage(listed[start : start + limit], len(listed) > start + limit)


class Database:
    """The tables, for one thread. Methods raise sqlite3.Error if the database fails.

    Methods find only the responses of their `owner`; "" owns responses saved without API keys.
    """

    def __init__(
        self, path: str = "", *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES
    ) -> None:
        """Opens the file at `path`, and creates it if it doesn't exist; "" means memory, to which
        the bounds apply. Raises StoreError."""
        self._bounds = None if path else (max_responses, max_bytes)
        self._connection = KIND.open(path)
        self._uses = itertools.count(
            1 + self._value("SELECT coalesce(max(used), 0) FROM responses")
        )

    def _value(self, query: str, *parameters: Any) -> Any:
        return value_of(self._connection, query, *parameters)

    def close(self) -> None:
        self._connection.close()

    def save(self, response: schemas.ResponseObject, input: list[Item], owner: str = "") -> None:
        """Stores a response and its input items."""
        id, previous = response["id"], response["previous_response_id"]
        body = json.dumps({**response, "output": []})
        rows = [*_rows(id, _INPUT, input), *_rows(id, _OUTPUT, response["output"])]
        size = len(body) + sum(len(row[-1]) for row in rows)
        with self._connection as connection:
            connection.execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?)",
                (id, previous, next(self._uses), size, body, owner),
            )
            connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
            self._evict()

    def _evict(self) -> None:
        """Removes the least recently used responses beyond the bounds, but never the last one
        saved."""
        if self._bounds is None:
            return
        query = "SELECT count(*), sum(size) FROM responses"
        number, size = self._connection.execute(query).fetchone()
        oldest = self._connection.execute("SELECT id, size FROM responses ORDER BY used, rowid")
        for id, bytes_ in oldest.fetchmany(number - 1):
            if number <= self._bounds[0] and size <= self._bounds[1]:
                break
            self._connection.execute("DELETE FROM responses WHERE id = ?", (id,))
            number, size = number - 1, size - bytes_

    def response(self, id: str, owner: str = "") -> schemas.ResponseObject | None:
        query = "SELECT body FROM responses WHERE id = ? AND owner = ?"
        body = self._value(query, id, owner)
        if body is None:
            return None
        self._use([id])
        found: schemas.ResponseObject = json.loads(body)
        found["output"] = self._items(id, _OUTPUT)
        return found

    def delete(self, id: str, owner: str = "") -> bool:
        """Deletes a response. Returns False if it doesn't exist."""
        query = "DELETE FROM responses WHERE id = ? AND owner = ?"
        with self._connection as connection:
            return connection.execute(query, (id, owner)).rowcount > 0

    def item(self, id: str, owner: str = "") -> Item | None:
        """Returns an item of any response, by the item's id."""
        query = """
            SELECT items.body FROM items JOIN responses ON responses.id = items.response
            WHERE items.id = ? AND owner = ? LIMIT 1
        """
        body = self._value(query, id, owner)
        return None if body is None else json.loads(body)

    def input_items(
        self, id: str, owner: str = "", *, after: str | None, limit: int, order: Order
    ) -> ItemPage | None:
        """Returns up to `limit` input items of a response after the item `after`; None if there is
        no such response. Raises EngineError (invalid_request_error) for an unknown `after`."""
        if self._value("SELECT 1 FROM responses WHERE id = ? AND owner = ?", id, owner) is None:
            return None
        return page_of(self._items(id, _INPUT), after=after, limit=limit, order=order)

    def conversation(self, id: str, owner: str = "") -> list[Item]:
        """Returns all items of the conversation that ends with the response `id`, oldest first,
        including its output.

        Raises EngineError (invalid_request_error) if one of its responses doesn't exist, or if it
        has more than `MAX_CHAIN` responses.
        """
        chain: list[str] = []
        next_: str | None = id
        while next_ is not None:
            if len(chain) == MAX_CHAIN:
                raise invalid_request(
                    f"previous_response_id: the conversation has more than {MAX_CHAIN} responses"
                )
            row = self._connection.execute(
                "SELECT previous FROM responses WHERE id = ? AND owner = ?", (next_, owner)
            ).fetchone()
            if row is None:
                raise invalid_request(f"previous_response_id: there is no response {next_!r}")
            chain.append(next_)
            next_ = row[0]
        self._use(chain)
        return [
            item
            for each in reversed(chain)
            for part in (_INPUT, _OUTPUT)
            for item in self._items(each, part)
        ]

    def _items(self, response: str, part: int) -> list[Any]:
        """Returns the items of a response's input or output, as they were saved."""
        query = "SELECT body FROM items WHERE response = ? AND part = ? ORDER BY position"
        return [json.loads(body) for (body,) in self._connection.execute(query, (response, part))]

    def _use(self, ids: list[str]) -> None:
        """Marks responses as used now. Does nothing for a file, which has no bounds."""
        if self._bounds is None:
            return
        use = next(self._uses)
        with self._connection as connection:
            query = "UPDATE responses SET used = ? WHERE id = ?"
            connection.executemany(query, [(use, id) for id in ids])


def _rows(
    response: str, part: int, items: Sequence[Item] | Sequence[schemas.ResponseOutputItem]
) -> Iterator[tuple[str, int, int, str, str]]:
    """Yields the rows of `items` in the table of items."""
    for position, item in enumerate(items):
        yield response, part, position, item["id"], json.dumps(item)


class ResponseStore:
    """The database for asyncio. Methods raise EngineError: server_error if the database fails, and
    the errors of the methods of `Database`."""

    def __init__(self, path: str = "") -> None:
        """Raises StoreError."""
        self._database = Database(path)
        self._thread = system.pool(1, "responses")
        self._owner = ""

    def of(self, owner: str) -> "ResponseStore":
        """Returns the store of one `owner`, with the same database."""
        seen = copy.copy(self)
        seen._owner = owner
        return seen

    def close(self) -> None:
        """Closes the database after all pending calls."""
        self._thread.shutdown()
        self._database.close()

    async def save(self, response: schemas.ResponseObject, input: list[Item]) -> None:
        await self._run(lambda database: database.save(response, input, self._owner))

    async def response(self, id: str) -> schemas.ResponseObject:
        """Raises not_found_error, too."""
        return _found(await self._run(lambda database: database.response(id, self._owner)), id)

    async def delete(self, id: str) -> None:
        """Raises not_found_error, too."""
        _found(await self._run(lambda database: database.delete(id, self._owner)), id)

    async def item(self, id: str) -> Item | None:
        return await self._run(lambda database: database.item(id, self._owner))

    async def input_items(
        self, id: str, *, after: str | None, limit: int, order: Order
    ) -> ItemPage:
        """Raises not_found_error, too."""

        def read(database: Database) -> ItemPage | None:
            return database.input_items(id, self._owner, after=after, limit=limit, order=order)

        return _found(await self._run(read), id)

    async def conversation(self, id: str) -> list[Item]:
        return await self._run(lambda database: database.conversation(id, self._owner))

    async def _run(self, work: Callable[[Database], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work, self._database)
        except (sqlite3.Error, ValueError, KeyError) as error:  # ValueError: no JSON in a row
            log.error("the database of responses failed: %s", error)
            raise server_error(
                "the database of responses failed; the server's log says why"
            ) from error


def _found(result: T | None, id: str) -> T:
    if not result:
        raise EngineError.of("not_found_error", f"there is no response {id!r}")
    return result
