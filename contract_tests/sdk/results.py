"""What came of each generator, and the page that tells it:

python -m contract_tests.sdk.results > docs/reports/sdks.md
"""

import json
from typing import Any

from contract_tests.clients.results import PASSED
from contract_tests.sdk.generators import GENERATORS, HERE, Generator

RESULTS = HERE / "results.json"
PAGE = HERE.parents[1] / "docs" / "reports" / "sdks.md"
CASES = (
    *("generated", "compiled", "sent"),
    *("models", "slots", "completion", "chat", "tools", "stream", "embeddings", "error"),
)
"""The steps, then what a client was used for; the columns of the page."""

INTRODUCTION = """# Generated clients

Written by `python -m contract_tests.sdk.results`; edit that, not this page.

A server hands out its description at `/openapi.json`, and generators make clients of it:

```bash
curl -o openapi.json http://127.0.0.1:8080/openapi.json
```

`nox -s sdk` does so with each generator below, at a version that is pinned: it generates, checks
that nothing is left out (*generated*), type-checks or compiles the client with a program that uses
it (*compiled*), runs this program against a plain `specllama`, and compares every request with what
the program asked for, so that no field comes along that nobody named (*sent*). Nothing of the
generated code is edited. `-- --write` brings this page up to date; `-- -k go` is one generator. A
dash stands for what a client can't do or wasn't tried with; an error is the one of a prompt that is
too long, which reaches the program as a typed value with the server's words.

| generator | {columns} |
|---|{rule}"""


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {}
    return found


def store(found: dict[str, Any]) -> None:
    known = {each.key for each in GENERATORS}
    kept = {key: found[key] for key in sorted(found) if key in known}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n", "utf-8")
    PAGE.write_text(page(), "utf-8")


def page() -> str:
    found = stored()
    head = INTRODUCTION.format(columns=" | ".join(CASES), rule="---|" * len(CASES))
    cases = {each.key: found.get(each.key, {}).get("cases", {}) for each in GENERATORS}
    rows = [_row(each, cases[each.key]) for each in GENERATORS]
    sections = [_section(each, cases[each.key]) for each in GENERATORS]
    return "\n".join([head, *rows, "", *sections])


def _row(generator: Generator, cases: dict[str, str]) -> str:
    cells = ("-" if name not in cases else _cell(cases[name]) for name in CASES)
    return f"| {generator.key} ({generator.language}) | {' | '.join(cells)} |"


def _cell(said: str) -> str:
    return "yes" if said == PASSED else "no"


def _section(generator: Generator, cases: dict[str, str]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in generator.packages.items())
    failures = [f"- fails: `{case}`" for case, said in cases.items() if said != PASSED]
    return "\n".join(
        [
            f"## {generator.key}",
            "",
            f"{generator.language}, with {versions}.",
            "",
            "<!-- not run: nox -s sdk does, in an environment of its own -->",
            "",
            "```bash",
            generator.install,
            generator.generate,
            "```",
            "",
            generator.notes,
            "",
            *([*failures, ""] if failures else []),
        ]
    )


if __name__ == "__main__":
    print(page(), end="")
