"""Generates clients from the description that a plain server serves, compiles them, and uses them
with this server.

    python -m contract_tests.sdk [-k REGEX] [--write]

The exit code is 1 if a case fails.
"""

import re
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx

from contract_tests.clients import environments
from contract_tests.clients.environments import MissingError
from contract_tests.clients.plain import EMBEDDINGS, TEXTS, plain_server
from contract_tests.clients.recorder import PREFIX, Recorder, serving
from contract_tests.clients.results import report
from contract_tests.kit.server import SECONDS
from contract_tests.sdk import results, run
from contract_tests.sdk.bodies import differences
from contract_tests.sdk.generators import GENERATORS


def main() -> int:
    parser = environments.parser("sdk", __doc__, "generators")
    parser.add_argument(
        "--write", action="store_true", help="write the results to docs/reports/sdks.md"
    )
    given = parser.parse_args()
    found = results.stored()
    failed = False
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        recorders = []
        addresses = {}
        for name, options in (("SERVER_URL", TEXTS), ("EMBEDDINGS_URL", EMBEDDINGS)):
            upstream = stack.enter_context(plain_server(directory, *options))
            recorders.append(recorder := Recorder(upstream))
            addresses[name] = stack.enter_context(serving(recorder))
        served = httpx.get(f"{recorders[0].upstream}/openapi.json", timeout=SECONDS)
        description = served.raise_for_status().json()
        for generator in GENERATORS:
            if not re.search(given.choice, generator.key):
                continue
            key = generator.key
            folder = given.environments.absolute() / key
            places = {name: f"{url}{PREFIX}{key}" for name, url in addresses.items()}
            try:
                cases = run.client(generator, folder, description, places)
            except MissingError as error:
                print(f"{key}: skipped, {error}")
                continue
            sent = [each for one in recorders for each in one.kept.get(key, ())]
            if sent:
                cases["sent"] = "; ".join(differences(sent)) or run.PASSED
            found[key] = {"packages": generator.packages, "cases": cases}
            failed |= report(key, cases)
    if given.write:
        results.store(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
