"""Which tokens the content of an answer is made of."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.chat.output import ChatDelta, Content
from specllama.engine.chat.parse.parser import answer_parser
from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.chat.syntax import OutputSyntax, Wrapper
from specllama.engine.wire.replies import TokenProbs
from specllama.handlers.running.content_tokens import ContentTokens

THINKING = OutputSyntax(Wrapper("<think>\n", "\n</think>\n\n"))


def content_of(
    pieces: list[bytes],
    syntax: OutputSyntax = THINKING,
    *,
    reasoning: ReasoningFormat = "auto",
    late: int = 0,
    text: str | None = None,
) -> tuple[str, list[bytes]]:
    """The content, and the pieces of its tokens. With `late`, the text comes as many tokens
    after its own; without, all comes at once."""
    parser = answer_parser(syntax, reasoning=reasoning, thinking=False, tools=None)
    tokens, deltas, found = ContentTokens(), list[ChatDelta](), list[bytes]()
    whole = b"".join(pieces).decode(errors="replace") if text is None else text

    def read(text: str) -> None:
        for part in tokens.parts(text):
            events = parser.feed(part)
            found.extend(each.piece for each in tokens.said(events))
            deltas.extend(events)

    probs = [TokenProbs(index, piece, 0.0, []) for index, piece in enumerate(pieces)]
    if late:
        fed = 0
        for index, each in enumerate(probs):
            tokens.generated([each])
            end = len(b"".join(pieces[: max(index - late, 0)]).decode(errors="ignore"))
            read(whole[fed:end])
            fed = end
        read(whole[fed:])
    else:
        tokens.generated(probs)
        read(whole)
    events = parser.finish()
    found.extend(each.piece for each in tokens.said(events))
    text = "".join(each.text for each in [*deltas, *events] if isinstance(each, Content))
    return text, found


@pytest.mark.parametrize("late", [0, 1, 3])
def test_thoughts_and_markers_have_no_part(late: int) -> None:
    pieces = [
        b"<think>",
        b"\n",
        b"a",
        b" think",
        b"\n",
        b"</think>",
        b"\n\n",
        b"I",
        b" think",
        b"<",
    ]
    assert content_of(pieces, late=late) == ("I think<", [b"I", b" think", b"<"])
    pieces = [b"<think>\na\n</thi", b"nk>\n\nHi", b" you", b""]
    assert content_of(pieces, late=late) == ("Hi you", [b"nk>\n\nHi", b" you"])


def test_thoughts_that_stay_in_the_content_are_of_it() -> None:
    pieces = [b"<think>", b"\n", b"a", b"\n</think>\n\n", b"b"]
    assert content_of(pieces, reasoning="none")[1] == pieces
    text, found = content_of(pieces, OutputSyntax())
    assert (text.encode(), found) == (b"".join(pieces), pieces)


@pytest.mark.parametrize("late", [0, 1])
def test_a_character_in_several_tokens(late: int) -> None:
    pieces = [b"<think>\n", "ü".encode()[:1], "ü".encode()[1:], b"\n</think>\n\n"]
    pieces += ["ö".encode()[:1], "ö".encode()[1:], b"!"]
    assert content_of(pieces, late=late) == ("ö!", pieces[4:])


def test_text_after_a_stop_text_has_no_tokens() -> None:
    pieces = [b"a", b" b", b"STO", b"P", b"</s>"]
    assert content_of(pieces, text="a b") == ("a b", [b"a", b" b"])


@given(
    st.lists(st.sampled_from(["<think>\n", "\n</think>\n\n", "a", "think", " ", "\n", "é<"])),
    st.data(),
)
def test_the_tokens_hold_the_content(words: list[str], data: st.DataObject) -> None:
    raw = "".join(words).encode()
    cuts = data.draw(st.lists(st.integers(0, len(raw)), max_size=8).map(sorted))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    for late in (0, 1, 2):
        text, found = content_of(pieces, late=late)
        assert text in b"".join(found).decode(errors="replace")
