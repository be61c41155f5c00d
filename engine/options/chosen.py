"""Gathers the values that several sources give, from the lowest to the highest."""

from typing import Any

from specllama.engine.options.declaration import Field
from specllama.engine.options.names import Names
from specllama.engine.options.values import OptionError


class Chosen:
    """The values given so far, by field name: what a struct of options is composed of."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.values: dict[str, Any] = {}
        self._of_source: set[str] = set()

    def begin_source(self) -> None:
        """What follows replaces what was given before, rather than adding to it."""
        self._of_source.clear()

    def set(self, field: Field, value: Any) -> None:
        """Raises `OptionError` if the source has said the same thing in another way."""
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
        """Sets what `text` stands for. Raises `OptionError` that begins with `source`."""
        try:
            self.set(field, field.read(text))
        except OptionError as error:
            raise OptionError(f"{source}: {error}") from None
