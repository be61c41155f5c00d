"""Results of MCP servers as texts."""

from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from specllama.engine.helpers.tools.session import McpSession, cut, text_of
from specllama.engine.helpers.tools.tools_jobs import MAX_RESULT, McpServer


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": []}, ""),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        (
            {"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]},
            "[audio: audio/wav, 3 bytes]",
        ),
        (
            {"content": [{"type": "resource_link", "uri": "file:///a", "name": "a"}]},
            "[resource: file:///a]",
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "text": "A"}}]},
            "A",
        ),
        (
            {"content": [{"type": "resource", "resource": {"uri": "file:///a", "blob": "AA=="}}]},
            "[resource: file:///a]",
        ),
        ({"content": [], "structuredContent": {"a": "é"}}, '{"a": "é"}'),
    ],
)
def test_a_result_becomes_text(result: dict[str, Any], text: str) -> None:
    assert text_of(types.CallToolResult.model_validate(result)) == text


def test_only_long_texts_are_cut() -> None:
    assert cut("a" * MAX_RESULT) == "a" * MAX_RESULT
    assert cut("a" * (MAX_RESULT + 1)) == "a" * MAX_RESULT + "\n[output truncated]"


def test_no_part_of_a_secret_stays_where_a_text_is_cut() -> None:
    secret = "0123456789"
    to_session, received = anyio.create_memory_object_stream[SessionMessage | Exception]()
    sent, from_session = anyio.create_memory_object_stream[SessionMessage]()
    with to_session, received, sent, from_session:
        server = McpServer(name="one", env={"KEY": secret})
        session = McpSession((received, sent), server, lambda: None)
        for n in range(980, 1000):
            assert "0" not in session.redacted("a" * n + secret)
