"""Defers imports of modules that the server rarely or never uses.

Connexion, Starlette and Uvicorn also import test clients, HTTP clients, command lines and
development servers, which take a third of the time until the first answer. Inside the context of
`deferred_imports`, importing one of `DEFERRED` gives a placeholder, which imports the real module
when it is used. After the context, imports give the real module.
"""

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

DEFERRED = (
    "httpx",  # Connexion: for tokens that another server checks
    "jinja2",  # Connexion: for templates in descriptions
    "requests",  # Connexion: for descriptions with references to URLs
    "starlette.testclient",
    "uvicorn.main",
    "werkzeug.serving",
    "werkzeug.test",
)


@contextmanager
def deferred_imports() -> Iterator[None]:
    """Defers imports while the server is imported. There must be no other threads."""
    deferred = [_Deferred(name) for name in DEFERRED if name not in sys.modules]
    for module in deferred:
        sys.modules[module.__name__] = module
    try:
        yield
    finally:
        for module in deferred:
            module._withdraw()


class _Deferred(ModuleType):
    """A placeholder for a module that has not been imported yet."""

    def _withdraw(self) -> None:
        """Removes the placeholder, so that the next import gives the real module."""
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
        # A `from ... import` in the context gets a function that is called later, if at all.
        return self._later(attribute)

    def _later(self, attribute: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            return getattr(self, attribute)(*arguments, **options)

        return call
