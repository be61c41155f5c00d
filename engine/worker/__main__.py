"""`python -m specllama.engine.worker`: the engine process, which `engine.models` starts."""

import specllama.engine.wire.startup  # noqa: F401  # the very first
from specllama.engine import system
from specllama.engine.worker.process import main

system.leave(main())  # a worker thread inside a long tokenization must not delay the end
