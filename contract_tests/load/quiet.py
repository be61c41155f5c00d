"""A quiet server: its answers, its resources, and whether it returns to that state."""

import asyncio
import sqlite3
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from contract_tests.load.asks import Ask
from contract_tests.load.exchange import Client, Exchange
from contract_tests.load.fleet import family
from contract_tests.load.judging import Judge
from contract_tests.load.keeper import Keeper, members

LIMIT = 60.0  # s for an answer about the server itself
POOL = 2
"""The allowed growth of the number of helper processes of one kind."""
MARGIN = 12
"""The allowed growth of a process's number of descriptors."""


@dataclass
class Census:
    """A server's resources: processes by kind, the most descriptors of a process by kind, files."""

    processes: dict[str, int]
    descriptors: dict[str, int]
    files: set[str]


def census(keeper: Keeper, places: Sequence[Path]) -> Census:
    there = family(keeper.pid)
    kinds = [kind for kind, _ in there]
    descriptors: dict[str, int] = {}
    for kind, process in there:
        if kind in ("server", "engine"):
            descriptors[kind] = max(descriptors.get(kind, 0), process.num_fds())
    files = {str(path.relative_to(place)) for place in places for path in place.rglob("*")}
    return Census({kind: kinds.count(kind) for kind in kinds}, descriptors, files)


async def learn(url: str, asks: Sequence[Ask], judge: Judge, key: str = "") -> list[Ask]:
    """Sends each request to a quiet server to learn the right answers. Returns the requests that it
    answers, and always alike."""
    client = Client(url, 0, 600.0, key)
    kept: list[Ask] = []
    for ask in asks:
        texts: list[Any] = []
        for number in (1, 2, 3):
            exchange = await client.send(ask, number)
            if exchange.status != 200 or exchange.cut:
                print(f"left out: {ask.name}: {exchange.status} {exchange.content[:200]!r}")
                break
            texts.append(judge.said(exchange).parts)
        else:
            if ask.expected is None and any(each != texts[0] for each in texts):
                print(f"left out: {ask.name}: its texts differ on the quiet server")
                continue
            judge.truth[ask.name] = texts[0]
            kept.append(await _with_sequel(client, ask, exchange))
    await client.close()
    return kept


async def _with_sequel(client: Client, ask: Ask, exchange: Exchange) -> Ask:
    """Returns the request without its sequel if the server doesn't support that."""
    sequel = ask.then(exchange.response().json()) if ask.then else None
    while sequel is not None:
        exchange = await client.send(sequel, exchange.number)
        if exchange.status != 200:
            print(f"left out: {sequel.name}: {exchange.status} {exchange.content[:200]!r}")
            return replace(ask, then=None)
        sequel = sequel.then(exchange.response().json()) if sequel.then else None
    return ask


async def settled(
    keeper: Keeper, before: Census, places: Sequence[Path], models: Sequence[str], patience: float
) -> list[str]:
    """Returns what differs from the state before, once all clients have left."""
    problems: list[str] = []
    deadline = time.monotonic() + patience
    while True:
        problems = await _unsettled(keeper, before, places, models)
        if not problems or time.monotonic() > deadline:
            return problems
        await asyncio.sleep(0.5)


async def _unsettled(
    keeper: Keeper, before: Census, places: Sequence[Path], models: Sequence[str]
) -> list[str]:
    problems = []
    async with httpx.AsyncClient(base_url=keeper.url, trust_env=False, timeout=LIMIT) as http:
        for model in models:
            query = {"model": model} if model else {}
            slots = (await http.get("/slots", params=query)).json()
            busy = [each["id"] for each in slots if each["is_processing"]]
            if busy:
                problems.append(f"slots {busy} of {model} are busy")
            lines = (await http.get("/metrics", params=query)).text.splitlines()
            for name in ("requests_processing", "requests_deferred"):
                found = [line for line in lines if line.startswith(f"llamacpp:{name} ")]
                problems += [f"{model}: {line}" for line in found if float(line.split()[1])]
    now = census(keeper, places)
    for kind, n in now.descriptors.items():
        if n > before.descriptors.get(kind, n) + MARGIN:
            problems.append(f"{n} descriptors of a {kind}, {before.descriptors[kind]} before")
    for kind, n in now.processes.items():
        # An unloaded model has no process; helper processes start when they are needed.
        most = before.processes.get(kind, 0) + (0 if kind in ("server", "engine") else POOL)
        if n > most:
            problems.append(f"{n} processes of the kind {kind}, {before.processes} before")
    problems += [f"left over: {name}" for name in sorted(now.files) if is_temporary(name)]
    session = [each.pid for each in members(keeper.pid)]
    known = {process.pid for _, process in family(keeper.pid)}
    if stray := set(session) - known:
        problems.append(f"processes without a parent: {sorted(stray)}")
    problems += [
        f"a zombie: {each.pid}"
        for each in psutil.Process(keeper.pid).children(recursive=True)
        if each.status() == psutil.STATUS_ZOMBIE
    ]
    return problems


def is_temporary(name: str) -> bool:
    """True for a file that is not needed while nothing runs."""
    last = name.rpartition("/")[2]
    return last.startswith((".", "tmp")) or last.endswith((".part", ".tmp")) or "~" in last


def damaged(database: Path) -> str:
    """Returns what is wrong with the database of responses, or an empty text."""
    if not database.exists():
        return ""
    connection = sqlite3.connect(database)
    try:
        [found] = connection.execute("PRAGMA integrity_check").fetchone()
    finally:
        connection.close()
    return "" if found == "ok" else f"the database of responses: {found}"
