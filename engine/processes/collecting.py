"""Imported first by a program that starts: what comes to be while it does, stays.

Python looks for garbage again and again while modules are imported, and finds none: that is a
fifth of the time that importing takes.
"""

import gc

gc.disable()


def resume() -> None:
    """To be called when the program has started: look for garbage from now on, but never again
    at what there is already."""
    gc.freeze()
    gc.enable()
