"""Lints the description that `specllama spec` writes, in each version of OpenAPI.

`python -m tools.spec_lint` ends with 0 if it is clean, else with 1. With `--fetch` it has npm fetch
the programs alone, and ends with 1 if that can't be done.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).parent
VERSIONS = ("3.0", "3.1", "3.2")
REDOCLY = "@redocly/cli@2.77.0"
SPECTRAL = "@stoplight/spectral-cli@6.16.3"

_QUIET = {"REDOCLY_TELEMETRY": "off", "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true"}


def main(argv: Sequence[str]) -> int:
    done = _fetch() if "--fetch" in argv else _lint()
    return 0 if done else 1


def _fetch() -> bool:
    return all(_run(package, "--version") for package in (REDOCLY, SPECTRAL))


def _lint() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        files = {version: Path(folder, f"openapi-{version}.yaml") for version in VERSIONS}
        for version, file in files.items():
            file.write_bytes(_written(version))
        config = f"--config={HERE / 'redocly.yaml'}"
        clean = _run(REDOCLY, "lint", config, *map(str, files.values()))
        # Spectral knows nothing of 3.2 yet, and takes examples of streams for mistakes.
        known = [str(file) for version, file in files.items() if version != "3.2"]
        ruleset = f"--ruleset={HERE / 'spectral.yaml'}"
        return _run(SPECTRAL, "lint", ruleset, "--fail-severity=hint", *known) and clean


def _written(version: str) -> bytes:
    command = [sys.executable, "-m", "specllama", "spec", "--openapi", version]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _run(package: str, *arguments: str) -> bool:
    command = ["npx", "--yes", package, *arguments]
    return subprocess.run(command, check=False, env=os.environ | _QUIET).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
