"""What the values of options are, as far as a shell can complete them."""

from typing import Literal

from specllama.engine.options.declaration import Field

Kind = Literal["none", "choice", "file", "folder", "other"]


def kind_of(field: Field) -> Kind:
    """`none` for a flag, `other` for what nobody can know."""
    if field.is_flag:
        return "none"
    if field.choices:
        return "choice"
    if field.opt.metavar.startswith("DIR"):
        return "folder"
    if field.opt.metavar.startswith("FILE") and field.name != "hf_file":  # that is on the hub
        return "file"
    return "other"


def choices_of(field: Field) -> list[str]:
    return [choice for choice in field.choices if choice]
