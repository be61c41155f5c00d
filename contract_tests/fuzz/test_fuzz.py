"""The fuzzer itself: equal seeds send equal requests, all operations are reached, faults are
found."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from contract_tests.clients.recorder import serving
from contract_tests.fuzz import __main__, results
from contract_tests.fuzz.campaign import Campaign, Outcome, as_text, until
from contract_tests.fuzz.configurations import CONFIGURATIONS
from contract_tests.fuzz.found import FOUND
from contract_tests.fuzz.judging import STRICT, Rules, judge
from contract_tests.fuzz.malformed import BODIES, HEADS, changed
from contract_tests.fuzz.requests import Maker, is_cheap, schema_of
from contract_tests.fuzz.shrinking import shrunk, smaller
from contract_tests.fuzz.stories import STORIES
from contract_tests.fuzz.values import Values, merged
from contract_tests.fuzz.watching import alarms
from contract_tests.fuzz.wire import (
    JSON,
    Answer,
    Connection,
    End,
    Sent,
    Target,
    json_request,
)
from contract_tests.kit import contract, lint
from contract_tests.kit.server import SECONDS, Server

ROOT = Path(__file__).parents[2]
NOWHERE = Target(("127.0.0.1", 1))
ID = ("X-Request-Id", "req_1")


def maker(seed: str) -> Maker:
    return Maker(random.Random(seed), ("one", "two"))


# ---- requests --------------------------------------------------------------------------------


def test_the_same_seed_sends_the_same() -> None:
    def said(n: int) -> bytes:
        made = maker(f"x/{n}")
        return made.request(made.operation()).encoded(NOWHERE) + changed(made, NOWHERE).encoded(
            NOWHERE
        )

    first = [said(n) for n in range(300)]
    assert first == [said(n) for n in range(300)]
    assert len({*first}) > 290


@pytest.mark.parametrize("name", contract.operations())
def test_each_operation_gets_requests_that_reach_it(name: str) -> None:
    operation = contract.operations()[name]
    reached = 0
    for n in range(30):
        sent = maker(f"{name}/{n}").request(name)
        assert sent.encoded(NOWHERE)
        path = httpx.URL(f"http://x{sent.path}").path
        try:
            reached += contract.find(sent.method, path) == operation
        except AssertionError:
            assert "{" in operation.path, sent.path
    assert reached > 10


def test_all_operations_are_asked_for() -> None:
    made = maker("all")
    seen = Counter(made.operation() for _ in range(8000))
    assert seen.keys() == contract.operations().keys()


def test_bodies_are_valid_and_invalid() -> None:
    """There are about as many valid bodies as invalid ones: valid bodies get far, invalid ones test
    the validation."""
    for name in ("create_completion", "create_chat_completion", "create_response", "tokenize"):
        schema = schema_of(name)
        assert schema is not None
        wrong = sum(any(lint.errors(schema, maker(f"{n}").body(name))) for n in range(200))
        assert 20 < wrong < 180, name


def test_every_field_gets_values_of_all_kinds() -> None:
    properties = merged(schema_of("create_completion") or {})["properties"]
    for field, schema in properties.items():
        made = [Values(random.Random(f"{field}{n}")) for n in range(60)]
        kinds = {type(each.any(schema, field)) for each in made}
        assert len(kinds) > 2, field


def test_texts_are_short_unless_their_client_leaves() -> None:
    for n in range(500):
        name = ("create_chat_completion", "create_ollama_chat")[n % 2]
        sent = maker(f"{n}").request(name)
        assert sent.leaves is not None or is_cheap(name, sent.body), sent.body


def test_ollama_has_the_length_in_its_options() -> None:
    assert is_cheap("create_ollama_chat", {"options": {"num_predict": 4}})
    assert not is_cheap("create_ollama_chat", {"max_output_tokens": 4, "ignore_eos": True})
    assert is_cheap("create_response", {"max_output_tokens": 4})


@pytest.mark.parametrize("change", dict.fromkeys((*BODIES, *HEADS)), ids=lambda each: each.__name__)
def test_each_change_changes(change: Any) -> None:
    made = maker(change.__name__)
    sent = json_request("POST", "/tokenize", "tokenize", {"content": "abc"})
    assert any(
        change(made, sent, NOWHERE).encoded(NOWHERE) != sent.encoded(NOWHERE) for _ in range(20)
    )


# ---- answers ------------------------------------------------------------------------------


def answered(status: int, document: Any, *headers: tuple[str, str]) -> Answer:
    content = document if isinstance(document, bytes) else json.dumps(document).encode()
    kind = ("Content-Type", JSON)
    return Answer(End.WHOLE, 0.1, status, (ID, kind, *headers), content)


TOKENIZE = json_request("POST", "/tokenize", "tokenize", {"content": "a"})
COMPLETION = json_request("POST", "/completion", "create_completion", {"prompt": "a"})
ERROR = {"code": 400, "message": "no", "type": "invalid_request_error"}
SERVER_ERROR = {"code": 500, "message": "no", "type": "server_error"}
RIGHT = answered(200, {"tokens": [1]})


def kinds(sent: Sent, answer: Answer, rules: Rules = STRICT) -> set[str]:
    return {each.kind for each in judge(sent, answer, rules)}


def test_right_answers_have_no_fault() -> None:
    assert not kinds(TOKENIZE, RIGHT)
    assert not kinds(TOKENIZE, answered(400, {"error": ERROR}))
    assert not kinds(replace(TOKENIZE, leaves=0.1), Answer(End.LEFT, 0.1))


@pytest.mark.parametrize(
    ("sent", "answer", "kind"),
    [
        (TOKENIZE, answered(500, {"error": SERVER_ERROR}), "server error"),
        (TOKENIZE, answered(503, {"error": {**SERVER_ERROR, "code": 503}}), "server error"),
        (TOKENIZE, answered(418, {}), "status"),
        (TOKENIZE, answered(200, {"tokens": "none"}), "answer"),
        (TOKENIZE, answered(200, b"{"), "answer"),
        (TOKENIZE, answered(400, {"detail": "no"}), "answer"),
        (TOKENIZE, replace(RIGHT, headers=(("Content-Type", JSON),)), "answer"),
        (TOKENIZE, replace(RIGHT, headers=(ID, ("Content-Type", "text/plain"))), "answer"),
        (TOKENIZE.with_body({"content": 5}), RIGHT, "accepted"),
        (TOKENIZE.with_body({"content": "a", "add_special": "x"}), RIGHT, "accepted"),
        (TOKENIZE, Answer(End.LATE, 60.0), "slow"),
        (TOKENIZE, Answer(End.CUT, 1.0, 200), "http"),
        (TOKENIZE, Answer(End.CLOSED, 1.0), "http"),
        (TOKENIZE, Answer(End.ODD, 1.0), "http"),
        (replace(TOKENIZE, operation=None), answered(404, {"oh": "no"}), "answer"),
        (replace(TOKENIZE, operation=None), answered(502, {"error": ERROR}), "server error"),
        (replace(TOKENIZE, operation=None), answered(404, {"error": ERROR}), "answer"),
        (
            COMPLETION.with_body({"prompt": "a", "stream": True}),
            Answer(
                End.WHOLE,
                0.1,
                200,
                (ID, ("Content-Type", "text/event-stream"), ("Cache-Control", "no-store")),
                f"data: {json.dumps({'error': SERVER_ERROR})}\n\n".encode(),
            ),
            "server error",
        ),
    ],
)
def test_faults_are_found(sent: Sent, answer: Answer, kind: str) -> None:
    assert kind in kinds(sent, answer)


def test_503_is_right_where_models_load() -> None:
    unavailable = {"code": 503, "message": "Loading model", "type": "unavailable_error"}
    answer = answered(503, {"error": unavailable}, ("Retry-After", "1"))
    assert "server error" in kinds(TOKENIZE, answer)
    assert "server error" not in kinds(TOKENIZE, answer, Rules(unready=True))


def test_events_are_judged_by_their_request() -> None:
    event = f"data: {json.dumps({'content': ''})}\n\n".encode()
    headers = (ID, ("Content-Type", "text/event-stream"), ("Cache-Control", "no-store"))
    answer = Answer(End.WHOLE, 0.1, 200, headers, event)
    asked = {"prompt": "a", "stream": True}
    selected = COMPLETION.with_body({**asked, "response_fields": ["content"]})
    assert kinds(COMPLETION.with_body(asked), answer) == {"answer"}
    assert not kinds(selected, answer)


def test_faults_in_the_log_are_found() -> None:
    quiet = ['INFO http: POST /a 400 error="no ERROR"', "WARNING x: y", "  model  a"]
    assert not [*alarms(quiet)]
    loud = [*quiet, "ERROR x: it failed", "Traceback (most recent call last):", "  File", "INFO a"]
    [fault] = alarms(loud)
    assert "it failed" in fault.what
    assert "File" in fault.what
    assert "INFO" not in fault.what
    assert [*alarms(['WARNING http: POST /a 200 id=1 error="a stream failed"'])]


def test_a_model_that_a_hub_does_not_have_is_no_fault() -> None:
    line = "ERROR x: the model '{}' could not be loaded: the cache of {} has no GGUF files"
    for name in ("maker/nothing", "a/b:Q8_0"):
        assert not [*alarms([line.format(name, name)])]
    assert [*alarms([line.format("own", "own")])]


# ---- against a server ----------------------------------------------------------------------------


class Stub:
    """Counts tokens, and fails for one field."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (await self._answer(Request(scope, receive)))(scope, receive, send)

    async def _answer(self, asked: Request) -> Response:
        headers = {"X-Request-Id": "req_1"}
        if asked.url.path == "/v1/models":
            return JSONResponse({"data": [{"id": "one"}]}, headers=headers)
        try:
            body = await asked.json()
        except ValueError:
            return JSONResponse({"error": ERROR}, 400, headers)
        if isinstance(body, dict) and "with_pieces" in body:
            return JSONResponse({"error": SERVER_ERROR}, 500, headers)
        return JSONResponse({"tokens": [1, 2]}, headers=headers)


@contextmanager
def stub() -> Iterator[Server]:
    with serving(Stub()) as url:
        server = Server(url)
        try:
            yield server
        finally:
            server.close()


def test_a_bad_answer_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    def story(talk: Any) -> None:
        talk.send(talk.maker.request("tokenize"))

    monkeypatch.setitem(STORIES, "tokenizing", story)
    with stub() as server:
        campaign = Campaign(server, "plain", 7, {"tokenizing": 1})
        outcome = campaign.run(until(None, 300))
        assert outcome.requests >= 300
        assert outcome.operations == {"tokenize": outcome.requests}
        [found] = [e for e in outcome.found.values() if e.fault.kind == "server error"]
        again = Campaign(server, "plain", 7, {"tokenizing": 1}).only([found.number])
    assert found.times > 1
    assert f"--seed 7 --only {found.number}" in found.replay
    assert found.command.count("with_pieces") == 1
    assert "content" not in found.command
    assert found.fault.signature in again.found
    assert any("server error" in line for line in as_text(outcome))


def test_the_command_ends_with_a_table_and_a_status(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.md"
    with stub() as server:
        argv = ["fuzz", "--base-url", server.url, "--requests", "100", "--report", str(report)]
        monkeypatch.setattr("sys.argv", argv)
        assert __main__.main() == 1, "no answer of the stub is right"
    assert capsys.readouterr().out.splitlines()[-1].startswith("1")
    assert "| plain | 1" in report.read_text("utf-8")
    assert "FAULT" in report.read_text("utf-8")


def test_malformed_requests_are_sent_as_they_are() -> None:
    with stub() as server, Connection(Target(server.address)) as connection:
        for n in range(150):
            sent = changed(maker(f"malformed/{n}"), connection.target)
            answer = connection.exchange(replace(sent, leaves=2.0), SECONDS)
            assert answer.end is not End.LATE, sent
        assert connection.exchange(TOKENIZE, SECONDS).json == {"tokens": [1, 2]}


# ---- small parts ---------------------------------------------------------------------------------


def test_bodies_are_made_small() -> None:
    sent = TOKENIZE.with_body({"a": [1, {"b": "x" * 500, "bad": 1}], "c": {"d": 2}})
    least = shrunk(sent, lambda each: "bad" in json.dumps(each.body))
    assert least.body == {"a": [{"bad": 1}]}
    assert least.content == b'{"a":[{"bad":1}]}'
    assert [*smaller("short")] == []


def test_a_run_ends_by_time_or_number() -> None:
    assert until(None, 10)(Outcome(requests=9))
    assert not until(None, 10)(Outcome(requests=10))
    assert not until(0.0, None)(Outcome())


def test_there_are_eight_servers_with_stories() -> None:
    assert len(CONFIGURATIONS) == 8
    for each in CONFIGURATIONS.values():
        assert each.mix.keys() <= STORIES.keys()
        assert {"generated", "malformed"} <= each.mix.keys()
    assert {name for each in CONFIGURATIONS.values() for name in each.mix} == STORIES.keys()


def test_the_page_is_up_to_date() -> None:
    assert results.PAGE.read_text("utf-8") == results.page()


def test_every_found_fault_has_a_test() -> None:
    for each in FOUND:
        file, _, name = each.test.partition("::")
        assert f"def {name}(" in (ROOT / file).read_text("utf-8"), each.test
