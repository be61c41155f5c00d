"""`python -m specllama.engine.worker`: the engine process, which `engine.models` starts."""

import specllama.engine.wire.startup  # noqa: F401  # must be the first import
from specllama.engine import system
from specllama.engine.worker.process import main

system.leave(main())  # doesn't wait for a thread inside a long tokenization
