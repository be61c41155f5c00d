"""Python's search for garbage, put off while a program starts.

It is made again and again while modules are imported, and finds none: what comes to be then,
stays. That is a fifth of the time that importing takes. A program of its own (`python -m`) imports
this module first of all; an import of such a program's module for another reason, as in tests,
is left alone.
"""

import gc
import sys

_PROGRAMS = {
    "specllama.engine.chat.rendering.child",
    "specllama.engine.media.decoding.child",
    "specllama.engine.media.fetching.child",
    "specllama.engine.worker.__main__",
    "specllama.engine.worker.constraints.trial.child",
    "specllama.handlers.http.checking.child",
}


def pause() -> None:
    """To be called when a program begins to start."""
    gc.disable()


def resume() -> None:
    """To be called when it has started: look for garbage from now on, but never again at what
    there is already."""
    gc.freeze()
    gc.enable()


_spec = getattr(sys.modules["__main__"], "__spec__", None)
if _spec is not None and _spec.name in _PROGRAMS:
    pause()
