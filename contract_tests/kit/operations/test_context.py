"""The end of the context, and the reuse of cached chunks."""

from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import Server, Start

N_CTX = 256
LONG = {"prompt": "Once upon a time", "n_predict": 400, "ignore_eos": True, "seed": 5}


@pytest.fixture(scope="module")
def shifting(module_server: Start) -> Server:
    return module_server("-c", str(N_CTX), "-np", "1", "--context-shift", "--cache-reuse", "16")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("changes", [{}, {"n_keep": -1}, {"n_keep": 8, "n_discard": 50}])
def test_a_shifted_text_goes_on(changes: dict[str, Any], stream: bool, shifting: Server) -> None:
    request = {**LONG, **changes, "return_tokens": True}
    if stream:
        operation = contract.operations()["create_completion"]
        documents = contract.check_stream(operation, shifting.events("/completion", request))
        end = documents[-1]
        tokens = [token for document in documents for token in document["tokens"]]
    else:
        end = contract.check(shifting.post("/completion", request))
        tokens = end["tokens"]
    assert len(tokens) == end["tokens_predicted"] == 400
    assert (end["truncated"], end["stop_type"]) == (True, "limit")
    settings = end["generation_settings"]
    assert settings["n_keep"] == changes.get("n_keep", 0)
    assert settings["n_cache_reuse"] == 16


def test_chat_goes_on_as_well(shifting: Server) -> None:
    request = {
        "messages": [{"role": "user", "content": "Tell me about llamas."}],
        "max_tokens": 300,
        "ignore_eos": True,
    }
    answer = contract.check(shifting.post("/v1/chat/completions", request))
    assert answer["usage"]["completion_tokens"] == 300


def test_a_prompt_is_not_shifted(shifting: Server) -> None:
    response = shifting.post("/completion", {"prompt": "word " * N_CTX, "n_predict": 1})
    assert contract.check(response, 400)["error"]["type"] == "exceed_context_size_error"


def test_without_context_shift_the_text_ends(module_server: Start) -> None:
    server = module_server("-c", str(N_CTX), "-np", "1")
    end = contract.check(server.post("/completion", LONG))
    assert (end["truncated"], end["stop_type"]) == (True, "limit")
    assert end["tokens_evaluated"] + end["tokens_predicted"] == N_CTX


def cached(server: Server) -> dict[int, int]:
    """Returns the number of cached tokens by `n_cache_reuse`. The prompt has 40 cached tokens at
    its beginning and 40 after a gap."""
    counts = {}
    for n_cache_reuse, first in ((0, 500), (41, 620), (40, 740), (1, 860)):
        # Different texts each time, because texts that left the KV cache may come back to it.
        a, b, c = (list(range(n, n + 40)) for n in (first, first + 40, first + 80))
        for prompt in (a + b + c, a + c):
            request = {"prompt": prompt, "n_predict": 1, "id_slot": 0}
            answer = server.ask("/completion", {**request, "n_cache_reuse": n_cache_reuse})
        counts[n_cache_reuse] = answer["timings"]["cache_n"]
        assert answer["tokens_cached"] == counts[n_cache_reuse]
        assert answer["timings"]["prompt_n"] == 80 - counts[n_cache_reuse]
    return counts


def test_chunks_of_the_cache_are_moved(shifting: Server) -> None:
    assert cached(shifting) == {0: 40, 41: 40, 40: 79, 1: 79}


def test_nothing_is_moved_where_the_memory_cannot_be_shifted(server: Server) -> None:
    """The server decides this, for instance by the types of its cache."""
    assert cached(server) in ({0: 40, 41: 40, 40: n, 1: n} for n in (40, 79))


def test_the_option_is_the_default_of_the_field(shifting: Server) -> None:
    a, b, c = (list(range(n, n + 40)) for n in (500, 700, 900))
    shifting.ask("/completion", {"prompt": a + b + c, "n_predict": 1})
    answer = shifting.ask("/completion", {"prompt": a + c, "n_predict": 1})
    assert answer["timings"]["cache_n"] == 79
    shifting.ask("/completion", {"prompt": a + b + c, "n_predict": 1, "cache_prompt": False})
    request = {"prompt": a + c, "n_predict": 1, "n_cache_reuse": 0}
    assert shifting.ask("/completion", request)["timings"]["cache_n"] == 40
