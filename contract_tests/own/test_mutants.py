"""A proxy in front of a server breaks it in one way after the other, and the kit has to notice."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest

from contract_tests.kit import checks
from contract_tests.kit.checks.media import OF_MEDIA
from contract_tests.kit.checks.quotas import OF_LIMITED_KEYS
from contract_tests.kit.checks.vectors import OF_EMBEDDERS, OF_RERANKERS
from contract_tests.kit.command import main
from contract_tests.kit.mutants import catalog
from contract_tests.kit.mutants.judging import judge
from contract_tests.kit.mutants.mutant import Check, Kind, Mutant
from contract_tests.kit.mutants.proxy import Proxy
from contract_tests.kit.mutants.report import page
from contract_tests.kit.server import API_KEY, SECONDS, OwnServer, Server, Start
from contract_tests.own.servers import ROOT, environment, model_file
from tools.models.build import ensure_adapter
from tools.models.zoo import Zoo

CAUGHT = [mutant for mutant in catalog.ALL if mutant.check is not None]
CHECKS: dict[Kind, list[Check]] = {
    "one model": [
        each
        for each in checks.ALL
        if each not in (*OF_MEDIA, *OF_EMBEDDERS, *OF_RERANKERS, *OF_LIMITED_KEYS)
    ],
    "router": [*checks.OF_ROUTERS],
    "seeing": [*OF_MEDIA],
    "embedder": [*OF_EMBEDDERS],
    "reranker": [*OF_RERANKERS],
    "limited key": [*OF_LIMITED_KEYS],
}
LIMITED_KEY = f"""
[keys.limited]
key = "{API_KEY}"
tokens_per_day = 60
"""
FUZZED = ("bodies_are_not_validated", "errors_are_plain_text", "every_key_is_right")
"""Mutants that Schemathesis alone has to find as well."""


class Proxied(NamedTuple):
    """A server of ours, the proxy in front of it, and the client's view of both."""

    own: OwnServer
    proxy: Proxy
    shown: Server


@pytest.fixture(scope="module")
def proxied(
    module_server: Start, zoo: Zoo, hub: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Kind], Proxied]]:
    """Returns a function for the server of a kind of mutants, which share it."""
    folder = tmp_path_factory.mktemp("keys")
    (keys := folder / "keys.toml").write_text(LIMITED_KEY, "ascii")
    keys.chmod(0o600)
    adapter = ensure_adapter("lora-a", tmp_path_factory.mktemp("adapters"))
    tools = ("--tools", "read_file", "--tools-dir", str(folder))
    # A mutant may remove the end of a text; without `-n` the text would fill the context.
    argv: dict[Kind, tuple[str, ...]] = {
        "one model": (
            *("-n", "64", "--metrics", *tools),
            *("--lora", str(adapter), "--lora-init-without-apply"),
        ),
        "router": ("-n", "64", *zoo.arguments(), "--models-max", "2"),
        "seeing": ("-n", "64", "--mmproj", model_file("tiny-mmproj"), "-m"),
        "embedder": ("--embeddings", "--pooling", "mean"),
        "reranker": ("--rerank", "-m"),
        "limited key": ("--keys-file", str(keys)),
    }
    models: dict[Kind, str] = {"seeing": "tiny-window", "reranker": "tiny-rerank"}
    options: dict[Kind, dict[str, Any]] = {
        "router": {"router": True, "variables": hub},
        "seeing": {"named": True},
        "reranker": {"named": True},
        "limited key": {"api_key": None},
    }
    started: dict[Kind, Proxied] = {}
    with contextlib.ExitStack() as stack:

        def server(kind: Kind) -> Proxied:
            if kind not in started:
                model = (model_file(models[kind]),) if kind in models else ()
                how = {"api_key": API_KEY, **options.get(kind, {})}
                own = module_server(*argv[kind], *model, **how)
                proxy = stack.enter_context(Proxy(own.url, API_KEY))
                shown = Server(proxy.url, API_KEY)
                stack.callback(shown.close)
                started[kind] = Proxied(own, proxy, shown)
            return started[kind]

        yield server


@pytest.mark.parametrize("mutant", CAUGHT, ids=[each.name for each in CAUGHT])
def test_a_mutant_is_caught(mutant: Mutant, proxied: Callable[[Kind], Proxied]) -> None:
    found = proxied(mutant.kind)
    verdict = judge(mutant, found.proxy, found.shown)
    assert found.own.process.poll() is None, "the server itself died"
    assert verdict.outcome == "caught", f"{verdict.outcome}: {verdict.why}"


@pytest.mark.parametrize(
    ("kind", "check"),
    [(kind, check) for kind, of_kind in CHECKS.items() for check in of_kind],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_a_healthy_server_passes(
    kind: Kind, check: Check, proxied: Callable[[Kind], Proxied]
) -> None:
    try:
        check(proxied(kind).shown)
    except pytest.skip.Exception as skipped:
        raise AssertionError("nothing was checked") from skipped


def test_names_and_checks() -> None:
    """Every mutant has a name and a description, and every check catches one."""
    names = [mutant.name for mutant in catalog.ALL]
    assert len(set(names)) == len(names) >= 60
    assert all(mutant.says.endswith(".") for mutant in catalog.ALL)
    assert len(CAUGHT) >= 0.95 * len(catalog.ALL)
    for kind, of_kind in CHECKS.items():
        assert {mutant.check for mutant in CAUGHT if mutant.kind == kind} == {*of_kind}


def test_the_page_of_mutants_is_up_to_date() -> None:
    shown = (ROOT / "docs" / "reports" / "mutants.md").read_text("utf-8")
    assert shown == page(), "python -m contract_tests.kit.mutants.report > docs/reports/mutants.md"


# ---- Schemathesis ------------------------------------------------------------------------------


_MODULE = "contract_tests/kit/operations/test_schemathesis.py"
FUZZING = [
    f"{_MODULE}::{test}[detokenize]" for test in ("test_valid_requests", "test_invalid_requests")
]


def fuzz(server: Server) -> subprocess.CompletedProcess[str]:
    """Runs Schemathesis alone, with one operation, against a running server."""
    options = ["--base-url", server.url, "--api-key", API_KEY, "--max-examples", "5"]
    options += ["-p", "no:cacheprovider", "--tb=line", "-x"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *FUZZING, *options],
        cwd=ROOT, env=environment(), capture_output=True, encoding="utf-8", check=False,
        timeout=SECONDS,
    )  # fmt: skip


@pytest.mark.parametrize("name", FUZZED)
def test_schemathesis_finds_it(name: str, proxied: Callable[[Kind], Proxied]) -> None:
    found = proxied("one model")
    [mutant] = [each for each in catalog.ALL if each.name == name]
    with found.proxy.mutated(mutant.make()) as active:
        done = fuzz(found.shown)
    assert active.exercised
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-1000:]


def test_schemathesis_has_nothing_against_a_healthy_server(
    proxied: Callable[[Kind], Proxied],
) -> None:
    done = fuzz(proxied("one model").shown)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "2 passed" in done.stdout


# ---- the command -------------------------------------------------------------------------------


def test_the_command_prints_the_verdicts(proxied: Callable[[Kind], Proxied]) -> None:
    chosen = "spaces_get_lost|backwards|every_key|all_documents|status_forgets|default"
    own = proxied("one model").own
    options = ["--base-url", own.url, "--api-key", API_KEY, "-k", chosen]
    done = subprocess.run(
        [sys.executable, "-m", "contract_tests.kit", "mutants", *options],
        cwd=ROOT, env=environment(), capture_output=True, encoding="utf-8", check=False,
        timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, summary = done.stdout.splitlines()
    assert {name: outcome for _, outcome, name in map(_parts, lines)} == {
        "spaces_get_lost": "caught",
        "tokens_come_backwards": "caught",
        "every_key_is_right": "caught",
        "all_documents_are_the_best": "not applicable",
        "a_status_forgets_its_failure": "caught",
        "every_model_is_the_default_one": "not applicable",
        "unknown_models_are_the_default_one": "not applicable",
    }
    assert summary == "4 caught, 3 not applicable"


def _parts(line: str) -> list[str]:
    """Returns the number, the verdict and the name."""
    return re.split(r" {2,}", line.strip().partition(":")[0])


def test_the_command_needs_a_server(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_CONTRACT_TIMEOUT", str(round(SECONDS)))  # the command sets it
    assert main(["mutants", "--base-url", "http://127.0.0.1:1"]) == 2
    output = capfd.readouterr()
    assert "no server answers at http://127.0.0.1:1" in output.err
    assert not output.out
