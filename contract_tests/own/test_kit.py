"""The kit with canned answers, as others use it: discovery, judgement of failed tests, reports."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import pytest
from schemathesis.core.errors import InvalidSchema

from contract_tests.kit import bodies, command, contract
from contract_tests.kit.checks import servers
from contract_tests.kit.discovery import Offer, UnreachableError, discover
from contract_tests.kit.findings import ELSEWHERE, Deviation, Findings
from contract_tests.kit.reports import REPORTS, as_junit, as_markdown
from contract_tests.kit.running import judged, operations
from contract_tests.kit.server import Server
from contract_tests.kit.watching import Exchange, Watch

URL = "http://canned.example/prefix"
MODELS = {"object": "list", "data": [{"id": "a-model", "object": "model"}]}
Answering = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def unchanged_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoes the changes that discovery makes to the kit's requests."""
    monkeypatch.setattr(bodies, "MODEL", bodies.MODEL)
    monkeypatch.setattr(bodies, "IN_PATH", dict(bodies.IN_PATH))
    monkeypatch.setattr(
        bodies,
        "BODIES",
        {name: dict(b) if isinstance(b, dict) else b for name, b in bodies.BODIES.items()},
    )


def canned(answering: Answering, api_key: str | None = None) -> Server:
    return Server(URL, api_key, transport=httpx.MockTransport(answering))


def few(request: httpx.Request) -> httpx.Response:
    """A server that lists a model, tokenizes, and is not started for metrics."""
    match request.method, request.url.path.removeprefix("/prefix"):
        case "GET", "/v1/models":
            return httpx.Response(200, json=MODELS, headers={"Server": "canned"})
        case "POST", "/tokenize":
            return httpx.Response(200, json={"tokens": [1]})
        case "GET", "/metrics":
            return httpx.Response(501, json={"error": {"message": "start it with --metrics"}})
    return httpx.Response(404, json={"detail": "Not Found"})


def locked(request: httpx.Request) -> httpx.Response:
    right = request.headers.get("authorization") == "Bearer right"
    return few(request) if right else httpx.Response(401, json={"error": {"message": "no"}})


# ---- discovery -------------------------------------------------------------------------


def test_only_operations_that_answer_are_offered() -> None:
    offer = discover(canned(few))
    assert offer.server == "canned"
    assert offer.models == ["a-model"]
    assert offer.has("POST /tokenize")
    assert offer.has("tokenize"), "the operationId is another name for it"
    assert offer.has("GET /v1/models")
    assert offer.absent["GET /metrics"] == "501: start it with --metrics"
    assert offer.absent["POST /v1/chat/completions"] == "404: Not Found"
    assert len(offer.absent) == len(contract.operations()) - 2
    assert offer.features["metrics"] == offer.features["chat"] == offer.features["tools"] == "no"
    assert offer.features["models"] == "a-model"


def test_every_operation_is_asked() -> None:
    asked = set()

    def answering(request: httpx.Request) -> httpx.Response:
        operation = Exchange(request.method, str(request.url), {}, b"").operation
        asked.add(operation.name if operation else None)
        return few(request)

    discover(canned(answering))
    assert asked >= {each.name for each in contract.operations().values()}


def test_a_wrong_answer_is_one_of_an_operation_that_is_there() -> None:
    offer = discover(canned(lambda request: httpx.Response(500, text="oops")))
    stored = {
        each.name for each in contract.operations().values() if "refused" in each.definition["tags"]
    }
    assert not offer.absent.keys() - stored


def test_requests_name_the_model_that_is_there() -> None:
    discover(canned(few))
    assert bodies.path("get_model") == "/v1/models/a-model"
    assert bodies.BODIES["load_model"]["model"] == bodies.MODEL == "a-model"
    assert "model" not in bodies.BODIES["create_completion"], "one model needs no name"
    bodies.use_models(["one", "other"])
    assert bodies.BODIES["create_completion"]["model"] == "one"


def test_what_is_loaded_is_named_first() -> None:
    models = [
        {"id": "b", "status": {"value": "unloaded"}},
        {"id": "c", "status": {"value": "loaded"}},
    ]
    offer = discover(canned(lambda request: httpx.Response(200, json={"data": models})))
    assert offer.models == ["c", "b"]


def test_keys_are_found_out() -> None:
    assert discover(canned(locked, "right")).key
    for key, word in ((None, "needs"), ("wrong", "refuses")):
        with pytest.raises(UnreachableError, match=word):
            discover(canned(locked, key))
    without_key = canned(few, "right")
    assert not discover(without_key).key
    assert without_key.api_key is None, "keys can't be tested there"


def test_no_server() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    with pytest.raises(UnreachableError, match="no server answers at"):
        discover(canned(refuse))


# ---- requests of tests ---------------------------------------------------------------


def test_a_request_to_a_missing_operation_skips_its_test() -> None:
    server = canned(few)
    watch = Watch(Offer(URL, absent={"GET /metrics": "501"}))
    with watch.listening():
        server.get("/tokenize/nothing")  # no operation: a test may request it
        with pytest.raises(pytest.skip.Exception, match="GET /metrics"):
            server.get("/metrics")
    assert [each.url for each in watch.exchanges] == [f"{URL}/tokenize/nothing", f"{URL}/metrics"]
    with pytest.MonkeyPatch.context():
        server.get("/metrics")  # no longer watched
    assert len(watch.exchanges) == 2


@pytest.mark.parametrize(
    ("check", "failure"),
    [
        (servers.keys_are_wanted_everywhere, "GET /props needs no key"),
        (servers.foreign_pages_change_nothing, "POST /props serves a foreign page"),
    ],
)
def test_a_missing_operation_ends_no_check_of_all_operations(
    check: Callable[[Server], None], failure: str
) -> None:
    """The check goes on after the missing operation, and finds the fault of a later one."""

    def careless(request: httpx.Request) -> httpx.Response:
        where = request.url.path.removeprefix("/prefix")
        return httpx.Response(200 if where in ("/tokenize", "/props") else 501, json={})

    offered = ("POST /tokenize", "POST /props", "GET /props")
    absent = {each.name: "501" for each in contract.operations().values()}
    watch = Watch(Offer(URL, absent={name: absent[name] for name in absent.keys() - offered}))
    with watch.listening(), pytest.raises(AssertionError, match=failure):
        check(canned(careless, "right"))


def test_a_server_without_such_operations_is_not_checked() -> None:
    with pytest.raises(pytest.skip.Exception):
        servers.foreign_pages_change_nothing(canned(lambda request: httpx.Response(404)))


def exchange(status: int, answer: Any, path: str = "/tokenize") -> Exchange:
    request = httpx.Request("POST", URL + path, json={"content": "it's"})
    headers = {**request.headers, "authorization": "Bearer secret"}
    response = httpx.Response(status, json=answer, request=request)
    return Exchange("POST", URL + path, headers, request.content, response)


def test_curl_repeats_a_request_without_its_key() -> None:
    shown = exchange(200, {}).curl
    assert "secret" not in shown
    assert '-H "authorization: Bearer $API_KEY"' in shown
    assert shown.startswith(f"curl -i -X POST {URL}/tokenize ")
    assert "it'\"'\"'s" in shown


# ---- failed tests -------------------------------------------------------


class Test:
    """The parts of a pytest item that the kit reads."""

    __test__ = False

    def __init__(self, name: str, path: str = "test_x.py") -> None:
        self.name, self.path = name, Path(path)


def verdict(error: BaseException, *exchanges: Exchange, name: str = "test_it_is_so") -> Any:
    item: Any = Test(name)
    return judged(item, error, list(exchanges))


RIGHT = exchange(200, {"tokens": [1]})
WRONG = exchange(200, {"tokens": "none"})
CHAT = exchange(400, {"error": {"code": 400, "message": "no", "type": "invalid_request_error"}},
                "/v1/chat/completions")  # fmt: skip


def test_the_first_answer_that_violates_the_description_is_the_deviation() -> None:
    name, found = verdict(KeyError("tokens"), RIGHT, WRONG, CHAT)
    assert name == "POST /tokenize"
    assert "tokens" in found.expected
    assert found.check == "it is so"
    assert found.came.startswith("200 application/json")


def test_an_answer_of_an_undocumented_status() -> None:
    name, found = verdict(AssertionError("x"), exchange(418, {}))
    assert (name, found.expected) == (
        "POST /tokenize",
        "POST /tokenize has no documented status 418",
    )


def test_else_a_failed_assertion_is_about_the_last_answer() -> None:
    name, found = verdict(AssertionError("1 == 2"), RIGHT, CHAT)
    assert (name, found.expected) == ("POST /v1/chat/completions", "1 == 2")
    named, _ = verdict(AssertionError("1 == 2"), RIGHT, CHAT, name="test_it[POST /tokenize]")
    assert named == "POST /tokenize"


def test_a_request_that_could_not_be_made_is_no_deviation() -> None:
    """Schemathesis reports that it can't turn a schema into invalid requests."""
    _, found = verdict(InvalidSchema("result is not supported in canonical form"), CHAT)
    assert found is None


def test_the_message_of_a_check_is_about_its_answer() -> None:
    """The deviation has the answer that the check quotes, even if the test sent later requests."""
    assert CHAT.answer is not None
    with pytest.raises(AssertionError) as caught:
        contract.check(CHAT.answer, 200)
    name, found = verdict(caught.value, CHAT, RIGHT)
    assert (name, found.expected) == ("POST /v1/chat/completions", "expected 200")
    assert found.came.startswith("400 ")


def test_a_mistake_of_the_test_is_no_deviation() -> None:
    assert verdict(KeyError("x"), RIGHT) == (None, None)
    assert verdict(AssertionError("x")) == (None, None)


def test_a_connection_that_failed_is_a_deviation() -> None:
    gone = Exchange("POST", f"{URL}/tokenize", {}, b"{}")
    name, found = verdict(httpx.ReadError("gone"), RIGHT, gone)
    assert (name, found.came) == ("POST /tokenize", "no answer")


# ---- reports -------------------------------------------------------------------------------


@pytest.fixture
def findings() -> Findings:
    offer = Offer(URL, "canned", ["a"], absent={"GET /metrics": "501: off"}, features={"x": "a|b"})
    made = Findings(offer, operations(["tokenize", "metrics"]))
    made.passed(["POST /tokenize", "POST /tokenize", "GET /health"])
    for _ in range(2):
        made.deviates(
            "POST /detokenize", Deviation("so", "curl `x`", "<a> & ```\n|b|", "200\n\x00]]>")
        )
    return made


def test_verdicts(findings: Findings) -> None:
    assert {each.operation: each.verdict for each in findings} == {
        "POST /tokenize": "conforms",
        "POST /detokenize": "deviates",
        "GET /metrics": "not offered",
    }
    [deviation] = [each for finding in findings for each in finding.deviations]
    assert deviation.times == 2
    assert not findings.conforms
    assert findings.counts()["conforms"] == 1


def test_other_requests_are_reported_as_well(findings: Findings) -> None:
    findings.deviates(None, Deviation("so", "curl", "404", "200"))
    assert [each.operation for each in findings][-1] == ELSEWHERE
    assert ELSEWHERE in as_markdown(findings)


def test_an_end_of_the_server_is_no_conformance() -> None:
    made = Findings(Offer(URL), operations(["tokenize"]))
    assert made.conforms
    made.ended = "curl x"
    assert not made.conforms
    for each in REPORTS.values():
        assert "curl x" in each(made)


@pytest.mark.parametrize("kind", REPORTS)
def test_every_report_has_everything(kind: str, findings: Findings) -> None:
    text = REPORTS[kind](findings)
    for each in findings:
        assert each.operation in text
    assert "501: off" in text
    assert "curl" in text


def test_markdown_keeps_its_form(findings: Findings) -> None:
    lines = as_markdown(findings).splitlines()
    [row] = [line for line in lines if line.startswith("| `POST /detokenize`")]
    assert row.replace("\\|", "").count("|") == 5
    assert "````text" in lines, "a fence is longer than those within"


def test_junit_counts(findings: Findings) -> None:
    suite = ElementTree.fromstring(as_junit(findings))
    assert {name: suite.get(name) for name in ("tests", "failures", "skipped")} == {
        "tests": "3",
        "failures": "1",
        "skipped": "1",
    }


def test_json_is_data(findings: Findings) -> None:
    document = json.loads(REPORTS["json"](findings))
    verdicts = {each["operation"]: each["verdict"] for each in document["operations"]}
    assert verdicts["POST /detokenize"] == "deviates"
    assert document["server"]["url"] == URL


# ---- the command ---------------------------------------------------------------------------


def test_operations_are_chosen_in_several_ways() -> None:
    assert operations(["tokenize"]) == {"POST /tokenize", "POST /detokenize"}
    assert operations(["/completion"]) == operations(["POST /completion"]) == {"POST /completion"}
    with pytest.raises(LookupError, match="nonsense"):
        operations(["nonsense"])


def test_without_a_server_there_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--base-url", "http://127.0.0.1:1"]
    assert command.main(arguments) == command.NOT_TESTED
    assert "no server answers at http://127.0.0.1:1" in capsys.readouterr().err
    assert command.main([*arguments, "--select", "nonsense"]) == command.NOT_TESTED
    for wrong in ([], [*arguments, "--max-examples", "0"], [*arguments, "--report", "pdf"]):
        with pytest.raises(SystemExit) as caught:
            command.main(wrong)
        assert caught.value.code == command.NOT_TESTED
