"""Texts tokenized in slices have the tokens that they have as a whole."""

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.backend import Model, initialize, slices
from specllama.engine.worker.backend.model import specials
from specllama.engine.worker.backend.slices import Slicer, Special
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tools.models.build import ensure

SPACE = b" \t\n\v\f\r"
FEW = st.text("<a|>/ \n", min_size=1, max_size=4).map(str.encode)
SPECIALS = st.lists(st.builds(Special, FEW, st.booleans(), st.booleans()), max_size=6)
PIECES = (
    "a",
    "word ",
    " ",
    "  \n",
    "é",
    "🦙",
    "<",
    "|>",
    "<|im",
    "im_end|>",
    "\ufffd",
    "1234",
    "\0",
)


def split(text: bytes, found: Sequence[Special], *, parse: bool) -> list[bytes | Special]:
    """llama.cpp's first step: one special token after the other takes its places in the rest of the
    text, together with the white space next to it if it strips."""
    parts: list[bytes | Special] = [text] if text else []
    for special in sorted(found, key=lambda each: -len(each.text)):
        if not (parse or special.plain):
            continue
        after: list[bytes | Special] = []
        for part in parts:
            if isinstance(part, Special):
                after.append(part)
                continue
            rest = part
            while special.text in rest:
                left, _, rest = rest.partition(special.text)
                if special.strips:
                    left, rest = left.rstrip(SPACE), rest.lstrip(SPACE)
                after += [left, special] if left else [special]
            after += [rest] if rest else []
        parts = after
    return parts


@pytest.fixture(autouse=True, scope="module")
def short_slices() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slices, "SLICE", 1)
        patch.setattr(slices, "WINDOW", 3)
        patch.setattr("specllama.engine.worker.backend.model.SLICE", 1)
        yield


@given(data=st.data(), found=SPECIALS, parse=st.booleans())
def test_the_special_tokens_of_slices_are_those_of_the_whole(
    data: st.DataObject, found: list[Special], parse: bool
) -> None:
    texts = [special.text for special in found]
    pieces = st.lists(FEW | st.sampled_from(texts or [b"a"]), max_size=20)
    text = b"".join(data.draw(pieces))
    cut = [*Slicer(found).slices(text, parse_special=parse)]
    assert b"".join(cut) == text
    parts = [part for each in cut for part in split(each, found, parse=parse)]
    assert parts == split(text, found, parse=parse)


def test_a_slice_begins_with_a_special_token_that_is_always_found() -> None:
    clear, plain = Special(b"<|a|>"), Special(b"<|b|>", plain=True)
    unclear = [Special(b"<s>", strips=True), Special(b"xx"), Special(b"<|a"), Special(b" y")]
    text = b"1<|b|>2 <s>3xx4<|b|>5 y6"
    assert [*Slicer([clear, plain, *unclear]).slices(text, parse_special=True)] == [
        b"1", b"<|b|>2 <s>3xx4", b"<|b|>5 y6",
    ]  # fmt: skip
    assert [*Slicer([clear]).slices(b"1<|a|>2", parse_special=True)] == [b"1", b"<|a|>2"]
    assert [*Slicer([clear]).slices(b"1<|a|>2", parse_special=False)] == [b"1<|a|>2"]
    assert [*Slicer([]).slices(text, parse_special=True)] == [text]


@pytest.fixture(scope="module", params=["shipped", "tiny-spm", "tiny-bert"])
def any_model(request: pytest.FixtureRequest) -> Iterator[Model]:
    name = request.param
    initialize()
    model = Model(str(random_model() if name == "shipped" else ensure(name)), engine_options())
    yield model
    model.close()


@given(data=st.data(), add=st.booleans(), parse=st.booleans())
def test_the_tokens_of_slices_are_those_of_the_whole(
    any_model: Model, data: st.DataObject, add: bool, parse: bool
) -> None:
    model = any_model
    texts = [each.text.decode() for each in specials(model._vocab, model.n_vocab)]
    pieces = st.lists(st.sampled_from([*PIECES, *texts[:50]]) | st.text(max_size=5), max_size=30)
    text = "".join(data.draw(pieces)).encode()
    sliced = model.tokenize(text, add_special=add, parse_special=parse).tolist()
    assert sliced == model._tokenize(text, add, parse).tolist()


def test_a_chat_of_the_shipped_model_is_sliced(model: Model) -> None:
    text = b"<|im_start|>user\nhello<|im_end|>\n" * 3
    assert len([*model._slicer.slices(text, parse_special=True)]) == 6
