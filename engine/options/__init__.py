"""The options of models, each declared once, and how options are read.

`tables` declares them, `composition` puts the tables together. The parser and the checks are
derived from the declarations; the options of the server (`handlers.options`) use the same ones.
"""

from engine.options.composition import EngineOptions, Options
from engine.options.declaration import replaced
from engine.options.layers import Layer, ProtectingError, Setting, check_layer, layer_remarks
from engine.options.names import Names
from engine.options.parser import Given, layered
from engine.options.tables.embedding import Pooling
from engine.options.tables.router import RouterOptions
from engine.options.values import OptionError

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
]
