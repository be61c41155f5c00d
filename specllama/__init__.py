"""specllama: a drop-in llama-server in Python, whose API is defined by an OpenAPI description."""

import time
from pathlib import Path

__version__ = "0.2.0"
STARTED = time.perf_counter()
"""The time at which this package was imported, at the start of the program."""

if not Path(__file__).with_name("engine").is_dir():
    # A checkout without symbolic links, as on Windows: the folders are next to this one.
    __path__.append(str(Path(__file__).parents[1]))
