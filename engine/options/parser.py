"""Command line and environment to `Options`."""

import difflib
from collections.abc import Mapping, Sequence, Set
from typing import Any

from engine.options import unavailable
from engine.options.checks import check
from engine.options.declaration import Field, fields
from engine.options.table import Options
from engine.options.values import OptionError, quote


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """The options given on a command line (without the program's name) and by variables.

    The command line wins. Files that options name are checked, unless the options ask only
    for information (`--help`, `--version`, `--list-devices`). Raises `OptionError`.
    """
    chosen = _Values()
    _read_environment(chosen, environ)
    chosen.begin_source()
    _read_command_line(chosen, argv)
    options = Options(**chosen.values)
    if not (options.help or options.version or options.list_devices):
        check(options)
    return options


def from_environ(environ: Mapping[str, str]) -> Options:
    """The options given by variables alone."""
    return parse([], environ)


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """LLAMA_ARG_ variables that mean nothing here, each as a warning for the user."""
    known = {v for f in _FIELDS.values() for v in (f.opt.env, f.negative_env) if v}
    known |= unavailable.VARIABLES
    return [
        f"the variable {name} is unknown and has no effect{_suggestion(name, known)}"
        for name in sorted(environ)
        if name.startswith("LLAMA_ARG_") and name not in known
    ]


_FIELDS = fields(Options)
_BY_NAME = {name: field for field in _FIELDS.values() for name in field.names}
_BY_NEGATIVE = {name: field for field in _FIELDS.values() for name in field.negative_names}
_NAMES = _BY_NAME.keys() | _BY_NEGATIVE.keys()


class _Values:
    """The values given so far, by field name."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._of_source: set[str] = set()

    def begin_source(self) -> None:
        """What follows replaces what was given before, rather than adding to it."""
        self._of_source.clear()

    def set(self, field: Field, value: Any) -> None:
        if field.opt.joins:
            field = _FIELDS[field.opt.joins]
        if field.opt.repeats and field.name in self._of_source and value:
            value = self.values[field.name] + value
        self.values[field.name] = value
        self._of_source.add(field.name)
        for other in field.opt.replaces:
            self.values.pop(other, None)

    def read(self, field: Field, source: str, text: str) -> None:
        try:
            self.set(field, field.read(text))
        except OptionError as error:
            raise OptionError(f"{source}: {error}") from None


def _read_environment(chosen: _Values, environ: Mapping[str, str]) -> None:
    for variable in sorted(unavailable.VARIABLES & environ.keys()):
        if environ[variable]:
            raise OptionError(f"the option of the variable {variable} is not available yet")
    for field in _FIELDS.values():
        if field.negative_env and field.negative_env in environ:
            chosen.set(field, False)
        elif field.opt.env and environ.get(field.opt.env):  # an empty variable says nothing
            chosen.read(field, field.opt.env, environ[field.opt.env])


def _read_command_line(chosen: _Values, argv: Sequence[str]) -> None:
    arguments = list(reversed(argv))
    while arguments:
        argument = arguments.pop()
        name, equals, text = _split(argument)
        if name in _BY_NEGATIVE or (name in _BY_NAME and _BY_NAME[name].is_flag):
            if equals:
                raise OptionError(f"{name} takes no value")
            field = _BY_NEGATIVE.get(name) or _BY_NAME[name]
            chosen.set(field, name not in _BY_NEGATIVE)
        elif name in _BY_NAME:
            field = _BY_NAME[name]
            if not equals:
                given = [_next_value(field, name, arguments) for _ in range(field.opt.n_values)]
                text = " ".join(given)
            chosen.read(field, name, text)
        else:
            raise OptionError(_refusal(argument, name))


def _split(argument: str) -> tuple[str, str, str]:
    """Name, '=' or '', and value; as in llama-server, --ctx_size means --ctx-size."""
    name, equals, text = argument.partition("=")
    if name.startswith("--"):
        name = name.replace("_", "-")
    return name, equals, text


def _next_value(field: Field, name: str, arguments: list[str]) -> str:
    following = arguments[-1] if arguments else None
    if field.opt.bare and (following is None or (following[:1] == "-" and following != "-1")):
        return field.opt.bare
    if following is None:
        raise OptionError(f"{name} needs a value ({field.opt.metavar})")
    if _split(following)[0] in _NAMES | unavailable.NAMES:
        raise OptionError(
            f"{name} needs a value, but {quote(following)} follows "
            f"(write {name}=... if that is the value)"
        )
    return arguments.pop()


def _refusal(argument: str, name: str) -> str:
    if name in unavailable.NAMES:
        return f"the option {name} is not available yet"
    if not argument.startswith("-"):
        hint = " (a model file is named with -m FILE)" if argument.endswith(".gguf") else ""
        return f"unexpected argument {quote(argument)}{hint}"
    return f"unknown option {quote(name)}{_suggestion(name, _NAMES, unavailable.NAMES)}"


def _suggestion(name: str, *candidates: Set[str]) -> str:
    """Names like `name`, from the first set that has one."""
    for names in candidates:
        near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.7)
        if near:
            return f" (did you mean {near[0]}?)"
    return ""
