"""Parses Harmony: answers in channels, as gpt-oss models write them.

An answer is a row of messages, `HEADER<|message|>BODY<|end|>`, where the header is `<|start|>ROLE
to=RECIPIENT<|channel|>CHANNEL to=RECIPIENT <|constrain|>json` with most of it optional; the prompt
ends with the first `<|start|>assistant`. The channel `analysis` contains the reasoning. A message
to `functions.NAME` is a call of this tool, and `<|call|>` ends it. All other messages are for the
user: the channel `final`, and `commentary` without a recipient.
(https://cookbook.openai.com/articles/openai-harmony)

The `openai-harmony` package isn't used: it parses tokens of its own vocabulary, which it downloads
at the first use. This parser works on the text of any model, where the markers are easy to find.
"""

import re

from specllama.engine.chat.harmony_markers import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    FUNCTIONS,
    MESSAGE,
    NEXT,
    RETURN,
    START,
)
from specllama.engine.chat.output import CallArguments, CallStart, Content
from specllama.engine.chat.parse.call_parser import Tools, new_call_id
from specllama.engine.chat.parse.json_stream import Sink
from specllama.engine.chat.parse.reader import IncrementalParser, Step
from specllama.engine.chat.request import ReasoningFormat

_HEADERS = (START, CHANNEL, CONSTRAIN, f"to={FUNCTIONS}")
_ENDS = (END, CALL, RETURN)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_CHANNEL = re.compile(re.escape(CHANNEL) + r"\s*(\w+)")
_UNMARKED = re.compile("[^<]*")
_HEADER_LIMIT = 1024  # characters


class HarmonyParser(IncrementalParser):
    """The parameters are described in `engine.chat.parse.parser.answer_parser`."""

    def __init__(
        self, *, reasoning: ReasoningFormat, thinking: bool, tools: Tools | None, prompt: str = ""
    ) -> None:
        super().__init__(reasoning)
        self._tools = tools
        self._calls = 0
        self._in_call = False
        self._said = {"thoughts": False, "content": False}
        self._glue = ""
        header, found, body = prompt.rpartition(NEXT)[2].partition(MESSAGE)
        self._opened = f"{CHANNEL}analysis" if thinking else ""
        if not thinking and NEXT in prompt:
            if found and not any(end in body for end in _ENDS):
                self._opened = header or CHANNEL
            elif not found:
                self.reader.push(header)

    @property
    def calling(self) -> bool:
        return self._in_call

    def answer(self) -> Step[None]:
        marker = ""  # the first marker of the next message, if it has been read
        if self._opened:
            marker = yield from self._body(self._opened, opened=True)
        while marker or (yield from self.reader.peek()):
            header = yield from self._header(marker)
            marker = "" if header is None else (yield from self._body(header))

    def _header(self, marker: str) -> Step[str | None]:
        """Returns all text up to `<|message|>`; "" for a text without a header; None if a malformed
        header has become content, or at the end of the answer."""
        reader = self.reader
        space = ""
        if not marker:
            space = yield from reader.space()
            marker = yield from self._accept_any(
                START, CHANNEL, CONSTRAIN, MESSAGE, f"to={FUNCTIONS}"
            )
            if not marker:
                if space:
                    self.emit(Content(space))
                return ""
        pieces = [space, marker]
        while marker in _HEADERS:
            pieces.append((yield from reader.run(_UNMARKED, _HEADER_LIMIT)))
            if sum(map(len, pieces)) > _HEADER_LIMIT:
                break
            marker = yield from self._accept_any(START, CHANNEL, CONSTRAIN, MESSAGE, *_ENDS)
            if marker == MESSAGE:
                return "".join(pieces)
            pieces.append(marker)
        if marker == MESSAGE:
            return CHANNEL
        if (yield from reader.peek()) and marker not in _ENDS:
            self._say("".join(pieces))
        return None

    def _accept_any(self, *markers: str) -> Step[str]:
        for marker in markers:
            if (yield from self.reader.accept(marker)):
                return marker
        return ""

    def _body(self, header: str, *, opened: bool = False) -> Step[str]:
        """Reads the text of a message. Returns the marker after it if that begins the next one."""
        recipient = found[1] if (found := _RECIPIENT.search(header)) else ""
        name = recipient.removeprefix(FUNCTIONS)
        is_call = bool(name) and (name != recipient or name in (self._tools or ()))
        if is_call and self._tools:
            return (yield from self._call(name))
        channel = found[1] if (found := _CHANNEL.search(header)) else ""
        markup = "" if opened else header[max(header.find(CHANNEL), 0) :] + MESSAGE
        if is_call:
            self.emit(Content(markup))
            marker = yield from self._copy(self._say)
            self._say(marker if marker in _ENDS else "")
        elif channel == "analysis":
            self.think_markup(markup)
            self._glue = "\n" if self._said["thoughts"] else ""
            marker = yield from self._copy(self._think)
            self.think_markup(marker if marker in _ENDS else "")
        else:
            self._glue = "\n" if self._said["content"] else ""
            marker = yield from self._copy(self._say)
        return "" if marker in _ENDS else marker

    def _copy(self, out: Sink) -> Step[str]:
        space, marker = yield from self.reader.until((*_ENDS, START, CHANNEL), out)
        if space:
            out(space)
        return marker

    def _call(self, name: str) -> Step[str]:
        index = self._calls
        empty = True

        def add(text: str) -> None:
            nonlocal empty
            if empty:
                self.emit(CallStart(index, new_call_id(), name))
                self._calls += 1
            empty = False
            self.emit(CallArguments(index, text))

        self._in_call = True
        yield from self.reader.space()
        _, marker = yield from self.reader.until((*_ENDS, START, CHANNEL), add)
        self._in_call = False
        if empty and not self.reader.cut_off:
            add("{}")
        return "" if marker in _ENDS else marker

    def _think(self, text: str) -> None:
        self.think(self._glue + text)
        self._glue = ""
        self._said["thoughts"] = True

    def _say(self, text: str) -> None:
        if text:
            self.emit(Content(self._glue + text))
            self._glue = ""
            self._said["content"] = True
