"""Computes the options of a model, and of a server, from variables, files and a command line."""

import shlex
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any, NamedTuple

from specllama.engine.options import shortcuts, unavailable
from specllama.engine.options.checks import check, check_files
from specllama.engine.options.composition import Options
from specllama.engine.options.declaration import Field, compose
from specllama.engine.options.layers import Layer, read_layer
from specllama.engine.options.names import ChosenValues, Names, protects, suggestion
from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.engine.options.values import OptionError, quote


class Given(NamedTuple):
    """The input of a server's start: variables, the command line (without the program's name), and
    the known option names."""

    names: Names
    environ: Mapping[str, str]
    argv: Sequence[str]


def gather(given: Given, layers: Sequence[Layer]) -> dict[str, Any]:
    """Returns the values from variables, layers, and the command line, by field name. Each source
    overrides the options of the earlier ones. Raises `OptionError`."""
    chosen = ChosenValues(given.names)
    _read_environment(chosen, given.environ)
    for layer in layers:
        read_layer(chosen, layer)
    _read_command_line(chosen, given.argv)
    return chosen.values


def layered(given: Given, layers: Sequence[Layer], *, files: bool = True) -> Options:
    """Returns the options of a model: from `given`, and from `layers`.

    If `files`, the files that options name are checked. Raises `OptionError`.
    """
    options = unchecked(given, layers)
    check(options)
    if files:
        check_files(options)
    return options


def unchecked(given: Given, layers: Sequence[Layer]) -> Options:
    """Returns the options of a model, to show them. It isn't checked whether they are compatible
    and whether their files exist. Raises `OptionError` for a value that can't be read."""
    return compose(Options, gather(given, layers))


def vain_options(given: Given) -> list[str]:
    """Returns a warning for each given option that is ignored."""
    words = [argument.name for argument in _arguments(given.names, given.argv)]
    found = {name: unavailable.BY_NAME[name] for name in words if name in unavailable.NAMES}
    for name in unavailable.given(given.environ):
        of_variable = unavailable.BY_VARIABLE.get(name) or unavailable.BY_NEGATIVE_VARIABLE[name]
        found[name] = of_variable
    return [
        unavailable.warning(name, option) for name, option in found.items() if not option.refused
    ]


def unknown_variables(names: Names, environ: Mapping[str, str]) -> list[str]:
    """Returns a warning for each unknown variable with the prefix LLAMA_."""
    return [
        f"the variable {name} is unknown and has no effect{suggestion(name, _variables(names))}"
        for name in _unknown(names, environ)
    ]


_PREFIX = "LLAMA_"
_NAMING = ("FILE", "DIR", "URL", "USER/REPO[:QUANT]", "[HOST/]NAME[:TAG]")
"""Metavars of values that name something. An empty value on the command line is most likely the
value of an unset shell variable."""
_ELSEWHERE = {"LLAMA_CACHE", "LLAMA_CPP_LIB_PATH", "LLAMA_SERVER_SLOTS_DEBUG", "LLAMA_MEDIA_MARKER"}
"""Variables that other parts of the program, or llama.cpp, read themselves."""


def _variables(names: Names) -> Set[str]:
    return names.by_variable.keys() | names.by_negative_variable.keys() | unavailable.VARIABLES


def _unknown(names: Names, environ: Mapping[str, str]) -> list[str]:
    known = _variables(names) | _ELSEWHERE
    return [name for name in sorted(environ) if name.startswith(_PREFIX) and name not in known]


def _check_unknown(names: Names, environ: Mapping[str, str]) -> None:
    """Raises `OptionError` for an unknown variable that was meant to protect the server."""
    for name in _unknown(names, environ):
        if protects(name) and environ[name]:
            raise OptionError(
                f"the variable {name} is unknown, but may have been meant to protect the "
                f"server{suggestion(name, _variables(names))}"
            )


def _read_environment(chosen: ChosenValues, environ: Mapping[str, str]) -> None:
    _check_unknown(chosen.names, environ)
    unavailable.given(environ)
    for field in chosen.names.fields.values():
        if field.negative_env and field.negative_env in environ:
            chosen.set(field, False)
            continue
        _check_empty(field, environ)
        given = [name for name in field.variables if environ.get(name)]  # empty: not set
        for name in given[:1]:
            chosen.read(field, name, environ[name])


def _check_empty(field: Field, environ: Mapping[str, str]) -> None:
    """Raises `OptionError` for an empty variable of keys or certificates, without which the server
    would be unprotected."""
    for name in field.variables:
        if environ.get(name) == "" and ("API_KEY" in name or "SSL" in name):
            raise OptionError(f"the variable {name} is set, but empty; unset it if it isn't needed")


def _read_command_line(chosen: ChosenValues, argv: Sequence[str]) -> None:
    names = chosen.names
    given = list(_arguments(names, argv))
    chosen.begin_source()
    short = [argument.name for argument in given if argument.name in SHORTCUTS]
    shortcuts.read(chosen, short, "the command line", whole_server=True)
    chosen.begin_source()
    for name, text in given:
        if name in names.by_name and text is not None:
            if not text and names.by_name[name].opt.metavar in _NAMING:
                raise OptionError(f"{name}: the value is empty")
            chosen.read(names.by_name[name], name, text)
        elif name not in SHORTCUTS and name not in unavailable.NAMES:
            field = names.by_negative.get(name) or names.by_name[name]
            chosen.set(field, name not in names.by_negative)


def _known(names: Names) -> Set[str]:
    return names.by_name.keys() | names.by_negative.keys() | SHORTCUTS.keys()


class _Argument(NamedTuple):
    name: str
    text: str | None  # its value, if it has one


def _arguments(names: Names, argv: Sequence[str]) -> Iterator[_Argument]:
    """Yields the options of a command line, each with its value."""
    arguments = list(reversed(argv))
    while arguments:
        argument = arguments.pop()
        name, equals, text = _split(argument)
        field = names.by_name.get(name)
        if field is not None and not field.is_flag:
            if not equals:
                given = [
                    _next_value(names, field, name, arguments) for _ in range(field.opt.n_values)
                ]
                text = shlex.join(given) if len(given) > 1 else given[0]
            yield _Argument(name, text)
        elif name in unavailable.NAMES:
            yield _unavailable(names, name, text if equals else None, arguments)
        elif name in _known(names):
            if equals:
                raise OptionError(f"{name} takes no value")
            yield _Argument(name, None)
        else:
            raise OptionError(_refusal(names, argument, name))


def _unavailable(names: Names, name: str, text: str | None, arguments: list[str]) -> _Argument:
    if reason := unavailable.refusal(name):
        raise OptionError(reason)
    metavar = unavailable.BY_NAME[name].metavar.split()
    if not metavar:
        if text is not None:
            raise OptionError(f"{name} takes no value")
        return _Argument(name, None)
    if text is None:
        text = " ".join(_word(names, name, value, arguments) for value in metavar)
    return _Argument(name, text)


def _split(argument: str) -> tuple[str, str, str]:
    """Returns the name, '=' or '', and the value. As in llama-server, --ctx_size means
    --ctx-size."""
    name, equals, text = argument.partition("=")
    if name.startswith("--"):
        name = name.replace("_", "-")
    return name, equals, text


def _next_value(names: Names, field: Field, name: str, arguments: list[str]) -> str:
    following = arguments[-1] if arguments else None
    if field.opt.bare and (following is None or (following[:1] == "-" and following != "-1")):
        return field.opt.bare
    return _word(names, name, field.opt.metavar, arguments)


def _word(names: Names, name: str, metavar: str, arguments: list[str]) -> str:
    """Returns the word after `name`, which must not be another option."""
    if not arguments:
        raise OptionError(f"{name} needs a value ({metavar})")
    following = arguments[-1]
    if _split(following)[0] in _known(names) | unavailable.NAMES:
        raise OptionError(
            f"{name} needs a value, but {quote(following)} follows "
            f"(write {name}=... if that is the value)"
        )
    return arguments.pop()


def _refusal(names: Names, argument: str, name: str) -> str:
    if not argument.startswith("-"):
        hint = " (a model file is named with -m FILE)" if argument.endswith(".gguf") else ""
        return f"unexpected argument {quote(argument)}{hint}"
    return f"unknown option {quote(name)}{suggestion(name, _known(names), unavailable.NAMES)}"
