"""Large answers leave in parts, and others have their turn in between."""

import asyncio
from typing import Any

import msgspec
import pytest

from specllama.handlers.http.json_answer import ENOUGH, SMALL, JSONAnswer, Lazy

Sent = list[dict[str, Any]]


async def sent_by(answer: JSONAnswer, *, leaves_after: int | None = None) -> Sent:
    sent: Sent = []
    gone = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)
        if len(sent) == leaves_after:
            gone.set()

    await answer({"type": "http"}, receive, send)
    return sent


def body(sent: Sent) -> Any:
    return msgspec.json.decode(b"".join(each["body"] for each in sent[1:]))


def test_a_small_answer_has_a_length_and_leaves_at_once() -> None:
    sent = asyncio.run(sent_by(JSONAnswer({"a": [1]}, headers={"x-id": "7"})))
    assert dict(sent[0]["headers"]) == {
        b"content-length": b"9",
        b"content-type": b"application/json",
        b"x-id": b"7",
    }
    assert body(sent) == {"a": [1]}
    assert len(sent) == 2


@pytest.mark.parametrize("n", [SMALL + 1, 200 * SMALL])
def test_a_large_answer_comes_in_parts(n: int) -> None:
    numbers = list(range(n))
    sent = asyncio.run(sent_by(JSONAnswer({"a": numbers}, headers={"x-id": "7"})))
    assert dict(sent[0]["headers"]) == {b"content-type": b"application/json", b"x-id": b"7"}
    assert body(sent) == {"a": numbers}
    assert [each["more_body"] for each in sent[1:]] == [True] * (len(sent) - 2) + [False]
    assert all(len(each["body"]) < 2 * ENOUGH for each in sent[1:])


def test_others_have_their_turn_between_the_parts() -> None:
    turns = 0

    async def run() -> Sent:
        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        sent = await sent_by(JSONAnswer(list(range(200 * SMALL))))
        task.cancel()
        return sent

    assert turns == 0
    sent = asyncio.run(run())
    assert turns >= len(sent) - 3 > 10


def test_nothing_more_is_made_for_a_client_that_is_gone() -> None:
    made: list[int] = []

    def make(i: int) -> str:
        made.append(i)
        return "x" * ENOUGH

    answer = JSONAnswer(Lazy(make, range(1000), SMALL))
    asyncio.run(sent_by(answer, leaves_after=3))
    assert 1 <= len(made) < 20
