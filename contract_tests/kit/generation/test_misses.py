"""Why a prompt wasn't cached. A server without `cache_miss_reason` has nothing to check."""

import uuid
from typing import Any

import pytest

from contract_tests.kit.server import OwnServer, Server, Start

REASON = "cache_miss_reason"
ORIGINS = ("cache_kv_n", "cache_ram_n", "cache_disk_n")
WORDS = ["river", "stone", "cloud", "lamp", "forest", "bridge", "garden", "window", "silver"]


def text(start: int, n: int = 8) -> str:
    """Returns a text of `n` sentences; texts with another start differ from the first one on."""
    return "".join(
        f"Sentence {start + i} names the {WORDS[i % len(WORDS)]} and number {start * i}.\n"
        for i in range(n)
    )


@pytest.fixture(scope="module")
def one(module_server: Start) -> OwnServer:
    """A server with room for one text of up to 512 tokens, and without a second tier."""
    server = module_server("-np", "1", "-c", "512", "--cache-ram", "0", "--metrics")
    if REASON not in ask(server, text(1))["timings"]:
        pytest.skip("the server gives no reasons")
    return server


def ask(server: Server, prompt: str, **fields: Any) -> Any:
    return server.ask("/completion", {"prompt": prompt, "n_predict": 2, **fields})


def why(server: Server, prompt: str, **fields: Any) -> str | None:
    """Returns the reason, and checks the numbers beside it."""
    answer = ask(server, prompt, **fields)
    timings = answer["timings"]
    assert sum(timings[origin] for origin in ORIGINS) == timings["cache_n"]
    assert timings["cache_n"] + timings["prompt_n"] == answer["tokens_evaluated"]
    reason: str | None = timings[REASON]
    assert timings["cache_miss_at"] == (None if reason is None else timings["cache_n"])
    (slot,) = server.slots()
    assert (slot[REASON], slot["cache_miss_at"]) == (reason, timings["cache_miss_at"])
    return reason


def test_reasons(one: OwnServer) -> None:
    mine = f"{uuid.uuid4()}\n"
    assert why(one, mine + text(10)) == "new"
    assert why(one, mine + text(10)) is None
    assert why(one, mine + text(10, 7) + "Another end.") == "edited"
    assert why(one, mine + text(10, 7) + "Another end.", cache_prompt=False) == "disabled"


def test_a_text_that_had_to_make_room(one: OwnServer) -> None:
    mine = f"{uuid.uuid4()}\n" + text(20)
    why(one, mine)
    why(one, f"{uuid.uuid4()}\n" + text(30))
    assert why(one, mine) == "evicted"


def test_every_form_of_an_answer_has_the_reason(one: OwnServer) -> None:
    prompt = f"{uuid.uuid4()}\n" + text(40)
    ask(one, prompt)
    request = {"prompt": prompt, "max_tokens": 2}
    answer = one.ask("/v1/completions", request)
    assert answer["timings"][REASON] is None
    details = answer["usage"]["prompt_tokens_details"]
    timings = answer["timings"]
    assert details["cached_ram_tokens"] == timings["cache_ram_n"] == 0
    assert details["cached_disk_tokens"] == timings["cache_disk_n"] == 0
    last = one.events("/completion", {"prompt": prompt[:-40] + "Another end.", "n_predict": 2})[
        -1
    ].json
    assert last["timings"][REASON] == "edited"


def computed(server: Server) -> dict[str, float]:
    """Returns the numbers of evaluated prompt tokens, by reason."""
    name = "specllama_prompt_tokens_computed_total{reason="
    lines = [each for each in server.get("/metrics").text.splitlines() if each.startswith(name)]
    counts = (line.removeprefix(name).split("} ") for line in lines)
    return {reason.strip('"'): float(count) for reason, count in counts}


def test_metrics_count_evaluated_tokens_by_reason(one: OwnServer) -> None:
    before = computed(one)
    prompt = f"{uuid.uuid4()}\n" + text(50)
    counts: dict[str, float] = {}
    for fields in ({}, {}, {"cache_prompt": False}):
        timings = ask(one, prompt, **fields)["timings"]
        reason = timings[REASON] or "none"
        counts[reason] = counts.get(reason, 0) + timings["prompt_n"]
    after = computed(one)
    assert counts == {each: n - before[each] for each, n in after.items() if n != before[each]}
