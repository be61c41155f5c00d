"""Sends random requests to servers of this repository, and reports faults in the answers.

    python -m contract_tests.fuzz [--minutes M] [--requests N] [--seed S] [--configuration NAME]
    python -m contract_tests.fuzz --configuration NAME --seed S --only N
    python -m contract_tests.fuzz --base-url http://127.0.0.1:8080 --api-key KEY

Starts eight servers in turn. Four clients send stories to each of them. The exit code is 1 if there
is a fault. A story depends only on configuration, seed and number, but the server's answers depend
on the other stories as well.
"""

import argparse
import signal
import sys
import tempfile
from pathlib import Path

from contract_tests.fuzz import results
from contract_tests.fuzz.campaign import Campaign, Outcome, as_data, as_text, until
from contract_tests.fuzz.configurations import CONFIGURATIONS, Configuration
from contract_tests.fuzz.judging import Rules
from contract_tests.fuzz.watching import Watch
from contract_tests.kit.server import OwnServer, Server


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m contract_tests.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, help="the time for all servers together (8)")
    parser.add_argument("--requests", type=int, help="the largest number of requests per server")
    parser.add_argument("--seed", type=int, default=1, help="the seed of all random choices (1)")
    parser.add_argument(
        "--configuration",
        action="append",
        choices=CONFIGURATIONS,
        help="only the server with this configuration; may be repeated",
    )
    parser.add_argument("--only", type=int, action="append", help="only the story of this number")
    parser.add_argument("--first", type=int, default=0, help="the number of the first story (0)")
    parser.add_argument("--base-url", help="fuzz a running server instead of starting one")
    parser.add_argument("--api-key", help="the key of the server at --base-url")
    parser.add_argument("--report", type=Path, help="also write tables and faults to this file")
    parser.add_argument(
        "--record", action="store_true", help="keep the figures for docs/reports/fuzz.md"
    )
    return parser


def main() -> int:
    parser = arguments()
    given = parser.parse_args()
    if given.record and given.base_url:
        parser.error("--record needs servers that this command starts")
    if given.minutes is None and given.requests is None:
        given.minutes = 8.0
    chosen = given.configuration or [*CONFIGURATIONS]
    if given.only is not None and len(chosen) != 1:
        parser.error("--only needs one --configuration")
    # A server that was started here ends with this process, however this process ends.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    commit = results.current_commit()
    outcomes: dict[str, Outcome] = {}
    if given.base_url:
        name = chosen[0]
        server = Server(given.base_url, given.api_key)
        outcomes[name] = _fuzzed(CONFIGURATIONS[name], server, None, given, given.minutes)
    else:
        for name in chosen:
            share = None if given.minutes is None else given.minutes / len(chosen)
            with tempfile.TemporaryDirectory() as directory:
                own = CONFIGURATIONS[name].start(Path(directory))
                try:
                    outcomes[name] = _fuzzed(CONFIGURATIONS[name], own, own, given, share)
                finally:
                    own.close()
    table = results.table({name: [as_data(each)] for name, each in outcomes.items()})
    report = f"{table}\n\n{results.verdict(outcomes)}"
    print(f"\n{report}", flush=True)
    if given.report:
        faults = [line for name in outcomes for line in (f"## {name}", *as_text(outcomes[name]))]
        given.report.write_text("\n".join([report, "", *faults, ""]), "utf-8")
    if given.record:
        results.store(commit, given.seed, outcomes)
    return int(any(each.found for each in outcomes.values()))


def _fuzzed(
    configuration: Configuration,
    server: Server,
    own: OwnServer | None,
    given: argparse.Namespace,
    minutes: float | None,
) -> Outcome:
    watch = None if own is None else Watch(own, configuration)
    campaign = Campaign(
        server,
        configuration.name,
        given.seed,
        configuration.mix,
        Rules(configuration.unready or own is None),
        watch,
        configuration.rests,
    )
    if given.only is not None:
        outcome = campaign.only(given.only)
    else:
        outcome = campaign.run(until(minutes, given.requests), given.first)
    print(f"{configuration.name}: {results.line(outcome)}", flush=True)
    for each in as_text(outcome):
        print(f"  {each}", flush=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
