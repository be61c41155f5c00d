"""Spares the server imports of modules that it rarely needs, or never.

Connexion, Starlette and Uvicorn import test clients, HTTP clients, command lines and development
servers with what everybody uses, a third of the time until the first answer. While
`deferred_imports` is entered, `import name` of the modules in `LAZY` binds a module that is
loaded when something of it is used, and what is imported from those in `BYPASSED` are functions
that import the real thing when they are called.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

LAZY = ("httpx", "jinja2", "requests")
"""Bound as whole modules: for URLs in the description, for OAuth2, for templates in its root."""

BYPASSED = ("starlette.testclient", "uvicorn.main", "werkzeug.serving", "werkzeug.test")
"""Modules from which others import names that the server doesn't use."""


@contextmanager
def deferred_imports() -> Iterator[None]:
    """For the import of the server, before there are other threads."""
    bypassed = [name for name in BYPASSED if name not in sys.modules]
    for name in LAZY:
        _make_lazy(name)
    for name in bypassed:
        sys.modules[name] = _Bypassed(name)
    try:
        yield
    finally:
        for name in bypassed:
            if isinstance(sys.modules.get(name), _Bypassed):
                del sys.modules[name]
                parent, _, child = name.rpartition(".")
                vars(sys.modules.get(parent, ModuleType(parent))).pop(child, None)


def _make_lazy(name: str) -> None:
    """See https://docs.python.org/3/library/importlib.html#implementing-lazy-imports"""
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return  # whoever needs it says so
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


class _Bypassed(ModuleType):
    """Stands for a module while others import from it."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> Any:
            return getattr(importlib.import_module(self.__name__), name)(*arguments, **options)

        return call
