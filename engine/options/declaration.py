"""How an option is declared: `Opt` beside a field's type, and `fields()` to read it back.

Everything that depends on the set of options (the parser, the environment variables,
`--help`, the reference page) is derived from these two.
"""

import functools
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from engine.options import values

INT32_MAX = 2**31 - 1
Switch = Literal["on", "off", "auto"]
Scope = Literal["model", "server"]


@dataclass(frozen=True, kw_only=True)
class Opt:
    """The metadata of one option; the type, the default and the canonical name are the
    field's own. `read` and `show` turn text into a value and back, for types that are not
    a flag, a number, a text or a choice."""

    names: str  # all positive forms, separated by spaces, as typed on the command line
    help: str
    group: str
    env: str = ""
    metavar: str = ""
    negative: str = ""  # the forms that switch a flag off
    min: float | None = None
    max: float | None = None
    default: str = ""  # what to show where the default value does not explain itself
    bare: str = ""  # the value meant when the option stands alone
    repeats: bool = False  # several occurrences add up
    one_each: bool = False  # each occurrence gives one element only
    n_values: int = 1  # how many arguments follow; `read` gets them with spaces between
    joins: str = ""  # the (repeating) field that gets the value instead, in order of appearance
    replaces: tuple[str, ...] = ()  # fields that are two ways to say one thing: the last wins
    excludes: tuple[str, ...] = ()  # the same, but one source may not use both ways
    supersedes: tuple[str, ...] = ()  # fields that mean nothing any more if a lower source set them
    scope: Scope = "model"  # "server": one value for all models of a server
    secret: bool = False  # never shown; `read` checks the text and doesn't quote it
    read: Callable[[str], Any] | None = None
    show: Callable[[Any], str] | None = None


@dataclass(frozen=True)
class Field:
    """One option as declared: its field name, type, default and metadata."""

    name: str
    type: Any
    default: Any
    opt: Opt

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.opt.names.split())

    @property
    def negative_names(self) -> tuple[str, ...]:
        return tuple(self.opt.negative.split())

    @property
    def canonical(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def is_flag(self) -> bool:
        return self.type in (bool, bool | None)

    @property
    def negative_env(self) -> str:
        """The variable whose mere presence switches the flag off, or ''."""
        if self.opt.negative and self.opt.env.startswith("LLAMA_ARG_"):
            return self.opt.env.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)
        return ""

    @property
    def choices(self) -> tuple[str, ...]:
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else ()

    def read(self, text: str) -> Any:
        """The value that `text` stands for. Raises `OptionError` without naming the option."""
        opt = self.opt
        if not opt.secret:
            values.check_text(text)
        if opt.read is not None:
            return opt.read(text)
        if self.is_flag:
            return values.flag(text)
        if self.choices:
            return values.choice(text, self.choices)
        if self.type is int:
            return values.integer(text, opt.min, opt.max)
        if self.type is float:
            return values.real(text, opt.min, opt.max)
        return text

    def show(self, value: Any) -> str:
        """The text that `read` turns into `value`."""
        if self.opt.show is not None:
            return self.opt.show(value)
        if isinstance(value, bool):
            return "on" if value else "off"
        return str(value)


@functools.cache
def fields(options: type[msgspec.Struct]) -> dict[str, Field]:
    """The declared options of a struct by field name, in the order of declaration."""
    hints = typing.get_type_hints(options, include_extras=True)
    declared = {}
    for field in msgspec.structs.fields(options):
        type_, opt = typing.get_args(hints[field.name])
        default = field.default
        if default is msgspec.NODEFAULT:
            default = field.default_factory()
        declared[field.name] = Field(field.name, type_, default, opt)
        _check(declared[field.name])
    return declared


def _check(field: Field) -> None:
    scalar = field.is_flag or field.choices or field.type in (int, float, str)
    if field.opt.read is None and not scalar:
        raise TypeError(f"the option {field.name} of type {field.type} needs a `read`")
    if field.opt.negative and not field.is_flag:
        raise TypeError(f"the option {field.name} is no flag, but has negative forms")
    if field.opt.secret and field.opt.read is None:
        raise TypeError(f"the secret option {field.name} needs a `read` that doesn't quote it")
