"""Variables and limits of chat templates, and the prompts of conversations."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil

from contract_tests.kit import contract
from contract_tests.kit.bodies import MESSAGES
from contract_tests.kit.server import Server, Start, alive, wait_until

PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% for d in documents or [] %}[{{ d.title }}]{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
THINKING = (
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.role == 'assistant' %}<think>{{ m.reasoning_content }}</think>{% endif %}"
    "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<assistant><think>{% endif %}"
)
HARMFUL = (
    "{% if loops %}" + "{% for i in range(99999) %}" * 4 + "{% endfor %}" * 4 + "{% endif %}"
    "{% if grows %}{{ 'x' * 10 ** 11 }}{% endif %}{{ messages[0].content }}"
)
QUESTION = MESSAGES[0]["content"]
ANSWER = {"role": "assistant", "content": "They are"}
THOUGHTS = {"role": "assistant", "content": "", "reasoning_content": "Hm"}


def prompt(server: Server, *messages: dict[str, Any], **fields: Any) -> str:
    request = {"messages": [*MESSAGES, *messages], **fields}
    text: str = server.ask("/apply-template", request)["prompt"]
    return text


def refused(server: Server, *messages: dict[str, Any], **fields: Any) -> str:
    """Returns the message of the 400 with which both operations answer."""
    request = {"messages": [*MESSAGES, *messages], "max_tokens": 2, **fields}
    found = set()
    for operation in ("/apply-template", "/v1/chat/completions"):
        response = server.post(operation, request)
        contract.check_envelope(response, 400, "invalid_request_error")
        found.add(response.json()["error"]["message"])
    (message,) = found
    return str(message)


def test_a_template_that_never_ends_or_eats_the_memory_is_stopped(own_server: Start) -> None:
    server = own_server("--chat-template", HARMFUL)
    assert prompt(server) == QUESTION
    grows = {"chat_template_kwargs": {"grows": True}}
    assert "memory" in refused(server, **grows)
    request = {"messages": MESSAGES, "chat_template_kwargs": {"loops": True}}
    with ThreadPoolExecutor() as pool:
        while True:
            loops = pool.submit(server.post, "/apply-template", request)
            # Meanwhile everything else works, the same template with other variables included.
            contract.check(server.get("/health"))
            assert [prompt(server) for _ in range(3)] == [QUESTION] * 3
            if not loops.done():
                break  # on a slow machine it may be over already
        contract.check_envelope(loops.result(), 400, "invalid_request_error")
        assert "stopped" in loops.result().json()["error"]["message"]
    assert prompt(server) == QUESTION


def test_template_processes_end_with_the_server(own_server: Start) -> None:
    server = own_server("--chat-template", PLAIN)
    prompt(server)
    processes = psutil.Process(server.process.pid).children(recursive=True)
    assert len(processes) >= 2, "an engine and a template process"
    assert server.stop() == 0
    wait_until(lambda: not any(map(alive, processes)), "the end of all processes")


def test_answers_go_on(own_server: Start) -> None:
    server = own_server("--chat-template", PLAIN)
    head = f"<user>{QUESTION}<assistant>"
    assert prompt(server, ANSWER) == head + "They are"
    assert prompt(server, ANSWER, continue_final_message="content") == head + "They are"
    assert "already begun" in refused(server, ANSWER, continue_final_message="reasoning_content")
    assert "no reasoning" in refused(server, THOUGHTS)
    assert prompt(server, documents=[{"title": "A", "text": "B"}]).endswith("[A]<assistant>")
    server = own_server("--chat-template", PLAIN, "--no-prefill-assistant")
    assert prompt(server, ANSWER) == head + "They are<assistant>"
    assert prompt(server, ANSWER, continue_final_message=True) == head + "They are"


def test_reasoning_is_continued_or_left_out(own_server: Start) -> None:
    server = own_server("--chat-template", THINKING)
    head = f"<user>{QUESTION}<assistant><think>"
    assert prompt(server) == head
    assert prompt(server, THOUGHTS) == head + "Hm"
    both = {**ANSWER, "reasoning_content": "Hm"}
    assert prompt(server, both) == head + "Hm</think>They are"
    assert prompt(server, ANSWER) == head + "</think>They are"
    assert prompt(own_server("--chat-template", THINKING, "--reasoning-budget", "0")) == (
        head + "</think>"
    )
    assert "no place for documents" in refused(server, documents=[{"title": "A"}])


def test_a_tool_s_result_without_a_call(own_server: Start) -> None:
    server = own_server("--chat-template", PLAIN)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    calling = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "2"}
    for before in ([], [calling]):
        assert "2" in prompt(server, *before, {**result, "tool_call_id": "b"})
    assert "2" in prompt(server, result)
    assert "2" in prompt(server, calling, result)
    assert prompt(server, calling, result) == prompt(
        server, calling, {**result, "tool_call_id": "a"}
    )
