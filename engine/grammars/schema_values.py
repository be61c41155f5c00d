"""Checks the values of a JSON schema's keywords: whether they are valid, and whether llguidance can
enforce them."""

from typing import Any

import jsonschema_rs

from specllama.engine.formats.ecma_regex import PatternError, to_rust
from specllama.engine.grammars.gbnf import GrammarError

MAX_INTEGER = 2**53  # larger integers aren't exact as doubles
MAX_DECIMAL = 1e15
MIN_DECIMAL = 1e-9
MAX_DIGITS = 15
MAX_COEFFICIENT = 2**32 - 1  # of `multipleOf`: its digits as an integer

# Formats that llguidance enforces, by llama-server's names.
FORMATS = {
    **{name: name for name in ("date-time", "date", "time", "duration", "email", "hostname")},
    **{name: name for name in ("ipv4", "ipv6", "uri", "uuid")},
    **{f"uuid{version}": "uuid" for version in range(1, 6)},
}
# Further formats that a validator may check. Any other format is an annotation.
OTHER_FORMATS = frozenset(
    [
        *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"),
        *("json-pointer", "relative-json-pointer", "regex"),
    ]
)


def invalid(where: str, what: str) -> GrammarError:
    """The error for an invalid schema at `where`, in llama-server's form."""
    return GrammarError(f"JSON schema error at {short(where)}: {what}")


def rust_pattern(pattern: str, where: str) -> str | None:
    """The pattern for llguidance; None if llguidance can't enforce it. Raises GrammarError if it is
    not a regular expression, but only if it is anchored: llama-server ignores any other pattern."""
    try:
        translated = to_rust(pattern)
    except PatternError:
        translated = None
    if not _is_regex(pattern):
        if pattern.startswith("^") and pattern.endswith("$"):
            raise invalid(where, f"invalid pattern {short(pattern)}")
        return None
    return translated


def _is_regex(pattern: str) -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern})
    except (jsonschema_rs.ValidationError, ValueError):
        return False
    return True


def count(value: Any, keyword: str, where: str) -> int | None:
    """A number of characters, items or properties; None if it is too large. Raises GrammarError if
    it is invalid."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or value < 0 or value != value // 1:
        raise invalid(where, f"{keyword} must be a non-negative integer")
    return int(value) if value <= MAX_INTEGER else None  # 3.0 is an integer in JSON Schema


def is_divisor(value: Any) -> bool:
    """True if llguidance can enforce `multipleOf` with this value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        return False
    if not is_exact(value):
        return False
    scaled = float(value)  # in the same steps as llguidance, so that rounding errors are equal
    while scaled % 1 and scaled <= MAX_COEFFICIENT:
        scaled *= 10
    digits = repr(value).split("e")[0].replace(".", "").strip("0")
    return scaled <= MAX_COEFFICIENT and str(int(scaled)).strip("0") == digits


def is_exact(value: Any) -> bool:
    """True if llguidance can represent all numbers in `value` without rounding: integers up to
    `MAX_INTEGER`, other numbers from `MIN_DECIMAL` to `MAX_DECIMAL` with at most `MAX_DIGITS`
    digits."""
    todo = [value]
    while todo:
        match todo.pop():
            case dict() as mapping:
                todo += mapping.values()
            case list() as items:
                todo += items
            case bool():
                pass
            case int() as number if abs(number) > MAX_INTEGER:
                return False
            case float() as number if number and not _is_exact_float(number):
                return False
    return True


def _is_exact_float(number: float) -> bool:
    digits = "".join(c for c in repr(abs(number)).split("e")[0] if c.isdigit()).strip("0")
    return MIN_DECIMAL <= abs(number) <= MAX_DECIMAL and len(digits) <= MAX_DIGITS


def short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
