"""Harms a server's processes, disk, descriptors and connections in random order, while clients of
every API send requests, and compares every answer with that of the quiet server.

    python -m contract_tests.chaos [--minutes 20] [--seed N]
    python -m contract_tests.chaos --peer /path/llama-server [--peer-arg=--no-repack]
    python -m contract_tests.chaos --base-url http://127.0.0.1:8080 --api-key KEY

With --base-url, only the connections are harmed. The exit code is 1 if there was a problem. Each
problem is reported as a story, with the seed and the last faults.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from pathlib import Path

import httpx

from contract_tests.chaos.campaign import Campaign
from contract_tests.chaos.faults import Disk, Fault, Faults
from contract_tests.chaos.history import MOST, History
from contract_tests.chaos.proxy import Proxy
from contract_tests.load import asks, fleet, hub
from contract_tests.load.asks import EMBEDDER, SEER, TALKER, Ask
from contract_tests.load.judging import Judge
from contract_tests.load.keeper import Keeper
from contract_tests.load.quiet import LIMIT, census, damaged, learn, settled
from contract_tests.own.servers import free_port


class Network(Faults):
    """Faults of connections alone, for a server that this command didn't start."""

    def draw(self, lane: int) -> Fault | None:
        return super().draw(lane) if lane else None


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m contract_tests.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--base-url", help="harm a running server's connections")
    where.add_argument("--peer", type=Path, help="harm a genuine llama-server, this binary")
    parser.add_argument("--peer-arg", action="append", default=[], help="an option for the peer")
    parser.add_argument("--api-key", default="", help="the key of the server at --base-url")
    parser.add_argument("--minutes", type=float, default=20.0, help="time of faults (%(default)s)")
    parser.add_argument(
        "--seed", type=int, default=0, help="the seed of all random choices (default: a new one)"
    )
    parser.add_argument(
        "--patience", type=float, default=180.0, help="time limit of any wait in s (%(default)s)"
    )
    parser.add_argument(
        "--report", type=Path, help="write the tables, all faults and all stories to this file"
    )
    parser.add_argument("--log", type=Path, help="write the server's log to this file")
    given = parser.parse_args()
    given.seed = given.seed or random.SystemRandom().randrange(1, 10**6)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    print(f"seed {given.seed}, {given.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="specllama-chaos-") as directory:
        disk = None if given.base_url else Disk(Path(directory) / "disk")
        try:
            history = asyncio.run(_campaign(given, Path(directory), disk))
        finally:
            if disk is not None:
                disk.close()
    tables = f"{history.recoveries()}\n\n{history.answers()}\n"
    statuses = ", ".join(f"{status}: {n}" for status, n in sorted(history.statuses.items()))
    print(f"\n{tables}\nerrors: {statuses or 'none'}")
    print(f"slowest answer: {history.slowest:.1f} s; server restarts: {len(history.keeper.deaths)}")
    for story in history.problems[:MOST]:
        print(f"\n{story}")
    print(
        f"\nseed {given.seed}: {len(history.problems)} problems, {len(history.faults)} faults, "
        f"{sum(history.outcomes.values())} requests"
    )
    if given.report:
        stories = "\n\n".join(history.problems)
        given.report.write_text(f"{tables}\n{history.as_text()}\n{stories}\n", "utf-8")
    return int(bool(history.problems))


def requests_for(hub_url: str, spare: Path | None) -> list[Ask]:
    return [
        *asks.generation(), *asks.constrained(), *asks.others(hub_url, spare), *asks.kept()
    ]  # fmt: skip


async def _campaign(given: argparse.Namespace, directory: Path, disk: Disk | None) -> History:
    judge = Judge(documented=not given.peer, seed=given.seed)
    pictures, hub_url = await hub.start()
    temporary = directory / "tmp"
    temporary.mkdir()
    spare = None if given.base_url or given.peer else directory / "spare.gguf"
    keeper = Keeper([], free_port(), given.log or directory / "server.log", {})
    if disk is not None:
        if disk.why_not:
            print(f"no full disks: {disk.why_not}")
        keeper.variables = {"TMPDIR": str(temporary)}
        keeper.command = (
            fleet.genuine_command(given.peer, given.peer_arg, disk.path)
            if given.peer
            else fleet.command(directory, disk.path, directory / "spare.gguf")
        )
    else:
        keeper.port = httpx.URL(given.base_url).port or 80
    proxy = Proxy(keeper.port, random.Random(given.seed))
    try:
        return await _run(
            given, keeper, proxy, disk, judge, requests_for(hub_url, spare), temporary
        )
    finally:
        await proxy.close()
        await keeper.close()
        pictures.close()


async def _run(
    given: argparse.Namespace, keeper: Keeper, proxy: Proxy, disk: Disk | None, judge: Judge,
    chosen: list[Ask], temporary: Path,
) -> History:  # fmt: skip
    ours = disk is not None
    if ours:
        keeper.start()
        await keeper.ready(given.patience)
    known = await learn(keeper.url, chosen, judge, given.api_key)
    kind = Faults if ours else Network
    faults = kind(keeper, proxy, disk, random.Random(f"{given.seed} process"))
    history = History(faults.history, keeper, proxy, given.seed)
    if ours and not given.peer and len(known) < len(chosen):
        history.problems.append("the quiet server left requests unanswered")
    quiet = Campaign(known, judge, history, await proxy.start(), seed=given.seed,
                     patience=given.patience, key=given.api_key)  # fmt: skip
    await quiet.run(5.0, None)  # warms up, and checks the known texts under load
    places = [temporary, disk.path] if disk is not None else []
    models = [""] if given.peer else [TALKER, EMBEDDER, SEER]
    before = census(keeper, places) if ours else None
    print(f"{len(known)} kinds of requests; {history.line()}", flush=True)
    stormy = Campaign(known, judge, history, quiet.url, seed=given.seed + 1,
                      patience=given.patience, key=given.api_key)  # fmt: skip
    await stormy.run(given.minutes * 60, faults)
    history.review()
    print(history.line(), flush=True)
    if before is not None and disk is not None:
        said = await settled(keeper, before, places, models, LIMIT)
        said += [f"this process outlived its server: {each}" for each in keeper.orphans]
        if damage := damaged(disk.path / "responses.db"):
            said.append(damage)
        history.problems += [f"seed {given.seed}, at the end: {each}" for each in said]
    return history


if __name__ == "__main__":
    sys.exit(main())
