"""The command `specllama-contract`, which tests a server and reports on each of its operations."""

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
        description="Tests a running server against the description of llama-server's API. It "
        "first discovers what the server offers. It fills slots, and reads and changes stored "
        "data: don't test a server that others use.",
        epilog="Exit status: 0 if every operation that the server offers conforms, 1 if one "
        "deviates or the server stopped answering, 2 if the tests couldn't run. "
        "`specllama-contract mutants --help` describes a second command, which tests these tests.",
    )
    _add_server(made)
    made.add_argument(
        "--report", choices=FORMATS, default="md", help="the report's format (default: %(default)s)"
    )
    made.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="the report's file (default: stdout)"
    )
    made.add_argument(
        "--select",
        action="append",
        metavar="TAG|OPERATION",
        help="test only the operations with this tag, operationId, path, or method and path; "
        "may be repeated",
    )
    made.add_argument(
        "--max-examples",
        type=_positive,
        default=5,
        metavar="N",
        help="random requests per operation and mode, in addition to requests with edge values "
        "(default: %(default)s)",
    )
    return made


def mutants_parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        "specllama-contract mutants",
        description="Tests the tests: breaks the server in one way after the other, and checks "
        "that the test meant for it fails. The server itself stays unchanged: a proxy in front of "
        "it changes requests, answers and streams. Prints a line for each of these mutants: "
        "`caught`, `not caught`, or `not applicable` if the server lacks the feature to break, or "
        "fails the test without the mutant. Don't use a server that others use.",
        epilog="Exit status: 0 if every applicable mutant is caught, 1 if one isn't, 2 if the "
        "tests couldn't run.",
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
    """Adds the options of both commands: the server, and the time limit."""
    made.add_argument(
        "--base-url", required=True, metavar="URL", help="the server's address, API prefix included"
    )
    made.add_argument("--api-key", metavar="KEY", help="the server's API key, if it needs one")
    made.add_argument(
        "--timeout",
        type=_positive,
        default=1800,
        metavar="SECONDS",
        help="time limit for one test (default: %(default)s)",
    )


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"not a regular expression: {error}") from error


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
    # Imported after --timeout is set, because the modules read it, and so that --help is fast.
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
