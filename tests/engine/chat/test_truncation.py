"""Old turns leave a conversation that is too long."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.chat.request import ChatRequest, room_for_answer, truncated

USER = {"role": "user", "content": "Hello"}


CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}


RESULT = {"type": "function_call_output", "call_id": "c1", "output": "11 degrees"}


def said(text: str, role: str = "assistant") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "output_text", "text": text}]}


@settings(max_examples=100)
@given(st.lists(st.sampled_from("uatt"), max_size=12), st.integers(0, 3), st.integers(0, 40))
def test_truncation_keeps_the_end_and_whole_turns(roles: list[str], n: int, n_max: int) -> None:
    names = {"u": "user", "a": "assistant", "t": "tool"}
    head: Any = [{"role": "system", "content": "x"}] * n
    rest: Any = [{"role": names[role], "content": i} for i, role in enumerate("u" + "".join(roles))]
    counted: list[int] = []

    async def count(request: ChatRequest) -> int:
        counted.append(len(request.messages))
        return 2 * len(request.messages)

    made = asyncio.run(truncated(ChatRequest(messages=[*head, *rest]), n_max, count)).messages
    assert made[:n] == head
    kept = made[n:]
    assert kept == rest[len(rest) - len(kept) :]
    assert kept[0]["role"] == "user"
    starts = [i for i, each in enumerate(rest) if each["role"] == "user"]
    fitting = [i for i in starts if 2 * (n + len(rest) - i) <= n_max]
    assert len(rest) - len(kept) == (fitting[0] if fitting else starts[-1])
    assert len(counted) <= 2 + len(starts).bit_length()


def test_room_for_the_answer() -> None:
    found = [room_for_answer(100, limit) for limit in (-1, 10, 90)]
    assert found == [25, 10, 50]
