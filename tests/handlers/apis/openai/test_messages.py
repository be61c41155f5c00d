"""Messages in all the forms that clients of OpenAI's chat API send."""

from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.handlers.apis.openai.messages import chat_messages
from specllama.handlers.running.media import MediaInput

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def read(**message: Any) -> Any:
    said: Any = {"role": "assistant", **message}
    [made] = chat_messages([said])
    return made


def text(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": each} for each in texts]


def test_fields_that_no_template_knows_are_ignored() -> None:
    nothing: dict[str, Any] = {
        "tool_calls": None,
        "function_call": None,
        "refusal": None,
        "audio": None,
    }
    empty: dict[str, Any] = {
        "reasoning_content": "",
        "name": None,
        "tool_call_id": "",
        "annotations": [],
    }
    more: dict[str, Any] = {
        "id": "msg_1",
        "cache_control": {"type": "ephemeral"},
        "citations": [],
        "x": 1,
    }
    assert read(content="Hi", **nothing, **empty, **more) == {"role": "assistant", "content": "Hi"}
    assert read(content="Hi", name=5, tool_calls=[])["content"] == "Hi"


@pytest.mark.parametrize(
    ("parts", "texts"),
    [
        ([], []),
        (["Hello"], ["Hello"]),
        ([{"text": "Hello"}, {"type": "input_text", "text": ""}], ["Hello", ""]),
        ([{"type": "text", "text": "Hello", "cache_control": {}}], ["Hello"]),
        ([{"type": "refusal", "refusal": "No."}], ["No."]),
        ([{"type": "tool_use", "id": "x"}, {"type": "output_text", "text": "So."}], ["So."]),
        ([{"type": "redacted_thinking", "data": "x"}], []),
    ],
)
def test_parts_with_a_text_are_read(parts: list[Any], texts: list[str]) -> None:
    assert read(content=parts)["content"] == text(*texts)


def test_thoughts_among_the_parts() -> None:
    parts = [{"type": "thinking", "thinking": "Hm"}, {"type": "text", "text": "So."}]
    made = {"role": "assistant", "content": text("So."), "reasoning_content": "Hm"}
    assert read(content=parts) == made
    assert read(content=parts, reasoning_content="Own")["reasoning_content"] == "Own"


@pytest.mark.parametrize("role", ["user", "assistant", "tool"])
@pytest.mark.parametrize(
    ("part", "kind"),
    [
        ({"type": "image_url", "image_url": {"url": "x"}, "text": "y"}, "image"),
        ({"type": "image_url", "image_url": "x"}, "image"),
        ({"type": "input_audio", "input_audio": {"data": "x", "format": "wav"}}, "audio"),
        ({"type": "input_audio", "input_audio": {"url": "x"}}, "audio"),
        ({"type": "input_video", "input_video": {"url": "x"}}, "video"),
        ({"type": "video_url", "video_url": {"url": "x"}}, "video"),
    ],
)
def test_media_stay_as_they_came(role: str, part: Any, kind: Any) -> None:
    [made] = chat_messages([{"role": role, "content": ["Hello", part]}])
    content: Any = made["content"]
    hello, medium = content
    assert hello == {"type": "text", "text": "Hello"}
    assert medium["media"] == MediaInput("x", "messages[0].content[1]", kind)


@pytest.mark.parametrize("given", [None, {}, {"url": None}, {"url": 5}, 5, {"media": "x"}])
def test_media_without_a_source(given: Any) -> None:
    parts: Any = [{"type": "image_url", "image_url": given, "media": "x"}]
    with pytest.raises(EngineError, match=r"messages\[0\].content\[0\]") as error:
        chat_messages([{"role": "user", "content": parts}])
    assert error.value.info.type == "invalid_request_error"


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", {"type": "input_image", "image_url": "x"}),
        ("user", {"type": "file", "file": {"file_id": "x"}}),
        ("system", {"type": "new"}),
        ("user", {}),
        ("assistant", {"type": "image", "image_url": {"url": "x"}}),
    ],
)
def test_content_that_the_model_can_not_read_is_rejected(role: str, part: Any) -> None:
    with pytest.raises(EngineError, match=r"messages\[0\].content\[1\]") as error:
        chat_messages([{"role": role, "content": ["Hello", part]}])
    assert error.value.info.type == "not_supported_error"


@pytest.mark.parametrize(
    ("arguments", "made"),
    [("{}", "{}"), ({"a": 1}, {"a": 1}), (None, "{}"), ([1], "[1]"), ('{"a', '{"a')],
)
def test_calls(arguments: Any, made: Any) -> None:
    [call] = read(tool_calls=[{"id": 7, "function": {"name": "f", "arguments": arguments}}])[
        "tool_calls"
    ]
    assert call == {"id": "7", "type": "function", "function": {"name": "f", "arguments": made}}
    assert chat_messages([{"role": "tool", "content": "x", "tool_call_id": 7}])[0] == {
        "role": "tool",
        "content": "x",
        "tool_call_id": "7",
    }


def test_calls_of_tools_that_take_a_plain_text() -> None:
    custom = {"id": "c2", "type": "custom", "custom": {"name": "patch", "input": "a"}}
    first, second = read(tool_calls=[CALL, custom, {"type": "web_search"}])["tool_calls"]
    assert first == CALL
    assert second["function"] == {"name": "patch", "arguments": {"input": "a"}}


def test_the_old_form_of_calls() -> None:
    said: Any = [
        {"role": "assistant", "content": None, "function_call": CALL["function"]},
        {"role": "function", "name": "f", "content": "x"},
    ]
    asking, answer = chat_messages(said)
    assert asking["tool_calls"] == [{"type": "function", "function": CALL["function"]}]
    assert answer == {"role": "tool", "name": "f", "content": "x"}
