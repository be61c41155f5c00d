"""Fixtures of many test modules."""

from collections.abc import Iterator

import pytest

from engine.backend import Model, initialize
from engine.constraints import Compiler
from engine.embedded import model_path
from engine.options import Options


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """The shipped model, with the default options."""
    initialize()
    model = Model(str(model_path()), Options())
    yield model
    model.close()


@pytest.fixture(scope="module")
def compiler(model: Model) -> Iterator[Compiler]:
    """Compiles constraints for that model."""
    compiler = Compiler(model)
    yield compiler
    compiler.close()
