"""Regular expressions for strings that follow a JSON schema, without the quotes of JSON."""

from typing import Any

from specllama.engine.chat.grammar.lark import ANY
from specllama.engine.formats.ecma_regex import PatternError, to_rust

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
# Some of what each format allows: the usual forms, so that everybody takes them for valid.
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
# Formats that validators check; any other is an annotation.
_CHECKED = frozenset(
    [
        *("duration", "idn-email", "idn-hostname", "ipv6", "uri-reference", "iri", "regex"),
        *("iri-reference", "uri-template", "json-pointer", "relative-json-pointer"),
    ]
)


class StringError(ValueError):
    """A keyword of a schema that can't be followed."""


def string_regex(schema: dict[str, Any]) -> list[str]:
    """Regular expressions in slashes; a text that all of them match follows `minLength`,
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
    """The texts in which `pattern` is found."""
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
    """The characters of a pattern that aren't quoted, with the depth of their parentheses."""
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
    """`pattern` for between slashes, where a slash would be the end, and a line's end an error."""
    quoted, at = "", 0
    while at < len(pattern):
        step = 2 if pattern[at] == "\\" else 1
        part = pattern[at : at + step]
        special = {"/": r"\x2f", "\\/": r"\x2f", "\n": r"\n", "\r": r"\r"}
        quoted += special.get(part, part)
        at += step
    return quoted
