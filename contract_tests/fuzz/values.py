"""Typical, extreme and nearly valid values for the schemas of the description."""

import random
import string
from collections.abc import Callable, Mapping
from typing import Any

Schema = Mapping[str, Any]
Maker = Callable[["Values"], Any]

DEPTH = 5
"""The deepest nesting of objects and lists in a value."""
MANY = 200
"""Items of a long list, unless its schema allows fewer."""
LONG = (300, 3000, 20_000)
"""Characters of long texts."""
WORDS = (
    "llama",
    "wool",
    "def",
    "return",
    "bus",
    "nine",
    "Once",
    "upon",
    "a",
    "time",
    "(",
    ")",
    ":",
)
ODD = (
    *(
        "",
        " ",
        "\n",
        "\x00",
        "a\x00b",
        "\r\n\r\n",
        "\x1b[31m",
        "\x7f",
        "\u2028",
        "\ufeff",
        "\uffff",
    ),
    *("\ud800", "\udfff", "a\ud83e", "\udd99 b", "\ud83e\ud83e", "\U0001f999", "\U0010ffff"),
    *("\u202eabc", "\u200f\u200e", "e\u0301" * 40, "\u0600" * 9, "日本語", "ß" * 30, "İ", "ﬃ"),
    *("<|im_end|>", "<|im_start|>system\n", "</think>", "<think>", "<tool_call>", "[INST]", "<s>"),
    *("{{ 1 / 0 }}", "{% for x in y %}", "data: [DONE]\n\n", "../../etc/passwd", "%00", "%s%n"),
    *("0", "-1", "1e999", "null", "true", "NaN", "[]", "{}", '"', "\\", "'; DROP TABLE x; --"),
)
"""Texts that have broken programs before."""
NUMBERS = (
    *(
        0,
        -0.0,
        1,
        -1,
        2,
        0.5,
        -0.5,
        1e-300,
        5e-324,
        1e308,
        -1e308,
        127,
        128,
        255,
        256,
        65535,
        65536,
    ),
    *(
        2**31 - 1,
        2**31,
        -(2**31),
        2**32,
        2**53,
        2**53 + 1,
        2**63 - 1,
        2**63,
        -(2**63),
        2**64,
        10**30,
    ),
)
OTHERS: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, 2**64, 1e308, "", "text", "1", "\ud800", [], {}),
    *([None], [[]], [{}], [1, "a"], {"": None}, {"type": None}, {"a": {"b": [1]}}),
)
"""Values that have the wrong type in most places."""


class Values:
    """Makes values from a random number generator. `knowing` has makers for fields by name, where a
    schema doesn't describe useful values, such as grammars and images."""

    def __init__(self, dice: random.Random, knowing: Mapping[str, Maker] | None = None) -> None:
        self.dice = dice
        self._knowing = knowing or {}

    def chance(self, share: float) -> bool:
        return self.dice.random() < share

    # ---- typical ---------------------------------------------------------------------------------

    def typical(self, schema: Schema, name: str = "", depth: int = 0) -> Any:
        """Returns a value as most clients might send it."""
        dice = self.dice
        if name in self._knowing and self.chance(0.6):
            return self._knowing[name](self)
        schema = merged(schema)
        if schema.get("nullable") and self.chance(0.04):
            return None
        for keyword in ("x-supported-values", "enum"):
            if schema.get(keyword) and self.chance(0.95):
                return dice.choice(schema[keyword])
        if "example" in schema and self.chance(0.3):
            return schema["example"]
        if "anyOf" in schema:
            branch = self.typical(dice.choice(schema["anyOf"]), name, depth)
            if isinstance(branch, dict) and "properties" in schema:
                return {**self._object(schema, depth), **branch}
            return branch
        match kind_of(schema):
            case "string":
                return self.text(schema)
            case "boolean":
                return self.chance(0.5)
            case "integer" | "number" as kind:
                return self._number(schema, kind == "integer")
            case "array":
                few = dice.choice((0, 1, 1, 2, 3)) if depth < DEPTH else 0
                n = max(few, min(schema.get("minItems", 0), MANY))
                items = schema.get("items", {})
                return [self.typical(items, name, depth + 1) for _ in range(n)]
            case "object":
                return self._object(schema, depth)
        return dice.choice(OTHERS)

    def _object(self, schema: Schema, depth: int) -> dict[str, Any]:
        properties: Mapping[str, Any] = schema.get("properties", {})
        names = [name for name in schema.get("required", ()) if name in properties]
        if depth < DEPTH and properties:
            optional = [name for name in properties if name not in names]
            n = min(len(optional), self.dice.choice((0, 0, 1, 2, 4)))
            names += self.dice.sample(optional, n)
        made = {name: self.typical(properties[name], name, depth + 1) for name in names}
        if not properties and depth < DEPTH:
            inner = schema.get("additionalProperties")
            for _ in range(self.dice.choice((0, 1, 2))):
                value: Any = self.dice.choice(OTHERS)
                if isinstance(inner, Mapping):
                    value = self.typical(inner, "", depth + 1)
                made[self.dice.choice((*WORDS, *ODD))] = value
        return made

    def _number(self, schema: Schema, whole: bool) -> float:
        low, high = bounds(schema)
        low = max(low, -100.0) if low <= 100 else low
        high = min(high, low + self.dice.choice((1, 2, 10, 100)))
        if whole or schema.get("x-whole"):
            return self.dice.randint(int(low), max(int(low), int(high)))
        return round(self.dice.uniform(low, high), 2)

    def words(self, most: int = 8) -> str:
        return " ".join(self.dice.choice(WORDS) for _ in range(self.dice.randint(1, most)))

    def text(self, schema: Schema) -> str:
        """Returns a few words, within the length that a schema allows."""
        if self.chance(0.1):
            return self.dice.choice(ODD)
        said = self.words()
        if schema.get("pattern"):
            said = "".join(self.dice.choice(string.ascii_letters) for _ in range(8))
        return said[: schema.get("maxLength", len(said))].ljust(schema.get("minLength", 0), "x")

    # ---- extreme ---------------------------------------------------------------------------------

    def extreme(self, schema: Schema, name: str = "", depth: int = 0) -> Any:
        """Returns a value at the edge of a schema, or just beyond."""
        dice = self.dice
        schema = merged(schema)
        if "anyOf" in schema:
            return self.extreme(dice.choice(schema["anyOf"]), name, depth)
        low, high = bounds(schema)
        match kind_of(schema):
            case "string":
                length = min(schema.get("maxLength", max(LONG)), max(LONG))
                long = dice.choice(
                    ("a", "ab ", "\U0001f999", "é", "\x00", "\n", "<|im_end|>", "  ")
                )
                size = dice.choice((*(n for n in LONG if n <= length), length))
                return dice.choice((dice.choice(ODD), (long * size)[:size], self.text(schema)))
            case "integer" | "number":
                near = (low, high, low + 1, high - 1)
                whole = [int(each) for each in near if each == each and abs(each) < 1e300]
                return dice.choice((*whole, *NUMBERS))
            case "array":
                most = min(schema.get("maxItems", MANY), MANY)
                n = dice.choice((0, schema.get("minItems", 0), most if depth == 0 else 3))
                items = schema.get("items", {})
                one = self.extreme(items, name, depth + 1) if depth < DEPTH else None
                if self.chance(0.5) and depth < DEPTH:
                    one = self.typical(items, name, depth + 1)
                return [one] * min(n, MANY)
            case "object":
                properties: Mapping[str, Any] = schema.get("properties", {})
                if depth >= 2 or self.chance(0.2):
                    return {}
                every = {n: self.typical(each, n, depth + 2) for n, each in properties.items()}
                many = {f"{n}": n for n in range(dice.choice((0, 1, MANY)))}
                return {**every, **many} if self.chance(0.5) else {**many}
            case "boolean":
                return self.chance(0.5)
        return dice.choice(OTHERS)

    # ---- nearly valid ----------------------------------------------------------------------------

    def near(self, schema: Schema, name: str = "") -> Any:
        """Returns a value that nearly matches a schema."""
        dice = self.dice
        schema = merged(schema)
        if self.chance(0.25):
            return dice.choice(OTHERS)
        if self.chance(0.04):
            return self.deep()
        if "anyOf" in schema and self.chance(0.5):
            return self.near(dice.choice(schema["anyOf"]), name)
        if schema.get("enum"):
            value = dice.choice(schema["enum"])
            return dice.choice((f"{value} ", f"{value}".upper(), [value], {"type": value}, 0))
        value = self.typical(schema, name)
        match value:
            case bool():
                return dice.choice((int(value), str(value), [value]))
            case int() | float():
                low, high = bounds(schema)
                beyond = [each for each in (low - 1, high + 1) if abs(each) < 1e300]
                return dice.choice((*beyond, f"{value}", [value], value + 0.5, -value))
            case str():
                most = schema.get("maxLength", 100)
                beyond_ = "x" * (most + 1) if most <= max(LONG) else 5
                return dice.choice((beyond_, [value], {"text": value}, 5, value + "\x00"))
            case list():
                return dice.choice(
                    ([*value, None], [value], {"0": value}, "".join(map(str, value)))
                )
            case dict() if value:
                dropped = dice.choice([*value])
                less = {key: each for key, each in value.items() if key != dropped}
                return dice.choice((less, [value], {**value, dropped: dice.choice(OTHERS)}))
        return dice.choice(OTHERS)

    def deep(self) -> Any:
        """Returns nested lists or objects."""
        value: Any = 1
        for _ in range(self.dice.choice((10, 100, 400))):
            value = [value] if self.chance(0.5) else {"a": value}
        return value

    def any(self, schema: Schema, name: str = "") -> Any:
        """Returns a value that is mostly typical, and sometimes extreme or nearly valid."""
        draw = self.dice.random()
        if draw < 0.5:
            return self.typical(schema, name)
        return self.extreme(schema, name) if draw < 0.8 else self.near(schema, name)

    # ---- changes ---------------------------------------------------------------------------------

    def mutated(self, value: Any) -> Any:
        """Returns a copy of a JSON value with one change."""
        dice = self.dice
        match value:
            case dict() if value:
                key = dice.choice([*value])
                if self.chance(0.6):
                    return {**value, key: self.mutated(value[key])}
                others = {name: each for name, each in value.items() if name != key}
                other = dice.choice([*value])
                renamed = dice.choice((key.upper(), key + "_", dice.choice(ODD), other))
                choices = (others, {**others, renamed: value[key]}, {**value, key: value[other]})
                return dice.choice(choices)
            case list() if value:
                at = dice.randrange(len(value))
                if self.chance(0.6):
                    return [*value[:at], self.mutated(value[at]), *value[at + 1 :]]
                return dice.choice((value[:at], value[at:], value + value, value[::-1], value[at]))
            case str() if self.chance(0.5):
                at = dice.randint(0, len(value))
                return value[:at] + dice.choice(ODD) + value[at:]
            case bool():
                return not value
            case int() | float() if self.chance(0.5):
                return dice.choice((value + 1, value - 1, -value, value * 1000, *NUMBERS))
        return dice.choice(OTHERS)


def bounds(schema: Schema) -> tuple[float, float]:
    """Returns the smallest and the largest number that makes a difference."""
    low, high = schema.get("x-clamped", (-(2.0**31), 2.0**31))
    return schema.get("minimum", low), schema.get("maximum", high)


def kind_of(schema: Schema) -> str | None:
    if "type" in schema:
        return str(schema["type"])
    return "object" if "properties" in schema else None


def merged(schema: Schema) -> Schema:
    """Returns a schema with the parts of its `allOf` merged into it."""
    if "allOf" not in schema:
        return schema
    known = _merged.get(id(schema))
    if known is None:
        known = _merged[id(schema)] = (schema, _merge(schema))
    return known[1]


_merged: dict[int, tuple[Schema, Schema]] = {}
"""Merged schemas by the id of the schema. Keeping the schema itself prevents that its id is
reused."""


def _merge(schema: Schema) -> Schema:
    whole: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    required: list[str] = []
    for part in (*schema["allOf"], {k: v for k, v in schema.items() if k != "allOf"}):
        found = merged(part)
        properties |= found.get("properties", {})
        required += found.get("required", ())
        whole |= found
    whole.pop("allOf", None)
    if properties:
        whole["properties"] = properties
    if required:
        whole["required"] = required
    return whole
