"""Every command-line option, declared once.

`table` declares them; `parser`, `help` and the checks are derived from the declarations.
"""

from engine.options.help import help_text, reference
from engine.options.layers import Layer, Setting, without_effect
from engine.options.parser import from_environ, layered, parse, unknown_variables
from engine.options.table import Options
from engine.options.tables.embedding import Pooling
from engine.options.values import OptionError

__all__ = [
    "Layer",
    "OptionError",
    "Options",
    "Pooling",
    "Setting",
    "from_environ",
    "help_text",
    "layered",
    "parse",
    "reference",
    "unknown_variables",
    "without_effect",
]
