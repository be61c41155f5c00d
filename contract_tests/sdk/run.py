"""Runs one generator, from its environment to the last case."""

import json
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from contract_tests.clients import results as junit
from contract_tests.clients.plain import inherited
from contract_tests.sdk.completeness import missing
from contract_tests.sdk.generators import CLIENT, DESCRIPTION, Generator

PASSED = junit.PASSED


class StepError(Exception):
    """A command failed; the text is the end of its output."""


def client(
    generator: Generator, folder: Path, description: Mapping[str, Any], places: Mapping[str, str]
) -> dict[str, str]:
    """Returns the result of each step and case: `PASSED`, or the problem.

    `places` are the environment variables with the servers' addresses. The client is generated in
    `folder`. Raises environments.MissingError.
    """
    programs = generator.prepare(folder)
    (folder / DESCRIPTION).write_text(json.dumps(description), "utf-8")
    shutil.rmtree(folder / CLIENT, ignore_errors=True)
    variables = {**inherited(), **places}
    variables["PATH"] = f"{programs}{os.pathsep}{variables['PATH']}"
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    cases: dict[str, str] = {}
    try:
        said = _run(generator.generate, folder, variables)
        lost = [*generator.complaints(said), *missing(description, folder / CLIENT)]
        cases["generated"] = "; ".join(lost) or PASSED
        cases["compiled"] = "failed"
        _run(generator.check, folder, variables)
        cases["compiled"] = PASSED
    except StepError as error:
        step = "compiled" if "generated" in cases else "generated"
        cases[step] = str(error)
        if step == "generated":
            return cases
    command = generator.drive.format(report=report)
    ran = subprocess.run(
        shlex.split(command),
        cwd=folder,
        env=variables,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    found = junit.read(report) if report.is_file() else dict(of_go(ran.stdout))
    return cases | (found or {"driven": _end(ran.stdout + ran.stderr)})


def _run(command: str, folder: Path, variables: Mapping[str, str]) -> str:
    argv = shlex.split(command)
    found = shutil.which(argv[0], path=variables["PATH"]) or argv[0]
    ran = subprocess.run(
        [found, *argv[1:]],
        cwd=folder,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        check=False,
    )
    if ran.returncode:
        raise StepError(_end(ran.stdout))
    return ran.stdout


def _end(text: str) -> str:
    return text.strip()[-2000:] or "no output"


def of_go(output: str) -> Iterator[tuple[str, str]]:
    """Yields the result of each test in the output of `go test -json`."""
    said: dict[str, list[str]] = {}
    for line in output.splitlines():
        event = json.loads(line) if line.startswith("{") else {}
        if (test := event.get("Test")) is None:
            continue
        name = test.removeprefix("Test").lower()
        if event["Action"] == "output":
            said.setdefault(name, []).append(event["Output"].strip())
        elif event["Action"] == "pass":
            yield name, PASSED
        elif event["Action"] == "fail":
            yield name, " ".join(said.get(name, ["failed"]))[:200]
