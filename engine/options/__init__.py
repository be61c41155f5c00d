"""The options of models, each declared once, and the code that reads options.

`tables` declares the options, `composition` puts the tables together. The parser and the checks are
derived from the declarations. The server's own options (`handlers.options`) use the same parser and
checks.
"""

from specllama.engine.options.composition import EngineOptions, Options
from specllama.engine.options.declaration import replaced
from specllama.engine.options.layers import (
    Layer,
    ProtectingError,
    Setting,
    check_layer,
    layer_remarks,
)
from specllama.engine.options.names import Names
from specllama.engine.options.parser import Given, layered, unchecked
from specllama.engine.options.tables.embedding import Pooling
from specllama.engine.options.tables.router import RouterOptions
from specllama.engine.options.values import OptionError

__all__ = [
    "EngineOptions",
    "Given",
    "Layer",
    "Names",
    "OptionError",
    "Options",
    "Pooling",
    "ProtectingError",
    "RouterOptions",
    "Setting",
    "check_layer",
    "layer_remarks",
    "layered",
    "replaced",
    "unchecked",
]
