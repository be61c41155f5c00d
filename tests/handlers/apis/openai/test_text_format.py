"""OpenAI's older form of `logprobs`."""

from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.wire.replies import TokenProbs
from specllama.handlers.apis.openai.text_format import TextLogprobs
from specllama.handlers.apis.probabilities import Probabilities
from tests.support.factories import finished


def entry(piece: bytes, value: float = -1.0, *top: tuple[bytes, float]) -> TokenProbs:
    return TokenProbs(1, piece, value, [(2, text, rival) for text, rival in top])


def taken(
    echo: str, prompt: list[TokenProbs], new: list[TokenProbs], *, post_sampling: bool = False
) -> dict[str, Any]:
    form = TextLogprobs(Probabilities(2, post_sampling=post_sampling), echo)
    source = msgspec.structs.replace(finished(), prompt_probs=prompt, probs=new)
    logprobs: Any = form.take(source)
    return {name: list(each) for name, each in logprobs.items()}


@given(st.text(), st.text(), st.data())
def test_tokens_make_the_text_wherever_characters_are_cut(
    prompt: str, answer: str, data: st.DataObject
) -> None:
    whole, n = (prompt + answer).encode(), len(prompt.encode())
    cuts = data.draw(st.sets(st.integers(0, len(whole)))) | {0, n, len(whole)}
    places = sorted(cuts)
    pieces = [(a, whole[a:b]) for a, b in pairwise(places)]
    of_prompt = [entry(piece) for at, piece in pieces if at < n]
    logprobs = taken(prompt, of_prompt, [entry(piece) for at, piece in pieces if at >= n])
    assert "".join(logprobs["tokens"]) == prompt + answer
    assert (
        len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(logprobs["token_logprobs"])
    )
    for text, at in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert (prompt + answer)[at : at + len(text)] == text


def test_a_tokenizers_prefix_is_no_part_of_the_text() -> None:
    logprobs = taken("Hello", [entry(b"<s>"), entry(b" Hel"), entry(b"lo")], [entry(b"!")])
    assert logprobs["tokens"] == ["", "Hel", "lo", "!"]
    assert logprobs["text_offset"] == [0, 0, 3, 5]
    assert logprobs["token_logprobs"] == [None, -1.0, -1.0, -1.0]


def test_rivals_have_names_and_the_token_is_among_them() -> None:
    top = ((b"a", -0.5), (b"a", -2.0), (b"c", -3.0))
    logprobs = taken(
        "xb", [entry(b"x"), entry(b"b", -4.0, *top)], [entry(b"\xf0", -0.1, (b"d", -1.0))]
    )
    assert logprobs["top_logprobs"] == [
        None,
        {"a": -0.5, "b": -4.0},
        {"d": -1.0, "bytes:\\xf0": -0.1},
    ]
    assert len(logprobs["content"]) == 1


def test_probabilities_after_sampling_become_logarithms() -> None:
    logprobs = taken(
        "x", [entry(b"x"), entry(b"")], [entry(b"b", 1.0, (b"c", 0.0))], post_sampling=True
    )
    assert logprobs["token_logprobs"] == [None, -1.0, 0.0]
    assert logprobs["top_logprobs"][2] == pytest.approx({"c": -744.4400719213812, "b": 0.0})
