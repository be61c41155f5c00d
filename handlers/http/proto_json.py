"""The JSON of protocol buffers, which Google's clients send: `x-proto-json` in the description.

A field has two spellings there, `topP` and `top_p`. A body gets those that are described before
anything else looks at it.
"""

import re
from collections.abc import Mapping
from typing import Any, Self

import msgspec

_CAPITAL = re.compile("[A-Z]")


class Spellings(msgspec.Struct, frozen=True):
    """The described names in a value, by each of their spellings, with those in their values; of an
    array, those of its items. None in a value of any other kind, or in an object of any fields."""

    known: Mapping[str, tuple[str, "Spellings"]] = {}

    @classmethod
    def of(cls, schema: Mapping[str, Any]) -> Self:
        """Those that a resolved schema describes."""
        known: dict[str, tuple[str, Spellings]] = {}
        for part in schema.get("allOf", ()):
            known |= cls.of(part).known
        for name, child in schema.get("properties", {}).items():
            known[name] = known[_with_underscores(name)] = name, cls.of(child)
        return cls.of(schema["items"]) if "items" in schema else cls(known)

    def read(self, value: Any) -> Any:
        """`value` with the described names. What has no place in it stays: validation tells."""
        if isinstance(value, list) and self.known:
            return [*map(self._read_object, value)]
        return self._read_object(value)

    def _read_object(self, value: Any) -> Any:
        if not isinstance(value, dict) or not self.known:
            return value
        read: dict[str, Any] = {}
        for spelled, inner in value.items():
            name, names = self.known.get(spelled, (spelled, _NONE))
            read[name] = names.read(inner)
        return read


_NONE = Spellings()


def _with_underscores(name: str) -> str:
    return _CAPITAL.sub(lambda found: f"_{found[0].lower()}", name)
