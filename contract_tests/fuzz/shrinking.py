"""Shrinks the body of a request that has a fault."""

from collections.abc import Callable, Iterator
from typing import Any

from contract_tests.fuzz.wire import NOTHING, Sent

TRIES = 120
"""The limit of requests for shrinking one."""
SHORT = 40
"""Texts up to this number of characters are not shortened."""


def shrunk(sent: Sent, fails: Callable[[Sent], bool]) -> Sent:
    """Returns a request with a smaller JSON body that still `fails`, or `sent` itself."""
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
    """Yields smaller values, the smallest first."""
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
