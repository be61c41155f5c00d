"""Every command-line option: those of models (`engine.options`), and those of the server.

`tables` declares the server's options; `composition` combines all tables. The command line,
`--help` and the reference page are made from them.
"""

from specllama.handlers.options.composition import NAMES, ServerOptions
from specllama.handlers.options.parser import from_environ, given, parse, remarks

__all__ = ["NAMES", "ServerOptions", "from_environ", "given", "parse", "remarks"]
