"""Helpers for the tests of options."""

import pytest

from engine.options import OptionError, Options, parse
from engine.options.declaration import fields

FIELDS = fields(Options)


def error(*argv: str, **environ: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse(argv, environ)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message
