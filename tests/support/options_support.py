"""Helpers for the tests of options."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from specllama.engine.options import EngineOptions, Given, Layer, OptionError, Options
from specllama.engine.options import layered as options_of_model
from specllama.engine.options.declaration import replaced
from specllama.handlers.options import NAMES, ServerOptions, parse

FIELDS = NAMES.fields


def engine_options(**chosen: Any) -> EngineOptions:
    """Returns options by the names of their fields, in any of the tables, for one computing thread.

    The tests run side by side, one for each processor. Threads that wait for each other at every
    operation, and spin while they wait, would be waiting for a processor most of the time.
    """
    return replaced(EngineOptions(), **{"threads": 1, **chosen})


def model_options(**chosen: Any) -> Options:
    return replaced(Options(), **chosen)


def server_options(**chosen: Any) -> ServerOptions:
    return replaced(ServerOptions(), **chosen)


def layered(
    environ: Mapping[str, str], layers: Sequence[Layer], argv: Sequence[str], *, files: bool = True
) -> Options:
    """Returns the options of one model of a server that was started with `argv`."""
    return options_of_model(Given(NAMES, environ, argv), layers, files=files)


def error(*argv: str, **environ: str) -> str:
    with pytest.raises(OptionError) as caught:
        parse(argv, environ)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    return message
