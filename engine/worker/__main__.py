"""`python -m engine.worker`: the engine process (started by `engine.pool.process`)."""

import os
import sys

from engine.worker.worker import main

code = main()
sys.stderr.flush()
os._exit(code)  # a worker thread inside a long tokenization must not delay the end
