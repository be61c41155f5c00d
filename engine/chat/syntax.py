"""Output syntax: how a model writes reasoning, content and tool calls. Plain data.

`engine.helpers.render.detect` detects it in a chat template, `engine.chat.parse.parser` parses
answers by it, and `engine.chat.grammar.answer` translates it to a constraint.

An answer is `reasoning? content? calls?`; each of the three has its own syntax.
"""

import re
from typing import Literal

import msgspec

from specllama.engine.chat import harmony_markers

Hole = Literal["name", "arguments", "id", "index"]
"""The variable parts of a call, between its fixed texts. `name` is the tool's, `arguments` are an
object in JSON or in `CallSyntax.tagged`, `id` is up to 64 letters, digits, `-` and `_`, `index` the
number of the call, counted from `CallSyntax.first_index`. The name may occur twice."""


PLACEHOLDERS: dict[Hole, str] = {
    "name": "\ue000",
    "arguments": "\ue001",
    "id": "\ue002",
    "index": "\ue003",
}
"""Placeholders of holes in texts, from a private area of Unicode."""
KEY = "\ue004"
"""Placeholder in `TaggedArguments.end` for a repetition of the key."""
BARE_KEY = re.compile(r"[^\s,:=\"'`()\[\]{}<>|]*")
"""The name of an argument without a marker before it."""
HOLES_BY_PLACEHOLDER = {text: hole for hole, text in PLACEHOLDERS.items()}


JSON_TYPES: dict[type, str] = {
    **{str: "string", bool: "boolean", int: "integer", float: "number"},
    **{list: "array", dict: "object", type(None): "null"},
}
"""JSON Schema's names of the types."""


class Fill(msgspec.Struct, frozen=True):
    """A variable part of a call."""

    hole: Hole


class Wrapper(msgspec.Struct, frozen=True):
    """Fixed texts before and after a part; "" for none. White space at their outer ends is written
    by the template, but a model may omit it."""

    begin: str = ""
    end: str = ""


class TaggedArguments(msgspec.Struct, frozen=True):
    """Arguments one by one: `begin` KEY `middle` VALUE `end`, with `separator` between two.

    Texts are written as they are unless `json_strings`; all other values are JSON. `end` may
    contain `KEY`. `middles` are the texts that replace `middle` before values of other JSON types
    than texts. Texts may also be enclosed in `wrapper`. `item`: a list or an object is written as
    elements, each like an argument; the elements of a list have this key.

    With a `quote` around texts, including texts within other values, values are literals like
    Python's: the keys of objects may be unquoted, and true may be True.
    """

    begin: str
    middle: str
    end: str
    separator: str = ""
    json_strings: bool = False
    middles: tuple[tuple[str, str], ...] = ()
    wrapper: Wrapper = Wrapper()
    item: str = ""
    quote: str = ""

    def before(self, kind: str) -> str:
        """Returns the text between a key and a value of the JSON type `kind`."""
        return dict(self.middles).get(kind, self.middle)

    def after(self, key: str) -> str:
        return self.end.replace(KEY, key)

    @property
    def markers(self) -> list[str]:
        """All fixed texts."""
        texts = [self.begin, self.middle, self.separator, self.quote, *self.end.split(KEY)]
        return [*texts, *(text for _, text in self.middles), self.wrapper.begin, self.wrapper.end]


class CallSyntax(msgspec.Struct, frozen=True):
    """`begin` CALL `separator` CALL ... `end`, where a call is `parts`.

    For Hermes: begin "", parts `<tool_call>\\n{"name": "` name `", "arguments": ` arguments
    `}\\n</tool_call>`, separator "\\n", end "".
    """

    parts: tuple[str | Fill, ...]
    begin: str = ""
    separator: str = ""
    end: str = ""
    tagged: TaggedArguments | None = None  # None: arguments in JSON
    parallel: bool = True  # whether an answer may contain several calls
    stops: bool = False  # whether `end` is a token that ends the answer
    first_index: int = 0

    @property
    def opening(self) -> str:
        """The fixed text from the beginning of the calls to the first variable part."""
        first = self.parts[0]
        return self.begin + (first if isinstance(first, str) else "")


class OutputSyntax(msgspec.Struct, frozen=True):
    """The syntax of a model's answers. A field that is None: the model doesn't write that part."""

    reasoning: Wrapper | None = None
    content: Wrapper = Wrapper()
    calls: CallSyntax | None = None
    harmony: bool = False  # channels, as in gpt-oss, with a separate parser

    @property
    def thinks(self) -> bool:
        return self.harmony or self.reasoning is not None

    @property
    def markers(self) -> list[str]:
        """All fixed texts. Special tokens in them have to be included in generated text."""
        found = [self.content.begin, self.content.end]
        if self.reasoning is not None:
            found += [self.reasoning.begin, self.reasoning.end]
        if self.calls is not None:
            calls = self.calls
            found += [calls.begin, calls.separator, calls.end]
            found += [part for part in calls.parts if isinstance(part, str)]
            if calls.tagged is not None:
                found += calls.tagged.markers
        if self.harmony:
            found += list(harmony_markers.MARKERS)
        return list(dict.fromkeys(text for text in found if text))


HARMONY_THOUGHTS = Wrapper(harmony_markers.THOUGHTS, harmony_markers.END)
HARMONY_CONTENT = Wrapper(harmony_markers.FINAL + harmony_markers.MESSAGE, harmony_markers.RETURN)

HERMES_CALLS = CallSyntax(
    parts=(
        '<tool_call>\n{"name": "',
        Fill("name"),
        '", "arguments": ',
        Fill("arguments"),
        "}\n</tool_call>",
    ),
    separator="\n",
)
"""The most common syntax, also used for models whose template doesn't support tools."""


def begun_by(prompt: str, text: str) -> str:
    """Returns the longest beginning of `text` that is the end of `prompt` and doesn't begin within
    a word."""
    for length in range(len(text), 0, -1):
        if prompt.endswith(text[:length]):
            before = prompt[: len(prompt) - length]
            if not (text[0].isalnum() and before[-1:].isalnum()):
                return text[:length]
    return ""
