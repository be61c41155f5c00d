"""`python -m engine.worker`: the engine process (started by `engine.pool.process`)."""

import engine.processes.collecting  # noqa: F401  # the very first
from engine.processes.stdio import leave
from engine.worker.process import main

leave(main())  # a worker thread inside a long tokenization must not delay the end
