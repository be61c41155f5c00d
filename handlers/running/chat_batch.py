"""The generation of answers to one chat request, for every chat API.

`prepare` converts a `ChatRequest` to a prompt and parameters for the engine. A `ChatBatch` runs
them, and parses the generated text into `ChatDelta`s, which each API converts to its own JSON.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any, Literal, Self

import msgspec

from specllama.engine.chat.grammar.answer import answer_grammar, answer_params, no_calls_grammar
from specllama.engine.chat.grammar.triggers import stop_scope
from specllama.engine.chat.output import ChatDelta, ChatMessage, Content, Reasoning
from specllama.engine.chat.parse.parser import AnswerParser, FreeTextCalls, answer_parser
from specllama.engine.chat.parse.reader import joined
from specllama.engine.chat.request import THOUGHTS_IN_CONTENT, ChatPrompt, ChatRequest
from specllama.engine.chat.syntax import HARMONY_THOUGHTS, OutputSyntax, Wrapper
from specllama.engine.errors import EngineError
from specllama.engine.helpers.render.render_jobs import Description
from specllama.engine.helpers.render.renderer import (
    renders_with_jinja,
    template_source,
    with_tokens,
)
from specllama.engine.helpers.render.template.prompt import continued, plain_messages
from specllama.engine.models.client import EngineClient
from specllama.engine.params import AnswerRules, GenerationParams
from specllama.engine.wire.replies import Begun, Delta, Finished, ModelInfo, Queued, TokenProbs
from specllama.engine.wire.requests import NO_TERMS, Prompt, PromptParts, Terms
from specllama.handlers.http.log_fields import log_fields
from specllama.handlers.http.request_trace import FINISH_REASONS, OPERATION
from specllama.handlers.running.batch import AnswerBatch
from specllama.handlers.running.content_tokens import ContentTokens
from specllama.handlers.running.media import (
    Marked,
    check_media,
    marked,
    resolved,
    with_results_shown,
)
from specllama.handlers.running.resolve_model import ResolvedModel
from specllama.handlers.running.run_in_thread import run_in_thread

FinishReason = Literal["stop", "length", "tool_calls"]


class PreparedChat(msgspec.Struct, frozen=True):
    """The prompt, the parameters, and a function that makes the parser of one answer. `given` is
    the beginning of the answer from the request, which precedes the generated text."""

    prompt: PromptParts
    params: GenerationParams
    new_parser: Callable[[], AnswerParser]
    given: Sequence[ChatDelta] = ()


class ChatEvent(msgspec.Struct, frozen=True):
    """An engine event (`source`) for answer number `index`.

    `deltas` is empty if the parser holds the text back, or if the event reports the progress of the
    prompt (`source.progress`). `message` is the answer so far; in the last event, the whole answer.
    `probs` are the probabilities of the content in the deltas, if requested.
    """

    index: int
    deltas: list[ChatDelta]
    source: Delta | Finished
    message: ChatMessage
    probs: Sequence[TokenProbs] = ()

    @property
    def is_last(self) -> bool:
        return isinstance(self.source, Finished)


class ChatAnswer(msgspec.Struct, frozen=True):
    """A whole answer, with the engine's last event. `events` has one event, or several if the
    engine streams (`params.stream`)."""

    message: ChatMessage
    finished: Finished
    events: Sequence[ChatEvent] = ()

    @property
    def probs(self) -> list[TokenProbs]:
        """The probabilities of the content."""
        return [each for event in self.events for each in event.probs]

    @property
    def finish_reason(self) -> FinishReason:
        return finish_reason(self.message, self.finished)


def finish_reason(message: ChatMessage, finished: Finished) -> FinishReason:
    """Returns the reason for the end of an answer. It isn't "tool_calls" if the token limit or a
    stop string has cut off a call, because the client must not run that call."""
    if _cut_off(finished):
        return "length"
    return "tool_calls" if message.calls and not message.ends_in_call else "stop"


def _cut_off(finished: Finished) -> bool:
    return finished.stop_type not in ("eos", "word")


async def prepare(
    model: ResolvedModel, engine: EngineClient, request: ChatRequest, params: GenerationParams
) -> PreparedChat:
    """Renders the conversation, and constrains the answer as `request` says.

    Raises EngineError: invalid_request_error for messages that the template rejects, for invalid
    media, and for tools or schemas that can't be enforced; not_supported_error for media that the
    model doesn't support; server_error if the template itself is at fault.
    """
    request, talk = with_markers(engine, request)
    prompt = await rendered_prompt(model, engine, request)
    [parts] = await resolved(model, engine, [talk.split(prompt.text)])
    params = msgspec.structs.replace(params, generation_prompt="")  # the template's is used
    if model.options.chat.skip_chat_parsing:
        return _unparsed(prompt, parts, request, params)
    parser = partial(
        answer_parser,
        prompt.syntax,
        reasoning=request.reasoning_format,
        thinking=prompt.thinking,
        tools=_schemas(request) if request.parse_tool_calls else None,
        prompt=prompt.begun,
        continued=prompt.given is not None,
    )
    bound = await run_in_thread(constrained, prompt, request, params)
    given = _given(prompt, request) if request.repeat_given else ()
    if not request.free_text:
        return PreparedChat(parts, bound, parser, given)
    names = frozenset(request.free_text)
    return PreparedChat(parts, bound, lambda: FreeTextCalls(parser(), names), given)


async def description(model: ResolvedModel, info: ModelInfo, source: str) -> Description | None:
    """Returns the capabilities of the template `source`; None if it can't be rendered."""
    if not renders_with_jinja(model.options, source):
        return None
    try:
        return await model.renderer.describe(with_tokens(source, info))
    except EngineError:
        return None  # an invalid or endless template; chats are answered with the error


async def rendered_prompt(
    model: ResolvedModel, engine: EngineClient, request: ChatRequest
) -> ChatPrompt:
    """Returns the prompt for the messages of a chat request, in which markers replace the media,
    with facts about the answer's syntax.

    Raises EngineError: invalid_request_error for messages that the template rejects, server_error
    if the template itself is at fault.
    """
    info = engine.info
    source = template_source(model.options, info, tools=bool(request.tools))
    if renders_with_jinja(model.options, source):
        prompt = await model.renderer.prompt(with_tokens(source, info), request)
        return msgspec.structs.replace(prompt, text=without_special(prompt.text, info))
    messages, talk, syntax = plain_messages(request)
    text = await engine.format_chat(source, messages, talk.add_generation_prompt)
    prompt = ChatPrompt(text, syntax)
    return prompt if talk.continuation is None else continued(prompt, talk.continuation)


def without_special(text: str, info: ModelInfo) -> str:
    """Returns `text` without the special tokens at its ends that the tokenizer will add."""
    if info.add_bos and info.bos_token:
        text = text.removeprefix(info.bos_token)
    if info.add_eos and info.eos_token:
        text = text.removesuffix(info.eos_token)
    return text


def with_markers(engine: EngineClient, request: ChatRequest) -> tuple[ChatRequest, Marked]:
    """Returns `request` with markers in place of its media, and the media. Raises EngineError for
    unsupported media, unless they are in a tool's result."""
    talk = marked(with_results_shown(request.messages, engine.info))
    check_media(engine.info, talk.media)
    return msgspec.structs.replace(request, messages=talk.messages), talk


def plain_text(prompt: PromptParts, params: GenerationParams) -> PreparedChat:
    """Returns the continuation of a prompt without a template, as an answer of content only."""
    parser = partial(answer_parser, OutputSyntax(), reasoning="none", thinking=False, tools=None)
    return PreparedChat(prompt, params, parser)


def _unparsed(
    prompt: ChatPrompt, parts: PromptParts, request: ChatRequest, params: GenerationParams
) -> PreparedChat:
    """Returns a chat whose answer isn't parsed: all of its text is content, with the markers."""
    request = msgspec.structs.replace(request, reasoning_format="none")
    bound = answer_params(
        params, prompt.syntax, None, thinking=prompt.thinking, given=_begun_text(prompt)
    )
    given = _given(prompt, request) if request.repeat_given else ()
    return msgspec.structs.replace(plain_text(parts, bound), given=given)


def _given(prompt: ChatPrompt, request: ChatRequest) -> Sequence[ChatDelta]:
    """Returns the beginning of the answer from the request, in the form of generated deltas."""
    if (answer := prompt.given) is None:
        return ()
    form, thoughts, content = request.reasoning_format, answer.reasoning, answer.content
    wrapper = HARMONY_THOUGHTS if prompt.syntax.harmony else prompt.syntax.reasoning
    if thoughts and wrapper and form in THOUGHTS_IN_CONTENT:
        content = f"{wrapper.begin}{thoughts}{'' if answer.thinks else wrapper.end}{content}"
    made: list[ChatDelta] = [Reasoning(thoughts)] if thoughts and form != "none" else []
    return [*made, Content(content)] if content else made


def _schemas(request: ChatRequest) -> dict[str, Any] | None:
    """Returns the schemas of the tools that the model may call, by name; None without tools."""
    if request.tool_choice == "none" or not request.tools:
        return None
    functions = [tool["function"] for tool in request.tools]
    return {function["name"]: function.get("parameters") for function in functions}


def constrained(
    prompt: ChatPrompt, request: ChatRequest, params: GenerationParams
) -> GenerationParams:
    """Returns `params` with the constraints from the answer's syntax, tools and schema."""
    syntax, tools = prompt.syntax, request.tools if request.tool_choice != "none" else []
    given = _begun_text(prompt)
    if not syntax.markers and not given:
        return params
    schema = None
    # The engine itself enforces a schema for the whole generated text, which may also be the rest
    # of an answer. Otherwise the answer's grammar contains the schema.
    apart = tools or syntax.harmony or syntax.reasoning or syntax.content != Wrapper()
    if params.json_schema and apart and not prompt.answering:
        schema = json.loads(params.json_schema)
        params = msgspec.structs.replace(params, json_schema=None)
    parallel = request.parallel_tool_calls
    if parallel is None:
        parallel = syntax.calls is None or syntax.calls.parallel
    grammar = answer_grammar(
        syntax,
        tools=tools,
        required=request.tool_choice == "required",
        tool_name=request.tool_name,
        parallel=parallel,
        thinking=prompt.thinking,
        schema=schema,
        prompt=prompt.begun,
        may_think=not _must_not_think(request),
        texts={name: lark for name, lark in request.free_text.items() if lark},
    )
    # The client's own grammar isn't combined with another one.
    is_free = grammar is None and not params.grammar and not params.json_schema
    if request.tools and request.tool_choice == "none" and request.parse_tool_calls and is_free:
        names = [tool["function"]["name"] for tool in request.tools]
        grammar = no_calls_grammar(syntax, names, prompt.begun)
    made = answer_params(
        params,
        syntax,
        grammar,
        thinking=prompt.thinking,
        budget=request.thinking_budget,
        given=given,
    )
    return _with_stop_scope(made, prompt, request) if params.stop else made


def _with_stop_scope(
    params: GenerationParams, prompt: ChatPrompt, request: ChatRequest
) -> GenerationParams:
    """Returns `params` with stop strings that apply only to the answer's text, not to its thoughts
    and calls."""
    scope = stop_scope(
        prompt.syntax,
        reasoning=request.reasoning_format,
        thinking=prompt.thinking,
        tools=(_schemas(request) or {}) if request.parse_tool_calls else (),
        required=request.tool_choice == "required",
        prompt=prompt.begun,
        continued=prompt.answering,
    )
    answer = msgspec.structs.replace(params.answer or AnswerRules(), stops=scope)
    return msgspec.structs.replace(params, answer=answer)


def _begun_text(prompt: ChatPrompt) -> str:
    """Returns the beginning of the answer's text at the end of the prompt."""
    return prompt.given.content if prompt.answering and prompt.given else ""


def _must_not_think(request: ChatRequest) -> bool:
    switched_off = request.template_variables.get("enable_thinking") is False
    return request.thinking_budget.tokens == 0 or switched_off


async def count_tokens(model: ResolvedModel, engine: EngineClient, request: ChatRequest) -> int:
    """Returns the number of tokens in the prompt for `request`. Raises EngineError as `prepare`
    does."""
    prepared = await prepare(model, engine, request, GenerationParams())
    tokens = await engine.tokenize(
        prepared.prompt, add_special=True, parse_special=True, with_pieces=False
    )
    return len(tokens.tokens)


class AnswerReader:
    """Parses the text of one answer as it arrives. `message` is the answer so far."""

    def __init__(self, prepared: PreparedChat) -> None:
        self.message = ChatMessage(calls=[])
        self._parser = prepared.new_parser()
        self._given = [*prepared.given]
        self._tokens = ContentTokens() if prepared.params.n_probs else None

    def read(self, index: int, event: Delta | Finished) -> ChatEvent:
        """Returns the engine's `event` as a parsed event of answer number `index`."""
        deltas, probs = self._read(event)
        if self._given and (deltas or isinstance(event, Finished)):
            deltas = _joined(self._given, deltas)
            self._given = []
        for delta in deltas:
            self.message.add(delta)
        return ChatEvent(index, deltas, event, self.message, probs)

    def _read(self, event: Delta | Finished) -> tuple[list[ChatDelta], Sequence[TokenProbs]]:
        """Returns the deltas in an event's text, and the tokens of the content in them."""
        tokens = self._tokens
        if tokens is None:
            return self._parser.feed(event.text) + self._end(event), ()
        deltas: list[ChatDelta] = []
        probs: list[TokenProbs] = []
        tokens.generated(event.probs)
        for part in tokens.parts(event.text):
            found = self._parser.feed(part)
            probs += tokens.said(found)
            deltas += found
        found = self._end(event)
        probs += tokens.said(found)
        return joined([*deltas, *found]), probs

    def _end(self, event: Delta | Finished) -> list[ChatDelta]:
        """Returns the last deltas if `event` is the answer's last one."""
        if not isinstance(event, Finished):
            return []
        in_call = event.stop_type == "word" and self._parser.calling
        self.message.ends_in_call = in_call
        return self._parser.finish(cut_off=_cut_off(event) or in_call)


class ChatBatch:
    """A context manager for `n` answers to one request. Its exit cancels unfinished answers."""

    def __init__(
        self,
        engine: EngineClient,
        prepared: PreparedChat,
        *,
        n: int = 1,
        echo_prompt: bool = False,
        prompt: Prompt | None = None,
        id: str | None = None,
        terms: Terms = NO_TERMS,
    ) -> None:
        """`prompt` replaces that of `prepared`; `id` and `terms` are as in `AnswerBatch`."""
        if prompt is None:
            prompt = prepared.prompt
        self._batch = AnswerBatch(
            engine, [prompt], prepared.params, n=n, echo_prompt=echo_prompt, id=id, terms=terms
        )
        self._streams = prepared.params.stream
        self._readers = [AnswerReader(prepared) for _ in range(n)]

    async def __aenter__(self) -> Self:
        await self._batch.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._batch.__aexit__(*exc_info)
        if (trace := log_fields().trace) is not None:
            trace.attributes[OPERATION] = "chat"
            if len(ends := self._batch.ends()) == len(self._readers):
                trace.attributes[FINISH_REASONS] = [
                    finish_reason(reader.message, end)
                    for reader, end in zip(self._readers, ends, strict=True)
                ]

    async def results(self) -> list[ChatAnswer]:
        """Returns all answers, in order. Raises the first EngineError of any answer."""
        if not self._streams:
            answers: list[ChatAnswer] = []
            for index, result in enumerate(await self._batch.results()):
                event = self._readers[index].read(index, result)
                answers.append(ChatAnswer(event.message, result, [event]))
                await asyncio.sleep(0)  # parsing a long text takes a while
            return answers
        await self.begun()
        events: list[list[ChatEvent]] = [[] for _ in self._readers]
        ends: dict[int, Finished] = {}
        async for event in self.events():
            events[event.index].append(event)
            if isinstance(event.source, Finished):
                ends[event.index] = event.source
        return [
            ChatAnswer(reader.message, ends[index], events[index])
            for index, reader in enumerate(self._readers)
        ]

    @property
    def ready(self) -> bool:
        """As in `AnswerBatch`."""
        return self._batch.ready

    async def accepted(self) -> None:
        """As in `AnswerBatch`."""
        await self._batch.accepted()

    @property
    def queue(self) -> Queued | None:
        """As in `AnswerBatch`."""
        return self._batch.queue

    async def begun(self) -> Begun:
        """Waits until the first answer has a slot; to be called before `events`. Raises the first
        EngineError of any answer."""
        return await self._batch.begun()

    async def events(self) -> AsyncIterator[ChatEvent]:
        """Yields the events of all answers as they arrive. Raises the first EngineError of any
        answer."""
        async for event in self._batch.events():
            yield self._readers[event.index].read(event.index, event.source)


def _joined(given: Sequence[ChatDelta], deltas: Sequence[ChatDelta]) -> list[ChatDelta]:
    """Returns the given and the generated deltas, with a text that continues across both as one
    delta."""
    match given[-1], [*deltas[:1]]:
        case Content(begun), [Content(text)]:
            return [*given[:-1], Content(begun + text), *deltas[1:]]
        case Reasoning(begun), [Reasoning(text)]:
            return [*given[:-1], Reasoning(begun + text), *deltas[1:]]
    return [*given, *deltas]
