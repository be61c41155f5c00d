"""Clients and faults at the same time, and then a calm end in which everything has to recover."""

import asyncio
import random
import time
from collections.abc import Sequence

import psutil

from contract_tests.chaos.faults import Fault, Faults
from contract_tests.chaos.history import History
from contract_tests.load.asks import CLIENT, Ask
from contract_tests.load.exchange import Client, Exchange
from contract_tests.load.judging import Judge

CLIENTS = 16
PAUSE = 0.1  # s, the longest pause between two requests of a client
AGAIN = 1.0  # s, the longest pause after a request that failed
EAGER = 0.4
"""The probability that a client's next request uses what a fault has harmed."""
HASTY = 0.4
"""The probability that the next fault doesn't wait until the last one is over."""
PROGRESS = 10.0  # s
CALM = 3
"""Right answers in a row that each client has to get at the end."""


class Campaign:
    def __init__(
        self, asks: Sequence[Ask], judge: Judge, history: History, url: str, *, seed: int,
        patience: float, clients: int = CLIENTS, key: str = "",
    ) -> None:  # fmt: skip
        self._asks = asks
        self._judge = judge
        self._history = history
        self._seed = seed
        self._patience = patience
        self._stop = asyncio.Event()
        self._streaks = [0] * clients
        self.url = url
        self._clients = [Client(url, n, patience, key) for n in range(clients)]
        self._seen: set[str] = set()

    async def run(self, seconds: float, faults: Faults | None) -> None:
        """Runs clients and faults for `seconds`, then clients alone until all answers are right."""
        clients = [asyncio.create_task(self._ask_on(each)) for each in self._clients]
        progress = asyncio.create_task(self._tell())
        try:
            if faults is None:
                await asyncio.sleep(seconds)
            else:
                end = time.monotonic() + seconds
                lanes = [asyncio.create_task(self._harm(faults, lane, end)) for lane in (0, 1)]
                await asyncio.gather(*lanes)
                faults.heal_all()
            await self._calm()
        finally:
            self._stop.set()
            progress.cancel()
            await asyncio.gather(*clients)
            for each in self._clients:
                await each.close()

    # ---- clients --------------------------------------------------------------------------------

    async def _ask_on(self, client: Client) -> None:
        dice = random.Random(self._seed * 1000 + client.number)
        number = client.number * CLIENT
        while not self._stop.is_set():
            number += 1
            ask: Ask | None = self._choose(dice, client.number)
            while ask is not None:
                exchange = await client.send(ask, number)
                ask = self._take(client, exchange)
            wait = PAUSE if self._streaks[client.number] else AGAIN
            await asyncio.sleep(dice.random() * wait)

    def _choose(self, dice: random.Random, client: int) -> Ask:
        """Chooses a client's next request. Some clients prefer requests that faults have harmed,
        the others prefer all others, so that not all clients wait for the same process."""
        harmed = self._history.open()
        asks = self._asks
        if harmed and client % 4 == 0:
            asks = [each for each in asks if not any(fault.harms(each.uses) for fault in harmed)]
        elif harmed and dice.random() < EAGER:
            fault = dice.choice(harmed)
            asks = [each for each in asks if fault.harms(each.uses)]
        asks = asks or self._asks
        return dice.choices(asks, [each.weight for each in asks])[0]

    def _take(self, client: Client, exchange: Exchange) -> Ask | None:
        verdict = self._judge.verdict(exchange)
        self._history.take(exchange, verdict)
        if verdict.outcome != "right":
            self._streaks[client.number] = 0
            return None
        self._streaks[client.number] += 1
        self._seen.add(exchange.ask.name)
        return exchange.ask.then(exchange.response().json()) if exchange.ask.then else None

    # ---- faults ---------------------------------------------------------------------------------

    async def _harm(self, faults: Faults, lane: int, end: float) -> None:
        dice = random.Random(f"{self._seed} {lane}")
        while time.monotonic() < end:
            await asyncio.sleep(dice.uniform(0.2, 4.0) if lane == 0 else dice.uniform(1, 12))
            fault = faults.draw(lane)
            if fault is None:
                continue
            try:
                faults.begin(fault)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
            if fault.holds:
                await asyncio.sleep(fault.holds)
                faults.heal(fault)
            if dice.random() > HASTY:
                await self._recovered(fault, faults)

    async def _recovered(self, fault: Fault, faults: Faults) -> None:
        """Waits for right answers."""
        deadline = time.monotonic() + self._patience
        while fault.recovered is None and time.monotonic() < deadline:
            faults.look()
            await asyncio.sleep(0.05)

    async def _calm(self) -> None:
        """Checks that everything has recovered: each client gets right answers of every kind."""
        self._streaks = [0] * len(self._streaks)
        self._seen.clear()
        deadline = time.monotonic() + self._patience * 2
        names = {each.name for each in self._asks}
        while min(self._streaks) < CALM or names - self._seen:
            if time.monotonic() > deadline:
                waiting = [n for n, streak in enumerate(self._streaks) if streak < CALM]
                self._history.problems.append(
                    f"seed {self._seed}: {2 * self._patience:.0f} s after the last fault, clients "
                    f"{waiting} haven't had {CALM} right answers in a row, and no client has had a "
                    f"right answer to {sorted(names - self._seen)}"
                )
                return
            await asyncio.sleep(0.1)

    async def _tell(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS)
            self._history.review(time.monotonic() - PROGRESS)
            print(self._history.line(), flush=True)
