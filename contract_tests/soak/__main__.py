"""Mixed load for a long time, in which no resource may grow, and every answer has to be right.

    python -m contract_tests.soak [--minutes 30] [--seed N]
    python -m contract_tests.soak --base-url http://127.0.0.1:8080 [--pid PID] [--api-key KEY]

The requests are for chats, tools, schemas, embeddings, images, adapters, speculation, slots, stored
responses and a model that is unloaded when idle; some clients leave in the middle. Memory,
descriptors and threads of each process and the latency of one request are measured every few
seconds. After a third of the run, slopes with confidence intervals are fitted. The run fails if an
interval lies above zero and the growth over the run is more than a margin. Requests that a server
at --base-url doesn't support are left out. For a server on another machine, only the latency is
measured.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from contract_tests.load import asks, fleet, hub
from contract_tests.load.asks import CLIENT, EMBEDDER, SEER, TALKER, Ask
from contract_tests.load.exchange import Client
from contract_tests.load.judging import Judge
from contract_tests.load.keeper import Keeper
from contract_tests.load.quiet import census, learn, settled
from contract_tests.own.servers import free_port
from contract_tests.soak.sampling import HEAD, LATENCY, Samples, listener

CLIENTS = 8
PAUSE = 0.2  # s, the longest pause between two requests of a client
LEAVE = 0.05
"""The share of requests whose clients leave in the middle."""
DIFFERENT = 4
"""The number of different requests with new content per client. Caches are full before the
measurement."""
EVERY = 5.0  # s between two samples
PROBE = {"prompt": "def probe(", "n_predict": 8, "temperature": 0, "cache_prompt": False}
PROBES = 4
"""Probes per sample."""
PATIENCE = 180.0


class Soak:
    def __init__(self, url: str, key: str, chosen: list[Ask], judge: Judge, seed: int) -> None:
        self.outcomes: Counter[str] = Counter()
        self.problems: list[str] = []
        self.samples = Samples()
        self._url = url
        self._key = key
        self._asks = chosen
        self._judge = judge
        self._seed = seed
        self._stop = asyncio.Event()

    async def run(self, seconds: float, pid: int) -> None:
        clients = [asyncio.create_task(self._ask_on(n)) for n in range(CLIENTS)]
        end = time.monotonic() + seconds
        probing = Client(self._url, CLIENTS, PATIENCE, self._key)
        printed = time.monotonic()
        try:
            while time.monotonic() < end:
                pause = asyncio.create_task(asyncio.sleep(EVERY))
                self.samples.add("clients", LATENCY, await self._probe(probing))
                if pid:
                    self.samples.look(pid)
                if time.monotonic() - printed >= 2 * EVERY:
                    printed = time.monotonic()
                    print(self.line(), flush=True)
                await pause
        finally:
            self._stop.set()
            await asyncio.gather(*clients)
            await probing.close()

    def line(self) -> str:
        counts = ", ".join(f"{name} {n}" for name, n in sorted(self.outcomes.items()))
        return f"{self.samples.seconds:6.0f} s  {counts}; {len(self.problems)} problems"

    async def _probe(self, client: Client) -> float:
        """Returns the median duration of a fixed request in milliseconds."""
        ask = Ask(name="probe", path="/completion", body=lambda _: self._probe_body(),
                  read=self._asks[0].read)  # fmt: skip
        times = []
        for number in range(PROBES):
            exchange = await client.send(ask, number)
            if exchange.status != 200 or exchange.cut:
                self.problems.append(f"the probe failed: {exchange.as_text()}")
            times.append(exchange.seconds * 1000)
        return median(times)

    def _probe_body(self) -> dict[str, object]:
        first = self._asks[0].body(0)
        return {**PROBE, **({"model": first["model"]} if "model" in first else {})}

    async def _ask_on(self, number: int) -> None:
        dice = random.Random(self._seed * 1000 + number)
        client = Client(self._url, number, PATIENCE, self._key)
        done = 0
        weights = [each.weight for each in self._asks]
        while not self._stop.is_set():
            done += 1
            ask: Ask | None = dice.choices(self._asks, weights)[0]
            leaves = dice.random() * 0.5 if dice.random() < LEAVE else None
            while ask is not None:
                exchange = await client.send(ask, number * CLIENT + done % DIFFERENT, leaves)
                verdict = self._judge.verdict(exchange)
                self.outcomes[verdict.outcome] += 1
                if verdict.problem or verdict.outcome not in ("right", "left"):
                    what = verdict.problem or f"an unexpected {verdict.outcome}"
                    at = f"seed {self._seed}, {self.samples.seconds:.0f} s"
                    self.problems.append(f"{at}: {what}\n  {exchange.as_text()}")
                ask = (
                    ask.then(exchange.response().json())
                    if ask.then and verdict.outcome == "right"
                    else None
                )
            await asyncio.sleep(dice.random() * PAUSE)
        await client.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m contract_tests.soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--base-url", help="use a running server instead of starting one")
    parser.add_argument("--api-key", default="", help="the key of the server at --base-url")
    parser.add_argument("--pid", type=int, default=0, help="the server's process id, unless found")
    parser.add_argument("--minutes", type=float, default=30.0, help="duration (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the seed (%(default)s)")
    parser.add_argument("--report", type=Path, help="also write the table to this file")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"seed {given.seed}, {given.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="specllama-soak-") as directory:
        soak = asyncio.run(_soak(given, Path(directory)))
    findings = soak.samples.findings()
    table = "\n".join([*HEAD, *(each.row() for each in findings)])
    print(f"\n{table}\n\n{soak.line()}")
    for problem in soak.problems[:20]:
        print(f"\n{problem}")
    if soak.samples.unjudged:
        print(f"\ntoo few samples to judge: {', '.join(soak.samples.unjudged)}")
    growing = [f"{each.what} of {each.who}" for each in findings if each.grows]
    print(f"\n{len(growing)} of {len(findings)} series grow{': ' if growing else ''}"
          f"{', '.join(growing)}; {len(soak.problems)} problems")  # fmt: skip
    if given.report:
        given.report.write_text(f"{table}\n", "utf-8")
    if not findings:
        print("no series was judged: the run was too short")
    return int(bool(growing or soak.problems or not findings))


async def _soak(given: argparse.Namespace, directory: Path) -> Soak:
    pictures, hub_url = await hub.start()
    judge = Judge(documented=not given.base_url, seed=given.seed)
    chosen = [*asks.generation(), *asks.constrained(), *asks.others(hub_url), *asks.kept(),
              asks.sleepy()]  # fmt: skip
    keeper = None
    if not given.base_url:
        spare = directory / "spare.gguf"
        chosen += [each for each in asks.others("", spare) if each.name == "models"]
        command = fleet.command(directory, directory, spare)
        temporary = directory / "tmp"
        temporary.mkdir()
        keeper = Keeper(command, free_port(), directory / "log", {"TMPDIR": str(temporary)})
        keeper.start()
        await keeper.ready(PATIENCE)
    url = keeper.url if keeper else given.base_url
    try:
        known = await learn(url, chosen, judge, given.api_key)
        pid = keeper.pid if keeper else given.pid or listener(url)
        if not pid:
            print("left out: the server's processes, which are not on this machine")
        places = [directory / "tmp"]
        before = census(keeper, places) if keeper else None
        soak = Soak(url, given.api_key, known, judge, given.seed)
        if keeper and len(known) < len(chosen):
            soak.problems.append("the quiet server left requests unanswered")
        print(f"{len(known)} kinds of requests", flush=True)
        await soak.run(given.minutes * 60, pid)
        if keeper and before:
            soak.problems += await settled(
                keeper, before, places, [TALKER, EMBEDDER, SEER], PATIENCE
            )
            soak.problems += [f"the server ended with code {each.code}" for each in keeper.deaths]
    finally:
        if keeper:
            await keeper.close()
        pictures.close()
    return soak


if __name__ == "__main__":
    sys.exit(main())
