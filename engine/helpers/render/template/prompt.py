"""Makes the prompt for a chat request from the conversation, the template and the output syntax.
The functions are pure; `engine.helpers.render.renderer` runs them in a separate process."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from specllama.engine.chat import harmony_markers
from specllama.engine.chat.request import ChatPrompt, ChatRequest, Continuation
from specllama.engine.chat.syntax import (
    HARMONY_CONTENT,
    HARMONY_THOUGHTS,
    HERMES_CALLS,
    OutputSyntax,
    Wrapper,
    begun_by,
)
from specllama.engine.errors import EngineError, invalid_request
from specllama.engine.helpers.render.template.adapting import adapted
from specllama.engine.helpers.render.template.caps import KEEP_REASONING, Caps, traits_of
from specllama.engine.helpers.render.template.conversation import Conversation, conversation, pairs
from specllama.engine.helpers.render.template.fallback import (
    with_calls_as_text,
    with_tool_notes,
    with_tools_as_text,
)

if TYPE_CHECKING:
    from specllama.engine.helpers.render.template.template import ChatTemplate

_THOUGHTS_BEFORE_MORE = Wrapper(HARMONY_THOUGHTS.begin, HARMONY_THOUGHTS.end + harmony_markers.NEXT)
_MARK = "0000mark0000"


def chat_prompt(template: "ChatTemplate", syntax: OutputSyntax, request: ChatRequest) -> ChatPrompt:
    """Returns the prompt for `request`; `syntax` is that of the template.

    Tools are included in the prompt regardless of `tool_choice`: a conversation may mention tools
    that must not be called now. If the template doesn't support tools, they are explained in text,
    and the prompt has the syntax of the explanation.

    Raises EngineError: invalid_request_error for messages that can't be rendered, with the
    template's message if it rejects them; not_supported_error for media.
    """
    traits = traits_of(template)
    talk = _conversation(request)
    messages, syntax, native = _with_tools(talk, request, traits.caps, syntax)
    variables = _variables(request, syntax)
    if variables.get("documents") and "documents" not in template.variables:
        raise invalid_request("documents: this model's chat template has no place for documents")

    def render(*more: dict[str, Any], open_turn: bool) -> str:
        return template.render(
            adapted([*messages, *more], traits),
            add_generation_prompt=open_turn,
            tools=request.tools if native else None,
            variables=variables,
        )

    try:
        text = render(open_turn=talk.add_generation_prompt)
    except EngineError as e:
        if messages:
            raise
        reason = e.info.message
        raise invalid_request(f"messages: there are none before the answer, and {reason}") from e
    if not talk.add_generation_prompt:
        return ChatPrompt(text, syntax)
    if talk.continuation is None:
        return opened(ChatPrompt(text, syntax), request)

    def before_text() -> str:
        try:
            shown = render({"role": "assistant", "content": _MARK}, open_turn=False)
        except EngineError:
            return ""
        return shown.partition(_MARK)[0]

    return continued(ChatPrompt(text, syntax), talk.continuation, before_text)


def plain_messages(
    request: ChatRequest,
) -> tuple[list[tuple[str, str]], Conversation, OutputSyntax]:
    """Returns the messages for llama.cpp's own formats, which only support roles and texts: (role,
    text) of each message, the conversation, and the syntax of the answer.

    Raises EngineError like `chat_prompt`.
    """
    if request.template_variables.get("documents"):
        raise invalid_request("documents: this chat template has no place for documents")
    talk = _conversation(request)
    messages, syntax = talk.messages, OutputSyntax()
    if request.tools or _has_calls(messages):
        messages, syntax = _as_text(talk, request, syntax)
    return pairs(messages), talk, syntax


def opened(prompt: ChatPrompt, request: ChatRequest) -> ChatPrompt:
    """Returns `prompt`, which ends with the opening of the assistant's turn, with the reasoning
    opened or closed as `request` asks."""
    text, (thoughts, _) = prompt.text, _wrappers(prompt.syntax)
    if thoughts is None:
        return prompt
    is_open = _ends_with(text, thoughts.begin)
    if request.thinking_budget.tokens == 0:
        # Templates without a switch for thinking open the reasoning nevertheless.
        return msgspec.structs.replace(prompt, text=text + thoughts.end) if is_open else prompt
    if request.thinking_forced_open and not is_open:
        return msgspec.structs.replace(prompt, text=_joined(text, thoughts.begin), thinking=True)
    return msgspec.structs.replace(prompt, thinking=is_open)


def continued(
    prompt: ChatPrompt,
    answer: Continuation,
    before_text: Callable[[], str] = str,
) -> ChatPrompt:
    """Returns `prompt`, which ends with the opening of the assistant's turn, with the beginning of
    the answer, including reasoning (possibly empty) if the model writes any. `before_text` returns
    the template's text before the content of an answer, which may include the content's marker.

    Raises EngineError (invalid_request_error) if reasoning has to be continued, but isn't
    supported.
    """
    text, (thoughts, content) = prompt.text, _wrappers(prompt.syntax)
    answer = _separated(answer, thoughts)
    prompt = msgspec.structs.replace(prompt, given=answer)
    if thoughts is None and answer.thinks:
        raise invalid_request(
            "messages: this model's chat template has no reasoning that could be continued"
        )
    if thoughts is not None:
        is_open, is_closed = _ends_with(text, thoughts.begin), _ends_with(text, thoughts.end)
        head = text
        if is_open:
            head = _without_end(text, thoughts.begin)
        elif is_closed and _ends_with(before := _without_end(text, thoughts.end), thoughts.begin):
            head = _without_end(before, thoughts.begin)
        if answer.thinks:
            text = _joined(head, thoughts.begin) + answer.reasoning
            return msgspec.structs.replace(prompt, text=text, thinking=True)
        # With content, the reasoning has ended; empty reasoning shows that to the model.
        text = _joined(head, thoughts.begin) + answer.reasoning + thoughts.end
        before = content.begin
    else:
        before = before_text()
    if _ends_with(before, content.begin) and not _ends_with(text, content.begin):
        text = _joined(text, content.begin)
    return msgspec.structs.replace(prompt, text=text + answer.content, answering=True)


def _separated(answer: Continuation, thoughts: Wrapper | None) -> Continuation:
    """Returns `answer` with reasoning separated from its content, if the content begins with the
    model's own markers. Reasoning that isn't closed is continued."""
    if thoughts is None or answer.reasoning or answer.thinks:
        return answer
    begin, end = thoughts.begin.strip(), thoughts.end.strip()
    text = answer.content.lstrip()
    if not (begin and end and text.startswith(begin)):
        return answer
    inner, closed, rest = text.removeprefix(begin).partition(end)
    if not closed:
        return Continuation(reasoning=inner.lstrip(), thinks=True)
    return Continuation(rest.lstrip(), inner.strip())


def _variables(request: ChatRequest, syntax: OutputSyntax) -> dict[str, Any]:
    """Returns the variables of the template, without the messages. Templates have several names for
    the same variable."""
    given = request.template_variables
    variables: dict[str, Any] = {"enable_thinking": syntax.thinks}
    preserved = given.get("preserve_reasoning", True)
    if isinstance(preserved, bool):
        variables |= {name: kept is preserved for name, kept in KEEP_REASONING.items()}
    if "reasoning_effort" in given:
        variables["reasoning_strength"] = given["reasoning_effort"]
    variables |= given
    if request.thinking_budget.tokens == 0:
        variables["enable_thinking"] = False
    elif request.thinking_forced_open:
        variables["enable_thinking"] = True
    return variables


def _conversation(request: ChatRequest) -> Conversation:
    return conversation(
        request.messages,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        prefill=request.prefill,
    )


def _with_tools(
    talk: Conversation, request: ChatRequest, caps: Caps, syntax: OutputSyntax
) -> tuple[list[dict[str, Any]], OutputSyntax, bool]:
    """Returns the messages, the syntax of the answer, and whether the template gets the tools."""
    if syntax.harmony:
        return talk.messages, syntax, True
    shows_calls = caps["supports_tool_calls"]
    unshown = not shows_calls and _has_calls(talk.messages)
    if syntax.calls is None and (request.tools or unshown):
        return *_as_text(talk, request, syntax), False
    messages = talk.messages
    if syntax.calls is not None and not shows_calls:
        messages = with_calls_as_text(messages, syntax.calls)
    if request.tools and syntax.calls is not None and not caps["supports_tools"]:
        parallel = request.parallel_tool_calls is not False
        messages = with_tool_notes(messages, request.tools, syntax.calls, parallel=parallel)
    return messages, syntax, True


def _as_text(
    talk: Conversation, request: ChatRequest, syntax: OutputSyntax
) -> tuple[list[dict[str, Any]], OutputSyntax]:
    parallel = request.parallel_tool_calls is not False
    messages = with_tools_as_text(talk.messages, request.tools, parallel=parallel)
    calls = HERMES_CALLS if request.tools else None
    return messages, msgspec.structs.replace(syntax, calls=calls)


def _has_calls(messages: Sequence[Mapping[str, Any]]) -> bool:
    return any(message["role"] == "tool" or "tool_calls" in message for message in messages)


def _wrappers(syntax: OutputSyntax) -> tuple[Wrapper | None, Wrapper]:
    """Returns the markers around reasoning and content."""
    if syntax.harmony:
        return _THOUGHTS_BEFORE_MORE, HARMONY_CONTENT
    return syntax.reasoning, syntax.content


def _ends_with(text: str, marker: str) -> bool:
    marker = marker.strip()
    return bool(marker) and text.rstrip().endswith(marker)


def _without_end(text: str, marker: str) -> str:
    return text.rstrip().removesuffix(marker.strip())


def _joined(text: str, marker: str) -> str:
    """Returns `text` and `marker`, whose beginning `text` may already end with. White space between
    them isn't doubled."""
    overlap = len(begun_by(text, marker))
    return text + (marker[overlap:] if overlap or not text[-1:].isspace() else marker.lstrip())
