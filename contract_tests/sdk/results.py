"""The results for each generator, and the page with them:

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
"""The columns of the page: the steps, and the uses of a client."""

INTRODUCTION = """# Generated clients

Written by `python -m contract_tests.sdk.results`; edit that, not this page.

A server serves its description at `/openapi.json`. Use it to generate a client:

```bash
curl -o openapi.json http://127.0.0.1:8080/openapi.json
```

`nox -s sdk` does so with each generator below, at a pinned version:

- *generated*: it generates the client, and checks that nothing is left out.
- *compiled*: it type-checks or compiles the client with a program that uses it.
- *sent*: it runs this program against a plain `specllama`, and compares every request with the
  fields that the program set, so that the client adds none.
- The other columns are the uses of the client. The *error* is about a prompt that is too long. The
  program gets it as a typed value with the server's message.

A dash means that a client can't do it or wasn't tried. The generated code is not edited.
`nox -s sdk -- --write` updates this page; `-- -k go` runs one generator.

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
            "<!-- not run: nox -s sdk runs it, in a separate environment -->",
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
