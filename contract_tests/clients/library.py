"""The client libraries with their test files and environments."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from contract_tests.clients import environments

HERE = Path(__file__).parent
PYTHON, NPM = HERE / "python", HERE / "npm"


@dataclass(frozen=True)
class Library:
    """A library with its pinned `packages` (versions by name) and one file of `tests`."""

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


def command(library: Library, folder: Path, report: Path) -> tuple[list[str], Path]:
    """Returns the command that runs the tests of a library, and its working directory. `report`
    gets the results as JUnit XML.

    The environments are kept in `folder`. Raises environments.MissingError.
    """
    if library.language == "Python":
        pins = [f"{name}=={version}" for name, version in library.packages.items()]
        python = environments.python(folder / library.key, ["pytest", *pins])
        return [str(python), "-m", "pytest", f"--junitxml={report}", str(library.tests)], HERE
    reporter = ["--test-reporter=junit", f"--test-reporter-destination={report}"]
    modules = environments.node_modules(folder / "npm", NPM)
    return ["node", "--test", *reporter, library.tests.name], modules
