"""One generation, from the body to the response: the same steps, in the same order, for every API.

Each API has a `Dialect`: its `request.py` reads a body into a `GenerationRequest`, and its
`format.py` turns the engine's events into the answer. Neither uses a model, an engine or a
connection.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Generic, TypeVar

from msgspec import structs
from starlette.responses import Response

from specllama.engine import system
from specllama.engine.chat.request import ChatRequest, room_for_answer, truncated
from specllama.engine.errors import ErrorType, not_supported
from specllama.engine.models.client import EngineClient
from specllama.engine.options import Options
from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import Infill, Prompt, PromptParts
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.apis.wishes import with_headers
from specllama.handlers.http.current import current_scope, ignore_disconnect
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.http.streams import EVENT_STREAM, Ping
from specllama.handlers.running.admission import admit
from specllama.handlers.running.batch import AnswerBatch, bound_probabilities
from specllama.handlers.running.chat_batch import (
    ChatBatch,
    PreparedChat,
    count_tokens,
    plain_text,
    prepare,
)
from specllama.handlers.running.media import UnresolvedParts, resolved, without_media
from specllama.handlers.running.prompt_text import (
    log_prompts,
    prompts_with_probabilities,
    text_of,
)
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model
from specllama.handlers.running.respond import Format, Running, respond, stream_owner
from specllama.handlers.running.run_in_thread import run_in_thread
from specllama.handlers.running.runtime import runtime
from specllama.handlers.running.terms import NO_WISHES, Wishes, in_time

VERBOSE = 10
"""The lowest verbosity of the server at which answers have `__verbose`."""

Supported = Mapping[str, list[Any]]
"""Documented fields that this server doesn't implement yet -> the values of each that it accepts,
all of which mean "off". Null is always accepted. `a.b` names the field `b` of the object `a`. The
description has the same values as `x-supported-values`; a test compares the two."""

NO_IMAGES: Supported = {"image_data": [[]]}
"""For APIs whose requests have the fields of llama-server's completions."""


def refuse_unsupported(body: Mapping[str, Any], fields: Supported) -> None:
    """Raises EngineError (not_supported_error) with the name of the first of `fields` whose value
    in `body` isn't supported: without the field, the request would mean something else."""
    for name, supported in fields.items():
        head, _, tail = name.partition(".")
        value = body.get(head)
        if tail and value is not None:
            value = value.get(tail)
        if value is not None and value not in supported:
            raise not_supported(f"{name}: not supported here; leave it out")


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Prompts without a chat template, or the gap between two texts."""

    texts: Sequence[UnresolvedParts] = ()
    gap: Infill | None = None
    suffix: str = ""
    """The text after each answer."""
    echo: bool = False
    """Whether an answer begins with its prompt, and its probabilities with those of the prompt."""
    is_chat: bool = False
    """Whether the one prompt is answered like a chat, with the whole text as content."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """The common form of a request. An API adds the fields that its format needs."""

    params: GenerationParams
    what: ChatRequest | Prompts
    """The conversation, or the prompts."""
    n: int = 1
    """Answers for each prompt."""
    probabilities: Probabilities | None = None
    """The form of the probabilities in the answer."""
    id: str | None = None
    """The answer's id, with which a client can end the answer's thoughts."""
    ping: Ping | None = None
    """The keep-alive frame of a stream that has nothing else to send."""
    shows_prompt: bool = False
    """Whether the answer contains the text of the prompt, made from the engine's tokens."""
    verbose: bool | None = False
    """Whether the answer has `__verbose`, which contains the prompt; None: the server's options
    decide."""
    before: Sequence[int] = ()
    """Tokens before the prompt."""
    truncates: bool = False
    """Whether the oldest turns of a conversation are dropped if it is too long."""
    shorten: Callable[[ResolvedModel, EngineClient], Awaitable[ChatRequest]] | None = None
    """Returns the conversation in the place of `what`, after its model has been loaded."""
    reads_events: bool = False
    """Whether the engine streams even if the answer doesn't: only in a stream can the tokens of
    the content be separated from those of thoughts and calls."""
    wishes: Wishes = NO_WISHES
    """The priority and the time limits that the body chooses."""
    shows_queue: bool = False
    """Whether a stream of server-sent events begins before the request has a slot, and reports its
    place in the queue."""
    keep_alive: float | None = None
    """The seconds for which a router keeps the model in memory after this request; with 0, it
    unloads the model then, unless others use it."""


A = TypeVar("A", bound=GenerationRequest)
B = TypeVar("B", bound=Mapping[str, Any])
"""The type of a body, one of `handlers.http.schemas`."""


@dataclass(frozen=True, kw_only=True)
class GenerationFacts:
    """The facts about a prepared request that a format needs. Times are from
    `engine.system.now`."""

    model: str
    """The model's id."""
    n_ctx: int
    """The size of a slot's context, in tokens."""
    params: GenerationParams
    prompt: Prompt
    """The first prompt, as it is sent to the engine."""
    echoes: Sequence[str] = ()
    """The texts of all prompts, if answers begin with them."""
    verbose: bool
    request_id: str
    arrived: float
    """When the request's model was resolved."""
    loaded: float
    """When the model was loaded."""
    tokens: Callable[[PromptParts], Awaitable[list[int]]]
    """Returns the tokens of a prompt, special ones included."""
    n_written: Callable[[str], Awaitable[int]]
    """Returns the number of tokens of a generated text."""


Begin = Callable[..., Running[Any, Any]]
"""Submits the request to the engine, on the `terms` that are its only argument."""


@dataclass(frozen=True, kw_only=True)
class Dialect(Generic[B, A]):
    """An API's form of requests and answers.

    `read` raises `EngineError` for faults that the description can't rule out. `form` makes the
    format of one answer."""

    read: Callable[[B, Options], A]
    form: Callable[[A, GenerationFacts], Format[Any, Any]]
    supported: Supported = field(default_factory=dict)
    unknown: ErrorType = "invalid_request_error"
    """The error for a model name that doesn't exist."""
    media_type: str = EVENT_STREAM
    """The media type of a stream."""
    respond: Callable[..., Awaitable[Response]] = respond
    """Makes the response, with the arguments of `handlers.running.respond.respond`."""


async def generate(
    dialect: Dialect[B, A],
    body: B,
    *,
    name: str | None = None,
    request_id: str = "",
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Returns the response to a request in a `dialect`. `name` is the model's name if the body
    can't contain it; `request_id` is the id in errors of a stream."""
    refuse_unsupported(body, dialect.supported)
    model = resolve_model({"model": name} if name else body, unknown=dialect.unknown)
    await admit(model.name)
    arrived = system.now()
    request = await run_in_thread(dialect.read, body, model.options)
    keep_afterwards(model, request.keep_alive)
    wishes = with_headers(request.wishes)
    if request.params.n_predict == 0:
        wishes = wishes._replace(prompt_ms=None)  # the request is only for its prompt
    streams_events = request.params.stream and dialect.media_type == EVENT_STREAM
    shows_queue = request.shows_queue and streams_events
    keeps = streams_events and dialect.respond is respond
    owner = stream_owner(current_scope()) if keeps else None

    async def ready() -> tuple[Begin, GenerationFacts]:
        if owner is not None:
            ignore_disconnect()
        engine = await model.engine()
        new_facts = partial(
            GenerationFacts,
            model=model.name,
            n_ctx=engine.info.n_ctx,
            verbose=_is_verbose(model) if request.verbose is None else request.verbose,
            request_id=request_id,
            arrived=arrived,
            loaded=system.now(),
            tokens=partial(_tokens, engine),
            n_written=partial(_n_written, engine),
        )
        return await _prepared(model, engine, request, new_facts)

    async with in_time(wishes.first_ms):
        work = ready() if owner is None else runtime().streams.prepared(owner, ready())
        begin, facts = await work

    def start() -> Running[Any, Any]:
        terms = model.terms(wishes)
        return begin(terms=structs.replace(terms, shows_queue=True) if shows_queue else terms)

    form = dialect.form(request, facts)
    return await dialect.respond(
        start,
        form,
        stream=request.params.stream,
        media_type=dialect.media_type,
        ping=request.ping,
        headers=headers,
        shows_queue=shows_queue,
    )


async def count_input(
    read: Callable[[B, Options], GenerationRequest],
    body: B,
    supported: Supported,
    *,
    name: str | None = None,
    unknown: ErrorType = "invalid_request_error",
) -> int:
    """Returns the number of tokens in the prompt for the conversation in `body`. `read`,
    `supported` and `unknown` are as in `Dialect`, `name` as in `generate`."""
    refuse_unsupported(body, supported)
    model = resolve_model({"model": name} if name else body, unknown=unknown)
    request = await run_in_thread(read, body, model.options)
    request = replace(request, shorten=None)
    engine = await model.engine()
    return await count_tokens(model, engine, await _conversation(model, engine, request))


def keep_afterwards(model: ResolvedModel, seconds: float | None) -> None:
    """Has a router keep the model in memory after the request for `seconds`, if given; or, with 0,
    unload it unless others use it. To be called before the model is leased."""
    if seconds is None:
        return
    pool = model.current.pool
    if not model.current.catalog.router:
        if not seconds:
            warn_ignored("keep_alive: the only model of a server stays loaded")
    elif seconds:
        current_scope()["state"]["leases"].callback(pool.keep, model.name, seconds)
    else:
        current_scope()["state"]["leases"].callback(pool.unload_idle, model.name)


# ---- from the request to the engine's input -----------------------------------------------


async def _conversation(
    model: ResolvedModel, engine: EngineClient, request: GenerationRequest
) -> ChatRequest:
    """Returns the conversation that the model answers. With `truncates`, the oldest turns are
    dropped until there is room for the answer."""
    assert isinstance(request.what, ChatRequest), "prompts are no conversation"
    what = request.what if request.shorten is None else await request.shorten(model, engine)
    if not request.truncates:
        return what
    n_ctx = engine.info.n_ctx
    n_max = n_ctx - room_for_answer(n_ctx, request.params.n_predict)
    return await truncated(what, n_max, partial(count_tokens, model, engine))


def _is_verbose(model: ResolvedModel) -> bool:
    log = model.current.options.log
    return bool(log.verbose or log.verbosity >= VERBOSE)


async def _prepared(
    model: ResolvedModel,
    engine: EngineClient,
    request: GenerationRequest,
    new_facts: Callable[..., GenerationFacts],
) -> tuple[Begin, GenerationFacts]:
    """Returns the function that submits the request, and the facts, made by `new_facts`."""
    if isinstance(request.what, Prompts) and not request.what.is_chat:
        prompts, echoes = await _texts(model, engine, request, request.what)
        facts = new_facts(params=request.params, prompt=prompts[0], echoes=echoes)
        has_probs = bool(echoes) and request.probabilities is not None
        texts = partial(AnswerBatch, engine, prompts, request.params, prompt_probs=has_probs)
        echo = _echoes(request, facts)
        return partial(texts, n=request.n, id=request.id, echo_prompt=echo), facts
    chat, prompt = await _chat(model, engine, request)
    facts = new_facts(params=chat.params, prompt=prompt)
    answers = partial(ChatBatch, engine, chat, prompt=prompt)
    return partial(answers, n=request.n, id=request.id, echo_prompt=_echoes(request, facts)), facts


def _echoes(request: GenerationRequest, facts: GenerationFacts) -> bool:
    """Whether the engine returns the text of the prompt."""
    return request.shows_prompt or facts.verbose


async def _chat(
    model: ResolvedModel, engine: EngineClient, request: GenerationRequest
) -> tuple[PreparedChat, Prompt]:
    """Returns the prepared conversation, and its prompt."""
    if not isinstance(request.what, Prompts):
        params = request.params
        if request.reads_events:
            if not params.stream:
                params = bound_probabilities(params, request.n, engine.info.n_ctx)
            params = structs.replace(params, stream=True)
        chat = await prepare(model, engine, await _conversation(model, engine, request), params)
    elif request.what.gap is not None:
        log_prompts([request.what.gap])
        return plain_text([], request.params), request.what.gap
    else:
        [text] = await resolved(model, engine, request.what.texts)
        chat = plain_text(text, request.params)
    prompt: Prompt = [*request.before, *chat.prompt]
    log_prompts([prompt])
    return chat, prompt


async def _texts(
    model: ResolvedModel, engine: EngineClient, request: GenerationRequest, what: Prompts
) -> tuple[list[Prompt], list[str]]:
    """Returns the prompts, and their texts if answers begin with them."""
    if what.gap is not None:
        log_prompts([what.gap])
        return [what.gap], []
    prompts = await resolved(model, engine, what.texts)
    echoes = [await text_of(engine, prompt) for prompt in prompts] if what.echo else []
    given: list[Prompt] = [*prompts]
    if what.suffix:
        given = [Infill(prefix=without_media(t), suffix=[what.suffix]) for t in what.texts]
    log_prompts(given)
    if echoes and request.probabilities is not None:
        given = await prompts_with_probabilities(engine, given, request.params, request.n)
    return given, echoes


async def _tokens(engine: EngineClient, text: PromptParts) -> list[int]:
    found = await engine.tokenize(text, add_special=True, parse_special=True, with_pieces=False)
    return list(found.tokens)


async def _n_written(engine: EngineClient, text: str) -> int:
    if not text:
        return 0
    found = await engine.tokenize([text], add_special=False, parse_special=False, with_pieces=False)
    return len(found.tokens)
