"""Parses arguments between tags into the text of a JSON object."""

import json
from typing import Any

from specllama.engine.chat.parse.argument_types import (
    ANY,
    STRING_ONLY,
    argument_types,
    as_json,
    copy_literal,
    inner_schema,
)
from specllama.engine.chat.parse.call_shape import MarkerTokens, split, tokens_of
from specllama.engine.chat.parse.json_stream import JsonError, Sink, copy_value
from specllama.engine.chat.parse.reader import Reader, Step
from specllama.engine.chat.syntax import BARE_KEY, KEY, TaggedArguments

_MAX_DEPTH = 64


def tagged_arguments(
    reader: Reader, tagged: TaggedArguments, parameters: Any, out: Sink
) -> Step[None]:
    """Copies the arguments to `out`, until there are no more.

    `parameters` is the schema of the arguments, or None. Arguments that can only be strings are
    copied while they arrive. Others are copied when they are complete, as only then it is certain
    whether they are JSON.

    Raises JsonError if the text ends before the arguments do.
    """
    arguments = _Arguments(reader, tagged)
    before = "{"
    while (key := (yield from arguments.key())) is not None:
        out(before + json.dumps(key, ensure_ascii=False) + ": ")
        before = ", "
        yield from arguments.value(key, parameters, out)
    if reader.cut_off:
        raise JsonError  # more arguments may be missing
    out("{}" if before == "{" else "}")


class _Arguments:
    def __init__(self, reader: Reader, tagged: TaggedArguments) -> None:
        self._reader = reader
        self._tagged = tagged
        self._begin, self._middle = tokens_of(tagged.begin), tokens_of(tagged.middle)
        self._others = tuple(dict.fromkeys(tokens_of(text) for _, text in tagged.middles))
        self._end = tokens_of(tagged.end)
        self._separator = split(tagged.separator)

    def key(self) -> Step[str | None]:
        """Returns the next key, if there is one, and takes the text after it up to the place that
        shows the type of the value."""
        reader, middle = self._reader, self._middle
        if not self._begin.tokens:
            place = reader.mark()
            yield from reader.space()
            key = yield from reader.run(BARE_KEY)
            if not key or not (yield from reader.accept_all(middle.tokens)):
                reader.rewind(place)
                return None
            reader.release()
            return key
        if not (yield from self._opened()):
            return None
        pieces: list[str] = []
        _, marker = yield from reader.until(middle.tokens[:1], pieces.append)
        if not marker:
            raise JsonError
        return "".join(pieces).strip()

    def value(self, key: str, parameters: Any, out: Sink) -> Step[None]:
        """Copies the value at the reader's position, and takes the text that ends it."""
        reader, tagged = self._reader, self._tagged
        end = self._end_of(key)
        is_other = yield from self._is_other()
        if reader.cut_off:
            raise JsonError
        if tagged.quote:
            yield from reader.space()
            yield from copy_literal(reader, out, tagged.quote)
            yield from reader.accept_all(end.tokens)
        else:
            if tagged.json_strings:
                yield from _json(reader, end, out)
            else:
                yield from reader.accept(self._middle.trailing)
                types = argument_types(parameters, key)
                if tagged.middles:
                    types = ANY if is_other else STRING_ONLY
                if types == STRING_ONLY:
                    yield from self._string(end, out)
                elif tagged.item:
                    yield from self._element(key, parameters, end, out)
                else:
                    yield from self._any(end, types, out)
            yield from reader.accept_all(end.tokens[1:])
        for token in self._separator:
            yield from reader.accept_spaced(token)

    def _is_other(self) -> Step[bool]:
        """Takes the rest of the text between key and value. Returns whether this text announces a
        value other than a text."""
        reader = self._reader
        if (yield from reader.accept_all(self._middle.tokens[1:])):
            return False
        for other in self._others:
            if (yield from reader.accept_all(other.tokens[1:])):
                return True
        return False

    def _end_of(self, key: str) -> MarkerTokens:
        return tokens_of(self._tagged.after(key)) if KEY in self._tagged.end else self._end

    def _opened(self) -> Step[bool]:
        """Takes the tag that begins an argument."""
        reader = self._reader
        if KEY not in self._tagged.end:
            return (yield from reader.accept_all(self._begin.tokens))
        place = reader.mark()
        # If the key is the tag, the end of an argument begins like a tag, too.
        found = yield from reader.accept_all(self._begin.tokens)
        if found and (yield from reader.peek()) != "/":
            reader.release()
            return True
        reader.rewind(place)
        return False

    # ---- values between tags ---------------------------------------------------------------

    def _string(self, end: MarkerTokens, out: Sink) -> Step[None]:
        """Copies plain text as a JSON string."""
        reader, wrapper = self._reader, self._tagged.wrapper

        def escaped(text: str) -> None:
            out(json.dumps(text, ensure_ascii=False)[1:-1])

        out('"')
        if wrapper.begin and (yield from reader.accept(wrapper.begin)):
            space, marker = yield from reader.until((wrapper.end,), escaped)
            escaped(space)
            _, marker = yield from reader.until(end.tokens[:1], lambda _: None)
        else:
            space, marker = yield from reader.until(end.tokens[:1], escaped)
            escaped(space.removesuffix(end.leading))
        if not marker:
            raise JsonError
        out('"')

    def _any(self, end: MarkerTokens, types: frozenset[str], out: Sink) -> Step[None]:
        """Copies plain text as a JSON string, or JSON."""
        reader, wrapper = self._reader, self._tagged.wrapper
        if wrapper.begin and (yield from _is_next(reader, wrapper.begin)):
            yield from self._string(end, out)
            return
        yield from _value(reader, end, types, out)

    def _element(
        self, key: str, parameters: Any, end: MarkerTokens, out: Sink, depth: int = 0
    ) -> Step[None]:
        """Copies a value that may consist of elements, and takes the first token of its end."""
        schema, types = inner_schema(parameters, key), argument_types(parameters, key)
        if depth > _MAX_DEPTH:
            raise JsonError
        names: list[str] = []
        values: list[str] = []
        while (name := (yield from self.key())) is not None:
            yield from self._is_other()
            pieces: list[str] = []
            inner_end = self._end_of(name)
            yield from self._element(name, schema, inner_end, pieces.append, depth + 1)
            yield from self._reader.accept_all(inner_end.tokens[1:])
            names.append(name)
            values.append("".join(pieces))
        if not names:
            yield from _value(self._reader, end, types, out)
            return
        _, marker = yield from self._reader.until(end.tokens[:1], lambda _: None)
        if not marker:
            raise JsonError
        if set(names) == {self._tagged.item}:
            out(f"[{', '.join(values)}]")
        else:
            keys = (json.dumps(name, ensure_ascii=False) for name in names)
            members = (f"{key}: {value}" for key, value in zip(keys, values, strict=True))
            out(f"{{{', '.join(members)}}}")


def _value(reader: Reader, end: MarkerTokens, types: frozenset[str], out: Sink) -> Step[None]:
    """Copies plain text as a JSON string, or JSON."""
    pieces: list[str] = []
    space, marker = yield from reader.until(end.tokens[:1], pieces.append)
    if not marker:
        raise JsonError
    out(as_json("".join(pieces) + space.removesuffix(end.leading), types))


def _is_next(reader: Reader, text: str) -> Step[bool]:
    place = reader.mark()
    found = yield from reader.accept(text)
    reader.rewind(place)
    return found


def _json(reader: Reader, end: MarkerTokens, out: Sink) -> Step[None]:
    """Copies JSON; other text becomes a JSON string."""
    yield from reader.space()
    if (yield from reader.peek()) != '"':
        yield from _value(reader, end, ANY, out)
        return
    yield from copy_value(reader, out, strict=False)
    _, marker = yield from reader.until(end.tokens[:1], lambda _: None)
    if not marker:
        raise JsonError
