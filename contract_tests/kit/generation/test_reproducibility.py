"""Equal requests get equal texts, whatever is cached and however many others are served.

This holds for a server with default options and the shipped model; `--reproducible off` makes most
of these tests fail. The texts are so long that llama.cpp's kernels would change their order of
summation (at 64 tokens in a batch, at 256 and 512 cells) if the options allowed it.
"""

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from contract_tests.kit.bodies import MESSAGES
from contract_tests.kit.checks import plain_text
from contract_tests.kit.server import OwnServer, Server, Start

CODE = "def compute(value, other):\n    return value + other\n\n\n"
SHORT, MIDDLE, LONG = "def answer(self):", CODE * 8, CODE * 40
GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "n_predict": 48}
SEEDED: dict[str, Any] = {"temperature": 1.2, "seed": 4711, "ignore_eos": True, "n_predict": 48}
SCHEMA: dict[str, Any] = {"type": "array", "items": {"type": "integer"}, "maxItems": 12}

Request = tuple[str, dict[str, Any]]
REQUESTS: dict[str, Request] = {
    "greedy, short": ("/completion", {"prompt": SHORT, **GREEDY, "n_predict": 300}),
    "greedy, middle": ("/completion", {"prompt": MIDDLE, **GREEDY}),
    "greedy, long": ("/completion", {"prompt": LONG, **GREEDY}),
    "greedy, other end": ("/completion", {"prompt": LONG + "class Other:", **GREEDY}),
    "seeded, middle": ("/completion", {"prompt": MIDDLE, **SEEDED}),
    "seeded, long": ("/completion", {"prompt": LONG + "import ", **SEEDED}),
    "all samplers": (
        "/completion",
        {
            **{"prompt": MIDDLE, **SEEDED},
            **{"repeat_penalty": 1.2, "dry_multiplier": 0.8, "xtc_probability": 0.5, "top_k": 0},
        },
    ),
    "schema": ("/completion", {"prompt": MIDDLE, **SEEDED, "json_schema": SCHEMA}),
    "text": ("/v1/completions", {"prompt": MIDDLE, "max_tokens": 48, "seed": 3}),
    "chat": ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 64, "seed": 5}),
    "message": ("/v1/messages", {"model": "m", "messages": MESSAGES, "max_tokens": 64, "seed": 5}),
}


def said(server: Server, name: str, **more: Any) -> str:
    path, body = REQUESTS[name]
    return plain_text(server.ask(path, {**body, **more}))


def all_said(server: Server, **more: Any) -> dict[str, str]:
    """Returns the answer to each request, one after the other."""
    return {name: said(server, name, **more) for name in REQUESTS}


@contextmanager
def busy(server: Server, n: int) -> Iterator[None]:
    """Keeps `n` other requests generating, each after a prompt of another length."""
    with ExitStack() as stack:
        for i in range(n):
            body = {"prompt": f"# {i}\n" + CODE * (3 * i + 1), **SEEDED, "n_predict": 5000}
            _, events = stack.enter_context(server.stream("/completion", body))
            next(events)
        yield


@pytest.fixture(scope="module")
def exact(module_server: Start) -> OwnServer:
    """A server with default options."""
    return module_server()


@pytest.fixture(scope="module")
def expected(exact: OwnServer) -> dict[str, str]:
    """The texts with an empty cache and no other request."""
    return all_said(exact, cache_prompt=False)


def test_once_more(exact: OwnServer, expected: dict[str, str]) -> None:
    for _ in range(3):
        assert all_said(exact, cache_prompt=False) == expected


def test_from_the_cache(exact: OwnServer, expected: dict[str, str]) -> None:
    for _ in range(4):
        assert all_said(exact) == expected
    path, body = REQUESTS["greedy, long"]
    assert exact.ask(path, body)["timings"]["cache_n"] > 100


@pytest.mark.parametrize("n", [1, 3])
def test_with_others(exact: OwnServer, expected: dict[str, str], n: int) -> None:
    for cached in (False, True):
        with busy(exact, n):
            assert all_said(exact, cache_prompt=cached) == expected


def test_all_at_once(exact: OwnServer, expected: dict[str, str]) -> None:
    """More requests than slots, in changing orders: they wait, share prefixes and displace each
    other."""
    order = random.Random(0)
    for _ in range(3):
        names = [*REQUESTS, *REQUESTS]
        order.shuffle(names)
        with ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda name: said(exact, name), names))
        assert dict(zip(names, texts, strict=True)) == expected
        assert len(set(zip(names, texts, strict=True))) == len(REQUESTS)


def test_in_each_slot(exact: OwnServer, expected: dict[str, str]) -> None:
    """A slot's text is copied to another slot, and cut at any place."""
    for slot in range(exact.get("/props").json()["total_slots"]):
        for name in ("greedy, long", "greedy, short", "greedy, other end", "seeded, long"):
            assert said(exact, name, id_slot=slot) == expected[name], (name, slot)


def test_after_prefixes_of_any_length(exact: OwnServer, expected: dict[str, str]) -> None:
    """Batches of any size are evaluated."""
    name = "greedy, long"
    path, body = REQUESTS[name]
    tokens = exact.ask("/tokenize", {"content": LONG, "add_special": True})["tokens"]
    for n in (1, 2, 63, 64, 65, 127, len(tokens) - 65, len(tokens) - 64, len(tokens) - 2):
        part = {**body, "prompt": tokens[:n], "n_predict": 1, "cache_prompt": False, "id_slot": 0}
        exact.ask(path, part)
        assert said(exact, name, id_slot=0) == expected[name], n


def test_from_host_memory(exact: OwnServer, expected: dict[str, str]) -> None:
    """The texts of all slots are moved out of the KV cache, and restored."""
    all_said(exact)
    for i in range(8):
        exact.ask("/completion", {"prompt": f"{i} is another text. " * 30, **GREEDY})
    slots = range(exact.get("/props").json()["total_slots"])
    for slot in slots:
        exact.ask("/completion", {"prompt": f"slot {slot}. " * 60, **GREEDY, "id_slot": slot})
    assert all_said(exact) == expected


def test_after_a_prompt_was_given_up(exact: OwnServer, expected: dict[str, str]) -> None:
    body = {"prompt": LONG + "class Other:", **GREEDY, "n_predict": 5000}
    for n_events in (1, 5):
        with exact.stream("/completion", body) as (_, events):
            for _ in range(n_events):
                next(events)
        exact.wait_until_idle()
        assert said(exact, "greedy, other end") == expected["greedy, other end"]
        assert said(exact, "greedy, long") == expected["greedy, long"]


def test_in_another_api(exact: OwnServer, expected: dict[str, str]) -> None:
    """The same tokens and settings by another operation, streamed."""
    text = expected["greedy, middle"]
    greedy = {"temperature": 0, "ignore_eos": True, "max_tokens": GREEDY["n_predict"]}
    answer = exact.ask("/v1/completions", {"prompt": MIDDLE, **greedy})
    assert answer["choices"][0]["text"] == text
    events = exact.events("/completion", REQUESTS["greedy, middle"][1])
    assert "".join(event.json["content"] for event in events) == text
    tokens = exact.ask("/tokenize", {"content": MIDDLE, "add_special": True})["tokens"]
    assert plain_text(exact.ask("/completion", {"prompt": tokens, **GREEDY})) == text
    prompts = {"prompt": [MIDDLE, SHORT, LONG], **GREEDY}
    assert [each["content"] for each in exact.ask("/completion", prompts)] == [
        text,
        plain_text(exact.ask("/completion", {"prompt": SHORT, **GREEDY})),
        expected["greedy, long"],
    ]


def test_probabilities(exact: OwnServer) -> None:
    """The logits themselves are equal, not only the chosen tokens."""
    path, body = REQUESTS["greedy, long"]
    asked = {**body, "n_probs": 20, "n_predict": 8}
    alone = exact.ask(path, {**asked, "cache_prompt": False})["completion_probabilities"]
    assert exact.ask(path, asked)["completion_probabilities"] == alone
    with busy(exact, 3):
        assert exact.ask(path, asked)["completion_probabilities"] == alone


def test_of_another_process(exact: OwnServer, expected: dict[str, str], own_server: Start) -> None:
    exact.kill_engine()
    exact.engine()  # the next one
    exact.wait_until_ready()
    assert all_said(exact) == expected
    for arguments in (("--threads", "2"), ("--parallel", "7"), ("--ubatch-size", "96")):
        assert all_said(own_server(*arguments)) == expected
