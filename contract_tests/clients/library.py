"""The client libraries, by the files that test them, and the environments that these run in."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PYTHON, NPM = HERE / "python", HERE / "npm"


@dataclass(frozen=True)
class Library:
    """`packages` are pinned: versions by name. `tests` is one file."""

    name: str
    language: str
    tests: Path
    packages: Mapping[str, str]

    @property
    def key(self) -> str:
        return f"{self.name}-{self.language.lower()}"


def libraries() -> list[Library]:
    return [*_of_python(), *_of_npm()]


def _of_python() -> list[Library]:
    found = []
    for tests in sorted(PYTHON.glob("test_*.py")):
        name = tests.stem.removeprefix("test_")
        pins = (PYTHON / f"{name}.txt").read_text("utf-8").split()
        packages = dict(each.split("==") for each in pins)
        found.append(Library(name.replace("_", "-"), "Python", tests, packages))
    return found


def _of_npm() -> list[Library]:
    pinned: dict[str, str] = json.loads((NPM / "package.json").read_text("utf-8"))["dependencies"]
    found = []
    for tests in sorted(NPM.glob("*.test.js")):
        imported = re.findall(r'from "([^."][^"]*)"', tests.read_text("utf-8"))
        packages = {name: pinned[name] for name in pinned if name != "zod" and name in imported}
        found.append(Library(tests.name.partition(".")[0], "npm", tests, packages))
    return found


class MissingError(Exception):
    """What a library's environment needs and this machine hasn't."""


def command(library: Library, environments: Path, report: Path) -> tuple[list[str], Path]:
    """What runs the tests of a library, and where; `report` gets the results in JUnit's form.

    The environment is made if it isn't there, or is one of other versions.
    """
    if library.language == "Python":
        python = _python(library, environments / library.key)
        return [str(python), "-m", "pytest", f"--junitxml={report}", str(library.tests)], HERE
    folder = _node_modules(environments / "npm")
    reporter = ["--test-reporter=junit", f"--test-reporter-destination={report}"]
    return ["node", "--test", *reporter, library.tests.name], folder


def _python(library: Library, folder: Path) -> Path:
    python = folder / "bin" / "python"
    pins = [f"{name}=={version}" for name, version in library.packages.items()]
    if _stale(folder, "\n".join(pins)):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "-q", "pytest", *pins], check=True)
        _made(folder, "\n".join(pins))
    return python


def _node_modules(folder: Path) -> Path:
    """A folder with the tests beside their packages, where Node looks for these."""
    if not (shutil.which("node") and shutil.which("npm")):
        raise MissingError("node and npm are not installed")
    wanted = (NPM / "package.json").read_text("utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    for each in NPM.glob("*.js*"):
        shutil.copy(each, folder)
    if _stale(folder, wanted):
        options = ["--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"]
        subprocess.run(["npm", "install", *options], cwd=folder, check=True)
        _made(folder, wanted)
    return folder


def _stale(folder: Path, wanted: str) -> bool:
    made = folder / "made-of.txt"
    return not made.is_file() or made.read_text("utf-8") != wanted


def _made(folder: Path, wanted: str) -> None:
    (folder / "made-of.txt").write_text(wanted, "utf-8")
