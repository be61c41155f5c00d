"""The prompt for a gap: its layout, and the order of cuts if there is no room."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.backend.model import FimTokens
from specllama.engine.worker.generation.prompts import (
    FILE,
    REPOSITORY,
    SNIPPET,
    Gap,
    Room,
    gap_tokens,
    share,
)
from specllama.engine.worker.tokens import TokenArray

PLAIN = FimTokens(prefix=1, suffix=2, middle=3)
REPO = FimTokens(prefix=1, suffix=2, middle=3, repository=4, file=5)
BOS = 6


def encode(text: str) -> TokenArray:
    """A token for each character, without special tokens."""
    return np.array([100 + ord(c) for c in text], np.int32)


def decode(tokens: TokenArray) -> str:
    special = {1: "<PRE>", 2: "<SUF>", 3: "<MID>", 4: "<REP>", 5: "<SEP>", 6: "<BOS>"}
    return "".join(special.get(t) or chr(t - 100) for t in tokens.tolist())


def gap(
    prefix: str, suffix: str, middle: str = "", snippets: tuple[tuple[str, str], ...] = ()
) -> Gap:
    return Gap(
        prefix=encode(prefix), suffix=encode(suffix), middle=encode(middle), snippets=snippets
    )


def build(
    a_gap: Gap,
    fim: FimTokens = PLAIN,
    room: Room | None = None,
    *,
    bos: int | None = None,
    suffix_first: bool = False,
) -> str:
    room = room or Room(n_ctx=10_000, n_batch=10_000, n_predict=0)
    return decode(gap_tokens(a_gap, fim, encode, room, bos=bos, suffix_first=suffix_first))


SNIPPETS = (("a.py", "one"), ("b.py", "two"))


@pytest.mark.parametrize(
    ("fim", "snippets", "suffix_first", "bos", "expected"),
    [
        (PLAIN, (), False, None, "<PRE>beforemid<SUF>after<MID>"),
        (PLAIN, (), True, None, "<SUF>after<PRE>beforemid<MID>"),
        (PLAIN, (), False, BOS, "<BOS><PRE>beforemid<SUF>after<MID>"),
        (PLAIN, SNIPPETS, True, BOS, f"{SNIPPET}one{SNIPPET}two<BOS><SUF>after<PRE>beforemid<MID>"),
        (
            REPO,
            (),
            False,
            None,
            f"<REP>{REPOSITORY}\n<SEP>{FILE}\n<PRE>beforemid<SUF>after<MID>",
        ),
        (
            REPO,
            SNIPPETS,
            False,
            BOS,
            f"<REP>{REPOSITORY}\n<SEP>a.py\none<SEP>b.py\ntwo<SEP>{FILE}\n"
            "<BOS><PRE>beforemid<SUF>after<MID>",
        ),
    ],
)
def test_layout(
    fim: FimTokens,
    snippets: tuple[tuple[str, str], ...],
    suffix_first: bool,
    bos: int | None,
    expected: str,
) -> None:
    text = build(gap("before", "after", "mid", snippets), fim, bos=bos, suffix_first=suffix_first)
    assert text == expected


@pytest.mark.parametrize("missing", ["repository", "file"])
def test_one_separator_alone_makes_no_repository_pattern(missing: str) -> None:
    ids: dict[str, Any] = {"prefix": 1, "suffix": 2, "middle": 3, "repository": 4, "file": 5}
    fim = FimTokens(**{**ids, missing: None})
    assert build(gap("x", "y"), fim) == "<PRE>x<SUF>y<MID>"


def test_the_text_nearest_to_the_gap_stays() -> None:
    room = Room(n_ctx=100, n_batch=23, n_predict=0)  # 20 around the gap
    text = build(gap("0123456789" * 3, "abcdefghij" * 3), room=room)
    assert text == "<PRE>567890123456789<SUF>abcde<MID>"


def test_the_snippets_get_the_rest() -> None:
    room = Room(n_ctx=61, n_batch=1000, n_predict=20)  # 40 for the prompt
    text = build(gap("x" * 10, "y" * 10, snippets=(("", "0123456789" * 5),)), room=room)
    assert text == "34567890123456789"[-17:] + "<PRE>" + "x" * 10 + "<SUF>" + "y" * 10 + "<MID>"


def test_room_is_left_to_generate() -> None:
    rooms = [Room(n_ctx=100, n_batch=100, n_predict=n).n_prompt for n in (-1, 0, 10, 50, 10_000)]
    assert rooms == [74, 99, 89, 49, 49]


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_sharing_wastes_nothing(n_room: int, n_prefix: int, n_suffix: int) -> None:
    prefix, suffix = share(n_room, n_prefix, n_suffix)
    assert 0 <= prefix <= n_prefix
    assert 0 <= suffix <= n_suffix
    assert prefix + suffix == min(n_room, n_prefix + n_suffix)
    assert suffix >= min(n_suffix, n_room // 4)
    assert prefix >= min(n_prefix, n_room - n_room // 4)


@given(
    prefix=st.text("ab", max_size=60),
    suffix=st.text("cd", max_size=60),
    middle=st.text("ef", max_size=10),
    snippets=st.lists(st.tuples(st.text("g", max_size=3), st.text("hi", max_size=40)), max_size=4),
    repository=st.booleans(),
    bos=st.sampled_from([None, BOS]),
    suffix_first=st.booleans(),
    n_ctx=st.integers(64, 300),
    n_batch=st.integers(1, 300),
    n_predict=st.integers(-1, 300),
)
def test_every_prompt_fits_and_is_made_of_the_right_ends(
    prefix: str,
    suffix: str,
    middle: str,
    snippets: list[tuple[str, str]],
    repository: bool,
    bos: int | None,
    suffix_first: bool,
    n_ctx: int,
    n_batch: int,
    n_predict: int,
) -> None:
    fim = REPO if repository else PLAIN
    room = Room(n_ctx=n_ctx, n_batch=n_batch, n_predict=n_predict)
    the_gap = gap(prefix, suffix, middle, tuple(snippets))
    tokens = gap_tokens(the_gap, fim, encode, room, bos=bos, suffix_first=suffix_first)
    frame = gap_tokens(
        gap("", "", middle), fim, encode, Room(n_ctx=9999, n_batch=9999, n_predict=0),
        bos=bos, suffix_first=suffix_first,
    )  # fmt: skip
    assert len(tokens) <= max(room.n_prompt, len(frame))
    text = decode(tokens)
    assert all(text.count(mark) == 1 for mark in ("<PRE>", "<SUF>", "<MID>"))
    first, second = ("<SUF>", "<PRE>") if suffix_first else ("<PRE>", "<SUF>")
    assert f"<BOS>{first}" in text if bos is not None else "<BOS>" not in text

    head, _, end = text.rpartition("<MID>")
    assert not end
    context, _, around = head.partition(first)
    kept = dict(zip((first, second), around.split(second), strict=True))
    assert kept["<PRE>"].endswith(middle)
    kept["<PRE>"] = kept["<PRE>"].removesuffix(middle)
    assert prefix.endswith(kept["<PRE>"])
    assert suffix.startswith(kept["<SUF>"])
    n_kept = len(kept["<PRE>"]) + len(kept["<SUF>"])
    n_room = max(0, min(n_batch, room.n_prompt) - len(frame))
    assert n_kept == min(n_room, len(prefix) + len(suffix))

    everything = build(gap("", "", "", tuple(snippets)), fim).partition("<PRE>")[0]
    context = context.removesuffix("<BOS>")
    if repository:
        opening, closing = f"<REP>{REPOSITORY}\n", f"<SEP>{FILE}\n"
        assert context.startswith(opening)
        assert context.endswith(closing)
        context = context[len(opening) : len(context) - len(closing)]
        everything = everything[len(opening) : len(everything) - len(closing)]
    assert everything.endswith(context)
    assert context == everything or len(tokens) >= room.n_prompt
