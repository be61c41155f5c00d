"""Converts `Options` back to a command line and to a preset."""

import re
import shlex
from collections.abc import Iterator
from typing import Any

from specllama.engine.options import Options
from specllama.engine.options.declaration import Field, fields
from specllama.handlers.options.composition import NAMES

_NAMES = ("alias", "tags")
_NUMBER = re.compile(r"-[0-9.].*")


def arguments(options: Options) -> list[str]:
    """Returns the command line for the model's `options`: the program's name, then the options that
    differ from the defaults.

    Options of the server as a whole and secrets are left out. So is the path of a downloaded model
    that is named by its repository or URL.
    """
    words = ["specllama"]
    for field, value in _chosen(options):
        words += _words(field, value)
    return words


def preset(name: str, options: Options) -> str:
    """Returns the equivalent section of a preset file, without the model's aliases and tags. A line
    break in a value has a backslash before it, as in llama-server."""
    lines = [f"[{name}]"]
    for field, value in _chosen(options):
        if field.name not in _NAMES:
            shown = field.show(value).replace("\n", "\\\n")
            lines.append(f"{field.canonical.removeprefix('--')} = {shown}")
    return "\n".join([*lines, ""])


def _chosen(options: Options) -> Iterator[tuple[Field, Any]]:
    """Yields the options that differ from their defaults, with their values, in the order of
    `--help`."""
    of_model = fields(Options)
    for field in (of_model[name] for name in NAMES.fields if name in of_model):
        value = field.of(options)
        if value != field.default and _belongs(options, field):
            yield field, value


def _belongs(options: Options, field: Field) -> bool:
    source = options.source
    if field.name == "model" and source.names_model():
        return False
    if field.name == "mmproj" and options.source.mmproj_url:
        return False
    if field.name == "model_draft" and source.hf_repo_draft and not options.fetches_draft():
        return False
    return not field.opt.secret


def _words(field: Field, value: Any) -> Iterator[str]:
    if field.is_flag:
        yield field.canonical if value else field.negative_names[-1]
        return
    if field.name == "lora" and any(scale != 1 for _, scale in value):
        field = fields(Options)["lora_scaled"]
    for text in _texts(field, value):
        if text.startswith("-") and not _NUMBER.fullmatch(text):
            yield f"{field.canonical}={text}"  # as a separate word, it would be an option
        else:
            yield field.canonical
            yield from shlex.split(text) if field.opt.n_values > 1 else [text]


def _texts(field: Field, value: Any) -> list[str]:
    """Returns one text for each occurrence of the option."""
    if field.opt.one_each and value:
        return [field.show((element,)) for element in value]
    return [field.show(value)]
