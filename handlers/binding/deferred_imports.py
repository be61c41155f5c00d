"""Spares the server imports of modules that it rarely needs, or never.

Connexion, Starlette and Uvicorn import test clients, HTTP clients, command lines and development
servers beside what everybody uses: a third of the time until the first answer. While the context
of `deferred_imports` is entered, importing one of `DEFERRED` binds something that imports the real
module when it is used; afterwards, everybody imports the real one.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

DEFERRED = (
    "httpx",  # Connexion: tokens that another server checks
    "jinja2",  # Connexion: templates in descriptions
    "requests",  # Connexion: descriptions with parts in the web
    "starlette.testclient",
    "uvicorn.main",
    "werkzeug.serving",
    "werkzeug.test",
)


@contextmanager
def deferred_imports() -> Iterator[None]:
    """Defers imports while the server is imported, when there are no other threads."""
    deferred = [_Deferred(name) for name in DEFERRED if name not in sys.modules]
    for module in deferred:
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for module in deferred:
            module._withdraw()


class _Deferred(ModuleType):
    """Stands for a module that has not been imported yet."""

    def _withdraw(self) -> None:
        """Let the next import be that of the real module."""
        name = self.__name__
        if sys.modules.get(name) is self:
            del sys.modules[name]
        package, _, child = name.rpartition(".")
        if package in sys.modules and vars(sys.modules[package]).get(child) is self:
            delattr(sys.modules[package], child)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if sys.modules.get(self.__name__) is not self:
            return getattr(importlib.import_module(self.__name__), attribute)
        # The name is imported now, and called later if at all.
        return self._later(attribute)

    def _later(self, attribute: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return getattr(self, attribute)(*arguments, **options)

        return call
