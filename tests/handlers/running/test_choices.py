"""Fields of an answer that a request selects, several texts per prompt, and early ends."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.params import RANDOM_SEED, GenerationParams
from specllama.engine.wire.replies import TokenProbs
from specllama.engine.worker.generation.request import IndentLimit
from specllama.handlers.apis.native.format import select
from specllama.handlers.apis.openai.format import usage
from specllama.handlers.running.choices import (
    MAX_TEXTS,
    best,
    candidates,
    texts_per_prompt,
    variants,
)
from tests.support.factories import finished

# ---- response_fields ---------------------------------------------------------------------

keys = st.text("abc.é", max_size=3)
values = st.recursive(
    st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2),
    lambda inner: st.dictionaries(keys, inner, max_size=4),
    max_leaves=12,
)
answers = st.dictionaries(keys, values, max_size=5)


def paths(answer: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    """Every field, at any depth, under its path."""
    found: dict[str, Any] = {}
    for key, value in answer.items():
        found[above + key] = value
        if isinstance(value, Mapping):
            found |= paths(value, f"{above}{key}/")
    return found


@given(answers, st.data())
def test_fields_are_those_of_the_answer(answer: dict[str, Any], data: st.DataObject) -> None:
    there = paths(answer)
    some = st.sampled_from(sorted(there)) if there else st.nothing()
    fields = data.draw(st.lists(some | st.text("abc/", max_size=6)))
    selected = select(fields, answer)
    assert selected == {field: there[field] for field in fields if field in there}
    assert list(selected) == list(dict.fromkeys(field for field in fields if field in there))


@given(answers)
def test_all_fields_are_the_answer(answer: dict[str, Any]) -> None:
    assert select(list(answer), answer) == answer
    assert select([], answer) == {}


def test_paths() -> None:
    answer = {"a": {"b": {"c": 1}, "x.y": 2}, "d": [{"e": 3}], "": {"": 4}}
    fields = ["a/b/c", "a/x.y", "d", "d/e", "d/0", "a/", "/a", "a//b", "", "/", "a/b/c/d"]
    assert select(fields, answer) == {
        "a/b/c": 1,
        "a/x.y": 2,
        "d": [{"e": 3}],
        "": {"": 4},
        "/": 4,
    }


# ---- several texts -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "n"),
    [({}, 1), ({"n": 3}, 3), ({"n": 3, "n_cmpl": 2}, 2), ({"n": None, "n_cmpl": None}, 1)],
)
def test_the_number_of_texts(body: dict[str, Any], n: int) -> None:
    assert texts_per_prompt(body) == n


@pytest.mark.parametrize("name", ["n", "n_cmpl"])
def test_too_many_texts(name: str) -> None:
    assert texts_per_prompt({name: 64}, 64) == 64
    with pytest.raises(EngineError, match=str(MAX_TEXTS)):
        texts_per_prompt({name: 65}, 64)


@given(st.integers(0, RANDOM_SEED - 1), st.integers(1, 20), st.integers(-1, 3))
def test_each_text_has_a_seed_of_its_own(seed: int, n: int, slot: int) -> None:
    made = variants(GenerationParams(seed=seed, id_slot=slot, top_k=7), n)
    assert len({params.seed for params in made}) == len(made) == n
    assert made[0].seed == seed
    assert RANDOM_SEED not in {params.seed for params in made}
    assert [params.id_slot for params in made] == [slot] + [-1] * (n - 1)
    assert {params.top_k for params in made} == {7}


def test_seeds_that_are_drawn_are_drawn_for_each() -> None:
    made = variants(GenerationParams(seed=RANDOM_SEED), 3)
    assert [params.seed for params in made] == [RANDOM_SEED] * 3


def test_best_of_is_n_or_more_and_never_streamed() -> None:
    given = GenerationParams()
    assert candidates({}, 2, 1, given) == (2, given)
    assert candidates({"best_of": 2}, 2, 1, given) == (2, given)
    n, params = candidates({"best_of": 3}, 2, 1, given)
    assert (n, params.n_probs, given.n_probs) == (3, 1, 0)
    for body, n, n_prompts in (({"best_of": 1}, 2, 1), ({"best_of": 1000}, 1, 5)):
        with pytest.raises(EngineError, match="best_of"):
            candidates(body, n, n_prompts, GenerationParams())
    with pytest.raises(EngineError, match="stream"):
        candidates({"best_of": 3}, 2, 1, GenerationParams(stream=True))


def result(*values: float) -> Any:
    probs = [TokenProbs(1, b"a", value, []) for value in values]
    return msgspec.structs.replace(finished(str(values)), probs=probs)


def test_the_best_have_the_likeliest_tokens() -> None:
    a, b, c = result(-3.0, -1.0), result(-1.5), result(-1.0, -9.0, -1.0)
    assert best([a, b, c], 2, 3) == [b, a]
    assert best([a, b, c, c, b, a], 1, 3) == [b, b]
    assert best([a, b, c], 3, 3) == [a, b, c]


def test_a_prompt_counts_once() -> None:
    results = [finished() for _ in range(4)]
    counted = usage(results, results[::2])
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (14, 8)
    assert counted["total_tokens"] == 22
    assert counted["prompt_tokens_details"]["cached_tokens"] == 8


# ---- n_indent ----------------------------------------------------------------------------

texts = st.text("a \t\n", max_size=30)


def cut(text: str, n: int) -> str:
    """The text before the first character after too few blanks, found in another way."""
    for match in re.finditer(r"(?<=\n)([ \t]*)(?=[^ \t])", text):
        if len(match[1]) < n:
            return text[: match.end()]
    return text


@given(texts, st.integers(1, 4), st.lists(st.integers(1, 4), min_size=1))
def test_a_text_ends_where_a_line_is_indented_too_little(
    text: str, n: int, lengths: list[int]
) -> None:
    limit = IndentLimit(n)
    shown, at, i = "", 0, 0
    while at < len(text) and not limit.reached:
        chunk = text[at : at + lengths[i % len(lengths)]]
        shown += limit.feed(chunk)
        at, i = at + len(chunk), i + 1
    assert shown == cut(text, n)
    assert limit.reached == (shown != text)


def test_indentation() -> None:
    for text, n, expected in [
        ("a\n  b\nc", 2, "a\n  b\n"),
        ("a\n  b\n c", 2, "a\n  b\n "),
        ("a\n\tb", 1, "a\n\tb"),
        ("a\n\n  b", 2, "a\n"),
        ("  a\n  b\n  ", 2, "  a\n  b\n  "),
        ("a\n", 9, "a\n"),
    ]:
        assert IndentLimit(n).feed(text) == expected
