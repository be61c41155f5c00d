"""No test depends on how fast a machine is: all have one time limit, which is pytest's."""

import ast
import functools
import tomllib
from pathlib import Path

import pytest

from contract_tests.kit.command import parser

ROOT = Path(__file__).parents[1]
TREES = ("tests", "contract_tests")
ELSEWHERE = ("contract_tests/clients/python", "contract_tests/sdk/drivers")
"""Files that run in environments without this repository."""
LIMITED = {
    *(f"httpx.{name}" for name in ("get", "post", "put", "delete", "request", "stream")),
    *("httpx.Client", "httpx.AsyncClient", "httpx2.Client", "httpx2.AsyncClient"),
    *("OpenAI", "AsyncOpenAI", "openai.OpenAI", "openai.AsyncOpenAI"),
    *("Anthropic", "AsyncAnthropic", "anthropic.Anthropic", "anthropic.AsyncAnthropic"),
}
"""Functions with a default time limit."""
WAITING = {
    **dict.fromkeys(("wait", "join", "result", "exception", "settimeout", "timeout"), 0),
    "wait_for": 1,
}
"""Functions that wait for a given time, and the position of the argument with the time."""
ALLOWED = {
    "contract_tests/attack/campaign.py: crowd.wait(1, self.target.alive)": "a number of answers",
    "contract_tests/attack/campaign.py: self._stop.wait(0.1)": "between two looks",
    "contract_tests/kit/operations/test_bad_input.py: connection.settimeout(2)": "it may be silent",
    "tests/engine/models/test_pool.py: entry('a', timeout=0)": "the server's",
    "tests/engine/models/test_pool_histories.py: "
    "entry(name, remote=name == 'far', timeout=1000)": "the server's",
    "tests/engine/models/test_sleep.py: asyncio.timeout(1.8)": "nothing may happen meanwhile",
    "tests/handlers/http/test_sse.py: "
    "small_app(tmp_path_factory.mktemp('api'), handlers_module(), timeout=1)": "the server's",
    "tests/specllama/test_startup.py: process.communicate(timeout=1)": "between two signals",
    "tests/support/http_support.py: threading.Event().wait(0.01)": "between two looks",
    "tests/support/threaded.py: threading.Event().wait(0.01)": "between two looks",
}
"""Calls whose limit is not a test's, with the reason."""
PAGE = ROOT / "contract_tests" / "own" / "page"
READING = {
    *("all", "all_inner_texts", "all_text_contents", "aria_snapshot", "bounding_box", "content"),
    *("count", "element_handle", "element_handles", "evaluate", "evaluate_all", "evaluate_handle"),
    *("get_attribute", "inner_html", "inner_text", "input_value", "is_checked", "is_disabled"),
    *("is_editable", "is_enabled", "is_focused", "is_hidden", "is_visible", "query_selector"),
    *("query_selector_all", "screenshot", "text_content", "title"),
}
"""Methods of Playwright that return a state of the page without waiting for it."""
ALLOWED_READINGS = {
    "test_hostile.py: visit.page.evaluate(_FOREIGN)": "after all pending work",
    "test_hostile.py: visit.page.evaluate('({}).role ?? null')": "the same",
    "test_hostile.py: visit.page.evaluate(_ATTEMPTS)": "at the end of the attempts",
    "test_hostile_tools.py: visit.page.evaluate('({}).answer ?? null')": "after all pending work",
    "visits.py: self.answered().locator('.body').inner_text()": "it is complete",
    "visits.py: self.page.evaluate('window.violations ?? []')": "at the end of a test",
    "visits.py: self.page.url": "its host never changes",
}


@functools.cache
def calls() -> list[tuple[str, ast.Call]]:
    """All calls in the tests, with their files."""
    return [
        (name, node)
        for tree in TREES
        for path in sorted((ROOT / tree).rglob("*.py"))
        if not (name := path.relative_to(ROOT).as_posix()).startswith(ELSEWHERE)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call)
    ]


def has_a_number(call: ast.Call) -> bool:
    """The call waits for a number of seconds."""
    name = ast.unparse(call.func).rpartition(".")[2]
    limits = [each.value for each in call.keywords if each.arg == "timeout"]
    if name in WAITING:
        limits += call.args[WAITING[name] :][:1]
    return any(isinstance(e, ast.Constant) and type(e.value) in (int, float) for e in limits)


def test_nothing_waits_for_a_number_of_its_own() -> None:
    found = {f"{file}: {ast.unparse(call)}" for file, call in calls() if has_a_number(call)}
    assert found == ALLOWED.keys()


def test_no_client_has_its_default_limit() -> None:
    found = [
        f"{file}: {ast.unparse(call)}"
        for file, call in calls()
        if ast.unparse(call.func) in LIMITED
        and not {"timeout", None} & {each.arg for each in call.keywords}
        and "MockTransport" not in ast.unparse(call)
    ]
    assert not found


def test_no_test_has_another_limit() -> None:
    assert not [file for file, call in calls() if ast.unparse(call.func) == "pytest.mark.timeout"]


def test_the_limit_is_the_same_everywhere() -> None:
    import contract_tests.kit.server as server

    source = ast.parse(Path(server.__file__).read_text("utf-8"))
    [default] = [
        ast.literal_eval(node.args[1])
        for node in ast.walk(source)
        if isinstance(node, ast.Call)
        and [ast.unparse(each) for each in node.args[:1]] == ["'SPECLLAMA_CONTRACT_TIMEOUT'"]
    ]
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    limit = settings["tool"]["pytest"]["ini_options"]["timeout"]
    assert float(default) == limit == parser().get_default("timeout")


def readings(source: str) -> list[str]:
    """Readings of a page's state that don't wait. A call whose value isn't used is an action."""
    nodes = list(ast.walk(ast.parse(source)))
    actions = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    return [
        ast.unparse(node)
        for node in nodes
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in READING
            and id(node) not in actions
        )
        or (isinstance(node, ast.Attribute) and ast.unparse(node).endswith("page.url"))
    ]


def test_tests_of_the_page_wait_for_its_state() -> None:
    found = {
        f"{path.name}: {reading}"
        for path in sorted(PAGE.glob("*.py"))
        for reading in readings(path.read_text("utf-8"))
    }
    assert found == ALLOWED_READINGS.keys(), (
        "The page changes after an action on it has returned, so a test that reads its state "
        "depends on the speed of the machine. Wait for the state: expect(locator).to_be_visible(), "
        "to_have_count(2), to_have_text('a') (expect is in visits.py), or page.wait_for_function()."
    )


@pytest.mark.parametrize(
    "line",
    [
        "assert visit.find('a').is_visible()",
        "assert not visit.find('a').count()",
        "assert 'a' in visit.find('b').inner_text()",
        "text = visit.find('a').inner_text()",
        "for each in visit.find('a').all(): each.click()",
        "assert visit.page.evaluate('document.activeElement.id') == 'prompt'",
        "assert visit.page.url.endswith('/a/')",
    ],
)
def test_readings_are_found(line: str) -> None:
    assert len(readings(line)) == 1


@pytest.mark.parametrize(
    "line",
    [
        "expect(visit.find('a')).to_have_count(2)",
        "visit.page.evaluate('go()')",
        "visit.page.wait_for_function('() => window.done')",
    ],
)
def test_actions_and_waits_are_no_readings(line: str) -> None:
    assert not readings(line)
