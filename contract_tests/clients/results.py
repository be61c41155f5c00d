"""The results of each client library's tests, and the page with them:

python -m contract_tests.clients.results > docs/reports/clients.md
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from contract_tests.clients.library import HERE, Library, libraries

RESULTS = HERE / "results.json"
PAGE = HERE.parents[1] / "docs" / "reports" / "clients.md"
PASSED = "passed"
KINDS = {
    "models": "models",
    "chat": "chat",
    "stream": "stream",
    "tools": "tools",
    "structured_output": "structured output",
    "embeddings": "embeddings",
    "probabilities": "probabilities",
    "error": "error",
    "conformance": "conformance",
}
"""The kinds of cases, by the beginning of their names, which are the columns of the page."""
INTRODUCTION = """# Clients

Written by `python -m contract_tests.clients.results`; edit that, not this page.

`nox -s clients` runs client libraries at pinned versions, each in its own environment, against two
servers with the shipped model: a plain one with `--reasoning off` (the shortest answers would
be reasoning alone), and one with `--embeddings --pooling mean`. `nox -s clients -- --write` updates
this page. A number is the number of tested ways, such as several APIs or providers, or a plain
answer and a stream; a dash means that the library lacks the feature. The column for errors is about
a prompt that is too long: the library has to raise its own exception with the server's message.

Two of the libraries are conformance kits. All cases of CompatCanary pass. All cases of llm-comply's
sets for chat, Responses and Messages pass except these: images, which the shipped model doesn't
support; compaction of answers, which the server doesn't have; and a request without a model name,
which the server accepts, as llama-server does.

lm-eval, with its model `local-completions`, reads the probabilities of given texts. Each has to be
the sum of the logarithms of its tokens' probabilities.

| library | versions | {columns} |
|---|---|{rule}"""


def report(name: str, cases: Mapping[str, str]) -> bool:
    """Prints how many cases passed, and each other one. Returns True if there is one."""
    failures = {case: said for case, said in cases.items() if said != PASSED}
    print(f"{name}: {len(cases) - len(failures)} of {len(cases)}", flush=True)
    for case, said in failures.items():
        print(f"  {case}: {said}", flush=True)
    return bool(failures)


def read(report: Path) -> dict[str, str]:
    """Returns the result of each case of a JUnit report: `PASSED`, or the beginning of the
    failure."""
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        failures = [*case.iter("failure"), *case.iter("error")]
        said = next((each.attrib.get("message") or "failed" for each in failures), PASSED)
        found[case.attrib["name"].removeprefix("test_")] = " ".join(said.split())[:200]
    return found


def stored() -> dict[str, Any]:
    results: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    return results


def store(results: dict[str, Any]) -> None:
    known = {each.key for each in libraries()}
    kept = {key: results[key] for key in sorted(results) if key in known}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
    PAGE.write_text(page(), "utf-8")


def entry(library: Library, cases: dict[str, str]) -> dict[str, Any]:
    return {"packages": dict(library.packages), "cases": cases}


def page() -> str:
    results = stored()
    head = INTRODUCTION.format(columns=" | ".join(KINDS.values()), rule="---|" * len(KINDS))
    rows = []
    for library in libraries():
        found = results.get(library.key, {"packages": {}, "cases": {}})
        versions = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
        cells = " | ".join(_cell(kind, found["cases"]) for kind in KINDS)
        rows.append(f"| {library.name} ({library.language}) | {versions} | {cells} |")
    return "\n".join([head, *rows, *_failures(results), ""])


def _failures(results: dict[str, Any]) -> list[str]:
    failed = [
        f"- {key}, `{case}`: {said}"
        for key, found in results.items()
        for case, said in found["cases"].items()
        if said != PASSED
    ]
    return ["", "## What fails", "", *failed] if failed else []


def kind(case: str) -> str:
    return next(each for each in KINDS if case.startswith(each))


def _cell(column: str, cases: dict[str, str]) -> str:
    outcomes = [said == PASSED for case, said in cases.items() if kind(case) == column]
    if not outcomes:
        return "-"
    if all(outcomes):
        return "yes" if len(outcomes) == 1 else f"yes ({len(outcomes)})"
    return f"{sum(outcomes)} of {len(outcomes)}"


if __name__ == "__main__":
    print(page(), end="")
