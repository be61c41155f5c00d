"""Runs gateways in front of two servers of this repository, each in an environment of its own.

    python -m contract_tests.gateways [-k REGEX]

The exit code is 1 if a case fails. `python/test_NAME.py` has the cases of a gateway, and
`python/NAME.txt` the pinned versions of its packages.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from contract_tests.clients import environments, results
from contract_tests.clients.plain import TEXTS, inherited
from contract_tests.own.servers import ROOT, start

HERE = Path(__file__).parent
SERVERS = (*TEXTS, "--metrics", "--parallel", "2", "--ctx-size", "4096")
KEY = "key-of-the-gateways-test"
QUIET = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "DO_NOT_TRACK": "1"}
"""Variables with which the gateways send nothing to other hosts."""


def gateways() -> dict[str, Path]:
    """Returns the file of each gateway's cases, by its name."""
    return {
        path.stem.removeprefix("test_"): path for path in sorted((HERE / "python").glob("test_*"))
    }


def main() -> int:
    parser = environments.parser("gateways", __doc__, "gateways")
    given = parser.parse_args()
    failed = False
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        addresses = []
        for _ in range(2):
            server = start(directory, *SERVERS, api_key=KEY)
            stack.callback(server.close)
            addresses.append(server.url)
        for name, cases in gateways().items():
            if not re.search(given.choice, name):
                continue
            found = _tried(name, cases, given.environments.absolute(), directory, addresses)
            failed |= results.report(name, found)
    return int(failed)


def _tried(
    name: str, cases: Path, folder: Path, directory: Path, addresses: Sequence[str]
) -> dict[str, str]:
    """Returns the result of each case."""
    pins = cases.with_name(f"{name}.txt").read_text("utf-8").split()
    python = environments.python(folder / name, ["pytest", *pins])
    report = directory / f"{name}.xml"
    first, second = addresses
    ran = subprocess.run(
        [
            *(str(python), "-m", "pytest", f"--junitxml={report}", str(cases)),
            *("--first", first, "--second", second, "--key", KEY),
        ],
        cwd=HERE,
        env={**inherited(), **QUIET, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    if not report.is_file():
        sys.exit(f"{name}: no results\n{ran.stdout}{ran.stderr}")
    return results.read(report)


if __name__ == "__main__":
    sys.exit(main())
