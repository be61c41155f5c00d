"""`echo` with `logprobs` returns the probabilities of the prompt, as evaluations need them."""

import math
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import Server

PATH = "/v1/completions"
TEXT = "The bus 🦙 leaves at nine.\n"
LISTS = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
ROUNDING = 0.2  # of quantized weights, in another order with more rows


def tokens_of(server: Server, text: str = TEXT) -> list[int]:
    asked = {"content": text, "add_special": True}
    found: list[int] = server.ask("/tokenize", asked)["tokens"]
    return found


def asked(prompt: Any, **changes: Any) -> dict[str, Any]:
    request = {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0}
    return {**request, "ignore_eos": True, "seed": 1, **changes}


def choices(server: Server, prompt: Any, **changes: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.ask(PATH, asked(prompt, **changes))["choices"]
    return found


def check(choice: dict[str, Any], n_tokens: int) -> None:
    logprobs = choice["logprobs"]
    assert {len(logprobs[name]) for name in LISTS} == {n_tokens}
    assert "".join(logprobs["tokens"]) == choice["text"]
    for text, start in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert choice["text"][start : start + len(text)] == text
    assert (logprobs["token_logprobs"][0], logprobs["top_logprobs"][0]) == (None, None)
    for value, top in zip(
        logprobs["token_logprobs"][1:], logprobs["top_logprobs"][1:], strict=True
    ):
        assert value <= 0
        assert 1 <= len(top) <= 3
        assert max(top.values()) >= value, "the token itself is among them"
        assert sum(map(math.exp, top.values())) < 1.001


@pytest.mark.parametrize("n", [0, 1, 4])
def test_every_token_of_the_prompt_is_there(server: Server, n: int) -> None:
    """With texts and with tokens, cached or not."""
    tokens = tokens_of(server)
    contract.check(server.post(PATH, asked(tokens, max_tokens=n)))
    first, again, *both = (
        *choices(server, tokens, max_tokens=n),
        *choices(server, TEXT, max_tokens=n),
        *choices(server, [tokens, tokens[:-2]], max_tokens=n),
    )
    for choice, size in ((first, len(tokens)), (again, len(tokens)), (both[0], len(tokens))):
        check(choice, size + n)
        assert len(choice["logprobs"]["content"]) == n
        values = choice["logprobs"]["token_logprobs"][1:]
        assert values == pytest.approx(first["logprobs"]["token_logprobs"][1:], abs=ROUNDING)
    check(both[1], len(tokens) - 2 + n)


def test_a_single_token(server: Server) -> None:
    [token] = tokens_of(server)[-1:]
    check(choices(server, [token], max_tokens=0)[0], 1)
    check(choices(server, [token])[0], 2)


def test_they_equal_the_probabilities_during_generation(server: Server) -> None:
    tokens = tokens_of(server)
    made = server.ask(
        "/completion",
        {"prompt": tokens, "n_predict": 8, "n_probs": 1, "return_tokens": True, "temperature": 0},
    )
    entries = made["completion_probabilities"]
    text = [*tokens, *(entry["id"] for entry in entries)]
    logprobs = choices(server, text, max_tokens=0)[0]["logprobs"]
    values = logprobs["token_logprobs"][len(tokens) :]
    assert values == pytest.approx([entry["logprob"] for entry in entries], abs=ROUNDING)


def test_a_stream_has_the_same_probabilities(server: Server) -> None:
    tokens = tokens_of(server)
    whole = choices(server, tokens, max_tokens=4)[0]
    response = server.post(PATH, asked(tokens, max_tokens=4, stream=True))
    events = contract.check(response)
    pieces = [choice for event in events for choice in event["choices"]]
    assert "".join(piece["text"] for piece in pieces) == whole["text"]
    logprobs = [piece["logprobs"] for piece in pieces if piece["logprobs"]]
    assert len(logprobs[0]["tokens"]) == len(tokens), "the prompt comes first, with all its tokens"
    for name in ("tokens", "text_offset"):
        assert [each for part in logprobs for each in part[name]] == whole["logprobs"][name]
    values = [each for part in logprobs for each in part["token_logprobs"]]
    expected = whole["logprobs"]["token_logprobs"]
    assert (values[0], expected[0]) == (None, None)
    assert values[1:] == pytest.approx(expected[1:], abs=ROUNDING)


def test_each_of_several_texts_has_them(server: Server) -> None:
    tokens = tokens_of(server)
    for each in choices(server, tokens, n=2, temperature=1):
        check(each, len(tokens) + 1)


def test_without_echo_or_logprobs_nothing_changes(server: Server) -> None:
    [plain] = choices(server, TEXT, echo=False)
    assert plain["logprobs"].keys() == {"content"}
    [echoed] = choices(server, TEXT, logprobs=None)
    assert echoed["logprobs"] is None
    assert echoed["text"].startswith(TEXT)


def test_requests_without_prompt_probabilities_are_refused(server: Server) -> None:
    error = contract.check(server.post(PATH, asked(TEXT, suffix="b")), 501)["error"]
    assert "logprobs" in error["message"]
    many = asked([tokens_of(server, "a b c d e f g h" * 40)] * 100, logprobs=1024)
    error = contract.check(server.post(PATH, many), 400)["error"]
    assert "logprobs" in error["message"]
