"""Results of MCP servers as texts."""

from typing import Any

import mcp_types as types
import pytest

from specllama.engine.helpers.tools.session import cut, text_of
from specllama.engine.helpers.tools.tools_jobs import MAX_RESULT


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
