"""The options by all the names that they have: on the command line, as variables, in files."""

import difflib
from collections.abc import Set

from engine.options.declaration import fields
from engine.options.table import Options

FIELDS = fields(Options)
BY_NAME = {name: field for field in FIELDS.values() for name in field.names}
BY_NEGATIVE = {name: field for field in FIELDS.values() for name in field.negative_names}
BY_VARIABLE = {field.opt.env: field for field in FIELDS.values() if field.opt.env}
BY_NEGATIVE_VARIABLE = {f.negative_env: f for f in FIELDS.values() if f.negative_env}


def suggestion(name: str, *candidates: Set[str]) -> str:
    """The name most like `name`, from the first set that has one, as the end of a sentence."""
    for names in candidates:
        near = difflib.get_close_matches(name, sorted(names), n=1, cutoff=0.7)
        if near:
            return f" (did you mean {near[0]}?)"
    return ""
