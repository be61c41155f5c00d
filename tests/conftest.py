"""Common to all tests: there is the shipped model."""

from collections.abc import Iterator

import pytest

from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.constraints.compiler import Compiler
from tests.support.models import random_model
from tests.support.options_support import engine_options


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """The shipped model, with the default options."""
    initialize()
    model = Model(str(random_model()), engine_options())
    yield model
    model.close()


@pytest.fixture(scope="module")
def compiler(model: Model) -> Iterator[Compiler]:
    """Compiles constraints for that model."""
    compiler = Compiler(model)
    yield compiler
    compiler.close()
