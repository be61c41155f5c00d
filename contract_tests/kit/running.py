"""Runs the contract tests against one server, and turns their results into findings."""

import contextlib
import re
import time
import traceback
from collections.abc import Callable, Collection, Generator, Iterable
from pathlib import Path

import httpx
import pytest

from contract_tests.kit import contract, fuzzing
from contract_tests.kit.findings import Deviation, Findings
from contract_tests.kit.fixtures import WATCH
from contract_tests.kit.items import is_generated, operation_of, title_of
from contract_tests.kit.plugins import without_other_plugins
from contract_tests.kit.server import SECONDS, Server
from contract_tests.kit.watching import Exchange, Watch

HERE = Path(__file__).parent
PACKAGE = __name__.rpartition(".")[0]
SUBJECTS = {
    "test_chat_bad_input": ("chat",),
    "test_messages": ("messages",),
    "test_ollama": ("ollama", "ollama_models"),
    "test_ollama_paths": ("ollama", "ollama_models"),
    "test_prefill": ("chat",),
    "test_responses": ("responses",),
    "test_text_tools": ("chat", "responses"),
    "test_openai_client": ("chat", "completion", "models"),
    "test_openai_tools": ("chat",),
    "test_responses_client": ("responses",),
    "test_constraints": ("completion", "chat"),
    "test_infill": ("infill",),
    "test_kept_streams": ("streams",),
    "test_prompt_probabilities": ("completion",),
    "test_semantics": ("completion",),
    "test_streams": ("completion", "chat"),
    "test_answers": ("completion", "chat"),
    "test_checks": ("completion",),
    "test_embeddings": ("embeddings", "rerank"),
}
"""The tags that the tests of a module are about, if a test's parameters have no operation."""
FIRST = ("test_statuses", "test_checks", "test_examples")
LAST = ("test_chat_bad_input", "test_constraints", "test_bad_input", "test_schemathesis")
"""Modules whose tests run first, because they request every operation, and modules whose tests run
last, because their requests may end a server."""
BACK = 60
"""Seconds within which a server that ended has to be back, if a supervisor restarts it."""


def operations(chosen: Iterable[str]) -> set[str]:
    """Returns the operations (method and path) that are chosen by tag, `operationId`, path, or
    method and path. Raises `LookupError` if a text matches no operation."""
    found: set[str] = set()
    for text in chosen:
        names = {
            each.name
            for name, each in contract.operations().items()
            if text in (name, each.name, each.path, *each.definition["tags"])
        }
        if not names:
            raise LookupError(f"the description has no tag or operation {text!r}")
        found |= names
    return found


def run(
    server: Server,
    findings: Findings,
    chosen: Collection[str] | None,
    max_examples: int,
    progressed: Callable[[int, int, str], None],
) -> int:
    """Runs the tests and fills `findings`. Calls `progressed` with the number of finished tests,
    the number of all tests, and the title of the next one. Returns pytest's exit code."""
    judge = Judge(server, findings, chosen, progressed)
    arguments = [
        str(HERE),
        *("-c", str(HERE / "running.ini"), "--rootdir", str(HERE), "--noconftest"),
        *(f"--ignore={HERE / 'description'}", "--import-mode=importlib"),
        "--continue-on-collection-errors",
        *("-p", f"{PACKAGE}.plugin", "-p", "pytest_timeout"),
        *("-p", "no:terminal", "-p", "no:cacheprovider", "-p", "no:warnings"),
        *("--timeout", str(round(SECONDS))),
        *("--base-url", server.url, "--max-examples", str(max_examples)),
        *(("--api-key", server.api_key) if server.api_key else ()),
    ]
    with without_other_plugins():
        return int(pytest.main(arguments, plugins=[judge]))


class Judge:
    """A pytest plugin that turns the outcomes of tests into findings."""

    def __init__(
        self,
        server: Server,
        findings: Findings,
        chosen: Collection[str] | None,
        progressed: Callable[[int, int, str], None],
    ) -> None:
        self.server = server
        self.findings = findings
        self.chosen = chosen
        self.progressed = progressed
        self.watch = Watch(findings.offer)
        self.total = self.done = 0
        self._last_failed = ""

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[WATCH] = self.watch
        offered = {each.name for each in contract.operations().values()}
        offered -= self.findings.offer.absent.keys()
        fuzzing.settings.chosen = offered if self.chosen is None else offered & set(self.chosen)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        # Tests that start servers of their own can't test another server.
        items[:] = [
            item
            for item in items
            if "launcher" not in getattr(item, "fixturenames", ()) and self._is_chosen(item)
        ]
        items.sort(key=_turn)
        self.total = len(items)

    def _is_chosen(self, item: pytest.Item) -> bool:
        if self.chosen is None:
            return True
        if own := operation_of(item):
            return own in self.chosen
        tags = SUBJECTS.get(item.path.stem, ())
        names = {each.name for each in contract.operations().values() if each.name in self.chosen}
        return any(
            set(tags) & set(each.definition["tags"])
            for each in contract.operations().values()
            if each.name in names
        )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.findings.unclear.append(f"{report.nodeid}: {report.longreprtext[-500:]}")

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.progressed(self.done, self.total, title_of(item))
        self.watch.clear()
        result = yield
        self.done += 1
        self.progressed(self.done, self.total, title_of(item))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed and call.excinfo is not None:
            # Errors after the failure of a test mostly follow from that failure.
            if report.when != "teardown" or item.nodeid != self._last_failed:
                self._failed(item, call.excinfo.value)
            self._last_failed = item.nodeid
        elif report.when == "call" and report.passed:
            own = operation_of(item)
            asked = {each.operation.name for each in self.watch.exchanges if each.operation}
            self.findings.passed([own] if own else asked)
        return report

    def _failed(self, item: pytest.Item, error: BaseException) -> None:
        exchanges = list(self.watch.exchanges)
        name, found = judged(item, error, exchanges)
        if found is None:
            self.findings.unclear.append(f"{title_of(item)}: {said(error)}")
        else:
            self.findings.deviates(name, found)
        if exchanges and exchanges[-1].answer is None and not self._is_back():
            self.findings.ended = exchanges[-1].curl
            item.session.shouldstop = "the server stopped answering"

    def _is_back(self) -> bool:
        """True if the server lists its models, at once or within `BACK` seconds."""
        deadline = time.monotonic() + BACK
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx.TransportError), self.watch.deaf():
                if self.server.get("/v1/models").status_code < 500:
                    return True
            time.sleep(0.5)
        return False


def _turn(item: pytest.Item) -> int:
    """Returns the key that sorts tests: the modules `FIRST` at the beginning and `LAST` at the
    end, so that all operations have results before a request ends the server."""
    return (item.path.stem not in FIRST) + 2 * (item.path.stem in LAST)


# ---- one test ------------------------------------------------------------------------------


def judged(
    item: pytest.Item, error: BaseException, exchanges: list[Exchange]
) -> tuple[str | None, Deviation | None]:
    """Returns the operation that a failed test is about, and the server's deviation; None if the
    test itself went wrong."""
    own = operation_of(item)
    if not is_generated(item):
        # Failures after an answer that violates the description follow from that answer.
        for exchange in exchanges:
            if problem := exchange.deviation():
                return _name(exchange), _deviation(item, exchange, problem)
    last = next((each for each in reversed(exchanges) if _is_quoted(each, str(error))), None)
    if last is None:
        last = next((each for each in reversed(exchanges) if own in (None, _name(each))), None)
    if last is None:
        last = exchanges[-1] if exchanges else None
    if not _is_about_server(error) or last is None:
        return own, None
    return own or _name(last), _deviation(item, last, said(error))


def _name(exchange: Exchange) -> str | None:
    return exchange.operation.name if exchange.operation else None


def _deviation(item: pytest.Item, exchange: Exchange, expected: str) -> Deviation:
    message, explained, values = expected.partition("\nassert ")
    # pytest adds the values after a message. They help more than a repetition of the answer.
    repeats = explained and _squeezed(message)[:40] in _squeezed(exchange.came)
    expected = f"assert {values.splitlines()[0][:300]}" if repeats else message
    if exchange.operation and exchange.answer is not None:
        # The report shows the answer separately.
        said = f"{exchange.operation.name}: {exchange.answer.status_code} "
        expected = expected.partition(said)[0]
        for between in (" in ", " of ", ", got "):
            expected = expected.removesuffix(between)
    return Deviation(title_of(item), exchange.curl, expected[:1500], exchange.came)


def _is_quoted(exchange: Exchange, text: str) -> bool:
    """True if the message of a check quotes this answer, even if later requests were sent."""
    answer = exchange.answer
    if answer is None or not hasattr(answer, "_content") or exchange.operation is None:
        return False
    return f"{exchange.operation.name}: {answer.status_code} {answer.text[:60]}" in text


def _squeezed(text: str) -> str:
    return re.sub(r"[\s'\"\\]+", "", text)


def _is_about_server(error: BaseException) -> bool:
    """True for a failed assertion, an error answer that a client library raised as an exception,
    and a failed connection. False for a mistake in the test, and for a schema that Schemathesis
    can't make a request from (its failures are assertions, its errors are about itself)."""
    return (
        isinstance(error, AssertionError | pytest.fail.Exception | httpx.TransportError)
        or hasattr(error, "status_code")
        or isinstance(error, BaseExceptionGroup)
        or type(error).__module__.partition(".")[0]
        in (
            "hypothesis",
            "openai",
            "anthropic",
            "ollama",
            "pydantic",
            "httpx2",
            "requests",
        )
    )


def said(error: BaseException) -> str:
    """Returns the message of an error."""
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(said(each) for each in error.exceptions)
    parts = [str(getattr(error, each, "") or "") for each in ("title", "message")]
    text = ": ".join(filter(None, parts)) or str(error)
    if isinstance(error, AssertionError):
        # An assertion without a message is reported with its source line.
        frames = traceback.extract_tb(error.__traceback__)
        return text or next((each.line for each in reversed(frames) if each.line), "")
    return text if parts[0] else f"{type(error).__name__}: {text}"
