"""Command line, environment and other layers to `Options`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from engine.options import shortcuts, unavailable
from engine.options.checks import check, check_files
from engine.options.chosen import Chosen
from engine.options.declaration import Field
from engine.options.layers import Layer, read_layer
from engine.options.names import (
    BY_NAME,
    BY_NEGATIVE,
    BY_NEGATIVE_VARIABLE,
    BY_VARIABLE,
    FIELDS,
    suggestion,
)
from engine.options.shortcuts import SHORTCUTS
from engine.options.table import Options
from engine.options.values import OptionError, quote


def layered(
    environ: Mapping[str, str], layers: Sequence[Layer], argv: Sequence[str], *, files: bool = True
) -> Options:
    """The options given by variables, by layers, and on a command line (without the program's
    name). Each wins over those before it, and replaces what they say of an option.

    Files that options name are checked if `files`, unless the options ask only for information
    (`--help`, `--version`, `--list-devices`, `--cache-list`). Raises `OptionError`.
    """
    chosen = Chosen()
    _read_environment(chosen, environ)
    for layer in layers:
        read_layer(chosen, layer)
    _read_command_line(chosen, argv)
    options = Options(**chosen.values)
    if not (options.help or options.version or options.list_devices or options.cache_list):
        check(options)
        if files:
            check_files(options)
    return options


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """`layered` without layers."""
    return layered(environ, (), argv)


def from_environ(environ: Mapping[str, str]) -> Options:
    """The options given by variables alone."""
    return parse([], environ)


def remarks(options: Options, argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """What was given to `parse` in vain, each as a warning for the user."""
    names = dict.fromkeys(argument.name for argument in _arguments(argv))
    found = unknown_variables(environ)
    found += shortcuts.notes(name for name in names if name in SHORTCUTS)
    if options.mmproj or options.mmproj_url:
        found.append("--mmproj has no effect: media input is not available yet")
    if options.reproducible == "on":
        found += [f"--reproducible: {name} undoes it" for name in options.irreproducible()]
    if options.models_dir or options.models_preset:
        for name in ("model", "hf_repo", "model_url"):
            if getattr(options, name):
                given = FIELDS["models_dir" if options.models_dir else "models_preset"].canonical
                found.append(
                    f"{given} has no effect: {FIELDS[name].canonical} names the only model"
                )
    return found


def unknown_variables(environ: Mapping[str, str]) -> list[str]:
    """LLAMA_ARG_ variables that mean nothing here, each as a warning for the user."""
    known = BY_VARIABLE.keys() | BY_NEGATIVE_VARIABLE.keys() | unavailable.VARIABLES
    return [
        f"the variable {name} is unknown and has no effect{suggestion(name, known)}"
        for name in sorted(environ)
        if name.startswith("LLAMA_ARG_") and name not in known
    ]


_NAMES = BY_NAME.keys() | BY_NEGATIVE.keys() | SHORTCUTS.keys()


def _read_environment(chosen: Chosen, environ: Mapping[str, str]) -> None:
    for variable in sorted(unavailable.VARIABLES & environ.keys()):
        if environ[variable]:
            raise OptionError(f"the option of the variable {variable} is not available yet")
    for field in FIELDS.values():
        if field.negative_env and field.negative_env in environ:
            chosen.set(field, False)
        elif field.opt.env and environ.get(field.opt.env):  # an empty variable says nothing
            chosen.read(field, field.opt.env, environ[field.opt.env])


def _read_command_line(chosen: Chosen, argv: Sequence[str]) -> None:
    given = list(_arguments(argv))
    chosen.begin_source()
    names = [argument.name for argument in given if argument.name in SHORTCUTS]
    shortcuts.read(chosen, names, "the command line", whole_server=True)
    chosen.begin_source()
    for name, text in given:
        if name in BY_NAME and text is not None:
            chosen.read(BY_NAME[name], name, text)
        elif name not in SHORTCUTS:
            chosen.set(BY_NEGATIVE.get(name) or BY_NAME[name], name not in BY_NEGATIVE)


class _Argument(NamedTuple):
    name: str
    text: str | None  # of its value, if it takes one


def _arguments(argv: Sequence[str]) -> Iterator[_Argument]:
    """The options of a command line, each with its value."""
    arguments = list(reversed(argv))
    while arguments:
        argument = arguments.pop()
        name, equals, text = _split(argument)
        field = BY_NAME.get(name)
        if field is not None and not field.is_flag:
            if not equals:
                given = [_next_value(field, name, arguments) for _ in range(field.opt.n_values)]
                text = " ".join(given)
            yield _Argument(name, text)
        elif name in _NAMES:
            if equals:
                raise OptionError(f"{name} takes no value")
            yield _Argument(name, None)
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
    return f"unknown option {quote(name)}{suggestion(name, _NAMES, unavailable.NAMES)}"
