"""Answers for property tests of parsers, and a parser's result for a text."""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from hypothesis import strategies as st

from specllama.engine.chat import harmony_markers
from specllama.engine.chat.output import ChatMessage, ToolCall
from specllama.engine.chat.parse.call_shape import shape_of
from specllama.engine.chat.parse.parser import answer_parser
from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.chat.syntax import OutputSyntax

TYPES: dict[str, Any] = {
    "text": {"type": "string"},
    "count": {"type": "integer"},
    "ratio": {"type": "number"},
    "flag": {"type": "boolean"},
    "items": {"type": "array"},
    "object": {"type": "object"},
    "nothing": {"type": "null"},
    "maybe": {"type": ["string", "null"]},
    "choice": {"enum": ["1", "two"]},
    "any": {},
}
TOOLS: dict[str, Any] = {
    name: {"type": "object", "properties": TYPES}
    for name in ("get_weather", "find-hotel", "f", "a.b")
}


def parse(
    syntax: OutputSyntax,
    pieces: Iterable[str],
    *,
    reasoning: ReasoningFormat = "auto",
    thinking: bool = False,
    tools: Any = TOOLS,
    prompt: str = "",
    continued: bool = False,
    cut_off: bool = False,
) -> ChatMessage:
    parser = answer_parser(
        syntax,
        reasoning=reasoning,
        thinking=thinking,
        tools=tools,
        prompt=prompt,
        continued=continued,
    )
    message = ChatMessage(calls=[])
    for piece in pieces:
        for delta in parser.feed(piece):
            message.add(delta)
    for delta in parser.finish(cut_off=cut_off):
        message.add(delta)
    return message


def said(message: ChatMessage) -> tuple[str, str, list[tuple[str, str]]]:
    return (
        message.content,
        message.reasoning,
        [(call.name, call.arguments) for call in message.calls],
    )


def tokens(syntax: OutputSyntax) -> set[str]:
    """Returns all markers that a text must not contain if parsing has to return it."""
    if syntax.harmony:
        return {*harmony_markers.MARKERS, harmony_markers.RETURN}
    found = {syntax.content.begin, syntax.content.end}
    if syntax.reasoning:
        found |= {syntax.reasoning.begin, syntax.reasoning.end}
    shape = shape_of(syntax.calls) if syntax.calls else None
    if shape and syntax.calls:
        found |= {*shape.openings, shape.end.marker, shape.after_arguments}
        if tagged := syntax.calls.tagged:
            found |= {text.split()[0] for text in (tagged.begin, tagged.middle, tagged.end)}
    return {text.strip() for text in found} - {"", ">", '">'}


_ALPHABET = st.one_of(
    st.sampled_from('<>{}[]",:\\/|`\n ='),
    st.characters(codec="utf-8", exclude_characters="｜▁"),
)


@lru_cache
def texts(syntax: OutputSyntax) -> st.SearchStrategy[str]:
    """Generates texts without white space at their ends, and without a marker or its beginning."""
    markers = tokens(syntax)
    pieces = [marker[:size] for marker in sorted(markers) for size in range(1, len(marker))]
    looks = st.sampled_from(pieces or ["<"])
    words = st.one_of(st.text(_ALPHABET, max_size=8), looks)

    def plain(text: str) -> bool:
        return not any((text + marker).find(marker) < len(text) for marker in markers)

    return st.lists(words, max_size=6).map("".join).map(str.strip).filter(plain)


def values(text: st.SearchStrategy[str]) -> st.SearchStrategy[Any]:
    numbers = st.integers(-(10**20), 10**20)
    scalars = st.one_of(st.none(), st.booleans(), numbers, text)
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
        max_leaves=6,
    )


@st.composite
def calls(draw: st.DrawFn, syntax: OutputSyntax, index: int) -> ToolCall:
    text = texts(syntax)
    anything = values(text)
    by_key: dict[str, st.SearchStrategy[Any]] = {
        "text": text | st.sampled_from(["123", "null", '"quoted"', "{}"]),
        "count": st.integers(),
        "ratio": st.floats(allow_nan=False, allow_infinity=False),
        "flag": st.booleans(),
        "items": st.lists(anything, max_size=3),
        "object": st.dictionaries(text, anything, max_size=3),
        "nothing": st.none(),
        "choice": st.sampled_from(["1", "two"]),
    }
    arguments = draw(st.fixed_dictionaries({}, optional=by_key))
    names = [name for name in TOOLS if not (syntax.harmony and "." in name)]
    return ToolCall(
        draw(st.text("abcXYZ019", min_size=1, max_size=9)) + str(index),
        draw(st.sampled_from(names)),
        json.dumps(arguments, ensure_ascii=False),
    )


@st.composite
def messages(draw: st.DrawFn, syntax: OutputSyntax) -> ChatMessage:
    """Generates any message that `syntax` can express."""
    text = texts(syntax)
    message = ChatMessage(content=draw(text), calls=[])
    if syntax.reasoning or syntax.harmony:
        message.reasoning = draw(text)
    if syntax.calls or syntax.harmony:
        most = 3 if syntax.harmony or (syntax.calls and syntax.calls.parallel) else 1
        count = draw(st.integers(0, most))
        message.calls = [draw(calls(syntax, index)) for index in range(count)]
    shape = shape_of(syntax.calls) if syntax.calls else None
    if message.calls and shape and not shape.openings:
        message.content = ""  # such calls have no text next to them
    return message


@st.composite
def pieces(draw: st.DrawFn, text: str) -> list[str]:
    if draw(st.booleans()):
        return list(text)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
