"""The command `specllama-contract`: tests a server, and reports on each of its operations."""

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

FORMATS = ("md", "html", "junit", "json")
CONFORMS, DEVIATES, NOT_TESTED = 0, 1, 2


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "specllama-contract",
        description="Tests a running server against the description of llama-server's API, and "
        "finds out first what it offers. It fills slots, reads and changes what is kept: don't "
        "test a server that others use.",
        epilog="Exit status: 0 if every operation that the server offers conforms, 1 if one "
        "deviates or the server stopped answering, 2 if it couldn't be tested. "
        "`specllama-contract mutants --help` is about another command: would these tests notice?",
    )
    _add_server(made)
    made.add_argument(
        "--report", choices=FORMATS, default="md", help="the report's format (default: %(default)s)"
    )
    made.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="where the report goes (default: stdout)"
    )
    made.add_argument(
        "--select",
        action="append",
        metavar="TAG|OPERATION",
        help="test only operations of this tag, or the one with this operationId, path, or method "
        "and path; may be repeated",
    )
    made.add_argument(
        "--max-examples",
        type=_positive,
        default=5,
        metavar="N",
        help="generated requests per operation and mode, beside those of the edges "
        "(default: %(default)s)",
    )
    return made


def mutants_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "specllama-contract mutants",
        description="Would the tests notice? Breaks the server in one way after the other, and "
        "looks whether the check that is meant for it fails. The server itself stays as it is: a "
        "proxy in front of it changes requests, answers and streams. Prints a line for each of "
        "these mutants: `caught`, `not caught`, or `not applicable`, where the server lacks what "
        "would be broken, or fails the check by itself. Don't use a server that others use.",
        epilog="Exit status: 0 if every mutant that applies is caught, 1 if one isn't, 2 if the "
        "server couldn't be tested.",
    )
    _add_server(made)
    made.add_argument(
        "-k",
        dest="chosen",
        type=_pattern,
        metavar="REGEX",
        help="only mutants whose names match; docs/reports/mutants.md lists them",
    )
    return made


def _add_server(made: argparse.ArgumentParser) -> None:
    """The options of both commands: which server, and for how long."""
    made.add_argument(
        "--base-url", required=True, metavar="URL", help="its address, with any prefix"
    )
    made.add_argument("--api-key", metavar="KEY", help="its API key, if it wants one")
    made.add_argument(
        "--timeout",
        type=_positive,
        default=1800,
        metavar="SECONDS",
        help="when a test is given up that hangs (default: %(default)s)",
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"is no regular expression: {error}") from error


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("has to be positive")
    return number


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["mutants"]:
        return _mutants(argv[1:])
    arguments = parser().parse_args(argv)
    os.environ["SPECLLAMA_CONTRACT_TIMEOUT"] = str(arguments.timeout)
    # Behind the timeout, which they read; and --help doesn't have to wait for them.
    from contract_tests.kit.session import test

    try:
        findings = test(
            arguments.base_url,
            arguments.api_key,
            arguments.select,
            arguments.max_examples,
        )
    except (LookupError, ConnectionError) as error:
        print(f"specllama-contract: {error.args[0]}", file=sys.stderr)
        return NOT_TESTED
    from contract_tests.kit.reports import REPORTS

    text = REPORTS[arguments.report](findings)
    if arguments.output:
        arguments.output.write_text(text, "utf-8")
    else:
        sys.stdout.write(text)
    return CONFORMS if findings.conforms else DEVIATES


def _mutants(argv: Sequence[str]) -> int:
    arguments = mutants_parser().parse_args(argv)
    os.environ["SPECLLAMA_CONTRACT_TIMEOUT"] = str(arguments.timeout)
    from contract_tests.kit.mutants.session import run

    return run(arguments.base_url, arguments.api_key, arguments.chosen, arguments.timeout)


if __name__ == "__main__":
    sys.exit(main())
