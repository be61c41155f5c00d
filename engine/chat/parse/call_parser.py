"""Parses the calls of tools in an answer, given a `CallShape`.

If a text turns out not to be a call, the parser goes back and reads it again as content, until the
call has been announced with a `CallStart`. After the announcement there is no way back: the text of
a malformed call stays in its arguments.
"""

import re
import secrets
import string
from collections.abc import Callable, Collection, Mapping
from typing import Any

from specllama.engine.chat.output import CallArguments, CallStart, ChatDelta
from specllama.engine.chat.parse.argument_types import is_json
from specllama.engine.chat.parse.call_shape import ALIASES, CallShape, Envelope, Item, MarkerTokens
from specllama.engine.chat.parse.json_stream import JsonError, copy_value, decode_string
from specllama.engine.chat.parse.reader import Reader, Step
from specllama.engine.chat.parse.tagged_parser import tagged_arguments
from specllama.engine.chat.syntax import Fill, TaggedArguments

Emit = Callable[[ChatDelta], None]
Tools = Mapping[str, Any] | Collection[str]
"""Names of tools, with the schemas of their parameters if known."""

_NAME_LIMIT = 256
_NOT_IN_NAMES = "\\s\"'<>{}\\[\\](),\uff5c"
_ID = re.compile(r"[\w.:-]*")
_STRAY_BRACKETS = re.compile(r"[\s}\]]*")
_ALPHANUMERIC = string.ascii_letters + string.digits


def new_call_id() -> str:
    """Returns an id of letters and digits, as some templates reject other characters."""
    return "".join(secrets.choice(_ALPHANUMERIC) for _ in range(32))


class NotACallError(Exception):
    """The text doesn't continue like a call."""


class CallParser:
    def __init__(
        self, shape: CallShape, tagged: TaggedArguments | None, tools: Tools, emit: Emit
    ) -> None:
        self._shape = shape
        self._tagged = tagged
        self._tools = tools
        self._emit = emit
        self._count = 0
        self._ids: set[str] = set()
        self.calling = False
        """True within a call, up to the end of its arguments."""

    @property
    def markers(self) -> tuple[str, ...]:
        """The texts that begin calls."""
        return tuple(self._shape.openings)

    @property
    def bare(self) -> bool:
        """True if calls have no opening that distinguishes them from content."""
        return not self._shape.openings

    @property
    def end(self) -> str:
        """The marker that ends all calls, "" for none."""
        return self._shape.end.marker

    def calls(self, reader: Reader, opening: str = "") -> Step[bool]:
        """Reads the calls that begin with the marker `opening`, which has been taken. Returns
        False, without taking any more text, if there is no call. If the answer is cut off before
        that is decided, all text is taken."""
        shape = self._shape
        tokens = shape.openings[opening] if opening else shape.begin + shape.head
        found = yield from self._call(reader, tokens)
        if found:
            while (yield from self._next(reader)):
                pass
            yield from _closing(reader, shape.end)
        if reader.cut_off:
            reader.drop()  # the head of a call, or a part of the marker that ends one
        return found or reader.cut_off

    def _next(self, reader: Reader) -> Step[bool]:
        place = reader.mark()
        for token in self._shape.separator:
            yield from reader.accept_spaced(token)
        tokens = self._shape.head
        if isinstance(self._shape.items[0], Envelope) and (
            (yield from reader.accept_spaced(",")) or (yield from reader.accept_spaced(";"))
        ):
            # A list, whether the syntax has lists or not.
            yield from reader.accept_all(tokens)
            tokens = ()
        if (yield from self._call(reader, tokens)):
            reader.release()
            return True
        reader.rewind(place)
        return False

    def _call(self, reader: Reader, tokens: tuple[str, ...]) -> Step[bool]:
        call = _Call(
            self._count,
            self._emit,
            self._ids,
            wants_id=self._shape.has_id,
            names=self._tools if self.bare else None,
        )
        place = reader.mark()
        whole = True
        try:
            yield from _expect(reader, tokens)
            self.calling = True
            yield from self._items(reader, call)
            if not call.name or (self.bare and not call.has_arguments):
                raise NotACallError
        except (NotACallError, JsonError):
            whole = self.calling = False
            if not call.has_arguments or not call.name:
                reader.rewind(place)
                return False
        reader.release()
        self.calling = False
        call.finish(whole)
        self._count += 1
        if not whole:
            # The marker after the arguments may follow nevertheless.
            for item in self._shape.items:
                if isinstance(item, MarkerTokens) and item.marker == self._shape.after_arguments:
                    yield from _closing(reader, item)
        return True

    def _items(self, reader: Reader, call: "_Call") -> Step[None]:
        items = self._shape.items
        skip = closing = False
        for index, item in enumerate(items):
            following = items[index + 1] if index + 1 < len(items) else self._shape.end
            if skip:
                skip = False
            elif isinstance(item, Envelope):
                yield from reader.accept_spaced("[")
                yield from reader.space()
                yield from self._object(reader, call, item, ())
                closing = True
            elif isinstance(item, MarkerTokens):
                if closing:
                    yield from _closing(reader, item)
                elif not (yield from reader.accept_all(item.tokens)):
                    if following not in (Fill("id"), Fill("index")):
                        raise NotACallError
                    skip = True  # an optional id that the model omits
            elif item.hole == "arguments":
                yield from reader.space()
                if self._tagged:
                    call.begin_arguments()
                    parameters = self._parameters(call.name)
                    yield from tagged_arguments(reader, self._tagged, parameters, call.add)
                else:
                    yield from self._arguments(reader, call, following)
                self.calling = False
                closing = True
            else:
                yield from self._word(reader, call, item, following)

    def _word(self, reader: Reader, call: "_Call", fill: Fill, following: Item) -> Step[None]:
        yield from reader.space()
        if fill.hole == "name":
            stop = following.first[:1] if isinstance(following, MarkerTokens) else ""
            pattern = re.compile(f"[^{_NOT_IN_NAMES}{re.escape(stop)}]*")
            name = yield from reader.run(pattern, _NAME_LIMIT)
            if reader.cut_off:
                raise NotACallError  # the name may be incomplete
            call.set_name(name)
        else:
            text = yield from reader.run(_ID, _NAME_LIMIT)
            if fill.hole == "id":
                call.id = text
            elif self._shape.spelled_id and text:
                before, between = self._shape.spelled_id
                call.id = f"{before}{call.name}{between}{text}"

    def _object(
        self, reader: Reader, call: "_Call", envelope: Envelope, path: tuple[str, ...]
    ) -> Step[None]:
        """Reads the JSON object at `path` of an envelope, from its brace on."""
        if not (yield from reader.accept("{")):
            raise NotACallError
        if (yield from reader.accept_spaced("}")):
            return
        while True:
            yield from reader.space()
            here = (*path, (yield from _string(reader)))
            if not (yield from reader.accept_spaced(":")):
                raise NotACallError
            yield from reader.space()
            role = envelope.roles.get(here)
            if role is None and here[-1] in ALIASES:
                role = envelope.roles.get((*path, ALIASES[here[-1]]))
            elif role is None and self.bare and here not in envelope.paths:
                raise NotACallError  # JSON for the user
            first = yield from reader.peek()
            if role == "name":
                call.set_name((yield from _string(reader)))
            elif role == "arguments" and not call.has_arguments:
                yield from self._arguments(reader, call)
                self.calling = not call.announced  # its name may follow
            elif role == "id" and first == '"':
                call.id = yield from _string(reader)
            elif first == "{" and here in envelope.paths and here not in envelope.roles:
                yield from self._object(reader, call, envelope, here)
            else:
                value = yield from self._value(reader, call)
                if role == "id":
                    call.id = value
            if (yield from reader.accept_spaced("}")):
                return
            if not (yield from reader.accept_spaced(",")):
                raise NotACallError

    def _value(self, reader: Reader, call: "_Call") -> Step[str]:
        pieces: list[str] = []
        stop = self._shape.after_arguments
        yield from copy_value(reader, pieces.append, strict=not call.has_arguments, stop=stop)
        return "".join(pieces)

    def _arguments(
        self, reader: Reader, call: "_Call", following: Item | None = None
    ) -> Step[None]:
        """Reads a JSON object, or one in a JSON string, or nothing before `following`."""
        first = yield from reader.peek()
        if first == '"':
            call.begin_arguments()
            yield from decode_string(reader, call.add)
        elif first == "{":
            call.begin_arguments()
            stop = self._shape.after_arguments
            yield from copy_value(reader, call.add, strict=not call.announced, stop=stop)
        elif following is None and not self.bare:
            # Null means no arguments. Any other value is passed on, so that the tool can reject it.
            value = yield from self._value(reader, call)
            if not is_json(value):
                raise NotACallError
            call.begin_arguments()
            call.add("{}" if value == "null" else value)
        elif not isinstance(following, MarkerTokens) or not (
            yield from _is_next(reader, following.first)
        ):
            raise NotACallError

    def _parameters(self, name: str) -> Any:
        return self._tools.get(name) if isinstance(self._tools, Mapping) else None


class _Call:
    """A call while it is read. It is announced when its arguments begin, so that the mere mention
    of a name is no call, or when its id is known if that comes later. Its id differs from the ids
    of earlier calls, `ids`, and is added to them."""

    def __init__(
        self,
        index: int,
        emit: Emit,
        ids: set[str],
        *,
        wants_id: bool,
        names: Collection[str] | None,
    ) -> None:
        self.name = ""
        self.id = ""
        self.announced = False
        self.has_arguments = False
        self._index = index
        self._emit = emit
        self._ids = ids
        self._wants_id = wants_id
        self._names = names
        self._held: list[str] = []
        self._empty = True

    def set_name(self, name: str) -> None:
        name = name.strip()
        if not name or len(name) > _NAME_LIMIT:
            raise NotACallError
        if self._names is not None and name not in self._names:
            raise NotACallError
        self.name = name

    def begin_arguments(self) -> None:
        self.has_arguments = True
        if self.name and (self.id or not self._wants_id):
            self._announce()

    def add(self, text: str) -> None:
        if not text:
            return
        self._empty = False
        if self.announced:
            self._emit(CallArguments(self._index, text))
        else:
            self._held.append(text)

    def finish(self, whole: bool) -> None:
        """Ends the call. A complete call without arguments gets an empty object. One that is cut
        off before its arguments gets the beginning of an object, so that no client takes it for
        complete."""
        if not self.announced:
            self._announce()
        if self._empty:
            self.add("{}" if whole else "{")

    def _announce(self) -> None:
        self.announced = True
        if not self.id or self.id in self._ids:  # small models repeat ids
            self.id = new_call_id()
        self._ids.add(self.id)
        self._emit(CallStart(self._index, self.id, self.name))
        for text in self._held:
            self._emit(CallArguments(self._index, text))
        self._held.clear()


def _expect(reader: Reader, tokens: tuple[str, ...]) -> Step[None]:
    for token in tokens:
        # Models often omit the bracket of a list with one call.
        if not (yield from reader.accept_spaced(token)) and token != "[":
            raise NotACallError


def _is_next(reader: Reader, token: str) -> Step[bool]:
    place = reader.mark()
    found = bool(token) and (yield from reader.accept_spaced(token))
    reader.rewind(place)
    return found


def _closing(reader: Reader, text: MarkerTokens) -> Step[None]:
    """Takes as many tokens of `text` as follow. Surplus brackets before a marker, a common mistake,
    are dropped."""
    for token in text.tokens:
        if (yield from reader.accept_spaced(token)) or token != text.marker:
            continue
        place = reader.mark()
        yield from reader.run(_STRAY_BRACKETS)
        if (yield from reader.accept(token)):
            reader.release()
        else:
            reader.rewind(place)


def _string(reader: Reader) -> Step[str]:
    pieces: list[str] = []
    yield from decode_string(reader, pieces.append)
    return "".join(pieces)
