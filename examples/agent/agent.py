"""A small agent that lets a model call functions, and returns the answer and the calls."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from openai import OpenAI


@dataclass(frozen=True)
class Tool:
    """A function that a model may call; `parameters` is the JSON schema of its arguments."""

    description: str
    parameters: dict[str, Any]
    function: Callable[..., Any]


@dataclass(frozen=True)
class Result:
    """The last answer, and the names, arguments and results of all calls."""

    answer: str
    calls: list[tuple[str, dict[str, Any], str]]


class Agent:
    def __init__(
        self, client: OpenAI, model: str, tools: Mapping[str, Tool], **settings: Any
    ) -> None:
        """`settings` are added to each request."""
        self._client = client
        self._model = model
        self._tools = tools
        self._settings = settings

    def run(self, request: str, *, max_rounds: int = 3, must_call: bool = False) -> Result:
        """Sends `request`, runs the functions that the model calls, and returns the result. In the
        last round, the model may only answer."""
        messages: list[Any] = [{"role": "user", "content": request}]
        calls: list[tuple[str, dict[str, Any], str]] = []
        for i in range(max_rounds):
            choice = (
                "none" if i == max_rounds - 1 else "required" if must_call and not i else "auto"
            )
            message = self._ask(messages, choice)
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return Result(message.content or "", calls)
            for call in message.tool_calls:
                arguments, result = self._call(call.function.name, call.function.arguments)
                calls.append((call.function.name, arguments, result))
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        raise AssertionError("the model called a function with tool_choice none")

    def _ask(self, messages: list[Any], choice: str) -> Any:
        create: Any = self._client.chat.completions.create
        answer = create(
            model=self._model,
            messages=messages,
            tools=[
                {
                    "type": "function",
                    "function": {
                        "name": name,
                        "description": tool.description,
                        "parameters": tool.parameters,
                    },
                }
                for name, tool in self._tools.items()
            ],
            tool_choice=choice,
            **self._settings,
        )
        return answer.choices[0].message

    def _call(self, name: str, text: str) -> tuple[dict[str, Any], str]:
        """Returns the arguments and the result. An error is a result as well, so that the model can
        correct its call."""
        arguments: dict[str, Any] = {}
        try:
            # The limit `max_tokens` may have cut off the arguments.
            arguments = json.loads(text)
            return arguments, json.dumps(self._tools[name].function(**arguments))
        except Exception as error:
            return arguments, json.dumps({"error": str(error)})
