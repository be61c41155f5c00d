"""Runs client libraries against servers of this repository, each in an environment of its own.

    python -m contract_tests.clients [-k REGEX] [--write] [--record]

The exit code is 1 if a case fails.
"""

import json
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

from contract_tests.clients import environments, results
from contract_tests.clients.environments import MissingError
from contract_tests.clients.library import HERE, Library, command, libraries
from contract_tests.clients.plain import EMBEDDINGS, TEXTS, inherited, plain_server
from contract_tests.clients.recorder import PREFIX, Recorder, serving

RECORDINGS = HERE.parent / "peer" / "recordings"


def main() -> int:
    parser = environments.parser("clients", __doc__, "libraries")
    parser.add_argument(
        "--write", action="store_true", help="write the results to docs/reports/clients.md"
    )
    parser.add_argument("--record", action="store_true", help="record requests for the peer test")
    given = parser.parse_args()
    chosen = [each for each in libraries() if re.search(given.choice, each.key)]
    found = results.stored()
    failed = False
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorders = []
        addresses = []
        for options in (TEXTS, EMBEDDINGS):
            url = stack.enter_context(plain_server(directory, *options))
            recorders.append(recorder := Recorder(url))
            addresses.append(stack.enter_context(serving(recorder)) if given.record else url)
        for library in chosen:
            try:
                cases = _tried(library, given.environments, directory, addresses, given.record)
            except MissingError as error:
                print(f"{library.key}: skipped, {error}")
                continue
            found[library.key] = results.entry(library, cases)
            failed |= results.report(library.key, cases)
    if given.write:
        results.store(found)
    if given.record:
        _store(chosen, recorders)
    return int(failed)


def _tried(
    library: Library, environments: Path, directory: Path, addresses: list[str], recorded: bool
) -> dict[str, str]:
    """Returns the result of each case."""
    report = directory / f"{library.key}.xml"
    argv, folder = command(library, environments.absolute(), report)
    prefix = f"{PREFIX}{library.key}" if recorded else ""
    texts, embeddings = (f"{each}{prefix}" for each in addresses)
    if library.language == "Python":
        argv += ["--url", texts, "--embeddings-url", embeddings]
        argv += ["--recorded"] if recorded else []
    places = {"SERVER_URL": texts, "EMBEDDINGS_URL": embeddings}
    ran = subprocess.run(
        argv,
        cwd=folder,
        env={**inherited(), **places, "RECORDED": "1" if recorded else ""},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if not report.is_file():
        sys.exit(f"{library.key}: no results\n{ran.stdout}{ran.stderr}")
    return results.read(report)


def _store(chosen: list[Library], recorders: list[Recorder]) -> None:
    RECORDINGS.mkdir(exist_ok=True)
    for library in chosen:
        if kept := [each for one in recorders for each in one.kept.get(library.key, ())]:
            text = json.dumps(kept, indent=1, ensure_ascii=False)
            (RECORDINGS / f"{library.key}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    sys.exit(main())
