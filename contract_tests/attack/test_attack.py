"""The list of attacks, the page about them, and what is told of servers that come to harm."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.requests import Request as Asked
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from contract_tests.attack import results
from contract_tests.attack.campaign import Campaign, Outcome
from contract_tests.attack.shape import Harm, Request, Shape
from contract_tests.attack.shapes import SHAPES
from contract_tests.attack.target import Target
from contract_tests.clients.recorder import serving
from contract_tests.kit import contract
from contract_tests.kit.server import SECONDS, Server

BEFORE_OPERATIONS = {400, 401, 403, 404, 408, 431}
"""Statuses that any request may have, whatever its operation."""


def test_every_row_has_a_shape() -> None:
    assert {each.row for each in SHAPES} == set(range(1, 21))
    names = [each.name for each in SHAPES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_what_is_right_can_be_judged(shape: Shape) -> None:
    """An attack whose answers are read has right ones, and these are described."""
    assert bool(shape.statuses) != (shape.leaves or isinstance(shape.sends, Harm))
    if isinstance(shape.sends, Request) and not shape.sends.path.endswith("/"):
        operation = contract.find(shape.sends.method, shape.sends.path)
        for status in shape.statuses - BEFORE_OPERATIONS:
            contract.answers(operation, status)


def test_the_page_tells_the_results() -> None:
    stored = results.stored()
    assert set(stored) == set(results.SIDES)
    assert [*stored["specllama"]] == [each.name for each in SHAPES]
    assert {*stored["llama-server"]} <= {*stored["specllama"]}
    assert results.PAGE.read_text("utf-8") == results.page()


class Stub:
    """A server that an attack may harm, in one way or another."""

    def __init__(self, harm: str) -> None:
        self._harm = harm
        self._harmed = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Asked(scope, receive)
        body = json.loads(await asked.body())
        answer = self._attacked() if scope["path"] == "/tokenize" else self._honest(asked, body)
        await answer(scope, receive, send)

    def _attacked(self) -> Response:
        self._harmed = True
        if self._harm == "a plain error":
            return PlainTextResponse("Internal Server Error", 500)
        return JSONResponse({"tokens": [], "told": self._harm})

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
def test_harm_is_told(harm: str, problem: str) -> None:
    assert problem in outcome_of(harm).problems


def test_no_progress_is_told() -> None:
    with campaign("errors") as each:
        each.patience = 3.0
        each.target.server.post("/tokenize", {"content": 0})  # from here on nobody is served
        problems = each.run(ATTACK).problems
    assert "the honest chat had 0 answers meanwhile" in problems
    assert any(each.startswith("an error for the honest chat") for each in problems)


def test_clients_that_leave_read_nothing() -> None:
    with campaign("a plain error") as each:
        leaving = Shape(row=0, name="a", what="", sends=ATTACK.sends, times=3, leaves=True)
        outcome = each.run(leaving)
    assert not outcome.problems
    assert not outcome.answers
