"""A smaller body with the same fault."""

from collections.abc import Callable, Iterator
from typing import Any

from contract_tests.fuzz.wire import NOTHING, Sent

TRIES = 120
"""Requests that are sent to make one smaller."""
SHORT = 40
"""Characters that are left alone."""


def shrunk(sent: Sent, fails: Callable[[Sent], bool]) -> Sent:
    """A request whose JSON body is smaller and which still `fails`; the same if there is none."""
    if sent.body is NOTHING or any(n.lower() == "transfer-encoding" for n, _ in sent.headers):
        return sent
    tries, best, is_smaller = 0, sent, True
    while is_smaller:
        is_smaller = False
        for body in smaller(best.body):
            if tries >= TRIES:
                return best
            tries += 1
            candidate = best.with_body(body)
            if fails(candidate):
                best, is_smaller = candidate, True
                break
    return best


def smaller(value: Any) -> Iterator[Any]:
    """Values with less in them: first those with much less."""
    match value:
        case dict():
            for name in value:
                yield {key: each for key, each in value.items() if key != name}
            for name, inner in value.items():
                for each in smaller(inner):
                    yield {**value, name: each}
        case list() if value:
            if len(value) > 1:
                yield value[: len(value) // 2]
                yield value[len(value) // 2 :]
            for at, inner in enumerate(value):
                for each in smaller(inner):
                    yield [*value[:at], each, *value[at + 1 :]]
        case str() if len(value) > SHORT:
            yield value[: len(value) // 2]
            yield value[len(value) // 2 :]
