"""One chat request on its way through the engine, for every chat API alike.

`prepare` makes of a `ChatRequest` what the engine generates from; a `ChatBatch` runs it and tells
the generated text apart into `ChatDelta`s. What is left to an API is its own JSON.
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
from specllama.engine.wire.replies import Begun, Delta, Finished, ModelInfo, TokenProbs
from specllama.engine.wire.requests import Prompt, PromptParts
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
    """The prompt, how to generate, and what reads one generated answer. `given` is what the client
    has written of the answer, to stand before what is generated."""

    prompt: PromptParts
    params: GenerationParams
    new_parser: Callable[[], AnswerParser]
    given: Sequence[ChatDelta] = ()


class ChatEvent(msgspec.Struct, frozen=True):
    """An event of the engine as a part of answer number `index`.

    `deltas` may be none: the text is held back, or the event reports on the prompt
    (`source.progress`). With the last event of an answer, `message` is all of it. `probs` are those
    of the content among the deltas, if the request wants any.
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
    """A whole answer, and what the engine says of it. `events` are those that it came in: one,
    but more for parameters that have the engine stream."""

    message: ChatMessage
    finished: Finished
    events: Sequence[ChatEvent] = ()

    @property
    def probs(self) -> list[TokenProbs]:
        """Those of the content."""
        return [each for event in self.events for each in event.probs]

    @property
    def finish_reason(self) -> FinishReason:
        return finish_reason(self.message, self.finished)


def finish_reason(message: ChatMessage, finished: Finished) -> FinishReason:
    """The reason for the end of an answer. A call that the limit of tokens or a stop string has cut
    off must not be made."""
    if _cut_off(finished):
        return "length"
    return "tool_calls" if message.calls and not message.ends_in_call else "stop"


def _cut_off(finished: Finished) -> bool:
    return finished.stop_type not in ("eos", "word")


async def prepare(
    model: ResolvedModel, engine: EngineClient, request: ChatRequest, params: GenerationParams
) -> PreparedChat:
    """Render the conversation, and bind the answer to what `request` lets it be.

    Raises EngineError: invalid_request_error for messages that the template doesn't take, for media
    that can't be read and for tools or schemas that can't be followed, not_supported_error for
    media that the model doesn't take, server_error if the template itself is at fault.
    """
    request, talk = with_markers(engine, request)
    prompt = await rendered_prompt(model, engine, request)
    [parts] = await resolved(model, engine, [talk.split(prompt.text)])
    params = msgspec.structs.replace(params, generation_prompt="")  # the template's own counts
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
    """The capabilities of the template; None if it can't be tried."""
    if not renders_with_jinja(model.options, source):
        return None
    try:
        return await model.renderer.describe(with_tokens(source, info))
    except EngineError:
        return None  # not valid, or it never ends: a chat gets the error


async def rendered_prompt(
    model: ResolvedModel, engine: EngineClient, request: ChatRequest
) -> ChatPrompt:
    """The prompt for the messages of a chat request, whose media are marked, and what is known of
    the answer.

    Raises EngineError: invalid_request_error for messages that the template doesn't take,
    server_error if the template itself is at fault.
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
    """`text` without the tokens at its ends that the tokenizer is going to add."""
    if info.add_bos and info.bos_token:
        text = text.removeprefix(info.bos_token)
    if info.add_eos and info.eos_token:
        text = text.removesuffix(info.eos_token)
    return text


def with_markers(engine: EngineClient, request: ChatRequest) -> tuple[ChatRequest, Marked]:
    """`request` with markers in the places of its media. Raises EngineError for those that the
    model can't take, unless a tool returned them."""
    talk = marked(with_results_shown(request.messages, engine.info))
    check_media(engine.info, talk.media)
    return msgspec.structs.replace(request, messages=talk.messages), talk


def plain_text(prompt: PromptParts, params: GenerationParams) -> PreparedChat:
    """The continuation of a text that no template has made: all of it is content."""
    parser = partial(answer_parser, OutputSyntax(), reasoning="none", thinking=False, tools=None)
    return PreparedChat(prompt, params, parser)


def _unparsed(
    prompt: ChatPrompt, parts: PromptParts, request: ChatRequest, params: GenerationParams
) -> PreparedChat:
    """An answer that is all content, with the markers that the model writes in it."""
    request = msgspec.structs.replace(request, reasoning_format="none")
    bound = answer_params(
        params, prompt.syntax, None, thinking=prompt.thinking, given=_begun_text(prompt)
    )
    given = _given(prompt, request) if request.repeat_given else ()
    return msgspec.structs.replace(plain_text(parts, bound), given=given)


def _given(prompt: ChatPrompt, request: ChatRequest) -> Sequence[ChatDelta]:
    """The beginning of the answer that came with the request, as if it had been generated."""
    if (answer := prompt.given) is None:
        return ()
    form, thoughts, content = request.reasoning_format, answer.reasoning, answer.content
    wrapper = HARMONY_THOUGHTS if prompt.syntax.harmony else prompt.syntax.reasoning
    if thoughts and wrapper and form in THOUGHTS_IN_CONTENT:
        content = f"{wrapper.begin}{thoughts}{'' if answer.thinks else wrapper.end}{content}"
    made: list[ChatDelta] = [Reasoning(thoughts)] if thoughts and form != "none" else []
    return [*made, Content(content)] if content else made


def _schemas(request: ChatRequest) -> dict[str, Any] | None:
    """The parameters of the tools that may be called, by name; None if there are none."""
    if request.tool_choice == "none" or not request.tools:
        return None
    functions = [tool["function"] for tool in request.tools]
    return {function["name"]: function.get("parameters") for function in functions}


def constrained(
    prompt: ChatPrompt, request: ChatRequest, params: GenerationParams
) -> GenerationParams:
    """`params` with what the syntax of the answer, its tools and its schema make of it."""
    syntax, tools = prompt.syntax, request.tools if request.tool_choice != "none" else []
    given = _begun_text(prompt)
    if not syntax.markers and not given:
        return params
    schema = None
    # A schema of the whole text is the engine's own business: the text may be the whole answer,
    # or the rest of one that goes on.
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
    # A grammar of the client's own says itself what may come.
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
    """`params` with the stop strings bound to the text of the answer, as its parser tells it."""
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
    """The beginning of the answer's text that the prompt ends with."""
    return prompt.given.content if prompt.answering and prompt.given else ""


def _must_not_think(request: ChatRequest) -> bool:
    switched_off = request.template_variables.get("enable_thinking") is False
    return request.thinking_budget.tokens == 0 or switched_off


async def count_tokens(model: ResolvedModel, engine: EngineClient, request: ChatRequest) -> int:
    """The number of tokens of the prompt for `request`. Raises EngineError as `prepare` does."""
    prepared = await prepare(model, engine, request, GenerationParams())
    tokens = await engine.tokenize(
        prepared.prompt, add_special=True, parse_special=True, with_pieces=False
    )
    return len(tokens.tokens)


class AnswerReader:
    """Tells the text of one answer apart while it comes. `message` is what has come so far."""

    def __init__(self, prepared: PreparedChat) -> None:
        self.message = ChatMessage(calls=[])
        self._parser = prepared.new_parser()
        self._given = [*prepared.given]
        self._tokens = ContentTokens() if prepared.params.n_probs else None

    def read(self, index: int, event: Delta | Finished) -> ChatEvent:
        """`event` as one of answer number `index`."""
        deltas, probs = self._read(event)
        if self._given and (deltas or isinstance(event, Finished)):
            deltas = _joined(self._given, deltas)
            self._given = []
        for delta in deltas:
            self.message.add(delta)
        return ChatEvent(index, deltas, event, self.message, probs)

    def _read(self, event: Delta | Finished) -> tuple[list[ChatDelta], Sequence[TokenProbs]]:
        """What the text of an event brings, and the tokens of the content in it."""
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
        """What the end of the answer brings, if `event` is that."""
        if not isinstance(event, Finished):
            return []
        in_call = event.stop_type == "word" and self._parser.calling
        self.message.ends_in_call = in_call
        return self._parser.finish(cut_off=_cut_off(event) or in_call)


class ChatBatch:
    """A context around `n` answers to one request. Leaving it cancels what still runs."""

    def __init__(
        self,
        engine: EngineClient,
        prepared: PreparedChat,
        *,
        n: int = 1,
        echo_prompt: bool = False,
        prompt: Prompt | None = None,
        id: str | None = None,
    ) -> None:
        """`prompt` takes the place of the conversation's text; `id` as in `AnswerBatch`."""
        if prompt is None:
            prompt = prepared.prompt
        self._batch = AnswerBatch(
            engine, [prompt], prepared.params, n=n, echo_prompt=echo_prompt, id=id
        )
        self._streams = prepared.params.stream
        self._readers = [AnswerReader(prepared) for _ in range(n)]

    async def __aenter__(self) -> Self:
        await self._batch.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._batch.__aexit__(*exc_info)

    async def results(self) -> list[ChatAnswer]:
        """All answers, in order. Raises the first EngineError of any."""
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

    async def begun(self) -> Begun:
        """Waits until the first of the answers has a slot; to be called before `events`. Raises
        the first EngineError of any."""
        return await self._batch.begun()

    async def events(self) -> AsyncIterator[ChatEvent]:
        """The events of all answers as they come. Raises the first EngineError of any."""
        async for event in self._batch.events():
            yield self._readers[event.index].read(event.index, event.source)


def _joined(given: Sequence[ChatDelta], deltas: Sequence[ChatDelta]) -> list[ChatDelta]:
    """All in a row; text that goes on is one delta with its beginning."""
    match given[-1], [*deltas[:1]]:
        case Content(begun), [Content(text)]:
            return [*given[:-1], Content(begun + text), *deltas[1:]]
        case Reasoning(begun), [Reasoning(text)]:
            return [*given[:-1], Reasoning(begun + text), *deltas[1:]]
    return [*given, *deltas]
