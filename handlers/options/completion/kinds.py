"""The kinds of option values that shells complete."""

from typing import Literal

from specllama.engine.options.declaration import Field

Kind = Literal["none", "choice", "file", "folder", "other"]


def kind_of(field: Field) -> Kind:
    """Returns the kind of a value: `none` for a flag, `other` for values without completion."""
    if field.is_flag:
        return "none"
    if field.choices:
        return "choice"
    if field.opt.metavar.startswith("DIR"):
        return "folder"
    if field.opt.metavar.startswith("FILE") and field.name != "hf_file":  # a file on the hub
        return "file"
    return "other"


def choices_of(field: Field) -> list[str]:
    return [choice for choice in field.choices if choice]
