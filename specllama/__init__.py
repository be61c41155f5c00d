"""specllama: a llama-server whose OpenAPI description is its source."""

import time

__version__ = "0.1.0"
STARTED = time.perf_counter()
"""The time at which the program began, as far as it can know."""
