"""Writes grammars in llguidance's dialect of Lark: literals, rules, and references to schemas.

A sequence of symbols is a text with spaces between them; "" is the empty sequence.
"""

import json
import re
from typing import Any

from specllama.engine.errors import invalid_request
from specllama.engine.formats.ecma_regex import PatternError, to_rust
from specllama.engine.params import NamedGrammar, NamedSchema

ANY = "/(?s:.*)/"
_PLAIN = re.compile(r"[a-zA-Z0-9]")


class Lark:
    """The rules and schemas of one grammar. `steps` is the budget of work for analysing the schema
    of each tool."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self._lines: list[str] = []
        self._reserved = 0
        self._names: dict[tuple[str, str], str] = {}
        self.schemas: dict[str, NamedSchema] = {}
        self.grammars: dict[str, NamedGrammar] = {}
        self._relaxed: dict[str, None] = {}

    def rule(self, body: str) -> str:
        """Returns the name of a rule for `body`."""
        return self._define("r", "", body)

    def terminal(self, body: str) -> str:
        """Returns the name of a terminal, which is one regular expression."""
        return self._define("T", "", body)

    def lazily(self, body: str) -> str:
        """Returns the name of a rule for the shortest text that the terminal `body` matches."""
        return self._define("r", "[lazy]", self.terminal(body))

    @property
    def relaxed(self) -> list[str]:
        """The keywords of schemas that the grammar leaves out, without repetition."""
        return list(self._relaxed)

    def leave_out(self, where: str) -> None:
        """Records that the keyword at `where` (as in `NamedSchema.at`) is left out."""
        self._relaxed[where] = None

    def json(self, what: str, schema: Any, at: str = "#") -> str:
        """Returns a reference to JSON of `schema`, which error messages call `what`; `at` as in
        `NamedSchema`.

        Raises EngineError (invalid_request_error) for a schema that is nested too deep.
        """
        try:
            text = json.dumps(schema, ensure_ascii=False)
        except RecursionError:
            raise invalid_request(f"Failed to parse {what}: it is nested too deep") from None
        key = ("@", f"{at}:{what}:{text}")
        if key not in self._names:
            self._names[key] = f"s{len(self.schemas)}"
            self.schemas[self._names[key]] = NamedSchema(what, text, at)
        return f"@{self._names[key]}"

    def text_in_json(self, what: str, lark: str, in_json: str) -> str:
        """Returns a reference to the text between the quotes of a JSON string, see
        `NamedGrammar`."""
        name = f"g{len(self.grammars)}"
        self.grammars[name] = NamedGrammar(what, lark, in_json)
        return f"@{name}"

    def reserved(self) -> str:
        """Returns the name of a rule whose body `define` adds later, so that it may refer to
        itself."""
        self._reserved += 1
        return f"x{self._reserved}"

    def define(self, name: str, body: str) -> None:
        self._lines.append(f"{name}: {body}")

    def text(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._lines, ""])

    def _define(self, kind: str, options: str, body: str) -> str:
        key = (kind + options, body)
        if key not in self._names:
            self._names[key] = f"{kind}{len(self._lines)}"
            self._lines.append(f"{self._names[key]}{options}: {body}")
        return self._names[key]


def literal(text: str) -> str:
    """Returns the symbol for exactly `text`."""
    return json.dumps(text) if text else ""


def regex(text: str) -> str:
    """Returns a regular expression for exactly `text`, without slashes."""
    return "".join(c if _PLAIN.match(c) else f"\\u{{{ord(c):x}}}" for c in text)


def sequence(*symbols: str) -> str:
    return " ".join(symbol for symbol in symbols if symbol)


def choice(symbols: list[str]) -> str:
    """Returns a choice among several non-empty symbols."""
    return symbols[0] if len(symbols) == 1 else f"({' | '.join(symbols)})"


def optional(symbols: str) -> str:
    return f"({symbols})?" if symbols else ""


# ---- Regular expressions for strings that follow a JSON schema, without the quotes of JSON.


_MAX_LENGTH = 10_000  # characters; longer texts would make the lexer's automaton too large

_DATE = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|"
    "(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))"
)
_TIME = (
    r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
)
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_WORD = "[a-zA-Z0-9_+-]{1,32}"
# Each format's most common forms, which all validators accept.
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,3}}",
    "email": rf"{_WORD}(\.{_WORD}){{0,3}}@{_LABEL}(\.{_LABEL}){{1,3}}",
    "uri": (
        rf"https?://{_LABEL}(\.{_LABEL}){{0,3}}(:[1-9][0-9]{{0,3}})?"
        r"(/([a-zA-Z0-9._~=,@-]|%[0-9A-F]{2})*)*(\?[a-zA-Z0-9._~=&,/-]*)?(#[a-zA-Z0-9._~-]*)?"
    ),
}
# Other formats that validators check. All remaining ones are annotations.
_CHECKED = frozenset(
    [
        *("duration", "idn-email", "idn-hostname", "ipv6", "uri-reference", "iri", "regex"),
        *("iri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    ]
)


class StringError(ValueError):
    """A keyword of a schema can't be enforced."""


def string_regex(schema: dict[str, Any]) -> list[str]:
    """Returns regular expressions in slashes; a text that all of them match follows `minLength`,
    `maxLength`, `pattern` and `format` of `schema`. Raises StringError."""
    found: list[str] = []
    low, high = schema.get("minLength", 0), schema.get("maxLength")
    for bound in (low, high):
        if bound is not None and (not isinstance(bound, int | float) or bound < 0):
            raise StringError("a length is not a number")
        if bound is not None and bound > _MAX_LENGTH:
            raise StringError(f"a length of more than {_MAX_LENGTH} characters")
    if low or high is not None:
        found.append(f"/(?s:.){{{int(low)},{'' if high is None else int(high)}}}/")
    if (pattern := schema.get("pattern")) is not None:
        found.append(_searched(pattern))
    if (name := schema.get("format")) in _FORMATS:
        found.append(f"/{_slashed(_FORMATS[name])}/")
    elif name in _CHECKED:
        raise StringError(f"the format {name!r} is not supported between tags")
    return found or [ANY]


def _searched(pattern: Any) -> str:
    """Returns the regular expression of the texts in which `pattern` is found."""
    if not isinstance(pattern, str):
        raise StringError("a pattern is not a text")
    try:
        translated = to_rust(pattern)
    except PatternError as error:
        raise StringError(f"the pattern {pattern[:80]!r}: {error}") from None
    begins, ends = translated.startswith("^"), _ends_with_anchor(translated)
    inner = translated[begins : len(translated) - ends]
    if _has_anchor(inner) or ((begins or ends) and _has_choice(inner)):
        raise StringError(f"the pattern {pattern[:80]!r}: anchors in the middle are not supported")
    before, after = "" if begins else "(?s:.*)", "" if ends else "(?s:.*)"
    return f"/{_slashed(f'{before}({inner}){after}')}/"


def _ends_with_anchor(pattern: str) -> bool:
    if not pattern.endswith("$"):
        return False
    before = pattern[:-1]
    return (len(before) - len(before.rstrip("\\"))) % 2 == 0


def _outside_of_classes(pattern: str) -> list[tuple[str, int]]:
    """Returns the unquoted characters of a pattern, with the depth of their parentheses."""
    found: list[tuple[str, int]] = []
    depth, in_class, at = 0, False, 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            at += 2
            continue
        if in_class:
            in_class = character != "]"
        elif character == "[":
            in_class = True
        else:
            depth += (character == "(") - (character == ")")
            found.append((character, depth))
        at += 1
    return found


def _has_anchor(pattern: str) -> bool:
    return any(character in "^$" for character, _ in _outside_of_classes(pattern))


def _has_choice(pattern: str) -> bool:
    return any(each == ("|", 0) for each in _outside_of_classes(pattern))


def _slashed(pattern: str) -> str:
    """Returns `pattern` for use between slashes: slashes and line ends are escaped."""
    quoted, at = "", 0
    while at < len(pattern):
        step = 2 if pattern[at] == "\\" else 1
        part = pattern[at : at + step]
        special = {"/": r"\x2f", "\\/": r"\x2f", "\n": r"\n", "\r": r"\r"}
        quoted += special.get(part, part)
        at += step
    return quoted
