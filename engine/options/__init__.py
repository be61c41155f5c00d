"""Every command-line option, declared once.

`table` declares them; `parser`, `help` and the checks are derived from the declarations.
"""

from engine.options.help import help_text, reference
from engine.options.parser import from_environ, parse, unknown_variables
from engine.options.table import Options
from engine.options.tables.embedding import Pooling
from engine.options.values import OptionError

__all__ = [
    "OptionError",
    "Options",
    "Pooling",
    "from_environ",
    "help_text",
    "parse",
    "reference",
    "unknown_variables",
]
