"""The internal chat request, into which every chat API is translated."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from specllama.engine.chat.syntax import OutputSyntax

# ---- The prompt, and the syntax of its answer.


class Continuation(msgspec.Struct, frozen=True):
    """The given beginning of an answer, which the model continues: its content, or, with `thinks`,
    its reasoning (without content)."""

    content: str = ""
    reasoning: str = ""
    thinks: bool = False


class ChatPrompt(msgspec.Struct, frozen=True, tag="prompt", omit_defaults=True):
    """The prompt, and the syntax of its answer.

    `text` still includes the special tokens that the tokenizer adds. At most one of `thinking` and
    `answering` is set: the prompt ends within the reasoning, after `syntax.reasoning.begin`; or
    within the answer's content, after `syntax.content.begin`, if an answer is continued. `given` is
    the beginning of a continued answer.
    """

    text: str
    syntax: OutputSyntax
    thinking: bool = False
    answering: bool = False
    given: Continuation | None = None

    @property
    def begun(self) -> str:
        """The end of the prompt, with the markers of the answer's beginning: the `prompt` of a
        parser."""
        return (self.answering and self.syntax.content.begin) or self.text


ReasoningFormat = Literal["none", "auto", "deepseek", "deepseek-legacy"]
THOUGHTS_IN_CONTENT: tuple[ReasoningFormat, ...] = ("none", "deepseek-legacy")
"""With these formats, reasoning is part of the content, with its markers."""
ToolChoice = Literal["auto", "none", "required"]

FREE_TEXT = "input"
"""The parameter of a tool that takes a plain text."""


class MessagePart(TypedDict):
    """A part of a content: a `text`, or a medium (`handlers.running.media`), for which the template
    gets a marker."""

    type: str
    text: NotRequired[str]
    media: NotRequired[Any]


class CallOfFunction(TypedDict):
    """`arguments` are an object, or its JSON."""

    name: str
    arguments: str | dict[str, Any]


class MessageCall(TypedDict):
    """A call in a message of the assistant."""

    id: NotRequired[str]
    type: Literal["function"]
    function: CallOfFunction


class Message(TypedDict):
    """A message in the format of OpenAI's Chat Completions API, for which chat templates are
    written. Messages with a tool's result have `tool_call_id` and `name`."""

    role: str
    content: str | list[MessagePart] | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[MessageCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]


class ToolFunction(TypedDict):
    """`parameters` are a JSON schema of the type object."""

    name: str
    description: str
    parameters: dict[str, Any]


class OfferedTool(TypedDict):
    """A tool in the format of the same API."""

    type: Literal["function"]
    function: ToolFunction


class ThinkingBudget(msgspec.Struct, frozen=True):
    """The limit of the reasoning: `tokens`, 0 for none at all, -1 for no limit. `message` is
    appended to reasoning that exceeds it. With `control`, a client may end the reasoning
    earlier."""

    tokens: int = -1
    message: str = ""
    control: bool = False


NO_BUDGET = ThinkingBudget()


class ChatRequest(msgspec.Struct, kw_only=True):
    """A conversation and the constraints of its answer.

    `tool_name` (with `tool_choice` "required") is the one tool that has to be called. `free_text`
    are the tools that take a plain text, with the grammar of the text in Lark, "" for any text: the
    model gets a function whose only parameter is `FREE_TEXT`. If the last message is continued, the
    answer begins with its text, unless `repeat_given` is off. `template_variables` are only for the
    template; those of the request override those of the server. The parameters of the generation,
    including a JSON schema, are in `GenerationParams`.
    """

    messages: list[Message]
    tools: list[OfferedTool] = []
    tool_choice: ToolChoice = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool | None = None  # None: if the template supports it
    free_text: dict[str, str] = {}
    parse_tool_calls: bool = True
    reasoning_format: ReasoningFormat = "auto"
    thinking_budget: ThinkingBudget = NO_BUDGET
    thinking_forced_open: bool = False
    add_generation_prompt: bool | None = None
    continue_final_message: bool | str | None = None
    repeat_given: bool = True
    prefill: bool = True  # continue a last message of the assistant
    template_variables: dict[str, Any] = {}


# ---- Truncation: a conversation that is too long for the context loses its oldest turns.

_SYSTEM = ("system", "developer")


def room_for_answer(n_ctx: int, n_predict: int) -> int:
    """Returns the number of tokens of the context to keep free: `n_predict`, the limit of the
    answer, but at most half of the context; a quarter if there is no limit (negative)."""
    return n_ctx // 4 if n_predict < 0 else min(n_predict, n_ctx // 2)


async def truncated(
    request: ChatRequest, n_max: int, count: Callable[[ChatRequest], Awaitable[int]]
) -> ChatRequest:
    """Returns `request` without its oldest turns, so that it has at most `n_max` tokens.

    A turn extends from one message of the user to the next, so that a tool's output is never
    separated from its call. Leading system messages stay, and so does the last turn, whatever its
    length.
    """
    messages = request.messages
    n_head = next((i for i, each in enumerate(messages) if each["role"] not in _SYSTEM), 0)
    turns = [i for i in range(n_head + 1, len(messages)) if messages[i]["role"] == "user"]

    def without(start: int) -> ChatRequest:
        kept = [*messages[:n_head], *messages[start:]]
        return msgspec.structs.replace(request, messages=kept)

    starts = [n_head, *turns]
    low, high = 0, len(starts) - 1  # the first start that fits, or the last one
    while low < high:
        # Check the whole conversation first, as it fits in most cases.
        middle = 0 if (low, high) == (0, len(starts) - 1) else (low + high) // 2
        if await count(without(starts[middle])) <= n_max:
            high = middle
        else:
            low = middle + 1
    return without(starts[low])
