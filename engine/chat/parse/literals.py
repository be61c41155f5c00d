"""Translates literals, as programming languages have them, to JSON while their text arrives.

Python's literals, JSON, and everything between them: texts in single quotes, in double ones or in
quotes of the model's own, keys with or without quotes, True and true.
"""

import json
import re
import sys

from specllama.engine.chat.parse.json_stream import JsonError, Sink, read_escape
from specllama.engine.chat.parse.reader import Reader, Step

_MAX_DEPTH = 64
_WORD = re.compile(r"[^\s,:\"'()\[\]{}<>=]*")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NAMED = {"True": "true", "False": "false", "None": "null"}
_JSON_WORDS = frozenset({"true", "false", "null"})
_CODES = {"x": 2, "U": 8}  # digits of the numbers that Python writes, and JSON doesn't
_HEX = re.compile(r"[0-9a-fA-F]+")
_ESCAPED = "\\\"'/bfnrtu"
_CLOSERS = {"[": "]", "(": ")", "{": "}"}


def copy_literal(reader: Reader, out: Sink, quote: str, depth: int = 0) -> Step[None]:
    """Copy the next value to `out` as JSON. `quote` is one of texts beside the usual ones; without
    it, words have to be in quotes.

    Raises JsonError for anything that is no value, and for one that doesn't end.
    """
    if depth > _MAX_DEPTH:
        raise JsonError
    if (yield from _copied_text(reader, out, quote)):
        return
    opening = yield from reader.peek()
    if opening and opening in _CLOSERS:
        reader.take(1)
        yield from _copy_items(reader, out, quote, opening, depth)
        return
    word = yield from reader.run(_WORD)
    if not word or reader.cut_off:
        raise JsonError
    named = _NAMED.get(word, word)
    is_json = named in _JSON_WORDS or _NUMBER.fullmatch(named)
    if not (is_json or quote):
        raise JsonError
    out(named if is_json else json.dumps(word, ensure_ascii=False))


def literal_as_json(text: str) -> str | None:
    """The JSON of a whole literal, if `text` is one."""
    reader, pieces = Reader(), list[str]()
    reader.push(text.strip())
    reader.end()
    try:
        for _ in copy_literal(reader, pieces.append, ""):
            pass
    except JsonError:
        return None
    return None if reader.rest() else "".join(pieces)


def _copy_items(reader: Reader, out: Sink, quote: str, opening: str, depth: int) -> Step[None]:
    """The rest of a list, a tuple or an object."""
    is_object, closing = opening == "{", _CLOSERS[opening]
    out("{" if is_object else "[")
    count = 0
    while True:
        yield from reader.space()
        if (yield from reader.accept(closing)):
            break
        if count:
            if not (yield from reader.accept(",")):
                raise JsonError
            yield from reader.space()
            if (yield from reader.accept(closing)):
                break
            out(", ")
        count += 1
        if is_object:
            if not (yield from _copied_text(reader, out, quote)):
                key = yield from reader.run(_WORD)
                out(json.dumps(key, ensure_ascii=False))
            if not (yield from reader.accept_spaced(":")):
                raise JsonError
            out(": ")
            yield from reader.space()
        yield from copy_literal(reader, out, quote, depth + 1)
    out("}" if is_object else "]")


def _copied_text(reader: Reader, out: Sink, quote: str) -> Step[bool]:
    """Copy a text in quotes, if there is one."""

    def escaped(text: str) -> None:
        out(json.dumps(text, ensure_ascii=False)[1:-1])

    if len(quote) > 1 and (yield from reader.accept(quote)):
        out('"')
        space, marker = yield from reader.until((quote,), escaped)
        escaped(space)
        if not marker:
            raise JsonError
        out('"')
        return True
    first = yield from reader.peek()
    if first not in ("'", '"'):
        return False
    reader.take(1)
    out('"')
    plain = re.compile(rf"[^\\{first}]*")
    while True:
        escaped(reader.take_while(plain))
        next = yield from reader.peek()
        if next == first:
            if (yield from _is_last(reader)):
                break
            escaped(reader.take(1))
        elif next == "\\":
            escaped((yield from _escape(reader)))
        elif not next:
            raise JsonError
    out('"')
    return True


def _is_last(reader: Reader) -> Step[bool]:
    """Take a quote if it ends its text: what follows can stand behind a value. Some models and
    templates don't escape the quotes in texts."""
    place = reader.mark()
    reader.take(1)
    yield from reader.space()
    next = yield from reader.peek()
    is_last = not next or next in ",:)]}<"
    reader.rewind(place)
    if is_last:
        reader.take(1)
    return is_last


def _escape(reader: Reader) -> Step[str]:
    pair = yield from reader.peek(2)
    if len(pair) < 2:
        raise JsonError
    if pair[1] in _CODES:
        size = _CODES[pair[1]]
        code = (yield from reader.peek(2 + size))[2:]
        if len(code) == size and _HEX.fullmatch(code) and int(code, 16) <= sys.maxunicode:
            reader.take(2 + size)
            return chr(int(code, 16)).encode(errors="replace").decode()
    # A backslash before anything else stands for itself.
    return (yield from read_escape(reader)) if pair[1] in _ESCAPED else reader.take(1)
