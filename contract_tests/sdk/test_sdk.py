"""The harness of generated clients: missing parts, differences and failures."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contract_tests.sdk import completeness, results, run
from contract_tests.sdk.bodies import BODIES, differences
from contract_tests.sdk.generators import CLIENT, DESCRIPTION, GENERATORS, Generator

DESCRIBED: dict[str, Any] = {
    "paths": {"/a": {"parameters": [], "get": {"operationId": "list_things"}}},
    "components": {
        "schemas": {"ThingList": {"properties": {}}, "ThingName": {"type": "string"}},
    },
}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.py", "def list_things() -> ThingList: ..."),
        ("a.go", "func ListThings() ThingList"),
        ("a.ts", "export const listThings: Thing_List"),
        ("list_things.py", "class ThingList"),
    ],
)
def test_names_are_found_in_any_spelling(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    assert list(completeness.missing(DESCRIBED, tmp_path)) == []


def test_missing_parts_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("list_things ThingList")
    (tmp_path / "a.py").write_text("list_things_of ThingListEntry")
    found = list(completeness.missing(DESCRIBED, tmp_path))
    assert found == ["operation list_things", "type ThingList"]


def test_fields_of_a_form_may_be_parameters(tmp_path: Path) -> None:
    form = {"multipart/form-data": {"schema": {"$ref": "#/components/schemas/UploadForm"}}}
    described = {
        "paths": {"/a": {"post": {"operationId": "upload", "requestBody": {"content": form}}}},
        "components": {
            "schemas": {"UploadForm": {"properties": {"file": {}, "response_format": {}}}}
        },
    }
    (tmp_path / "a.go").write_text("func upload(file File, responseFormat string)")
    assert list(completeness.missing(described, tmp_path)) == []
    (tmp_path / "a.go").write_text("func upload(file File)")
    assert list(completeness.missing(described, tmp_path)) == ["type UploadForm"]


def test_a_field_more_or_less_is_a_difference() -> None:
    sent: dict[str, Any] = {"case": "completion", "body": BODIES["completion"]}
    assert list(differences([sent])) == []
    changes: tuple[dict[str, Any], ...] = ({"temperature": None}, {"n_probs": 0})
    for change in changes:
        wrong = {**sent, "body": {**sent["body"], **change}}
        assert list(differences([sent, wrong])) == [f"completion sent {wrong['body']}"]


def test_results_of_go() -> None:
    lines: list[dict[str, str]] = [
        {"Action": "run", "Test": "TestChat"},
        {"Action": "output", "Test": "TestError", "Output": "    it is wrong\n"},
        {"Action": "pass", "Test": "TestChat"},
        {"Action": "fail", "Test": "TestError"},
        {"Action": "fail", "Package": "example.com/sdk"},
    ]
    output = "\n".join(["go: something", *map(json.dumps, lines)])
    assert dict(run.of_go(output)) == {"chat": run.PASSED, "error": "it is wrong"}


REPORT = '<testsuite><testcase name="test_chat"/></testsuite>'


def made(folder: Path, **commands: str) -> dict[str, str]:
    """Runs a generator whose commands are shell commands, and returns its results."""
    (folder / "cases.xml").write_text(REPORT)
    plain = {
        "generate": "sh -c 'mkdir generated; echo list_things ThingList > generated/a.py'",
        "check": "true",
        "drive": "cp cases.xml {report}",
    }

    class Shell(Generator):
        def prepare(self, folder: Path) -> Path:
            return folder

    shell = Shell(
        key="shell", language="sh", install="", notes="", complaint="^lost .*",
        accepted=frozenset({"lost and found"}), **{**plain, **commands},
    )  # fmt: skip
    return run.client(shell, folder, DESCRIBED, {})


def test_all_steps_pass(tmp_path: Path) -> None:
    (tmp_path / CLIENT).mkdir()
    (tmp_path / CLIENT / "old.py").write_text("")
    assert made(tmp_path) == {"generated": "passed", "compiled": "passed", "chat": "passed"}
    assert not (tmp_path / CLIENT / "old.py").exists()
    assert json.loads((tmp_path / DESCRIPTION).read_text()) == DESCRIBED


@pytest.mark.parametrize(
    ("commands", "is_right"),
    [
        ({"generate": "sh -c 'echo no; false'"}, lambda c: c == {"generated": "no"}),
        ({"generate": "sh -c 'echo lost and found; mkdir generated'"},
         lambda c: c["generated"] == "operation list_things; type ThingList"),
        ({"generate": "echo lost all"}, lambda c: c["generated"].startswith("lost all; ")),
        ({"check": "sh -c 'echo wrong type >&2; false'"},
         lambda c: c["compiled"] == "wrong type" and c["chat"] == "passed"),
        ({"drive": "sh -c 'echo it crashed; false'"}, lambda c: c["driven"] == "it crashed"),
    ],
)  # fmt: skip
def test_a_step_that_fails_says_why(
    tmp_path: Path, commands: dict[str, str], is_right: Callable[[dict[str, str]], bool]
) -> None:
    cases = made(tmp_path, **commands)
    assert is_right(cases), cases


@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.key)
def test_results_are_those_of_the_pinned_versions(generator: Generator) -> None:
    """After a version is raised, the generator has to run again."""
    found = results.stored()[generator.key]
    assert found["packages"] == generator.packages
    assert set(found["cases"]) <= set(results.CASES)
    assert set(found["cases"].values()) == {run.PASSED}


def test_the_page_is_up_to_date() -> None:
    assert results.PAGE.read_text("utf-8") == results.page()
