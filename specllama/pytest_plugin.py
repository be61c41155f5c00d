"""The pytest fixture `llm_server`. Other modules are imported when a test uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from specllama.testing import LLMServer


@pytest.fixture(scope="session")
def llm_server_options() -> Sequence[str]:
    """The server's command line. A `conftest.py` can override this fixture."""
    return ("--offline",)


@pytest.fixture(scope="session")
def llm_server(llm_server_options: Sequence[str]) -> Iterator[LLMServer]:
    """A server for all tests of the session, see `specllama.testing`."""
    from specllama import testing

    with testing.llm_server(*llm_server_options) as server:
        yield server
