"""Parses arguments between tags into the text of a JSON object."""

import json
from collections.abc import Callable

from engine.chat.parse.argument_types import ANY, STRING_ONLY, as_json
from engine.chat.parse.call_shape import Tokens, split, tokens_of
from engine.chat.parse.json_stream import JsonError, Sink, copy_value
from engine.chat.parse.reader import Reader, Step
from engine.chat.syntax import TaggedArguments


def tagged_arguments(
    reader: Reader, tagged: TaggedArguments, types: Callable[[str], frozenset[str]], out: Sink
) -> Step[None]:
    """Copy the arguments to `out`, as long as there are any.

    `types(key)` are the JSON types that a key may have. What can only be a string is copied while
    it comes, everything else when it is complete: only then is it certain whether it is JSON.

    Raises JsonError if an argument, or all of them, don't end.
    """
    begin, middle, end = map(tokens_of, (tagged.begin, tagged.middle, tagged.end))
    separator = split(tagged.separator)
    before = "{"
    while (yield from reader.accept_all(begin.tokens)):
        pieces: list[str] = []
        _, marker = yield from reader.until(middle.tokens[:1], pieces.append)
        if not marker:
            raise JsonError
        yield from reader.accept_all(middle.tokens[1:])
        if reader.cut_off:
            raise JsonError
        key = "".join(pieces).strip()
        out(before + json.dumps(key, ensure_ascii=False) + ": ")
        before = ", "
        if tagged.json_strings:
            yield from _json(reader, end, out)
        else:
            yield from reader.accept(middle.trailing)
            allowed = types(key)
            if allowed == STRING_ONLY:
                yield from _string(reader, end, out)
            else:
                yield from _value(reader, end, allowed, out)
        yield from reader.accept_all(end.tokens[1:])
        for token in separator:
            yield from reader.accept_spaced(token)
    if reader.cut_off:
        raise JsonError  # there might have been more
    out("{}" if before == "{" else "}")


def _string(reader: Reader, end: Tokens, out: Sink) -> Step[None]:
    """A text as it is to a JSON string."""

    def escaped(text: str) -> None:
        out(json.dumps(text, ensure_ascii=False)[1:-1])

    out('"')
    space, marker = yield from reader.until(end.tokens[:1], escaped)
    escaped(space.removesuffix(end.leading))
    if not marker:
        raise JsonError
    out('"')


def _value(reader: Reader, end: Tokens, types: frozenset[str], out: Sink) -> Step[None]:
    """A text as it is, or JSON."""
    pieces: list[str] = []
    space, marker = yield from reader.until(end.tokens[:1], pieces.append)
    if not marker:
        raise JsonError
    out(as_json("".join(pieces) + space.removesuffix(end.leading), types))


def _json(reader: Reader, end: Tokens, out: Sink) -> Step[None]:
    """JSON; what it isn't, is a text."""
    yield from reader.space()
    if (yield from reader.peek()) != '"':
        yield from _value(reader, end, ANY, out)
        return
    yield from copy_value(reader, out, strict=False)
    _, marker = yield from reader.until(end.tokens[:1], lambda _: None)
    if not marker:
        raise JsonError
