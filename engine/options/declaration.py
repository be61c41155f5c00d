"""How an option is declared: an `Opt` in the annotation of a table's field. `fields()` reads the
declarations of one table, or of several composed ones.

Everything that depends on the set of options (the parser, the environment variables, `--help`, the
reference page) is derived from these declarations.
"""

import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import msgspec

from specllama.engine.options import values

INT32_MAX = 2**31 - 1
FIRST_PRIORITY, LAST_PRIORITY = -128, 127
"""The range of the priorities of requests, models and API keys; lower numbers are served first."""
Switch = Literal["on", "off", "auto"]
_OPTIONAL: Mapping[Any, type] = {int | None: int, float | None: float}
"""Types of optional numbers, and the type of their values."""
Composed = TypeVar("Composed", bound=msgspec.Struct)


@dataclass(frozen=True, kw_only=True)
class Opt:
    """The metadata of one option. The field itself defines the type, the default and the canonical
    name. `read` and `show` convert text to a value and back, for types other than a flag, a number,
    a text or a choice."""

    names: str  # all positive forms, separated by spaces, as typed on the command line
    help: str
    group: str
    env: str = ""
    also_env: str = ""  # other variables, separated by spaces; the first one that is set counts
    metavar: str = ""
    negative: str = ""  # the forms that switch a flag off
    min: float | None = None
    max: float | None = None
    default: str = ""  # the text to show as default, if the value isn't clear enough
    bare: str = ""  # the value if the option is given without one
    repeats: bool = False  # several occurrences add up
    one_each: bool = False  # each occurrence gives one element only
    n_values: int = 1  # number of arguments; `read` gets them joined as shell words
    joins: str = ""  # the (repeating) field that gets the value instead, in order of appearance
    replaces: tuple[str, ...] = ()  # fields with the same purpose; the last one given counts
    excludes: tuple[str, ...] = ()  # like `replaces`, but an error within one source
    supersedes: tuple[str, ...] = ()  # fields to drop if a lower source set them
    secret: bool = False  # never shown; `read` checks the text and doesn't quote it
    read: Callable[[str], Any] | None = None
    show: Callable[[Any], str] | None = None
    file: Callable[[Any], object] | None = None  # raises OptionError for files that can't be used


@dataclass(frozen=True)
class Field:
    """One declared option: the name, type, default and metadata of its field, and the path of
    fields from the outermost struct to its table."""

    name: str
    type: Any
    default: Any
    opt: Opt
    path: tuple[str, ...] = ()

    def of(self, options: msgspec.Struct) -> Any:
        """Returns the option's value in a struct of the type that the field was declared for."""
        return functools.reduce(getattr, (*self.path, self.name), options)

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
    def variables(self) -> tuple[str, ...]:
        """The option's environment variables; the first one that is set counts."""
        return tuple(f"{self.opt.env} {self.opt.also_env}".split())

    @property
    def negative_env(self) -> str:
        """The variable whose mere presence disables the flag, or ''."""
        for variable in self.variables if self.opt.negative else ():
            if variable.startswith("LLAMA_ARG_"):
                return variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1)
        return ""

    @property
    def choices(self) -> tuple[str, ...]:
        return typing.get_args(self.type) if typing.get_origin(self.type) is Literal else ()

    def read(self, text: str) -> Any:
        """Returns the value of `text`. Raises `OptionError`, without the option's name."""
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
        """Returns the text that `read` converts to `value`."""
        if self.opt.show is not None:
            return self.opt.show(value)
        if isinstance(value, bool):
            return "on" if value else "off"
        return str(value)


@functools.cache
def fields(options: type[msgspec.Struct]) -> dict[str, Field]:
    """Returns the declared options of a table, or of a struct of tables, by field name, in the
    order of declaration."""
    declared: dict[str, Field] = {}
    for table, path in tables(options):
        hints = typing.get_type_hints(table, include_extras=True)
        for field in msgspec.structs.fields(table):
            if field.name in declared:
                raise TypeError(f"two tables have the option {field.name}")
            type_, opt = typing.get_args(hints[field.name])
            type_ = _OPTIONAL.get(type_, type_)
            default = field.default
            if default is msgspec.NODEFAULT:
                default = field.default_factory()
            declared[field.name] = Field(field.name, type_, default, opt, path)
            _check(declared[field.name])
    return declared


def tables(
    options: type[msgspec.Struct], path: tuple[str, ...] = ()
) -> Iterator[tuple[type[msgspec.Struct], tuple[str, ...]]]:
    """Yields the tables of a struct, each with the path of fields to it; a table yields itself."""
    inner = {f.name: f.type for f in msgspec.structs.fields(options) if _is_struct(f.type)}
    if not inner:
        yield options, path
    for name, struct in inner.items():
        yield from tables(struct, (*path, name))


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def compose(options: type[Composed], chosen: Mapping[str, Any]) -> Composed:
    """Returns a struct of tables with the `chosen` values, by field name. Names that are no options
    of the struct are ignored."""
    given = {}
    for field in msgspec.structs.fields(options):
        if _is_struct(field.type):
            given[field.name] = compose(field.type, chosen)
        elif field.name in chosen:
            given[field.name] = chosen[field.name]
    return options(**given)


def replaced(options: Composed, **changes: Any) -> Composed:
    """Returns a copy of a struct of tables with changed options."""
    if unknown := changes.keys() - fields(type(options)).keys():
        raise TypeError(f"{type(options).__name__} has no {', '.join(sorted(unknown))}")
    kept = {name: field.of(options) for name, field in fields(type(options)).items()}
    return compose(type(options), kept | changes)


def _check(field: Field) -> None:
    scalar = field.is_flag or field.choices or field.type in (int, float, str)
    if field.opt.read is None and not scalar:
        raise TypeError(f"the option {field.name} of type {field.type} needs a `read`")
    if field.opt.negative and not field.is_flag:
        raise TypeError(f"the option {field.name} is no flag, but has negative forms")
    if field.opt.secret and field.opt.read is None:
        raise TypeError(f"the secret option {field.name} needs a `read` that doesn't quote it")
