"""Builds and tries a release. `.github/workflows/release.yml` runs these commands for a tag.

    python packaging/release.py build [--tag v0.2.0] [--output dist]
        Builds sdist and wheel of specllama and of specllama-contract and checks their metadata with
        twine. With a tag, the version and the changelog have to match it.
    python packaging/release.py try [--dist dist]
        Installs specllama and specllama-contract from the folder into a new environment, without a
        compiler: llama.cpp has to be there as a wheel (`portable_wheel.py`). Starts the server on a
        free port, sends it one request, stops it, and prints the seconds from the command to the
        answer.
    python packaging/release.py notes [--tag v0.2.0]
        Prints the changelog of the version.

`build` needs `pip install build twine`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DISTRIBUTIONS = (ROOT, ROOT / "contract_tests" / "kit")
QUESTION = {"messages": [{"role": "user", "content": "Hello!"}], "temperature": 0}
ANSWER = "Hello! How can I help you?"
"""The shipped model's answer, as README.md has it."""
PATIENCE = 300
"""Seconds until the server has to answer."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["build", "try", "notes"])
    parser.add_argument("--tag", help="the tag of the release, such as v0.2.0")
    parser.add_argument("--output", "--dist", type=Path, default=Path("dist"), dest="dist")
    given = parser.parse_args(argv)
    version = project_version()
    if given.tag and given.tag != f"v{version}":
        parser.error(f"the tag is {given.tag}, the version {version}")
    if given.command == "notes":
        print(notes((ROOT / "CHANGELOG.md").read_text("utf-8"), version))
    elif given.command == "build":
        notes((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
        build(given.dist)
    else:
        print(f"answered {try_release(given.dist.resolve(), version):.0f} s after the command")
    return 0


def project_version() -> str:
    """The version in the package and in the description. Ends the program if they differ."""
    sources = {
        "specllama/__init__.py": r'^__version__ = "(.+)"$',
        "openapi/server.yaml": r"^  version: (\S+)$",
    }
    found = {}
    for name, pattern in sources.items():
        match = re.search(pattern, (ROOT / name).read_text("utf-8"), re.MULTILINE)
        found[name] = match[1] if match else "none"
    if len(set(found.values())) > 1:
        sys.exit(f"different versions: {found}")
    return next(iter(found.values()))


def notes(changelog: str, version: str) -> str:
    """The part of the changelog about `version`. Ends the program if there is none."""
    pattern = rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## \[|\Z)"
    match = re.search(pattern, changelog, re.MULTILINE | re.DOTALL)
    if match is None or not match[1].strip():
        sys.exit(f"CHANGELOG.md has no dated part for {version}")
    return match[1].strip()


def build(output: Path) -> None:
    """Builds both distributions and has twine check them."""
    before = set(output.glob("*"))
    for source in DISTRIBUTIONS:
        command = [sys.executable, "-m", "build", "--outdir", str(output.resolve()), str(source)]
        subprocess.run(command, check=True)
    new = sorted(str(path) for path in set(output.glob("*")) - before)
    subprocess.run([sys.executable, "-m", "twine", "check", "--strict", *new], check=True)


def try_release(dist: Path, version: str) -> float:
    """Seconds from the installing command to the answer of the installed server."""
    with tempfile.TemporaryDirectory() as scratch:
        environment = Path(scratch) / "environment"
        began = time.monotonic()
        venv.create(environment, with_pip=True)
        programs = environment / ("Scripts" if os.name == "nt" else "bin")
        pip = [str(programs / "python"), "-m", "pip", "install", "--find-links", str(dist)]
        pip += ["--only-binary", "llama-cpp-python"]
        subprocess.run([*pip, f"specllama=={version}"], check=True, env=_without_compilers())
        answer = ask_server(programs / "specllama", Path(scratch))
        took = time.monotonic() - began
        if answer != ANSWER:
            sys.exit(f"unexpected answer: {answer!r}")
        subprocess.run([*pip, f"specllama-contract=={version}"], check=True)
        subprocess.run([programs / "specllama-contract", "--help"], check=True, capture_output=True)
    return took


def _without_compilers() -> dict[str, str]:
    """The environment variables of a machine on which nothing can be compiled."""
    return {**os.environ, "CC": "no-compiler", "CXX": "no-compiler", "CMAKE_ARGS": "-Dno-cmake"}


def ask_server(program: Path, folder: Path) -> str:
    """The answer of a server that is started in `folder` for one question."""
    log = folder / "server.log"
    with log.open("wb") as stderr:
        server = subprocess.Popen([program, "--port", "0"], cwd=folder, stderr=stderr)
        try:
            url = _listening(server, log)
            request = urllib.request.Request(
                f"{url}/v1/chat/completions",
                json.dumps(QUESTION).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                choice = json.load(response)["choices"][0]
        except BaseException:
            shutil.copyfileobj(log.open("r", errors="replace"), sys.stderr)
            raise
        finally:
            server.terminate()
            server.wait(PATIENCE)
    return str(choice["message"]["content"])


def _listening(server: "subprocess.Popen[bytes]", log: Path) -> str:
    """The URL that the server prints once it is ready."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        text = log.read_text("utf-8", "replace")
        if match := re.search(r"ready in .*?(http://127\.0\.0\.1:\d+)", text, re.DOTALL):
            return match[1]
        time.sleep(0.1)
    sys.exit(f"the server did not start; its log:\n{log.read_text('utf-8', 'replace')}")


if __name__ == "__main__":
    sys.exit(main())
