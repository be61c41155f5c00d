"""Checks a detected syntax: reads calls by it from a rendered answer."""

import json
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

_decoder = json.JSONDecoder()


def objects_in(text: str) -> Iterator[tuple[int, int, Any]]:
    """(start, end, value) of every JSON object in `text`, outer ones before those in them."""
    start = text.find("{")
    while start >= 0:
        decoded = _decode(text, start)
        if decoded is not None:
            yield start, decoded[1], decoded[0]
        start = text.find("{", start + 1)


def same(a: Any, b: Any) -> bool:
    """Equal as JSON: True is not 1."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


def end_of_calls(
    syntax: CallSyntax, text: str, calls: Sequence[Call], style: Style, start: int = 0
) -> int | None:
    """The end of `calls` in `text` if they stand at `start` just as `syntax` says, else None."""
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
    return at if end is None else end  # some templates forget it where there is one call


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
    """As the parser reads them: what is written in many ways isn't compared letter by letter."""
    reader, pieces = Reader(), list[str]()
    reader.push(text[at:])
    reader.end()
    try:
        for _ in tagged_arguments(reader, tagged, schema_of(call.arguments), pieces.append):
            pass
    except JsonError:
        return None
    # Some templates leave null out.
    expected = {key: value for key, value in call.arguments.items() if value is not None}
    found = json.loads("".join(pieces))
    given = {key: value for key, value in found.items() if value is not None}
    return at + reader.position if same(given, expected) else None


def _after_value(value: Any, end: str, text: str, at: int) -> int | None:
    decoded = _decode(text, at)
    if decoded is not None and same(decoded[0], value):
        return _after(end, text, decoded[1])
    # Python's own spelling is a habit of some templates, not of the models trained with them.
    return None if isinstance(value, str) else _after(str(value) + end, text, at)


def _decode(text: str, at: int) -> tuple[Any, int] | None:
    try:
        return _decoder.raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
