"""Chats with a paper engine, and their templates."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.paper_server import INFO, WORDS, Server, serve

pytestmark = pytest.mark.slow

MESSAGES = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]


@pytest.mark.parametrize("path", ["/chat/completions", "/v1/chat/completions"])
def test_a_chat(server: Server, path: str) -> None:
    answer = server.post(path, messages=MESSAGES).json()
    message = {"role": "assistant", "content": "".join(WORDS), "refusal": None}
    assert answer["choices"][0]["message"] == message
    assert answer["model"] == "a"
    assert server.engine.generations[0].prompt == ["[system]s[user]u[assistant]"]


def test_a_chat_stream(server: Server) -> None:
    options: dict[str, Any] = {"include_usage": True}
    first, *chunks, end, counts, done = server.events(
        "/v1/chat/completions", messages=MESSAGES, stream_options=options
    )
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": None}
    text = "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks)
    assert text == "".join(WORDS)
    assert end["choices"][0]["finish_reason"] == "length"
    assert counts["usage"]["total_tokens"] == 12
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        ({}, "[system]s[user]u[assistant]"),
        ({"add_generation_prompt": False}, "[system]s[user]u"),
        ({"chat_template_kwargs": {"word": "bot"}}, "[system]s[user]u[bot]"),
        ({"n_probs": 3}, "[system]s[user]u[assistant]"),
        (
            {"messages": [*MESSAGES, {"role": "assistant", "content": "Once"}]},
            "[system]s[user]u[assistant]Once",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": "t"}] * 2}]},
            "[user]t\nt[assistant]",
        ),
        ({"messages": [{"role": "user", "content": "<s>"}]}, "[user]<s>[assistant]"),
        ({"messages": MESSAGES * 600}, "[system]s[user]u" * 600 + "[assistant]"),
    ],
)
def test_apply_template(server: Server, body: dict[str, Any], prompt: str) -> None:
    answer = server.post("/apply-template", **{"messages": MESSAGES, **body})
    assert answer.json() == {"prompt": prompt}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"messages": 5}, 400),
        ({"messages": [{"role": "user"}]}, 400),
        ({"messages": [{"role": "assistant", "content": "a"}] * 2}, 400),
        ({"messages": MESSAGES, "chat_template_kwargs": {"enable_thinking": "no"}}, 400),
        ({"messages": MESSAGES, "tools": [{"type": "function", "function": {}}]}, 400),
        (
            {
                "messages": MESSAGES,
                "tools": [{"type": "mcp"}],
                "tool_choice": "required",
            },
            501,
        ),
        (
            {
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "image_url", "image_url": {"url": "http://x"}}],
                    }
                ]
            },
            501,
        ),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/apply-template"])
def test_chat_refusals(server: Server, path: str, body: dict[str, Any], status: int) -> None:
    assert server.post(path, **body).status_code == status


@pytest.mark.parametrize(
    ("options", "prompt"),
    [
        ({"chat_template": "{{ bos_token }}!{{ messages[0].content }}"}, "!u"),
        ({"chat_template": "llama3"}, "llama3[('user', 'u')]True"),
        ({"jinja": False}, INFO.chat_template + "[('user', 'u')]True"),
        ({"chat_template_kwargs": {"word": "bot"}}, "[user]u[bot]"),
    ],
)
def test_template_options(options: dict[str, Any], prompt: str) -> None:
    for server in serve(**options):
        answer = server.post("/apply-template", messages=MESSAGES[1:])
        assert answer.json() == {"prompt": prompt}
        assert server.get("/props").json()["chat_template"]


def test_chats_without_parsing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = ["<think>", "so", "</think>", "text"]
    monkeypatch.setattr("tests.support.paper_server.WORDS", said)
    template = "{% for m in messages %}<|{{ m.role }}|>{% if m.reasoning_content %}<think>"
    template += "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    answers = []
    for skip in (False, True):
        for server in serve(chat_template=template, skip_chat_parsing=skip):
            answer = server.post("/v1/chat/completions", messages=MESSAGES[1:]).json()
            answers.append(answer["choices"][0]["message"])
    parsed, plain = answers
    assert (parsed["reasoning_content"], parsed["content"]) == ("so", "text")
    assert plain["content"] == "<think>so</think>text"
    assert not plain.get("reasoning_content")


def test_a_template_file_and_a_template_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "t.jinja"
    path.write_text("{{ raise_exception('not with me') }}")
    for server in serve(chat_template_file=str(path)):
        response = server.post("/v1/chat/completions", messages=MESSAGES)
        assert response.status_code == 400
        assert "not with me" in response.json()["error"]["message"]
    path.write_text("{{ messages[0].content }}")


def test_an_invalid_template_leaves_props_alone() -> None:
    for server in serve(chat_template="{% if %}"):
        assert server.post("/v1/chat/completions", messages=MESSAGES).status_code == 500
        assert server.get("/props").json()["chat_template_caps"] == {}


F = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(("body", "field"), [
    ({"tools": [{"type": "namespace", "name": "n", "tools": 5}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"function": 5}]}]}, "tools[0].tools"),
    ({"tools": [{"type": "custom", "name": "c", "format": 5}]}, "tools[0].format"),
    ({"tool_choice": {"type": "function", "name": "f", "namespace": 5}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": 5, "tools": []}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "tools": 5}}, "tool_choice"),
])  # fmt: skip
def test_tools_are_checked(body: dict[str, Any], field: str, server: Server) -> None:
    """Every field that the code reads is described."""
    answer = server.post("/v1/chat/completions", messages=MESSAGES, **{"tools": [F], **body})
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "form", [{"grammar": 5}, {"grammar": {"definition": 5}}, {"definition": 5}]
)
def test_a_format_without_a_grammar_is_free(form: dict[str, Any], server: Server) -> None:
    tool = {"type": "custom", "custom": {"name": "c", "format": form}}
    answer = server.post("/v1/chat/completions", messages=MESSAGES, tools=[tool])
    assert answer.status_code == 200, answer.text
