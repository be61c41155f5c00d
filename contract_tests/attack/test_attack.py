"""The list of attacks, the page about them, and the reports on harmed servers."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from contract_tests.attack import __main__, results
from contract_tests.attack.campaign import LIMIT, Campaign, Outcome, Patience
from contract_tests.attack.shape import Harm, Request, Shape
from contract_tests.attack.shapes import SHAPES
from contract_tests.attack.target import Target
from contract_tests.clients.recorder import serving
from contract_tests.kit import contract
from contract_tests.kit.server import SECONDS, Server

BEFORE_OPERATIONS = {400, 401, 403, 404, 408, 431}
"""Statuses that any request may get, whatever its operation."""


def test_every_row_has_a_shape() -> None:
    assert {each.row for each in SHAPES} == set(range(1, 24))
    names = [each.name for each in SHAPES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_right_answers_are_documented(shape: Shape) -> None:
    """An attack whose answers are read has right answers, which are documented."""
    assert bool(shape.statuses) != (shape.leaves or isinstance(shape.sends, Harm))
    if isinstance(shape.sends, Request) and not shape.sends.path.endswith("/"):
        operation = contract.find(shape.sends.method, shape.sends.path)
        for status in shape.statuses - BEFORE_OPERATIONS:
            contract.answers(operation, status)


def test_the_page_is_up_to_date() -> None:
    stored = results.stored()
    assert set(stored) == set(results.SIDES)
    assert [*stored["specllama"]] == [each.name for each in SHAPES]
    assert {*stored["llama-server"]} <= {*stored["specllama"]}
    assert results.PAGE.read_text("utf-8") == results.page()


class Stub:
    """A server that an attack harms in a chosen way."""

    def __init__(self, harm: str) -> None:
        self._harm = harm
        self._harmed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Asked(scope, receive)
        body = json.loads(await asked.body())
        if scope["path"] == "/tokenize":
            if self._harm == "silence":
                await receive()  # the client has gone
                return
            answer = self._attacked()
        else:
            answer = self._honest(asked, body)
        await answer(scope, receive, send)

    def _attacked(self) -> Response:
        self._harmed = True
        if self._harm == "a plain error":
            return PlainTextResponse("Internal Server Error", 500)
        return JSONResponse({"tokens": [], "harm": self._harm})

    def _honest(self, asked: Asked, body: Any) -> Response:
        text = "else" if self._harmed and self._harm == "another text" else "as ever"
        if self._harmed and self._harm == "errors":
            return JSONResponse({}, 503)
        if "messages" in body:
            return JSONResponse({"choices": [{"message": {"content": text}}]})
        if "stream" in body:
            return StreamingResponse(_events(text), media_type="text/event-stream")
        const = body.get("json_schema", {}).get("const")
        return JSONResponse({"content": text if const is None else str(const)})


async def _events(text: str) -> AsyncIterator[str]:
    yield f"data: {json.dumps({'content': text})}\n\n"


@contextmanager
def campaign(harm: str) -> Iterator[Campaign]:
    with serving(Stub(harm)) as url:
        target = Target(Server(url))
        made = Campaign(target, SECONDS)
        made.undisturbed()
        try:
            yield made
        finally:
            target.close()


ATTACK = Shape(
    row=0, name="attack", what="an attack", times=2, statuses=frozenset({200}), secret="secret",
    sends=Request("/tokenize", lambda i: {"content": i}),
)  # fmt: skip


def outcome_of(harm: str) -> Outcome:
    with campaign(harm) as each:
        assert not each.unstable()
        return each.run(ATTACK)


def test_a_server_without_harm() -> None:
    outcome = outcome_of("none")
    assert not outcome.problems
    assert outcome.answers == {"200": 2}
    assert outcome.gap is not None


@pytest.mark.parametrize(
    ("harm", "problem"),
    [
        ("a plain error", "500 without the error envelope"),
        ("a plain error", "answered 500"),
        ("the secret", "the answer has `secret`"),
        ("another text", "another text for the honest chat"),
    ],
)
def test_harm_is_reported(harm: str, problem: str) -> None:
    assert problem in outcome_of(harm).problems


def test_missing_progress_is_reported() -> None:
    with campaign("errors") as each:
        each.patience = 3.0
        each.target.server.post("/tokenize", {"content": 0})  # from here on no client is served
        problems = each.run(ATTACK).problems
    assert "the honest chat had 0 answers meanwhile" in problems
    assert any(each.startswith("an error for the honest chat") for each in problems)


def test_missing_answers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patience, "is_over", lambda *_: True)
    with campaign("silence") as each:
        outcome = each.run(ATTACK)
    assert outcome.problems == ["2 without an answer"]
    assert not outcome.answers


def test_a_wait_depends_on_the_progress_of_others() -> None:
    patience = Patience(seconds=10.0, answers=100.0)
    assert not patience.is_over(9.0, 1000), "the seconds are not over"
    assert not patience.is_over(11.0, 99), "others are as slow"
    assert patience.is_over(11.0, 100)
    assert patience.is_over(10.0 * LIMIT, 0), "no client progresses"


def test_a_slow_machine_has_more_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contract_tests.attack.campaign.SLOWER", 10**9)
    with campaign("none") as each:
        assert each.patience > SECONDS


def test_the_last_line_is_the_verdict() -> None:
    good, bad = Outcome(), Outcome(problems=["harm"])
    assert results.verdict({"a": good}) == "0 of 1 shapes did harm"
    assert results.verdict({"a": good, "b": bad}) == "1 of 2 shapes did harm: b"


@pytest.mark.parametrize("harmful", [False, True])
def test_the_campaign_ends_with_a_table_and_a_status(
    harmful: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(Stub("a plain error" if harmful else "none")) as url:
        monkeypatch.setattr(__main__, "SHAPES", (ATTACK,))
        monkeypatch.setattr(results, "SHAPES", (ATTACK,))
        monkeypatch.setattr("sys.argv", ["contract_tests.attack", "--base-url", url])
        assert __main__.main() == harmful
    *_, table, _, verdict = capsys.readouterr().out.splitlines()
    assert table.startswith("| an attack | 2 |")
    said = "1 of 1 shapes did harm: attack" if harmful else "0 of 1 shapes"
    assert verdict.startswith(said)


def test_a_choice_of_no_shapes_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["contract_tests.attack", "-k", "no such shape"])
    with pytest.raises(SystemExit) as caught:
        __main__.main()
    assert caught.value.code == 2


def test_clients_that_leave_read_nothing() -> None:
    with campaign("a plain error") as each:
        leaving = Shape(row=0, name="a", what="", sends=ATTACK.sends, times=3, leaves=True)
        outcome = each.run(leaving)
    assert not outcome.problems
    assert not outcome.answers
