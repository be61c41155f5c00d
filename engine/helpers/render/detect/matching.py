"""Verifies a detected syntax: reads calls from a rendered answer."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from specllama.engine.chat.parse.json_stream import JsonError
from specllama.engine.chat.parse.reader import Reader
from specllama.engine.chat.parse.tagged_parser import tagged_arguments
from specllama.engine.chat.syntax import CallSyntax, TaggedArguments
from specllama.engine.helpers.render.detect.probing import (
    Call,
    Style,
    call_id,
    json_type,
    schema_of,
)

# ---- Compares texts without splitting the markers in them.
#
# A marker is a tag in angle brackets (also an incomplete one, such as `<function=`) or a word
# in capitals in square brackets. Words aren't split either.


TAG = re.compile(r"<[^<>{}]*>|\[/?[A-Z][A-Z_ ]*\]")
_UNIT = re.compile(
    r"[\]\[][\]\[<>]+\w+[\]\[<>]{2,}(?:/?[^<>{}]*(?:>|$))?"  # a name in brackets before a tag
    r"|<[^<>{}]*(?:>|$)|\[/?[A-Z][A-Z_ ]*\]|\w+"
)
_OPPOSITES = tuple(
    (change(begin), change(end))
    for begin, end in (("start", "end"), ("begin", "end"), ("open", "close"))
    for change in (str.lower, str.upper, str.capitalize)
)


def common_prefix(first: str, *others: str) -> str:
    """Returns the longest common prefix of all texts that ends with a complete marker or word."""
    size = len(first)
    for other in others:
        pairs = zip(first[:size], other, strict=False)
        size = next((i for i, (a, b) in enumerate(pairs) if a != b), min(size, len(other)))
    cut = size
    for text in (first, *others):
        cut = min(cut, _around(text, size)[0])
    return first[:size] if cut == size else common_prefix(first[:cut], *others)


def common_suffix(first: str, second: str) -> str:
    """Returns the longest common suffix of both texts that begins with a complete marker or
    word."""
    size = 0
    while size < min(len(first), len(second)) and first[-1 - size] == second[-1 - size]:
        size += 1
    while True:
        cuts = [len(text) - _around(text, len(text) - size)[1] for text in (first, second)]
        if min(cuts) == size:
            return first[len(first) - size :]
        size = min(cuts)


def inside(text: str, position: int) -> bool:
    """Returns whether a cut at `position` would split a marker or a word of `text`."""
    return _around(text, position) != (position, position)


def closings(tag: str) -> list[str]:
    """Returns the markers that may close `tag`, by the conventions of markup."""
    brackets = re.match(r"<\||<\uff5c|<|\[", tag)
    found = [f"{tag[: brackets.end()]}/{tag[brackets.end() :]}"] if brackets else []
    if tag.startswith("<|"):
        found.append(f"</{tag[1:]}")
        if not tag.endswith("|>"):
            found.append(f"<{tag[2:-1]}|>")
    return found + [tag.replace(begin, end) for begin, end in _OPPOSITES if begin in tag]


def openings(tag: str) -> list[str]:
    """Returns the markers that `tag` may close."""
    found = [tag.replace("/", "", 1)] if "/" in tag[:3] else []
    return found + [tag.replace(end, begin) for begin, end in _OPPOSITES if end in tag]


def tags(text: str) -> list[str]:
    """Returns the closed markers in `text`, in order."""
    return TAG.findall(text)


def _around(text: str, position: int) -> tuple[int, int]:
    for unit in _UNIT.finditer(text):
        if unit.start() < position < unit.end():
            return unit.start(), unit.end()
        if unit.start() >= position:
            break
    return position, position


_decoder = json.JSONDecoder()


def objects_in(text: str) -> Iterator[tuple[int, int, Any]]:
    """Yields (start, end, value) of every JSON object in `text`, outer ones before inner ones."""
    start = text.find("{")
    while start >= 0:
        decoded = _decode(text, start)
        if decoded is not None:
            yield start, decoded[1], decoded[0]
        start = text.find("{", start + 1)


def same(a: Any, b: Any) -> bool:
    """Returns whether the values are equal as JSON, where True is not 1."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def end_of_calls(
    syntax: CallSyntax, text: str, calls: Sequence[Call], style: Style, start: int = 0
) -> int | None:
    """Returns the end of `calls` in `text` if they are at `start` as `syntax` describes, else
    None."""
    at: int | None = _after(syntax.begin, text, start)
    for index, call in enumerate(calls):
        if index and at is not None:
            at = _after(syntax.separator, text, at)
        for part in syntax.parts:
            if at is None:
                return None
            if isinstance(part, str):
                at = _after(part, text, at)
            elif part.hole == "arguments":
                at = _after_arguments(syntax.tagged, text, at, call)
            else:
                fills = {
                    "name": call.name,
                    "id": call_id(call, index, style),
                    "index": str(index + syntax.first_index),
                }
                at = _after(fills[part.hole], text, at)
    if at is None:
        return None
    end = _after(syntax.end, text, at)
    return at if end is None else end  # some templates omit the end after a single call


def _after(wanted: str, text: str, at: int) -> int | None:
    return at + len(wanted) if text.startswith(wanted, at) else None


def _after_arguments(tagged: TaggedArguments | None, text: str, at: int, call: Call) -> int | None:
    if tagged is None:
        decoded = _decode(text, at)
        return decoded[1] if decoded and same(decoded[0], call.arguments) else None
    if tagged.quote or tagged.item or tagged.wrapper.begin:
        return _after_read_arguments(tagged, text, at, call)
    found: int | None = at
    for number, (key, value) in enumerate(call.arguments.items()):
        if number and found is not None:
            found = _after(tagged.separator, text, found)
        if found is not None:
            found = _after(tagged.begin + key + tagged.before(json_type(value)), text, found)
        if found is None:
            return None
        if isinstance(value, str) and not tagged.json_strings:
            found = _after(value + tagged.after(key), text, found)
        else:
            found = _after_value(value, tagged.after(key), text, found)
    return found


def _after_read_arguments(tagged: TaggedArguments, text: str, at: int, call: Call) -> int | None:
    """Returns the end of the arguments if the parser reads them as the arguments of `call`, else
    None. Parsing them is necessary, as they can be written in several ways."""
    reader, pieces = Reader(), list[str]()
    reader.push(text[at:])
    reader.end()
    try:
        for _ in tagged_arguments(reader, tagged, schema_of(call.arguments), pieces.append):
            pass
    except JsonError:
        return None
    # Some templates omit null.
    expected = {key: value for key, value in call.arguments.items() if value is not None}
    found = json.loads("".join(pieces))
    given = {key: value for key, value in found.items() if value is not None}
    return at + reader.position if same(given, expected) else None


def _after_value(value: Any, end: str, text: str, at: int) -> int | None:
    decoded = _decode(text, at)
    if decoded is not None and same(decoded[0], value):
        return _after(end, text, decoded[1])
    # Some templates use Python's spelling, but the models trained with them don't.
    return None if isinstance(value, str) else _after(str(value) + end, text, at)


def _decode(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
