"""The lengths of prompts, before and after they are tokens."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.media import Media
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.cache.texts import is_owned
from specllama.engine.worker.generation.prompts import COUNTED, fewest_tokens, tokenize_prompt
from tests.support.playing import engine

PIECES = (
    "a",
    "word ",
    " ",
    "   \n",
    "\t" * 9,
    "é",
    "🦙" * 3,
    "<|im_start|>",
    "<|im_end|>",
    "x" * 50,
)
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=9), max_size=30).map("".join)
PROMPTS = st.lists(TEXTS | st.integers(0, 200), max_size=6)


@settings(max_examples=300)
@given(prompt=PROMPTS)
def test_no_prompt_has_fewer_tokens_than_it_has_at_least(
    model: Model, prompt: list[int | str]
) -> None:
    assert fewest_tokens(model, prompt) <= len(tokenize_prompt(model, prompt))


def test_impossible_prompts_are_not_tokenized(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    e = engine(model, ctx_size=256, parallel=1)
    text = "🦙" * (COUNTED // 4 + 1)
    monkeypatch.setattr(Model, "tokenize", None)
    with pytest.raises(EngineError, match=r"exceeds the available context size \(256") as error:
        e.preparation.prepare(Submit(1, [text], GenerationParams()))
    n = error.value.info.n_prompt_tokens
    assert n is not None
    assert 256 < n <= 5 * COUNTED
    assert error.value.info.n_prompt_tokens_is_lower_bound
    assert "the prompt is too long" in error.value.info.message  # Qwen Code looks for these words
    assert "has at least" in error.value.info.message
    assert error.value.info.n_ctx == 256


@settings(max_examples=100)
@given(prompt=PROMPTS)
def test_too_long_prompts_are_counted(model: Model, prompt: list[int | str]) -> None:
    """As POST /tokenize counts it, however far it exceeds the context."""
    whole: list[int | str | Media] = [*prompt, "word 🦙 <|im_end|> \n" * 300, 5]
    expected = len(tokenize_prompt(model, whole))
    generator = engine(model, ctx_size=256, parallel=1)
    with pytest.raises(EngineError) as error:
        generator.preparation.prepare(Submit(1, whole, GenerationParams()))
    assert error.value.info.n_prompt_tokens == expected
    assert not error.value.info.n_prompt_tokens_is_lower_bound


def test_the_owner_of_a_text(model: Model) -> None:
    e = engine(model, ctx_size=256, parallel=1)
    found = [
        e.preparation.prepare(
            Submit(id, ["a"], GenerationParams(), owner=7, private=private)
        ).sequence
        for id, private in enumerate([False, True], 1)
    ]
    assert [each.owner for each in found] == [7, 7]
    assert [is_owned(each.key) for each in found] == [False, True]
