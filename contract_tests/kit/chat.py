"""Requests for chat completions, and readers of their answers."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import jsonschema_rs

from contract_tests.kit import contract
from contract_tests.kit.bodies import body, path
from contract_tests.kit.server import Server

NAME = "create_chat_completion"
PATH = path(NAME)

SWITCH: dict[str, Any] = {
    "type": "object",
    "properties": {"on": {"type": "boolean"}, "room": {"enum": ["hall", "attic"]}},
    "required": ["on", "room"],
    "additionalProperties": False,
}
N_TOKENS = 300
"""More tokens than a call with arguments by `SWITCH` can have."""


def tool(name: str = "switch", parameters: Any = SWITCH, **more: Any) -> dict[str, Any]:
    function = {"name": name, "description": "Lamps.", "parameters": parameters, **more}
    return {"type": "function", "function": function}


def named(name: str = "switch") -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def call(id: str = "call00000", name: str = "switch", arguments: Any = "{}") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result(id: str = "call00000", content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def asking(**changes: Any) -> dict[str, Any]:
    """Returns a request whose answer has to be one call, without reasoning or text before it. A
    model that was never trained would not end its reasoning or further calls."""
    forced = {"tool_choice": "required", "parallel_tool_calls": False, "reasoning_budget_tokens": 0}
    asked = {"tools": [tool()], "max_tokens": N_TOKENS, **forced, **changes}
    request: dict[str, Any] = body(NAME, **asked)
    return request


def both(server: Server, request: dict[str, Any], *statuses: int) -> list[Any]:
    """Returns the documents of the plain answer (a list of one) and of the streamed answer to
    `request`. Each answer has to have one of `statuses`."""
    found = []
    for stream in (False, True):
        response = server.post(PATH, {**request, "stream": stream})
        assert response.status_code in statuses, response.text[:500]
        document = contract.check(response, response.status_code)
        found.append(document if isinstance(document, list) else [document])
    return found


class Answer(NamedTuple):
    """The parts of one choice's message. `calls` are pairs of a name and the text of its
    arguments."""

    content: str
    reasoning: str
    calls: list[tuple[str, str]]
    ids: list[str]
    reason: str

    @property
    def said(self) -> tuple[Any, ...]:
        """The parts that are equal in all answers to the same request."""
        return self.content, self.reasoning, self.calls, self.reason


def answer_of(documents: list[Any], index: int = 0) -> Answer:
    """Returns one choice of a plain answer, or of one in chunks."""
    calls: dict[int, list[str]] = {}
    texts = {"content": "", "reasoning_content": ""}
    reasons = []
    for choice in _choices(documents, index):
        message = choice.get("message") or choice.get("delta")
        for name in texts:
            texts[name] += message.get(name) or ""
        for at, each in enumerate(message.get("tool_calls") or ()):
            number = each.get("index", at)
            first = number not in calls
            entry = calls.setdefault(number, ["", "", ""])
            assert first == ("id" in each) == ("name" in each["function"]), each
            entry[0] += each["function"].get("name", "")
            entry[1] += each["function"]["arguments"]
            entry[2] += each.get("id", "")
        if choice["finish_reason"]:
            reasons.append(choice["finish_reason"])
    [reason] = reasons
    assert list(calls) == list(range(len(calls)))
    ids = [id for _, _, id in calls.values()]
    assert len(set(ids)) == len(ids)
    found = [(name, arguments) for name, arguments, _ in calls.values()]
    return Answer(texts["content"], texts["reasoning_content"], found, ids, reason)


def _choices(documents: Iterable[Any], index: int) -> Iterator[Any]:
    for document in documents:
        yield from (choice for choice in document["choices"] if choice["index"] == index)


def answers(server: Server, request: dict[str, Any]) -> list[Answer]:
    """Returns the plain and the streamed answer to `request`."""
    return [answer_of(documents) for documents in both(server, request, 200)]


def the_answer(server: Server, request: dict[str, Any]) -> Answer:
    """Returns the answer to `request`, and checks that the streamed answer is equal. The prompt
    cache is off, because it changes the rounding, and so the sampled text, on a server that isn't
    reproducible."""
    plain, streamed = answers(server, {**request, "cache_prompt": False})
    assert plain.said == streamed.said
    return plain


def check_calls(answer: Answer, tools: list[dict[str, Any]]) -> None:
    """Checks that `answer` ended with calls whose arguments match the schemas of `tools`."""
    assert answer.reason == "tool_calls", answer
    assert answer.calls
    schemas: Mapping[str, Any] = {
        each["function"]["name"]: each["function"].get("parameters") or {"type": "object"}
        for each in tools
    }
    for name, arguments in answer.calls:
        jsonschema_rs.validate(schemas[name], json.loads(arguments))
