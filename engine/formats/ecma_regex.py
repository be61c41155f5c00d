"""Translates regular expressions of JSON Schema (ECMA 262) to the syntax of Rust, which llguidance
reads.

The two agree mostly. Without a translation, the differences would silently change the meaning of a
pattern. Look-around, backreferences and flags, which neither llguidance nor a grammar supports, are
rejected.
"""

import re

MAX_LENGTH = 1 << 16  # characters


class PatternError(ValueError):
    """A part of a pattern that isn't supported."""


_SPACES = (
    r"\t\n\x0b\x0c\r \u{a0}\u{1680}\u{2000}-\u{200a}"
    r"\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}\u{feff}"
)
_CLASSES = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": _SPACES,
}
_CONTROLS = {"n": r"\n", "r": r"\r", "t": r"\t", "f": r"\x0c", "v": r"\x0b", "0": r"\x00"}
_ANY = r"[^\n\r\u{2028}\u{2029}]"
_ESCAPE = re.compile(
    r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\}|c([a-zA-Z])"
    r"|([pP]\{\^?[A-Za-z_=]+\})|(.))",
    re.DOTALL,
)
_GROUP = re.compile(r"\((?:\?(?::|<[A-Za-z_][A-Za-z0-9_]*>|(.{0,2})))?", re.DOTALL)
_BOUNDS = re.compile(r"\{[0-9]{1,9}(?:,[0-9]{0,9})?\}")


def to_rust(pattern: str) -> str:
    """Returns `pattern` with the same meaning in Rust's syntax. Raises PatternError.

    Not all errors are detected here: llguidance detects the rest.
    """
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"longer than {MAX_LENGTH} characters")
    out: list[str] = []
    at, in_class = 0, False
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            match = _ESCAPE.match(pattern, at)
            if match is None:
                raise PatternError("the pattern ends with a backslash")
            out.append(_escape(match, in_class))
            at = match.end()
            continue
        at += 1
        if in_class:
            if character == "]":
                in_class = False
            elif character == "-" and pattern[at : at + 1] == "-":
                raise PatternError("a class with -- in it is not supported")
            # In Rust these begin operators, and classes inside of classes.
            out.append("\\" + character if character in "[&~" else character)
        elif character == "[":
            in_class = True
            negative = pattern[at : at + 1] == "^"
            out.append("[^" if negative else "[")
            at += negative
            if pattern[at : at + 1] == "]":
                raise PatternError("an empty class of characters")
        elif character == ".":
            out.append(_ANY)
        elif character == "(":
            at = _open_group(pattern, at - 1, out)
        elif character == "{" and not _BOUNDS.match(pattern, at - 1):
            raise PatternError("a brace that isn't a repetition has to be written \\{")
        elif character in "*+?}" and pattern[at : at + 1] == "+":
            raise PatternError("possessive repetition is not supported")
        else:
            out.append(character)
    if in_class:
        raise PatternError("a class of characters is not closed")
    return "".join(out)


def _open_group(pattern: str, at: int, out: list[str]) -> int:
    match = _GROUP.match(pattern, at)
    if match is None or match[1] is not None:
        raise PatternError(f"the group {pattern[at : at + 4]!r} is not supported")
    out.append("(?:")
    return match.end()


def _escape(match: re.Match[str], in_class: bool) -> str:
    byte, short, long, control, category, other = match.groups()
    if control:
        return f"\\x{ord(control) % 32:02x}"
    if digits := byte or short or long:
        code = int(digits, 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            raise PatternError(f"{match[0]} is not a character")
        return f"\\u{{{code:x}}}"
    if category:
        return match[0]
    if other in _CONTROLS:
        return _CONTROLS[other]
    if (positive := _CLASSES.get(other.lower())) is not None:
        if other.islower():
            return positive if in_class else f"[{positive}]"
        return f"[^{positive}]"
    if other == "b" and in_class:
        return r"\x08"
    if other in "bB":
        raise PatternError("the word boundary \\b is not supported")
    if other.isalnum():
        what = "backreferences are" if other.isdecimal() or other == "k" else f"\\{other} is"
        raise PatternError(f"{what} not supported")
    return re.escape(other) if other.isascii() else other
