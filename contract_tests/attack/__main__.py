"""Attacks a server of this repository while honest clients keep working, and reports the results.

    python -m contract_tests.attack [-k REGEX] [--report FILE] [--record]
    python -m contract_tests.attack --peer /path/llama-server [--peer-arg=--no-repack]
    python -m contract_tests.attack --base-url http://127.0.0.1:8080 --api-key KEY

A shape is one kind of attack; --list prints their names. The last line has the number and the names
of the shapes that did harm. The exit code is 1 if there are any.
"""

import argparse
import re
import signal
import sys
import tempfile
from pathlib import Path

from contract_tests.attack import results
from contract_tests.attack.campaign import Campaign, Outcome
from contract_tests.attack.shape import Harm, Launch, Shape
from contract_tests.attack.shapes import SHAPES
from contract_tests.attack.target import MIB, Started, Target
from contract_tests.kit.server import Server


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m contract_tests.attack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--base-url", help="attack a running server instead of starting one")
    where.add_argument("--peer", type=Path, help="attack a genuine llama-server, this binary")
    parser.add_argument("--peer-arg", action="append", default=[], help="an option for the peer")
    parser.add_argument("--api-key", help="the key of the server at --base-url")
    parser.add_argument("-k", dest="choice", default="", help="only shapes whose names match")
    parser.add_argument("--list", action="store_true", help="print the names of the shapes")
    parser.add_argument("--report", type=Path, help="also write the table to this file")
    parser.add_argument(
        "--record", action="store_true", help="keep the results for docs/reports/attack.md"
    )
    parser.add_argument(
        "--memory",
        type=int,
        default=4096,
        help="address space of each process in MiB (%(default)s)",
    )
    parser.add_argument(
        "--patience", type=float, default=120.0, help="time limit of one wait in s (%(default)s)"
    )
    given = parser.parse_args()
    chosen = [each for each in SHAPES if re.search(given.choice, each.name)]
    if given.list:
        print("\n".join(f"{each.row:2} {each.name}" for each in chosen))
        return 0
    if given.record and given.base_url:
        parser.error("--record needs a server that this command starts")
    if given.peer and not given.peer.is_file():
        parser.error(f"{given.peer} is no file")
    if not chosen:
        parser.error(f"no shape's name matches {given.choice!r}")
    # A server that was started here ends with this process, however this process ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as directory:
        target: Target
        if given.base_url:
            target = Target(Server(given.base_url, given.api_key))
        else:
            command = [str(given.peer), *given.peer_arg] if given.peer else []
            target = Started(Path(directory), command, given.memory * MIB)
        try:
            outcomes = _attacked(Campaign(target, given.patience), chosen)
        finally:
            target.close()
    table = results.table({name: results.entry(each) for name, each in outcomes.items()})
    print(f"\n{table}\n\n{results.verdict(outcomes)}", flush=True)
    if given.report:
        given.report.write_text(f"{table}\n", "utf-8")
    if given.record:
        results.store(target.name, outcomes)
    return int(target.ours and any(each.problems for each in outcomes.values()))


def _attacked(campaign: Campaign, chosen: list[Shape]) -> dict[str, Outcome]:
    campaign.undisturbed()
    if unstable := campaign.unstable():
        print(f"texts that differ by themselves: {', '.join(unstable)}", flush=True)
    outcomes = {}
    for shape in chosen:
        if isinstance(shape.sends, Harm | Launch) and not campaign.target.can(shape.sends):
            print(f"{shape.row:2} {shape.name}: skipped, its processes are not ours", flush=True)
            continue
        outcomes[shape.name] = outcome = campaign.run(shape)
        cells = results.cells(shape, results.entry(outcome))
        print(f"{shape.row:2} {shape.name}: {' | '.join(cells[2:])}", flush=True)
        if outcome.problems:
            try:
                campaign.target.restart()
            except AssertionError as error:
                outcome.problems.append("the server could not be started again")
                print(f"{shape.row:2} {shape.name}: {error}", flush=True)
                break
    return outcomes


if __name__ == "__main__":
    sys.exit(main())
