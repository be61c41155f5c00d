"""Copies or decodes JSON values (RFC 8259) while their text arrives."""

import re
from collections.abc import Callable

from specllama.engine.chat.parse.reader import Reader, Step

Sink = Callable[[str], None]

_IN_STRING = re.compile(r'[^"\\]*')
_STRUCTURE = re.compile(r'[^"{}\[\]]*')
_STRICT_STRUCTURE = re.compile(r"[\s\w.,:+-]*")
_SCALAR = re.compile(r"[\w.+-]*")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_HEX = re.compile(r"[0-9a-fA-F]{4}")


class JsonError(Exception):
    """The text is not JSON, or ends too early."""


def copy_value(reader: Reader, out: Sink, *, strict: bool, stop: str = "") -> Step[None]:
    """Copies the text of the next value to `out`; the reader must be at its first character.

    Only the structure that determines the value's end is checked. `strict` rejects characters that
    are invalid outside of strings; otherwise the value continues until its brackets close or,
    outside of strings, until the text `stop`, which is not taken.

    Raises JsonError for text that isn't a value, and for a value without an end.
    """
    first = yield from reader.peek()
    if first == '"':
        yield from _copy_string(reader, out)
        return
    if first not in ("{", "["):
        scalar = yield from reader.run(_SCALAR)
        if not scalar:
            raise JsonError
        out(scalar)
        return
    # `stop` may begin with any character, so that character has to end the runs, too.
    pattern = _STRICT_STRUCTURE if strict else _structure(stop[:1])
    depth = 0
    while True:
        text = reader.take_while(pattern)
        if text:
            out(text)
        next = yield from reader.peek()
        if next == '"':
            yield from _copy_string(reader, out)
        elif next in ("{", "["):
            depth += 1
            out(reader.take(1))
        elif next in ("}", "]"):
            depth -= 1
            out(reader.take(1))
            if not depth:
                return
        elif stop and next == stop[0] and not strict:
            if (yield from _is_next(reader, stop)):
                raise JsonError
            out(reader.take(1))
        elif not next or not pattern.fullmatch(next):
            raise JsonError


def decode_string(reader: Reader, out: Sink) -> Step[None]:
    """Copies the decoded text of the next string to `out`; the reader is at its first quote.

    Raises JsonError if it is not a string, or doesn't end.
    """
    if not (yield from reader.accept('"')):
        raise JsonError
    yield from _characters(reader, out, read_escape)
    reader.take(1)


def _copy_string(reader: Reader, out: Sink) -> Step[None]:
    out(reader.take(1))
    yield from _characters(reader, out, _written_escape)
    out(reader.take(1))


def _characters(reader: Reader, out: Sink, escape: Callable[[Reader], Step[str]]) -> Step[None]:
    """Copies the text between the quotes of a string, with escapes read by `escape`. The reader is
    after the first quote, and at the last quote in the end."""
    while True:
        text = reader.take_while(_IN_STRING)
        if text:
            out(text)
        next = yield from reader.peek()
        if next == '"':
            return
        if next == "\\":
            out((yield from escape(reader)))
        elif not next:
            raise JsonError


def _written_escape(reader: Reader) -> Step[str]:
    pair = yield from reader.peek(2)
    return reader.take(len(pair))


def read_escape(reader: Reader) -> Step[str]:
    """Returns the character of the escape at the reader's position."""
    pair = yield from reader.peek(2)
    if len(pair) < 2:
        raise JsonError
    if pair[1] != "u":
        reader.take(2)
        return _ESCAPES.get(pair[1], pair[1])
    code = yield from _code(reader, 0)
    if code is None:
        return reader.take(2)  # invalid escape, copied as it is
    if 0xD800 <= code < 0xDC00:
        low = yield from _code(reader, 6)
        if low is not None and 0xDC00 <= low < 0xE000:
            reader.take(12)
            return chr(0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00))
    reader.take(6)
    # Half of a surrogate pair is no character and can't be encoded.
    return "\ufffd" if 0xD800 <= code < 0xE000 else chr(code)


def _code(reader: Reader, offset: int) -> Step[int | None]:
    """Returns the number in the `\\uXXXX` after `offset` characters; None if there isn't one."""
    text = ""
    for length in range(1, 7):  # one by one, to wait only while it may still be an escape
        text = (yield from reader.peek(offset + length))[offset:]
        if len(text) < length or not "\\u"[:length].startswith(text[:2][:length]):
            return None
    return int(text[2:], 16) if _HEX.fullmatch(text[2:]) else None


def _is_next(reader: Reader, text: str) -> Step[bool]:
    place = reader.mark()
    found = yield from reader.accept(text)
    reader.rewind(place)
    return found


def _structure(stop: str) -> re.Pattern[str]:
    return re.compile(f'[^"{{}}\\[\\]{re.escape(stop)}]*') if stop else _STRUCTURE
