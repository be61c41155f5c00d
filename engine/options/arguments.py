"""From `Options` back to a command line."""

import re
from collections.abc import Iterator
from typing import Any

from engine.options.declaration import Field
from engine.options.names import FIELDS
from engine.options.table import Options

_NAMES = ("alias", "tags")
_NUMBER = re.compile(r"-[0-9.].*")


def arguments(options: Options) -> list[str]:
    """The command line that means what `options` say of the model: the program's name, then
    what differs from the defaults.

    Options of the server as a whole are left out, and secrets. So are the paths at which a model
    that is named by its repository or its address lies after the download.
    """
    words = ["specllama"]
    for field in FIELDS.values():
        value = getattr(options, field.name)
        if value != field.default and _belongs(options, field):
            words += _words(field, value)
    return words


def preset(name: str, options: Options) -> str:
    """The section of a preset file that means the same, without the model's other names. A line
    end in a value has a backslash in front, as llama-server shows it."""
    lines = [f"[{name}]"]
    for field in FIELDS.values():
        value = getattr(options, field.name)
        if value != field.default and _belongs(options, field) and field.name not in _NAMES:
            shown = field.show(value).replace("\n", "\\\n")
            lines.append(f"{field.canonical.removeprefix('--')} = {shown}")
    return "\n".join([*lines, ""])


def _belongs(options: Options, field: Field) -> bool:
    if field.name == "model" and (options.hf_repo or options.model_url):
        return False
    if field.name == "mmproj" and options.mmproj_url:
        return False
    return field.opt.scope == "model" and not field.opt.secret


def _words(field: Field, value: Any) -> Iterator[str]:
    if field.is_flag:
        yield field.canonical if value else field.negative_names[-1]
        return
    if field.name == "lora" and any(scale != 1 for _, scale in value):
        field = FIELDS["lora_scaled"]
    for text in _texts(field, value):
        if text.startswith("-") and not _NUMBER.fullmatch(text):
            yield f"{field.canonical}={text}"  # apart, it would be taken for an option
        else:
            yield field.canonical
            yield from text.split(" ") if field.opt.n_values > 1 else [text]


def _texts(field: Field, value: Any) -> list[str]:
    """One text for each occurrence of the option."""
    if field.opt.one_each and value:
        return [field.show((element,)) for element in value]
    return [field.show(value)]
