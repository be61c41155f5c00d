"""The options by all their names: on the command line, as variables, in files."""

import difflib
from collections.abc import Sequence, Set
from typing import Any

import msgspec

from specllama.engine.options import unavailable
from specllama.engine.options.composition import Options
from specllama.engine.options.declaration import Field, fields, tables
from specllama.engine.options.values import OptionError


class Names:
    """All options of a server: those of its models, and its own."""

    def __init__(
        self, options: type[msgspec.Struct], order: Sequence[type[msgspec.Struct]]
    ) -> None:
        """`order` contains each table of `options` once, in the order of `--help`."""
        if {table for table, _ in tables(options)} != {*order}:
            raise TypeError(f"the order has other tables than {options.__name__}")
        declared = fields(options)
        self.fields = {name: declared[name] for table in order for name in fields(table)}
        every = self.fields.values()
        self.by_name = {name: field for field in every for name in field.names}
        self.by_negative = {name: field for field in every for name in field.negative_names}
        self.by_variable = {name: field for field in every for name in field.variables}
        self.by_negative_variable = {f.negative_env: f for f in every if f.negative_env}
        self.by_key = _keys(self.by_name) | self.by_variable
        self.by_negative_key = _keys(self.by_negative) | self.by_negative_variable

    def concerns_model(self, field: Field) -> bool:
        """Returns whether each model may have its own value, so that preset files may contain
        it."""
        return field.name in fields(Options)

    def normal_key(self, key: str) -> str:
        """Returns the key in the spelling of the command line: ctx-size for ctx_size."""
        is_variable = key in self.by_variable or key in self.by_negative_variable
        return key if is_variable else key.replace("_", "-")

    def key_concerns_server(self, key: str) -> bool:
        """Returns whether a key of a file names an option that is the same for all models."""
        name = self.normal_key(key)
        field = self.by_key.get(name) or self.by_negative_key.get(name)
        if field is None:
            unserved = unavailable.KEYS.get(key) or unavailable.KEYS.get(name)
            return unserved is not None and unserved.of_server
        return not self.concerns_model(field)


def _keys(names: dict[str, Field]) -> dict[str, Field]:
    return {name.lstrip("-"): field for name, field in names.items()}


_PROTECTING = ("API_KEY", "SSL", "TLS", "HOST", "CORS", "ORIGIN")


def protects(name: str) -> bool:
    """Returns whether a variable or a key looks like an option that restricts access. An unknown
    name of this kind must not be ignored."""
    plain = name.upper().replace("-", "_")
    return any(word in plain for word in _PROTECTING)


def suggestion(name: str, *candidates: Set[str]) -> str:
    """Returns the name most similar to `name`, from the first set that has one, as the end of a
    sentence."""
    for names in candidates:
        near = difflib.get_close_matches(name, sorted(names), n=3, cutoff=0.7)
        if near:
            # Swapped letters are the most frequent typing error.
            swapped = next((each for each in near if sorted(each) == sorted(name)), near[0])
            return f" (did you mean {swapped}?)"
    return ""


# ---- Collects the values of several sources, from the lowest to the highest priority.


class ChosenValues:
    """The values given so far, by field name; `compose` makes a struct of options from them."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.values: dict[str, Any] = {}
        self._of_source: set[str] = set()

    def begin_source(self) -> None:
        """Begins a source, whose values replace those of earlier sources instead of adding to
        them."""
        self._of_source.clear()

    def set(self, field: Field, value: Any) -> None:
        """Sets the value of `field`. Raises `OptionError` if the source has already set an option
        that `field` excludes."""
        if field.opt.joins:
            field = self.names.fields[field.opt.joins]
        for name in field.opt.excludes:
            if name in self._of_source:
                raise OptionError(f"excludes {self.names.fields[name].canonical}")
        if field.opt.repeats and field.name in self._of_source and value:
            value = self.values[field.name] + value
        self.values[field.name] = value
        self._of_source.add(field.name)
        for name in (*field.opt.replaces, *field.opt.excludes):
            self.values.pop(name, None)
        for name in field.opt.supersedes:
            if name not in self._of_source:
                self.values.pop(name, None)

    def read(self, field: Field, source: str, text: str) -> None:
        """Sets the value of `text`. Raises `OptionError` with `source` as prefix."""
        try:
            self.set(field, field.read(text))
        except OptionError as error:
            raise OptionError(f"{source}: {error}") from None
