"""Stories about single texts: constraints, samplers, the edges of the context, media."""

from typing import Any

from contract_tests.fuzz.knowing import (
    GRAMMARS,
    json_schema,
    logit_bias,
    message,
    part,
    prompt,
    response_format,
    tool,
)
from contract_tests.fuzz.requests import schema_of
from contract_tests.fuzz.talking import Talk
from contract_tests.fuzz.values import merged
from contract_tests.kit.bodies import body

ASKED = (200, 400, 413, 501)
"""Statuses for a request with odd values. One server accepts only bodies up to 1 MiB."""
TOKEN = 5
"""A token that is not a special token."""


def _lengthened(talk: Talk, **fields: Any) -> dict[str, Any]:
    common = {"seed": talk.dice.randrange(99), "stream": talk.values.chance(0.3)}
    return {**common, **fields}


def constrained(talk: Talk) -> None:
    """A text that follows a grammar or a schema, in the format of one API."""
    values, schema = talk.values, json_schema(talk.values)
    n = talk.dice.choice((4, 16, 48))
    native = {"prompt": values.words(), "n_predict": n}
    chat = {"messages": [message(values)], "max_tokens": n}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema}}
    choice = talk.dice.choice(("auto", "required", "none"))
    tools = [tool(values) for _ in range(talk.dice.randint(1, 3))]
    lazy = {"grammar_lazy": True, "grammar_triggers": [{"type": 1, "value": "("}]}
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("create_completion", {**native, "grammar": talk.dice.choice(GRAMMARS)}),
        ("create_completion", {**native, "grammar": talk.dice.choice(GRAMMARS), **lazy}),
        ("create_completion", {**native, "json_schema": schema, "n_probs": 2}),
        ("create_openai_completion", {**native, "json_schema": schema, "n": 2}),
        ("create_chat_completion", {**chat, "response_format": response_format(values)}),
        ("create_chat_completion", {**chat, "tools": tools, "tool_choice": choice}),
        ("create_message", {**chat, "tools": tools}),
        ("create_response", {"input": "Hello", "text": text, "max_output_tokens": n}),
        ("create_ollama_chat", {**chat, "format": schema, "options": {"num_predict": n}}),
        ("create_ollama_generation", {**native, "format": schema, "options": {"num_predict": n}}),
    )  # fmt: skip
    operation, fields = talk.dice.choice(asked)
    talk.ask(operation, _lengthened(talk, **fields), right=ASKED)


def settings(talk: Talk) -> None:
    """A text with many extreme settings at once."""
    schema = merged(schema_of("create_completion") or {})
    without = {
        "prompt",
        "n_predict",
        "max_tokens",
        "max_completion_tokens",
        "n",
        "n_cmpl",
        "stream",
    }
    names = sorted(schema["properties"].keys() - without)
    chosen = talk.dice.sample(names, talk.dice.randint(4, 16))
    made = {
        name: talk.values.extreme(schema["properties"][name], name)
        if talk.values.chance(0.6)
        else talk.values.typical(schema["properties"][name], name)
        for name in chosen
    }
    if talk.values.chance(0.3):
        made["logit_bias"] = logit_bias(talk.values)
    asked = {**made, "prompt": prompt(talk.values), "n_predict": talk.dice.randint(0, 8)}
    talk.ask("create_completion", _lengthened(talk, **asked, n_cmpl=talk.dice.randint(1, 3)),
             right=ASKED)  # fmt: skip


def edges(talk: Talk) -> None:
    """Prompts that nearly fill the context, fill it, or are too long, with a common beginning."""
    known = talk.ask("get_props", right=(200, 501))
    if not known:
        return
    n_ctx = known["default_generation_settings"]["n_ctx"]
    if n_ctx > 4096:
        return
    for _ in range(2):
        near = n_ctx // talk.dice.choice((1, 1, 1, 2, 4)) + talk.dice.randint(-3, 3)
        ids = [TOKEN + i % 7 for i in range(max(near, 0))]
        ids[near // 2 :] = [talk.dice.randint(5, 400)] * len(ids[near // 2 :])
        asked = _lengthened(
            talk,
            prompt=ids,
            n_predict=talk.dice.choice((0, 1, 2, 5, 30)),
            n_keep=talk.dice.choice((0, -1, 1, near, n_ctx)),
            n_discard=talk.dice.choice((0, 1, near)),
            n_cmpl=talk.dice.choice((1, 1, 3)),
            cache_prompt=talk.values.chance(0.8),
            id_slot=talk.dice.choice((-1, 0, 3)),
            ignore_eos=True,
        )
        talk.ask("create_completion", asked, right=ASKED)


def seeing(talk: Talk) -> None:
    """A conversation with valid and invalid images and sounds, sent twice, so that the server has
    them cached the second time."""
    parts = [part(talk.values) for _ in range(talk.dice.randint(1, 3))]
    said = {"role": "user", "content": [*parts, {"type": "text", "text": "What is it?"}]}
    name = talk.dice.choice(("create_chat_completion", "create_message", "create_response"))
    asked = _lengthened(talk, **{**body(name), "stream": False})
    if name == "create_response":
        asked["input"] = [said]
    else:
        asked["messages"] = [said]
    for _ in range(2):
        talk.ask(name, asked, right=ASKED)
