"""Lints the description that `specllama spec` writes, in each version of OpenAPI.

`python -m tools.spec_lint` exits with 0 if the description is clean, otherwise with 1. With
`--fetch`, npm only fetches the programs, and the exit code is 1 if that fails.
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

_ENVIRONMENT = {
    "REDOCLY_TELEMETRY": "off",
    "REDOCLY_SUPPRESS_UPDATE_NOTICE": "true",
    # Without a network, npm would try for many minutes.
    "npm_config_fetch_retries": "1",
    "npm_config_fetch_timeout": "30000",  # ms
}


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
        # Spectral doesn't support 3.2 yet, and reports examples of streams as mistakes.
        known = [str(file) for version, file in files.items() if version != "3.2"]
        ruleset = f"--ruleset={HERE / 'spectral.yaml'}"
        return _run(SPECTRAL, "lint", ruleset, "--fail-severity=hint", *known) and clean


def _written(version: str) -> bytes:
    command = [sys.executable, "-m", "specllama", "spec", "--openapi", version]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def _run(package: str, *arguments: str) -> bool:
    command = ["npx", "--yes", package, *arguments]
    return subprocess.run(command, check=False, env=os.environ | _ENVIRONMENT).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
