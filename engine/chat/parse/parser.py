"""Parses an answer into content, reasoning and tool calls while it is generated.

A parser accepts pieces of text of any length and returns the deltas that are certain. Text that may
become a marker is held back, so the content never contains a part of one; if it isn't a marker, it
is returned later. The time is linear in the length of the text.
"""

import json
import re
from collections.abc import Collection
from typing import Protocol

from specllama.engine.chat.output import CallArguments, CallStart, ChatDelta, Content
from specllama.engine.chat.parse.call_parser import CallParser, Tools
from specllama.engine.chat.parse.call_shape import shape_of
from specllama.engine.chat.parse.harmony import HarmonyParser
from specllama.engine.chat.parse.reader import IncrementalParser, Step
from specllama.engine.chat.request import FREE_TEXT, ReasoningFormat
from specllama.engine.chat.syntax import OutputSyntax, begun_by


class AnswerParser(Protocol):
    @property
    def calling(self) -> bool:
        """True within a call: from its marker to the end of its arguments."""

    def feed(self, text: str) -> list[ChatDelta]:
        """Returns the deltas of the next piece of the answer."""

    def finish(self, *, cut_off: bool = False) -> list[ChatDelta]:
        """Ends the answer; to be called once. With `cut_off` it ended early: held-back text that
        may begin a marker or a call is dropped."""


def answer_parser(
    syntax: OutputSyntax,
    *,
    reasoning: ReasoningFormat,
    thinking: bool,
    tools: Tools | None,
    prompt: str = "",
    continued: bool = False,
) -> AnswerParser:
    """Returns a parser for one answer.

    `reasoning`: with "none" reasoning is part of the content, with its markers; with "deepseek" and
    "auto" it has its own deltas; with "deepseek-legacy" both. `thinking`: the prompt has opened the
    reasoning. `tools`: if empty, calls are left in the text. A mapping from names to the schemas of
    parameters decides whether a tagged argument is a text; with names alone, its form decides.
    `prompt`: if it ends with the marker that begins content or calls, or with a part of that
    marker, the parser treats this as the beginning of the answer. `continued`: the answer continues
    reasoning or content in the prompt, so white space at its beginning is kept. It is also kept if
    the prompt has closed the reasoning. Otherwise the white space at the beginning is dropped for
    models that may think first.
    """
    if syntax.harmony:
        return HarmonyParser(reasoning=reasoning, thinking=thinking, tools=tools, prompt=prompt)
    return _SyntaxParser(syntax, reasoning, thinking, tools, prompt, continued)


class _SyntaxParser(IncrementalParser):
    def __init__(
        self,
        syntax: OutputSyntax,
        reasoning: ReasoningFormat,
        thinking: bool,
        tools: Tools | None,
        prompt: str,
        continued: bool,
    ) -> None:
        super().__init__(reasoning)
        self._syntax = syntax
        self._continued = continued
        self._thinking = thinking
        self._begin = _marker_with_space(syntax.content.begin)
        self._calls: CallParser | None = None
        shape = shape_of(syntax.calls) if syntax.calls and tools else None
        if shape and syntax.calls and tools:
            self._calls = CallParser(shape, syntax.calls.tagged, tools, self.emit)
        self._held = ""  # white space that belongs to the content only if more content follows
        closing = syntax.reasoning.end.strip() if syntax.reasoning else ""
        self._closed = bool(closing) and prompt.rstrip().endswith(closing)
        self._given = "" if thinking else _opened_by(prompt, syntax)
        self.reader.push(self._given)

    @property
    def calling(self) -> bool:
        return self._calls is not None and self._calls.calling

    def answer(self) -> Step[None]:
        yield from self._thoughts()
        yield from self._text()

    def _thoughts(self) -> Step[None]:
        wrapper = self._syntax.reasoning
        if wrapper is None or not wrapper.end.strip():
            return
        reader = self.reader
        begin, end = wrapper.begin.strip(), wrapper.end.strip()
        if not self._thinking:
            space = yield from reader.space()
            kept = self._continued or self._closed or self.thoughts_in_content
            self._held = space if kept else ""
            if not begin or not (yield from reader.accept(begin)):
                if (yield from reader.accept(end)):
                    # Without reasoning, some models write only the marker that closes it.
                    self.think_markup(self._held + end)
                    self._held = ""
                return
            self.think_markup(self._held + begin)
        space = yield from reader.space()
        if self._continued and self._thinking:
            self.think(space)
        else:
            self.think_markup(space)
            # Some models open reasoning that the prompt has already opened.
            if begin and (yield from reader.accept(begin)):
                self.think_markup(begin)
                self.think_markup((yield from reader.space()))
        space, marker = yield from reader.until((end,), self.think)
        self._held = ""
        if not marker:
            self.think(space)
            return
        self.think_markup(space + marker)
        space = yield from reader.space()
        if self.thoughts_in_content:
            self._held = space

    def _text(self) -> Step[None]:
        """Reads content and calls, in any order."""
        reader, calls = self.reader, self._calls
        leading, end = _leading_space(self._syntax.content.end), self._syntax.content.end.strip()
        at_start, wrapped, called = True, False, False
        while True:
            if at_start:
                self._held += yield from reader.space()
                if self._begin and (yield from reader.accept(self._begin)):
                    yield from self._open_content()
                    wrapped = True
                elif calls and calls.bare and (yield from calls.calls(reader)):
                    self._held = self._given = ""
                    called = True
                at_start = False
            markers = [self._begin, end if wrapped else ""]
            if calls:
                markers += [*calls.markers, calls.end if called else ""]
            space, marker = yield from reader.until(
                tuple(text for text in markers if text), self._content
            )
            self._held += space
            if not marker:
                if not called:
                    self._content("")
                return
            if marker == self._begin:
                yield from self._open_content()
                wrapped = True
            elif calls and marker in calls.markers:
                if (yield from calls.calls(reader, marker)):
                    self._held = self._given = ""
                    called, wrapped = True, False
                else:
                    self._content(marker)
            elif wrapped and marker == end:
                self._held = self._held.removesuffix(leading)
                self._content("")
                yield from reader.accept(_trailing_space(self._syntax.content.end))
                at_start, wrapped = True, False
            else:
                self._held = ""  # a marker that ends calls without a call before it

    def _open_content(self) -> Step[None]:
        self._held = self._given = ""
        trailing = _trailing_space(self._syntax.content.begin)
        if trailing and not self._begin.endswith(trailing):
            yield from self.reader.accept(trailing)

    def _content(self, text: str) -> None:
        text = (self._held + text).removeprefix(self._given)
        self._held = self._given = ""
        if text:
            self.emit(Content(text))


def _opened_by(prompt: str, syntax: OutputSyntax) -> str:
    """Returns the end of the prompt with which answers may begin."""
    beginnings = [syntax.content.begin, syntax.calls.opening if syntax.calls else ""]
    found = ""
    for text in map(str.lstrip, beginnings):
        begun = begun_by(prompt, text)
        found = begun if len(begun) > len(found) else found
    return found


def _marker_with_space(text: str) -> str:
    """Returns the marker in `text`; if it ends with a word, it includes the white space after
    it."""
    marker = text.strip()
    return marker + _trailing_space(text) if marker[-1:].isalnum() else marker


def _leading_space(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _trailing_space(text: str) -> str:
    return text[len(text.rstrip()) :]


# ---- Calls of tools that take a plain text, which models write as a function's only argument.
#
# The JSON around the text is removed while the text arrives, so that it can be streamed.


_BEGIN = re.compile(rf'\s*\{{\s*"{FREE_TEXT}"\s*:\s*"')
_PIECE = re.compile(
    r'(?:[^"\\]|\\u(?!d[89ab])[0-9a-f]{4}|\\ud[89ab][0-9a-f]{2}'
    r"(?!\\?\Z|\\u[0-9a-f]{0,3}\Z)|\\[^u])*",
    re.IGNORECASE | re.DOTALL,
)


class FreeTextCalls:
    """An `AnswerParser` around another one, which replaces the arguments in calls of the tools in
    `names` by their text."""

    def __init__(self, parser: AnswerParser, names: Collection[str]) -> None:
        self._parser = parser
        self._names = names
        self._texts: dict[int, _Text] = {}

    @property
    def calling(self) -> bool:
        return self._parser.calling

    def feed(self, text: str) -> list[ChatDelta]:
        return self._plain(self._parser.feed(text))

    def finish(self, *, cut_off: bool = False) -> list[ChatDelta]:
        return self._plain(self._parser.finish(cut_off=cut_off))

    def _plain(self, deltas: list[ChatDelta]) -> list[ChatDelta]:
        made: list[ChatDelta] = []
        for delta in deltas:
            match delta:
                case CallStart(index, id, name) if name in self._names:
                    self._texts[index] = _Text()
                    made.append(CallStart(index, id, name, free_text=True))
                case CallArguments(index, text) if index in self._texts:
                    if plain := self._texts[index].feed(text):
                        made.append(CallArguments(index, plain))
                case _:
                    made.append(delta)
        return made


class _Text:
    """The text in `{"input": "..."}`, which arrives in pieces."""

    def __init__(self) -> None:
        self._held = ""  # the beginning of the JSON, later an incomplete escape sequence
        self._begun = self._ended = False

    def feed(self, text: str) -> str:
        """Returns the new part of the text."""
        if self._ended:
            return ""
        self._held += text
        if not self._begun:
            begin = _BEGIN.match(self._held)
            if begin is None:
                return ""
            self._held = self._held[begin.end() :]
            self._begun = True
        piece = _PIECE.match(self._held)
        assert piece is not None, "the pattern matches the empty text"
        self._held = self._held[piece.end() :]
        self._ended = self._held.startswith('"')
        found = json.loads(f'"{piece[0]}"', strict=False)
        # Half of a surrogate pair is no character.
        return str(found.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
