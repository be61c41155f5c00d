"""Translates the keywords of a JSON schema that contain no schemas, for llguidance."""

from collections.abc import Callable
from typing import Any

from specllama.engine.formats.json_schema import TYPES, types_of_value
from specllama.engine.grammars.schema_values import (
    FORMATS,
    MAX_INTEGER,
    OTHER_FORMATS,
    count,
    invalid,
    is_divisor,
    is_exact,
    rust_pattern,
    short,
)

Schema = dict[str, Any]

_COUNTS = ("minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties")
_BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

# llguidance allows a leap second in every minute, and a leap day in every year.
_NO_LEAP_SECOND = ":[0-9]{2}:[0-5]"
_NO_LEAP_DAY = "^[0-9]{4}-(02-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-)"
_STRICTER = {
    "time": [_NO_LEAP_SECOND],
    "date": [_NO_LEAP_DAY],
    "date-time": [_NO_LEAP_DAY, _NO_LEAP_SECOND],
}


class Keywords:
    """Translates the keywords of `schema`, which is at `at`, into `result`; calls `leave_out` with
    the keywords that can't be enforced. Raises GrammarError for an invalid value."""

    def __init__(
        self, schema: Schema, at: str, result: Schema, leave_out: Callable[[str], None]
    ) -> None:
        self._schema = schema
        self._at = at
        self._result = result
        self._leave_out = leave_out

    def read(self, keyword: str) -> None:
        value = self._schema[keyword]
        match keyword:
            case "type":
                self._read_type(value)
            case "pattern":
                self._keep(keyword, rust_pattern(self._text(keyword), self._at))
            case "format":
                self._read_format(self._text(keyword))
            case "multipleOf":
                self._keep(keyword, value if is_divisor(value) else None)
            case "const":
                self._read_values(keyword, [value])
            case "enum":
                if not isinstance(value, list) or not value:
                    raise invalid(self._at, "enum must be a non-empty array")
                self._read_values(keyword, value)
            case "required":
                self._read_required(value)
            case _ if keyword in _COUNTS:
                self._keep(keyword, count(value, keyword, self._at))
            case _ if keyword in _BOUNDS:
                self._read_bound(keyword, value)

    def _keep(self, keyword: str, value: Any) -> None:
        if value is None:
            self._leave_out(keyword)
        else:
            self._result[keyword] = value

    def _text(self, keyword: str) -> str:
        value = self._schema[keyword]
        if not isinstance(value, str):
            raise invalid(self._at, f"{keyword} must be a string")
        return value

    def _read_type(self, value: Any) -> None:
        if value is None:
            return
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise invalid(self._at, "type must be a string or an array of strings")
        if not names:
            raise invalid(self._at, "type must not be empty")
        unknown = [name for name in names if name not in TYPES]
        values = self._values()
        # llama-server ignores a type next to these.
        if unknown and values is None and not {"$ref", "anyOf", "oneOf"} & self._schema.keys():
            raise invalid(self._at, f"unrecognized type {short(unknown[0])}")
        fits = values is None or any(types_of_value(each) & set(names) for each in values)
        self._keep("type", value if fits and not unknown else None)

    def _values(self) -> list[Any] | None:
        if "const" in self._schema:
            return [self._schema["const"]]
        values = self._schema.get("enum")
        return values if isinstance(values, list) else None

    def _read_values(self, keyword: str, values: list[Any]) -> None:
        kept = [value for value in values if is_exact(value)]
        if len(kept) < len(values):
            self._leave_out(keyword)
        if kept:
            self._result[keyword] = kept if keyword == "enum" else kept[0]

    def _read_format(self, name: str) -> None:
        kept = FORMATS.get(name)
        if kept is None:
            if name in OTHER_FORMATS:  # any other format is an annotation
                self._leave_out("format")
            return
        self._result["format"] = kept
        if stricter := _STRICTER.get(kept):
            patterns = [{"pattern": pattern} for pattern in stricter]
            self._result["allOf"] = [*self._result.get("allOf", []), *patterns]

    def _read_required(self, value: Any) -> None:
        names = value if isinstance(value, list) else []
        texts = dict.fromkeys(name for name in names if isinstance(name, str))
        if not isinstance(value, list) or not all(isinstance(name, str) for name in names):
            self._leave_out("required")
        if texts:
            self._result["required"] = list(texts)

    def _read_bound(self, keyword: str, value: Any) -> None:
        if isinstance(value, bool) and keyword.startswith("exclusive"):  # as in draft 4
            if not value:
                return
            value = self._schema.get(keyword.removeprefix("exclusive").lower())
            if value is None:
                return
        if isinstance(value, bool) or not isinstance(value, int | float):
            if self._schema.get("type") == "integer":
                raise invalid(self._at, f"{keyword} must be a number")
            self._leave_out(keyword)
        else:
            self._keep(keyword, value if is_exact(value) else _narrower(keyword, value))


def _narrower(keyword: str, bound: float) -> int | None:
    """A bound that llguidance supports and that implies the too large `bound`; None if there is
    none."""
    if keyword.lower().endswith("maximum"):
        return MAX_INTEGER if bound > MAX_INTEGER else None
    return -MAX_INTEGER if bound < -MAX_INTEGER else None
