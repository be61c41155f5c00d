"""Helpers for Ollama's client library with the server under test."""

from typing import Any

import pytest
from ollama import ResponseError

from contract_tests.kit.server import SECONDS, Server


def options_of(server: Server, key: str | None = None) -> dict[str, Any]:
    """Returns the arguments of a client for `server`."""
    authorization = {"Authorization": f"Bearer {key or server.api_key or 'none'}"}
    return {"host": server.url, "headers": authorization, "timeout": SECONDS}


def fails(status: int, call: Any) -> str:
    """Returns the client's message for a call that has to fail with `status`."""
    with pytest.raises(ResponseError) as caught:
        call()
    assert caught.value.status_code == status
    assert isinstance(caught.value.error, str), "the client expects a text"
    assert caught.value.error
    return str(caught.value.error)
