"""`python -m specllama.engine.worker`: the engine process, which `engine.models` starts."""

import specllama.engine.wire.startup  # noqa: F401  # the very first
from specllama.engine.wire.link import leave
from specllama.engine.worker.process import main

leave(main())  # a worker thread inside a long tokenization must not delay the end
