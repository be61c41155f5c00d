"""Stored responses and conversations of the Responses API, in an SQLite database.

SQLite blocks, so one thread does all its work, in the order of the calls. In a file, responses and
conversations stay until they are deleted. In memory, the least recently used ones are removed to
keep the bounds. A conversation is a row in the table of the responses, whose input it is.
"""

import asyncio
import itertools
import json
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from specllama.engine import system
from specllama.handlers.http import schemas
from specllama.handlers.running.response_store import (
    MAX_BYTES,
    MAX_RESPONSES,
    ClaimedResponse,
    Item,
    StoredConversation,
    StoredResponse,
)
from specllama.handlers.running.sqlite_files import DatabaseKind, value_of
from specllama.handlers.running.stores import StoreError

T = TypeVar("T")

_INPUT, _OUTPUT = 0, 1  # the parts that the items of a response belong to
_RESPONSE, _CONVERSATION = 0, 1  # the kinds of rows in the table of responses
_SECRET = "sealing"

_SCHEMA = """
    CREATE TABLE responses (
        id TEXT PRIMARY KEY,
        previous TEXT,
        used INTEGER NOT NULL,
        size INTEGER NOT NULL,
        body TEXT NOT NULL,
        owner TEXT NOT NULL DEFAULT '',
        status TEXT NOT NULL DEFAULT '',
        claimed_until REAL NOT NULL DEFAULT 0,
        kind INTEGER NOT NULL DEFAULT 0
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
    CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
_ADD_OWNERS = "ALTER TABLE responses ADD COLUMN owner TEXT NOT NULL DEFAULT ''"
_ADD_CLAIMS = """
    ALTER TABLE responses ADD COLUMN status TEXT NOT NULL DEFAULT '';
    ALTER TABLE responses ADD COLUMN claimed_until REAL NOT NULL DEFAULT 0
"""
_ADD_CONVERSATIONS = """
    ALTER TABLE responses ADD COLUMN kind INTEGER NOT NULL DEFAULT 0;
    CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL)
"""
KIND = DatabaseKind(
    name="responses",
    application_id=0x73706C72,
    version=4,
    schema=_SCHEMA,
    upgrades={1: _ADD_OWNERS, 2: _ADD_CLAIMS, 3: _ADD_CONVERSATIONS},
)


class Database:
    """The tables, for one thread. Its methods are those of
    `handlers.running.response_store.ResponseStore`, and raise sqlite3.Error if the database
    fails."""

    def __init__(
        self,
        path: str = "",
        *,
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Opens the file at `path`, and creates it if it doesn't exist; "" means memory, to which
        the bounds apply. `clock` returns seconds, for claims. Raises StoreError."""
        self._bounds = None if path else (max_responses, max_bytes)
        self._clock = clock
        self._connection = KIND.open(path)
        self._uses = itertools.count(
            1 + self._value("SELECT coalesce(max(used), 0) FROM responses")
        )

    def _value(self, query: str, *parameters: Any) -> Any:
        return value_of(self._connection, query, *parameters)

    def close(self) -> None:
        self._connection.close()

    def save(
        self,
        owner: str,
        response: schemas.ResponseObject,
        input: Sequence[Item],
        *,
        claim: float = 0.0,
        if_claimed: bool = False,
        append_to: str = "",
    ) -> bool:
        id, previous = response["id"], response["previous_response_id"]
        body = json.dumps({**response, "output": []})
        rows = [*_rows(id, _INPUT, input), *_rows(id, _OUTPUT, response["output"])]
        size = len(body) + sum(len(row[-1]) for row in rows)
        now = self._clock()
        with self._connection as connection:
            # It writes first, so that no other process changes the response meanwhile.
            query = "DELETE FROM responses WHERE id = ? AND owner = ?"
            replaced = connection.execute(
                query + (" AND claimed_until > ?" if if_claimed else " AND ? NOTNULL"),
                (id, owner, now),
            )
            if if_claimed and not replaced.rowcount:
                return False
            if append_to:
                self._append(owner, append_to, [*input, *response["output"]])
            connection.execute(
                "INSERT INTO responses (id, previous, used, size, body, owner, status, "
                "claimed_until) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    id,
                    previous,
                    next(self._uses),
                    size,
                    body,
                    owner,
                    response["status"],
                    now + claim if claim else 0.0,
                ),
            )
            connection.executemany("INSERT INTO items VALUES (?, ?, ?, ?, ?)", rows)
            self._evict()
        return True

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

    def renew(self, claimed: Sequence[ClaimedResponse], seconds: float) -> list[ClaimedResponse]:
        now = self._clock()
        with self._connection as connection:
            query = """
                UPDATE responses SET status = ?, claimed_until = ?
                WHERE id = ? AND owner = ? AND claimed_until > ?
            """
            ended = [
                each
                for each in claimed
                if not connection.execute(
                    query, (each.status, now + seconds, each.id, each.owner, now)
                ).rowcount
            ]
        self._use([each.id for each in claimed])
        return ended

    def chain(self, owner: str, id: str, limit: int) -> list[StoredResponse]:
        found: list[StoredResponse] = []
        next_: str | None = id
        query = """
            SELECT body, status, claimed_until, previous FROM responses
            WHERE id = ? AND owner = ? AND kind = 0
        """
        while next_ is not None and len(found) < limit:
            row = self._connection.execute(query, (next_, owner)).fetchone()
            if row is None:
                break
            body, status, claimed_until, previous = row
            response: schemas.ResponseObject = json.loads(body)
            response["output"] = self._items(next_, _OUTPUT)
            if status:  # the responses of an earlier version have none
                response["status"] = status
            is_lost = 0 < claimed_until <= self._clock()
            found.append(StoredResponse(response, self._items(next_, _INPUT), is_lost))
            next_ = previous
        self._use([each.response["id"] for each in found])
        return found

    def delete(self, owner: str, id: str) -> bool:
        return self._delete(owner, id, _RESPONSE)

    def delete_conversation(self, owner: str, id: str) -> bool:
        return self._delete(owner, id, _CONVERSATION)

    def _delete(self, owner: str, id: str, kind: int) -> bool:
        query = "DELETE FROM responses WHERE id = ? AND owner = ? AND kind = ?"
        with self._connection as connection:
            return connection.execute(query, (id, owner, kind)).rowcount > 0

    def item(self, owner: str, id: str) -> Item | None:
        query = """
            SELECT items.body FROM items JOIN responses ON responses.id = items.response
            WHERE items.id = ? AND owner = ? LIMIT 1
        """
        body = self._value(query, id, owner)
        return None if body is None else json.loads(body)

    def create(
        self, owner: str, conversation: schemas.ConversationObject, items: Sequence[Item]
    ) -> None:
        body = json.dumps(conversation)
        with self._connection as connection:
            connection.execute(
                "INSERT INTO responses (id, used, size, body, owner, kind) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (conversation["id"], next(self._uses), len(body), body, owner, _CONVERSATION),
            )
            self._append(owner, conversation["id"], items)
            self._evict()

    def conversation(self, owner: str, id: str) -> StoredConversation | None:
        query = "SELECT body FROM responses WHERE id = ? AND owner = ? AND kind = ?"
        body = self._value(query, id, owner, _CONVERSATION)
        if body is None:
            return None
        self._use([id])
        return StoredConversation(json.loads(body), self._items(id, _INPUT))

    def update(self, owner: str, conversation: schemas.ConversationObject) -> bool:
        body = json.dumps(conversation)
        query = """
            UPDATE responses SET size = size + ? - length(body), body = ?, used = ?
            WHERE id = ? AND owner = ? AND kind = ?
        """
        values = len(body), body, next(self._uses), conversation["id"], owner, _CONVERSATION
        with self._connection as connection:
            is_there = connection.execute(query, values).rowcount > 0
            self._evict()
        return is_there

    def append(self, owner: str, id: str, items: Sequence[Item]) -> bool:
        with self._connection:
            is_there = self._append(owner, id, items)
            self._evict()
        return is_there

    def _append(
        self,
        owner: str,
        id: str,
        items: Sequence[Item | schemas.ResponseOutputItem],
    ) -> bool:
        """Adds items to a conversation, in the transaction of the caller."""
        added = [(item["id"], json.dumps(item)) for item in items]
        query = """
            UPDATE responses SET size = size + ?, used = ? WHERE id = ? AND owner = ? AND kind = ?
        """
        size = sum(len(body) for _, body in added)
        # It writes first, so that no other process adds items meanwhile.
        values = size, next(self._uses), id, owner, _CONVERSATION
        if not self._connection.execute(query, values).rowcount:
            return False
        query = "SELECT max(position) FROM items WHERE response = ? AND part = ?"
        last = self._value(query, id, _INPUT)
        first = 0 if last is None else last + 1
        self._connection.executemany(
            "INSERT INTO items VALUES (?, ?, ?, ?, ?)",
            [(id, _INPUT, first + index, *each) for index, each in enumerate(added)],
        )
        return True

    def remove_item(self, owner: str, id: str, item: str) -> bool:
        with self._connection as connection:
            query = """
                UPDATE responses SET used = ?, size = size - (
                    SELECT coalesce(sum(length(items.body)), 0) FROM items
                    WHERE response = responses.id AND items.id = ?
                ) WHERE id = ? AND owner = ? AND kind = ?
            """
            values = next(self._uses), item, id, owner, _CONVERSATION
            if not connection.execute(query, values).rowcount:
                return False
            query = "DELETE FROM items WHERE response = ? AND id = ?"
            return connection.execute(query, (id, item)).rowcount > 0

    def secret(self, candidate: bytes) -> bytes:
        with self._connection as connection:
            query = "INSERT INTO secrets VALUES (?, ?) ON CONFLICT DO NOTHING"
            connection.execute(query, (_SECRET, candidate))
        found: bytes = self._value("SELECT value FROM secrets WHERE name = ?", _SECRET)
        return found

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


def _never() -> float:
    """A clock that stands still, so that no claim is ever over."""
    return 0.0


class SqliteResponses:
    """The `ResponseStore` in an SQLite file, which the server processes of one machine may share,
    or in the memory of this process."""

    def __init__(
        self, path: str = "", *, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES
    ) -> None:
        """Opens a file, or a database in memory, as `Database` does. Raises StoreError."""
        # In memory, no other process could be the one that generates a response.
        self._database = Database(
            path,
            max_responses=max_responses,
            max_bytes=max_bytes,
            clock=time.time if path else _never,
        )
        self._thread = system.pool(1, "responses")

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
        return await self._run(
            lambda database: database.save(
                owner, response, input, claim=claim, if_claimed=if_claimed, append_to=append_to
            )
        )

    async def renew(
        self, claimed: Sequence[ClaimedResponse], seconds: float
    ) -> list[ClaimedResponse]:
        return await self._run(lambda database: database.renew(claimed, seconds))

    async def chain(self, owner: str, id: str, limit: int) -> list[StoredResponse]:
        return await self._run(lambda database: database.chain(owner, id, limit))

    async def delete(self, owner: str, id: str) -> bool:
        return await self._run(lambda database: database.delete(owner, id))

    async def item(self, owner: str, id: str) -> Item | None:
        return await self._run(lambda database: database.item(owner, id))

    async def create(
        self, owner: str, conversation: schemas.ConversationObject, items: Sequence[Item]
    ) -> None:
        await self._run(lambda database: database.create(owner, conversation, items))

    async def conversation(self, owner: str, id: str) -> StoredConversation | None:
        return await self._run(lambda database: database.conversation(owner, id))

    async def update(self, owner: str, conversation: schemas.ConversationObject) -> bool:
        return await self._run(lambda database: database.update(owner, conversation))

    async def append(self, owner: str, id: str, items: Sequence[Item]) -> bool:
        return await self._run(lambda database: database.append(owner, id, items))

    async def remove_item(self, owner: str, id: str, item: str) -> bool:
        return await self._run(lambda database: database.remove_item(owner, id, item))

    async def delete_conversation(self, owner: str, id: str) -> bool:
        return await self._run(lambda database: database.delete_conversation(owner, id))

    async def secret(self, candidate: bytes) -> bytes:
        return await self._run(lambda database: database.secret(candidate))

    async def check(self) -> None:
        """Does nothing: a file that fails is rarer than a server that does."""

    async def close(self) -> None:
        self._thread.shutdown()
        self._database.close()

    async def _run(self, work: Callable[[Database], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self._thread, work, self._database)
        except (sqlite3.Error, ValueError, KeyError) as error:  # ValueError: no JSON in a row
            raise StoreError(str(error)) from error
