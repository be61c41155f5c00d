"""Fifty API keys on one model for an hour of simulated time, and what may be expected of them.

`python -m tests.simulation.many_keys` prints the figures.
"""

import asyncio
from collections.abc import Iterable
from functools import cache
from math import ceil
from typing import Any

import pytest

from specllama.engine import system
from specllama.handlers.http.api_keys import ApiKey
from tests.simulation.crowd import (
    HOUR,
    LONGEST_STEP,
    N_PROMPT,
    N_SLOTS,
    STEP,
    TOKEN,
    Client,
    Crowd,
    Habit,
    Wait,
)


def key_of(name: str, **fields: Any) -> ApiKey:
    return ApiKey(name=name, id=f"key:{name}", digest=b"", **fields)


BUSY: dict[ApiKey, Habit] = {
    key_of("long-1"): Habit(prompt=(150, 300), answer=(8, 24), n_open=8),
    key_of("long-2", weight=2.0): Habit(prompt=(100, 300), answer=(8, 24), n_open=12),
    key_of("many-1"): Habit(prompt=(20, 60), answer=(16, 32), n_texts=8, n_open=3),
    key_of("many-3", weight=3.0): Habit(prompt=(20, 60), answer=(8, 32), n_texts=16, n_open=5),
    key_of("steady-1"): Habit(prompt=(30, 60), answer=(20, 40), n_open=8),
    key_of("steady-2", weight=2.0): Habit(prompt=(30, 60), answer=(20, 40), n_open=12),
    key_of("steady-4", weight=4.0): Habit(prompt=(30, 60), answer=(20, 40), n_open=16),
    key_of("mixed-2", weight=2.0): Habit(prompt=(10, 200), answer=(1, 60), n_open=12),
}
"""Keys that always have waiting texts."""
HOSTILE: dict[ApiKey, Habit] = {
    key_of("hostile", concurrency=20): Habit(
        prompt=(200, 400), answer=(16, 64), n_texts=64, n_open=30, cancels=0.7
    ),
}
URGENT: dict[ApiKey, Habit] = {
    key_of(f"urgent-{i}", priority=-1, best_priority=-1, tokens_per_minute=200): Habit(
        prompt=(10, 80), answer=(4, 16), interval=40.0
    )
    for i in range(3)
}
LIMITED: dict[ApiKey, Habit] = {
    key_of("requests", requests_per_minute=6): Habit(prompt=(20, 60), answer=(8, 24), n_open=4),
    key_of("minute", weight=2.0, tokens_per_minute=200): Habit(
        prompt=(20, 60), answer=(8, 24), n_open=4
    ),
    key_of("day", tokens_per_day=4000): Habit(
        prompt=(20, 100), answer=(8, 24), n_open=2, cancels=0.3
    ),
    key_of("all", requests_per_minute=10, tokens_per_minute=300, concurrency=2): Habit(
        prompt=(20, 60), answer=(8, 24), n_texts=3, n_open=3, cancels=0.2
    ),
}
CHATS: dict[ApiKey, Habit] = {
    key_of(f"chat-{i}", weight=(1.0, 2.0, 4.0)[i % 3], concurrency=2): Habit(
        prompt=(10, 60), answer=(4, 24), interval=60.0 + 10 * (i % 5)
    )
    for i in range(24)
} | {
    key_of(f"burst-{i}", weight=(1.0, 3.0)[i % 2], concurrency=4, tokens_per_minute=1200): Habit(
        prompt=(10, 60), answer=(4, 24), burst=4, interval=240.0
    )
    for i in range(10)
}
HABITS = BUSY | HOSTILE | URGENT | LIMITED | CHATS


@cache
def played(seed: int, *, is_limited: bool = True) -> Crowd:
    crowd = Crowd(seed, HABITS, is_limited=is_limited)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system, "now", crowd.clock)
        asyncio.run(crowd.run())
    return crowd


SEEDS = (1, 2)


def of(crowd: Crowd, keys: dict[ApiKey, Habit]) -> list[Client]:
    return [each for each in crowd.clients if each.key in keys]


def most(seconds: Iterable[float], part: float = 1.0) -> float:
    """The number that this part of `seconds` doesn't exceed."""
    ordered = sorted(seconds)
    return ordered[ceil(part * len(ordered)) - 1]


def waits(crowd: Crowd, keys: dict[ApiKey, Habit]) -> list[Wait]:
    return [wait for each in of(crowd, keys) for wait in each.waits]


def longest_wait(key: ApiKey, habit: Habit) -> float:
    """The bound for a text of a key with limited `concurrency`, in seconds.

    Let k be the most texts of the key at a time, and c the most tokens of each. When a text
    arrives, the key's base is at most (k - 1) c tokens, divided by its weight w, beyond the virtual
    time: that is what its last texts may have used. So the tag of the text is at most (2 k - 1) c /
    w beyond it. Before the text, another key can have as much for each unit of its weight, and a
    text more. Up to S texts in slots are not charged yet, S have paid in advance for what they get
    back, and S have to end first: 3 S L tokens. While the text waits, each step has at least one
    token for each of the S slots. The tokens of better priorities are limited by quotas.
    """
    others = {k: h for k, h in HABITS.items() if k not in URGENT and k is not key}
    longest = max(each.most for each in HABITS.values())
    tag = (2 * key.concurrency - 1) * habit.most / key.weight
    n_tokens = sum(k.weight * tag + h.most for k, h in others.items())
    n_tokens += key.weight * tag + 3 * N_SLOTS * longest
    urgent = sum(each.tokens_per_minute for each in URGENT)
    rate = N_SLOTS / (STEP + TOKEN * N_SLOTS)
    return (n_tokens + urgent) / (rate - urgent / 60)


def deviation(crowd: Crowd) -> float:
    """The largest difference between the tokens of a busy key and its weight's share of them."""
    clients = of(crowd, BUSY | HOSTILE)
    whole = sum(each.n_of_hour for each in clients) / sum(each.key.weight for each in clients)
    return max(abs(each.n_of_hour / (whole * each.key.weight) - 1) for each in clients)


def excess(crowd: Crowd) -> list[float]:
    """The seconds by which the wait of each urgent text exceeds one step, and the steps of its
    prompt and of the prompts of other urgent texts that wait meanwhile."""
    urgent = waits(crowd, URGENT)
    found = []
    for one in urgent:
        same = [each for each in urgent if one.arrived < each.began and each.arrived < one.began]
        n_steps = 1 + ceil(sum(each.n_prompt for each in same) / N_PROMPT)
        found.append(one.seconds - LONGEST_STEP * n_steps)
    return found


def figures(seed: int) -> str:
    crowd, free = played(seed), played(seed, is_limited=False)
    urgent, chats, without = (
        [wait.seconds for wait in waits(one, keys)]
        for one, keys in ((crowd, URGENT), (crowd, CHATS), (free, CHATS))
    )
    bounds = [longest_wait(key, habit) for key, habit in CHATS.items()]
    return f"""seed {seed}: {crowd.n_steps} steps of at most {LONGEST_STEP:.2f} s
  largest deviation from a share: {deviation(crowd):.1%}
  urgent texts: p99 {most(urgent, 0.99):.2f} s, longest {most(urgent):.2f} s
    beyond a step and the urgent prompts: at most {most(excess(crowd)):.2f} s
  slots in use: {crowd.slots_in_use:.2%}, without keys {free.slots_in_use:.2%}
  tokens per second: {crowd.n_tokens / HOUR:.1f}, without keys {free.n_tokens / HOUR:.1f}
  chats: p99 {most(chats, 0.99):.1f} s, longest {most(chats):.1f} s
    without keys: p99 {most(without, 0.99):.1f} s, longest {most(without):.1f} s
    bounds: {min(bounds):.0f} to {max(bounds):.0f} s"""


if __name__ == "__main__":
    for seed in SEEDS:
        print(figures(seed))
