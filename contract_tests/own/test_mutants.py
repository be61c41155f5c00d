"""Would the kit notice? A server is broken in one way after the other, and has to be caught."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import handlers.apis.openai.format
from contract_tests.kit import checks
from contract_tests.kit.checks.media import OF_MEDIA
from contract_tests.kit.checks.vectors import OF_EMBEDDERS, OF_RERANKERS
from contract_tests.kit.server import API_KEY, SECONDS, OwnServer, Start
from contract_tests.own.mutants import catalog
from contract_tests.own.mutants.mutant import Check, Kind, Mutant, exercised, install, replace
from contract_tests.own.mutants.report import page
from contract_tests.own.servers import ROOT, environment, model_file
from tools.models.build import ensure_adapter
from tools.models.zoo import Zoo

CAUGHT = [mutant for mutant in catalog.ALL if mutant.check is not None]
CHECKS: dict[Kind, list[Check]] = {
    "one model": [
        each for each in checks.ALL if each not in (*OF_MEDIA, *OF_EMBEDDERS, *OF_RERANKERS)
    ],
    "router": [*checks.OF_ROUTERS],
    "seeing": [*OF_MEDIA],
    "embedder": [*OF_EMBEDDERS],
    "reranker": [*OF_RERANKERS],
}
NOBODY = "none of them"
FUZZED = ("bodies_are_not_validated", "errors_are_plain_text", "every_key_is_right")
"""Mutants that Schemathesis alone has to find as well."""


class Broken:
    """A server with all mutants in it."""

    def __init__(self, server: OwnServer, switch: Path) -> None:
        self.server = server
        self._switch = switch

    def lie(self, name: str) -> None:
        """From the next request on, in the way of the mutant `name`; of nobody: not at all."""
        self._switch.write_text(name)

    def log(self) -> str:
        return self.server.log.read_text("utf-8", "replace")


@pytest.fixture(scope="module")
def broken(
    module_server: Start, zoo: Zoo, hub: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Kind], Broken]:
    """The server for a kind of mutants, which share it; another one if it has ended."""
    directory = tmp_path_factory.mktemp("mutants")
    adapter = ensure_adapter("lora-a", directory)
    # A lie may take the end away from a text: without `-n` it would fill the context.
    argv: dict[Kind, tuple[str, ...]] = {
        "one model": ("-n", "64", "--metrics", "--lora", str(adapter), "--lora-init-without-apply"),
        "router": ("-n", "64", *zoo.arguments(), "--models-max", "2"),
        "seeing": ("-n", "64", "--mmproj", model_file("tiny-mmproj"), "-m"),
        "embedder": ("--embeddings", "--pooling", "mean"),
        "reranker": ("--rerank", "-m"),
    }
    options: dict[Kind, dict[str, Any]] = {
        "router": {"router": True, "variables": hub},
        "seeing": {"named": True},
        "reranker": {"named": True},
    }
    started: dict[Kind, Broken] = {}

    def server(kind: Kind) -> Broken:
        if kind not in started or started[kind].server.process.poll() is not None:
            switch = directory / kind
            switch.write_text(NOBODY)
            models: dict[Kind, str] = {"seeing": "tiny-window", "reranker": "tiny-rerank"}
            model = (model_file(models[kind]),) if kind in models else ()
            launcher = ("-m", "contract_tests.own.mutants", str(switch))
            started[kind] = Broken(
                module_server(
                    *argv[kind],
                    *model,
                    launcher=launcher,
                    api_key=API_KEY,
                    **options.get(kind, {}),
                ),
                switch,
            )
        return started[kind]

    return server


@pytest.mark.parametrize("mutant", CAUGHT, ids=[each.name for each in CAUGHT])
def test_a_mutant_is_caught(mutant: Mutant, broken: Callable[[Kind], Broken]) -> None:
    assert mutant.check is not None
    found = broken(mutant.kind)
    found.lie(mutant.name)
    try:
        with pytest.raises(AssertionError) as caught:
            mutant.check(found.server)
        assert found.server.process.poll() is None, "the mutant died instead"
        assert re.search(mutant.failure, str(caught.value), re.DOTALL), caught.value
        assert exercised(mutant.name) in found.log()
        if mutant.lies:
            checks.plain_answers_are_as_described(found.server)
            checks.streams_are_as_described(found.server)
    finally:
        found.lie(NOBODY)


@pytest.mark.parametrize(
    ("kind", "check"),
    [(kind, check) for kind, of_kind in CHECKS.items() for check in of_kind],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_a_healthy_server_passes(
    kind: Kind, check: Check, broken: Callable[[Kind], Broken]
) -> None:
    found = broken(kind)
    try:
        check(found.server)
    except pytest.skip.Exception as skipped:
        raise AssertionError("nothing was checked") from skipped


def test_names_and_checks() -> None:
    """Every mutant has a name and says what it breaks, and every check catches one."""
    names = [mutant.name for mutant in catalog.ALL]
    assert len(set(names)) == len(names) >= 60
    assert all(mutant.says.endswith(".") for mutant in catalog.ALL)
    assert len(CAUGHT) >= 0.95 * len(catalog.ALL)
    for kind, of_kind in CHECKS.items():
        assert {mutant.check for mutant in CAUGHT if mutant.kind == kind} == {*of_kind}


def test_the_page_of_mutants_is_up_to_date() -> None:
    shown = (ROOT / "docs" / "mutants.md").read_text("utf-8")
    assert shown == page(), "python -m contract_tests.own.mutants.report > docs/mutants.md"


def test_what_replaces_a_function_has_its_parameters() -> None:
    """Another number of them would be a crash, and not the lie that is meant."""
    with pytest.raises(TypeError, match="usage takes"):
        replace(lambda: True, handlers.apis.openai.format, "usage", lambda results: {})
    with pytest.raises(AttributeError):
        replace(lambda: True, handlers.apis.openai.format, "no_such_function", lambda: None)


def test_a_mutant_lies_only_while_it_is_switched_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = handlers.apis.openai.format
    monkeypatch.setattr(module, "text_finish_reason", module.text_finish_reason)
    [mutant] = [e for e in catalog.ALL if e.name == "completions_end_for_another_reason"]
    switched_on = [NOBODY]
    install([mutant], lambda: switched_on[0])
    assert module.text_finish_reason("limit") == "length"
    assert exercised(mutant.name) not in capsys.readouterr().err
    switched_on[0] = mutant.name
    assert module.text_finish_reason("limit") == "stop"
    assert exercised(mutant.name) in capsys.readouterr().err


# ---- Schemathesis ------------------------------------------------------------------------------


_MODULE = "contract_tests/kit/operations/test_schemathesis.py"
FUZZING = [
    f"{_MODULE}::{test}[detokenize]" for test in ("test_valid_requests", "test_invalid_requests")
]


def fuzz(server: OwnServer) -> subprocess.CompletedProcess[str]:
    """Schemathesis, and one operation, against a server that runs already."""
    options = ["--base-url", server.url, "--api-key", API_KEY, "--max-examples", "5"]
    options += ["-p", "no:cacheprovider", "--tb=line", "-x"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *FUZZING, *options],
        cwd=ROOT, env=environment(), capture_output=True, encoding="utf-8", check=False,
        timeout=SECONDS,
    )  # fmt: skip


@pytest.mark.parametrize("name", FUZZED)
def test_schemathesis_finds_it(name: str, broken: Callable[[Kind], Broken]) -> None:
    found = broken("one model")
    found.lie(name)
    try:
        done = fuzz(found.server)
    finally:
        found.lie(NOBODY)
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-1000:]


def test_schemathesis_has_nothing_against_a_healthy_server(
    broken: Callable[[Kind], Broken],
) -> None:
    done = fuzz(broken("one model").server)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "2 passed" in done.stdout
