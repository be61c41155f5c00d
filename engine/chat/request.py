"""The one internal chat request: every chat API is translated into it."""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, NotRequired, TypedDict

import msgspec

from specllama.engine.chat.syntax import OutputSyntax

# ---- The text that a model reads, and the form of its answer.


class Continuation(msgspec.Struct, frozen=True):
    """The beginning of an answer that the model goes on with: its content, or, with `thinks`, its
    thoughts (then there is no content yet)."""

    content: str = ""
    reasoning: str = ""
    thinks: bool = False


class ChatPrompt(msgspec.Struct, frozen=True, tag="prompt", omit_defaults=True):
    """The text that the model reads, and the form of its answer.

    The special tokens that the tokenizer adds are still in `text`. At most one of `thinking`
    and `answering` is set: the prompt ends inside of the model's thoughts, after
    `syntax.reasoning.begin`; or inside of the answer's content, after `syntax.content.begin`,
    as an answer that is continued does. `given` is the beginning of such an answer.
    """

    text: str
    syntax: OutputSyntax
    thinking: bool = False
    answering: bool = False
    given: Continuation | None = None

    @property
    def begun(self) -> str:
        """The end of the prompt, with the markers that the answer already has: for the `prompt` of
        a parser."""
        return (self.answering and self.syntax.content.begin) or self.text


ReasoningFormat = Literal["none", "auto", "deepseek", "deepseek-legacy"]
THOUGHTS_IN_CONTENT: tuple[ReasoningFormat, ...] = ("none", "deepseek-legacy")
"""With these, thoughts stand in the content, with their markers."""
ToolChoice = Literal["auto", "none", "required"]

FREE_TEXT = "input"
"""The parameter of a tool that takes a plain text."""


class MessagePart(TypedDict):
    """A part of a content: a `text`, or a medium (`handlers.running.media`), in whose place the
    template sees a marker."""

    type: str
    text: NotRequired[str]
    media: NotRequired[Any]


class CallOfFunction(TypedDict):
    """`arguments` are an object, or its JSON."""

    name: str
    arguments: str | dict[str, Any]


class MessageCall(TypedDict):
    """A call that the assistant has made."""

    id: NotRequired[str]
    type: Literal["function"]
    function: CallOfFunction


class Message(TypedDict):
    """A message in the form of OpenAI's Chat Completions API, for which chat templates are
    written. `tool_call_id` and `name` are those of a tool's result."""

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
    """A tool in the form of the same API."""

    type: Literal["function"]
    function: ToolFunction


class ThinkingBudget(msgspec.Struct, frozen=True):
    """How much the model may think: `tokens`, 0 for not at all, -1 for no limit. `message` is put
    at the end of thoughts that use it up; with `control` a client may end them earlier."""

    tokens: int = -1
    message: str = ""
    control: bool = False


NO_BUDGET = ThinkingBudget()


class ChatRequest(msgspec.Struct, kw_only=True):
    """A conversation and what may come as the answer to it.

    `tool_name` (with `tool_choice` "required") is the one tool that has to be called. The tools
    named in `free_text` take a plain text: what they are to the model is a function whose one
    parameter is `FREE_TEXT`. Beside each stands the grammar of its text in Lark, "" for any text.
    An answer that goes on with a last message begins with what that says, unless `repeat_given` is
    off.
    `template_variables` are for the template only, those of the request over those of the
    server. How to generate, a JSON schema for the answer included, is in `GenerationParams`.
    """

    messages: list[Message]
    tools: list[OfferedTool] = []
    tool_choice: ToolChoice = "auto"
    tool_name: str | None = None
    parallel_tool_calls: bool | None = None  # None: what the template can express
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


# ---- A conversation that is too long for the context loses its oldest part.

_SYSTEM = ("system", "developer")


def room_for_answer(n_ctx: int, n_predict: int) -> int:
    """The number of tokens of the context to keep free: `n_predict`, the limit of the answer, but
    at most half of the context; a quarter if there is no limit (negative)."""
    return n_ctx // 4 if n_predict < 0 else min(n_predict, n_ctx // 2)


async def truncated(
    request: ChatRequest, n_max: int, count: Callable[[ChatRequest], Awaitable[int]]
) -> ChatRequest:
    """`request` without as many of its oldest turns as it takes for at most `n_max` tokens.

    A turn goes from one message of the user to the next, so that no output of a tool loses its
    call. Leading system messages stay, and so does the last turn, whatever its length.
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
        # The whole conversation first: mostly it fits.
        middle = 0 if (low, high) == (0, len(starts) - 1) else (low + high) // 2
        if await count(without(starts[middle])) <= n_max:
            high = middle
        else:
            low = middle + 1
    return without(starts[low])
