"""The bodies that each case has to send, field by field. A generated client adds and drops
nothing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MODEL = "specllama-tiny"
_MESSAGES = [{"role": "user", "content": "How is the weather in Lima?"}]
_SHORT = {"model": MODEL, "messages": _MESSAGES, "max_completion_tokens": 8, "temperature": 0}
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
    "required": ["city"],
}

BODIES: Mapping[str, Any] = {
    "models": None,
    "slots": None,
    "completion": {"prompt": "A llama", "n_predict": 8, "temperature": 0},
    "chat": _SHORT,
    "tools": {
        "model": MODEL,
        "messages": _MESSAGES,
        "temperature": 0,
        "tools": [{"type": "function", "function": {"name": "weather", "parameters": _PARAMETERS}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    },
    "stream": {**_SHORT, "stream": True},
    "embeddings": {"model": MODEL, "input": ["a llama", "a city"]},
}
"""The bodies by the names of the cases. `error`, whose body is only long, is not recorded."""


def differences(recorded: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yields the recorded bodies that differ from the case's body; see clients.recorder for
    `recorded`."""
    for each in recorded:
        case, sent = each["case"], each["body"]
        if sent != BODIES[case]:
            yield f"{case} sent {sent}"
