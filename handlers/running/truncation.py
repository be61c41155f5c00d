"""A conversation that is too long for the context loses its oldest part."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from specllama.engine.chat.request import ChatRequest

_SYSTEM = ("system", "developer")


def room_for_answer(n_ctx: int, n_predict: int) -> int:
    """The number of tokens of the context to keep free: `n_predict`, the limit of the answer, but
    at most half of the context; a quarter if there is no limit (negative)."""
    return n_ctx // 4 if n_predict < 0 else min(n_predict, n_ctx // 2)


async def truncated(
    request: ChatRequest, n_max: int, count: Callable[[ChatRequest], Awaitable[int]]
) -> ChatRequest:
    """`request` without as many of its oldest turns as it takes for at most `n_max` tokens.

    A turn goes from one message of the user to the next, so that no output of a tool loses its
    call. Leading system messages stay, and so does the last turn, whatever its length.
    """
    messages = request.messages
    n_head = next((i for i, each in enumerate(messages) if each["role"] not in _SYSTEM), 0)
    turns = [i for i in range(n_head + 1, len(messages)) if messages[i]["role"] == "user"]

    def without(start: int) -> ChatRequest:
        kept: list[dict[str, Any]] = [*messages[:n_head], *messages[start:]]
        return msgspec.structs.replace(request, messages=kept)

    starts = [n_head, *turns]
    low, high = 0, len(starts) - 1  # the first start that fits, or the last one
    while low < high:
        # The whole conversation first: mostly it fits.
        middle = 0 if (low, high) == (0, len(starts) - 1) else (low + high) // 2
        if await count(without(starts[middle])) <= n_max:
            high = middle
        else:
            low = middle + 1
    return without(starts[low])
