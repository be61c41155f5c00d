"""Every command-line option, declared once.

`table` declares them; `parser`, `help` and the checks are derived from the declarations.
"""

from engine.options.arguments import arguments, preset
from engine.options.help import help_text, reference
from engine.options.layers import Layer, Setting, check_layer, layer_remarks
from engine.options.parser import from_environ, layered, parse, remarks, unknown_variables
from engine.options.table import Options
from engine.options.tables.embedding import Pooling
from engine.options.values import OptionError

__all__ = [
    "Layer",
    "OptionError",
    "Options",
    "Pooling",
    "Setting",
    "arguments",
    "check_layer",
    "from_environ",
    "help_text",
    "layer_remarks",
    "layered",
    "parse",
    "preset",
    "reference",
    "remarks",
    "unknown_variables",
]
