"""Sends one list of requests to this server and to a genuine llama-server, and compares the
answers.

    python -m contract_tests.peer --peer /path/llama-server [--peer-arg=--no-repack] [-k REGEX]

With --record, the documentation gets the counts of this run, and only rows whose difference a
request has shown.

The exit code is 1 if there is a difference without a reason, or a row of reasons without a
difference, and 2 if the peer is missing.
"""

import argparse
import json
import re
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from contract_tests.peer.accepted import RECORD, without_difference
from contract_tests.peer.comparison import differences
from contract_tests.peer.report import Compared, counts, report
from contract_tests.peer.request import Request, all_requests
from contract_tests.peer.servers import STAGES, Side
from specllama.engine.shipped import model_path


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m contract_tests.peer",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--peer", type=Path, help="the genuine llama-server's binary")
    parser.add_argument("--peer-arg", action="append", default=[], help="an option for the peer")
    parser.add_argument("--model", default=str(model_path()), help="the model of both servers")
    parser.add_argument("-k", dest="choice", default="", help="only requests whose names match")
    parser.add_argument("-v", dest="verbose", action="store_true", help="show all cases and bodies")
    parser.add_argument("--record", action="store_true", help="write the counts for the documents")
    parser.add_argument("--list", action="store_true", help="print the names of the requests")
    given = parser.parse_args()
    if given.record and given.choice:
        parser.error("--record needs all requests")
    chosen = [each for each in all_requests() if re.search(given.choice, each.name)]
    if given.list:
        print("\n".join(each.name for each in chosen))
        return 0
    if given.peer is None:
        print("Skipped: pass --peer with the path of a genuine llama-server.")
        return 0
    if not given.peer.is_file():
        print(f"{given.peer} is no file", file=sys.stderr)
        return 2
    results = []
    order = list(STAGES)
    chosen.sort(key=lambda each: order.index(each.stage))
    with tempfile.TemporaryDirectory() as directory:
        for stage, requests in groupby(chosen, lambda each: each.stage):
            peer = [str(given.peer), *given.peer_arg]
            results += _stage(Path(directory), given.model, stage, peer, list(requests))
    print(report(results, verbose=given.verbose))
    failed = any(each.unexplained for each in results)
    shown = set().union(*(each.reasons for each in results))
    if not given.choice and (stale := without_difference(shown)):
        print(f"\nRows whose difference no request shows: {', '.join(stale)}")
        failed = True
    if given.record and not failed:
        found = {extent.name.lower(): n for extent, n in counts(results).items()}
        text = json.dumps({"counts": found, "rows": sorted(shown)}, indent=2)
        RECORD.write_text(text + "\n", "utf-8")
    return int(failed)


def _stage(
    directory: Path, model: str, stage: str, peer: list[str], requests: list[Request]
) -> list[Compared]:
    ours = Side(directory, model, stage, None)
    try:
        theirs = Side(directory, model, stage, peer)
        try:
            return [
                Compared(each, differences(each, ours.ask(each), theirs.ask(each)))
                for each in requests
            ]
        finally:
            theirs.close()
    finally:
        ours.close()


if __name__ == "__main__":
    sys.exit(main())
