"""A server with 1,000 open streams and 10,000 requests at once.

    python -m contract_tests.load.overload [--streams N] [--requests N] [--only NAME]
    python -m contract_tests.load.overload --base-url http://127.0.0.1:8080 [--pid PID]

1. `refused`: the queue is shorter than the number of requests. The others are refused.
2. `waiting`: all requests wait. The server gets SIGHUP in the middle.
3. `leaving`: all clients leave while their requests wait.
4. `ending`: the server gets SIGTERM while the requests wait.

The streams are read slowly. Meanwhile an honest client sends one chat after the other, /health is
asked each second, and a hostile client sends requests beyond the limits of its key. Checked are the
memory during the load and afterwards, the headers and the body of each refusal, that every request
ends, that every honest request is answered, and that the queue and the slots are empty at the end.
Times are reported, never judged.

A server at --base-url gets `waiting` (without a signal) and `leaving`, without keys, and nothing is
judged.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import psutil

from contract_tests.load.fleet import family
from contract_tests.load.flood import MESSAGES, Answer, Sockets, health, raise_limit
from contract_tests.load.tally import LIMITS, Load, faults, table
from contract_tests.own import servers
from contract_tests.soak.sampling import listener

SLOTS = 8
HOLDERS = SLOTS - 1
"""Slots with endless texts until the load has arrived, so that a queue arises."""
WEIGHTS = {"crowd-1": 1, "crowd-2": 2, "crowd-3": 3, "crowd-4": 4}
HOSTILE = 0.1
"""Requests of the hostile key, for each request of the crowd."""
QUEUE = 0.4
"""The length of the queue in `refused`, for each request of the crowd."""
PATIENCE = 900.0  # s for all requests to end
ARRIVING = 240.0  # s until all requests have arrived
SETTLING = 60.0  # s until the server is idle after the last request
EVERY = 1.0  # s between two looks at the server
SCENARIOS = ("refused", "waiting", "leaving", "ending")
SHORT = {"n_predict": 8, "temperature": 0, "ignore_eos": True}


class Overload:
    """One scenario against a running server."""

    def __init__(self, url: str, pid: int, keys: Mapping[str, str], name: str) -> None:
        self.load = Load(name)
        self._pid = pid
        self._keys = keys
        self._sockets = Sockets(url)
        self._http = httpx.AsyncClient(
            base_url=url, trust_env=False, timeout=PATIENCE, headers=_bearer(keys.get("admin", ""))
        )
        self._n_waiting = 0
        self._hurry = asyncio.Event()
        self._over = asyncio.Event()

    async def run(self, n_streams: int, n_requests: int) -> Load:
        load = self.load
        load.memory.append(self._memory())
        begun = time.monotonic()
        meanwhile = [
            asyncio.create_task(each) for each in (self._watch(), self._health(), self._chat())
        ]
        holders = [asyncio.create_task(self._hold()) for _ in range(HOLDERS)]
        tasks = [asyncio.create_task(self._stream()) for _ in range(n_streams)]
        if self._keys:  # other servers may not begin a stream before it has a slot
            await self._until(lambda: load.most_open >= n_streams * 0.9)
        tasks += [
            asyncio.create_task(self._short([*WEIGHTS][i % len(WEIGHTS)]))
            for i in range(n_requests)
        ]
        if self._keys:
            tasks += [
                asyncio.create_task(self._beyond(i)) for i in range(int(n_requests * HOSTILE))
            ]
        await self._middle(tasks, n_requests)
        await _cancel(holders)
        _, late = await asyncio.wait(tasks, timeout=PATIENCE)
        load.seconds = time.monotonic() - begun
        if late:
            load.problems.append(f"{len(late)} requests have no end")
            await _cancel([*late])
        self._over.set()
        _, late = await asyncio.wait(meanwhile, timeout=SETTLING)
        await _cancel([*late])
        if load.name != "ending":
            await self._settled()
        await self._http.aclose()
        return load

    async def _middle(self, tasks: list[asyncio.Task[None]], n_requests: int) -> None:
        """Does what the scenario does while the requests wait."""
        name = self.load.name
        if self._keys:
            await self._until(lambda: self._n_waiting + self.load.n_ended >= n_requests)
        else:  # other servers may not show their queue
            await self._until(lambda: sum(each.sent for each in self.load.crowd) >= n_requests)
            await asyncio.sleep(SETTLING / 10)
        if name == "leaving":
            await _cancel(tasks)
        elif name == "ending":
            psutil.Process(self._pid).terminate()
        elif name == "waiting" and self._keys:
            psutil.Process(self._pid).send_signal(signal.SIGHUP)
        self._hurry.set()

    async def _until(self, done: Any) -> None:
        """Waits for a condition; without it, the scenario goes on after a while."""
        end = time.monotonic() + ARRIVING
        while not done() and time.monotonic() < end:
            await asyncio.sleep(EVERY / 10)

    async def _stream(self) -> None:
        body = {"prompt": "Once", **SHORT, "n_predict": 48, "stream": True, "return_queue": True}
        answer = Answer("/completion")
        self.load.streams.append(answer)
        await self._sockets.send(
            answer.path, body, self._keys.get("streams", ""), answer=answer, hurry=self._hurry
        )

    async def _hold(self) -> None:
        body = {"prompt": "Once", **SHORT, "n_predict": 10**6}
        await self._sockets.send("/completion", body, self._keys.get("holders", ""))

    async def _short(self, owner: str) -> None:
        answer = Answer("/completion")
        self.load.crowd.append(answer)
        body = {"prompt": "The sea", **SHORT}
        await self._sockets.send(answer.path, body, self._keys.get(owner, ""), answer=answer)

    async def _beyond(self, number: int) -> None:
        """Sends one of the hostile requests, half of them with Anthropic's API."""
        answer = Answer(MESSAGES if number % 2 else "/v1/chat/completions")
        self.load.hostile.append(answer)
        body = _chat_of("Much!", 16)
        await self._sockets.send(answer.path, body, self._keys["hostile"], answer=answer)

    async def _chat(self) -> None:
        while not self._over.is_set():
            answer = Answer("/v1/chat/completions")
            await self._sockets.send(
                answer.path, _chat_of("Hello", 8), self._keys.get("honest", ""), answer=answer
            )
            self.load.honest.append(answer)
            await asyncio.sleep(EVERY)

    async def _health(self) -> None:
        while not self._over.is_set():
            where = (self._sockets.host, self._sockets.port)
            self.load.health.append(await asyncio.to_thread(health, *where, PATIENCE))
            await asyncio.sleep(EVERY)

    async def _watch(self) -> None:
        """Samples the memory, the queue and the open streams."""
        while not self._over.is_set():
            self.load.memory.append(self._memory())
            n_open = sum(each.is_open for each in self.load.streams)
            self.load.most_open = max(self.load.most_open, n_open)
            with contextlib.suppress(httpx.HTTPError, LookupError, ValueError):
                self._n_waiting = await self._waiting()
                self.load.most_waiting = max(self.load.most_waiting, self._n_waiting)
            await asyncio.sleep(EVERY)

    async def _waiting(self) -> int:
        return int((await self._http.get("/queue")).json()["n_waiting"])

    async def _settled(self) -> None:
        """Waits until nothing waits and nothing runs."""
        end, left = time.monotonic() + SETTLING, "no answer"
        while time.monotonic() < end:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                slots = (await self._http.get("/slots")).json()
                queue = (await self._http.get("/queue")).json().get("n_waiting", 0)
                busy = sum(each["is_processing"] for each in slots)
                left = f"{queue} wait, {busy} slots are busy" if queue or busy else ""
                if not left:
                    break
            await asyncio.sleep(EVERY)
        if left:
            self.load.problems.append(f"at the end: {left}")
        await asyncio.sleep(EVERY)
        self.load.memory.append(self._memory())

    def _memory(self) -> int:
        total = 0
        for _, process in family(self._pid):
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"} if key else {}


def _chat_of(text: str, n_tokens: int) -> dict[str, Any]:
    return {
        "model": "specllama-tiny", "messages": [{"role": "user", "content": text}],
        "max_tokens": n_tokens,
    }  # fmt: skip


async def _cancel(tasks: list[asyncio.Task[None]]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def keys_file(path: Path) -> dict[str, str]:
    """Writes a keys file and returns its keys by their names."""
    tables = {
        "admin": ['operations = ["read", "admin"]'], "honest": [], "holders": [],
        "streams": ["weight = 0.5"],
        **{name: [f"weight = {weight}"] for name, weight in WEIGHTS.items()},
        "hostile": [
            "concurrency = 20", f"requests_per_minute = {LIMITS['requests']}",
            f"tokens_per_minute = {LIMITS['tokens']}",
        ],
    }  # fmt: skip
    keys = {name: f"key-of-{name}" for name in tables}
    lines = [
        line
        for name, fields in tables.items()
        for line in (f"[keys.{name}]", f'key = "{keys[name]}"', *fields, "")
    ]
    path.write_text("\n".join(lines), "utf-8")
    return keys


def _scenario(given: argparse.Namespace, directory: Path, name: str) -> Load:
    keys = keys_file(directory / "keys.toml")
    most = int(given.requests * QUEUE) if name == "refused" else 0
    server = servers.start(
        directory, "--keys-file", str(directory / "keys.toml"), "--parallel", str(SLOTS),
        "--max-queue", str(most), "--context-shift",
    )  # fmt: skip
    try:
        overload = Overload(server.url, server.process.pid, keys, name)
        load = asyncio.run(overload.run(given.streams, given.requests))
        if name == "ending":
            code = server.process.wait(SETTLING)
            load.problems += [f"the server ended with code {code}"] if code else []
        elif server.process.poll() is not None:
            load.problems.append("the server has ended")
        if "Traceback" in (log := server.log.read_text("utf-8", "replace")):
            load.problems.append(f"an error in the log: {log[log.index('Traceback') :][:2000]}")
    finally:
        server.close()
    load.problems += faults(load)
    return load


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m contract_tests.load.overload",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-url", help="use a running server instead of starting one")
    parser.add_argument("--pid", type=int, default=0, help="the server's process id, unless found")
    parser.add_argument("--streams", type=int, default=1000, help="open streams (%(default)s)")
    parser.add_argument("--requests", type=int, default=10_000, help="requests (%(default)s)")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="only this scenario")
    parser.add_argument("--report", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    needed = given.streams + int(given.requests * (1 + HOSTILE))
    if needed > (limit := raise_limit()):
        parser.error(f"needs {needed} connections, and the limit of descriptors allows {limit}")
    names = given.only or (["waiting", "leaving"] if given.base_url else SCENARIOS)
    loads = []
    with tempfile.TemporaryDirectory(prefix="specllama-overload-") as directory:
        for name in names:
            if given.base_url:
                pid = given.pid or listener(given.base_url)
                overload = Overload(given.base_url, pid, {}, name)
                load = asyncio.run(overload.run(given.streams, given.requests))
            else:
                load = _scenario(given, Path(directory), name)
            loads.append(load)
            print(f"{name}: {dict(load.rows())}\n  problems: {load.problems}", flush=True)
    print(f"\n{table(loads)}\n")
    problems = [f"{each.name}: {problem}" for each in loads for problem in each.problems]
    print("\n".join(problems) or "no problems")
    if given.report:
        given.report.write_text(f"{table(loads)}\n", "utf-8")
    return int(bool(problems) and not given.base_url)


if __name__ == "__main__":
    sys.exit(main())
