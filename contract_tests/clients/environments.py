"""Environments of Python and Node, each with only its packages, at pinned versions."""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from contract_tests.own.servers import ROOT


def parser(name: str, text: str | None, what: str) -> argparse.ArgumentParser:
    """Returns the parser for the program `contract_tests.NAME`, which tries several `what` in
    environments of their own."""
    made = argparse.ArgumentParser(
        prog=f"python -m contract_tests.{name}",
        description=text,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("-k", dest="choice", default="", help=f"only {what} whose names match")
    made.add_argument(
        "--environments",
        type=Path,
        default=ROOT / ".nox" / name,
        help="the folder of the environments",
    )
    return made


class MissingError(Exception):
    """The machine lacks a program that an environment needs; the text names it."""


def python(folder: Path, packages: Sequence[str]) -> Path:
    """Returns the interpreter of an environment with `packages`, which include their versions.

    Creates the environment if it doesn't exist or has other packages.
    """
    executable = folder / "bin" / "python"
    wanted = "\n".join(packages)
    if _stale(folder, wanted):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(executable), "-m", "pip", "install", "-q", *packages], check=True)
        _made(folder, wanted)
    return executable


def node_modules(folder: Path, sources: Path) -> Path:
    """Returns `folder` with the files of `sources` and the packages of their `package.json`.

    Node looks for packages there. Raises MissingError without Node.
    """
    if not (shutil.which("node") and shutil.which("npm")):
        raise MissingError("node and npm are not installed")
    wanted = (sources / "package.json").read_text("utf-8")
    folder.mkdir(parents=True, exist_ok=True)
    for each in sources.iterdir():
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
