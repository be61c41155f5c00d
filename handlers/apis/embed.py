"""One request for embeddings, from the body to the response: the same steps for every API."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar, cast

from starlette.responses import Response

from specllama.engine import system
from specllama.engine.errors import ErrorType, invalid_request
from specllama.engine.models.client import EngineClient
from specllama.engine.options import Options
from specllama.engine.wire.replies import Vectors
from specllama.engine.wire.requests import PromptParts
from specllama.handlers.apis.generate import B, keep_afterwards
from specllama.handlers.apis.wishes import with_headers
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.http.json_answer import JSONAnswer, lazy
from specllama.handlers.http.log_fields import log_fields
from specllama.handlers.http.request_trace import OPERATION
from specllama.handlers.running.admission import admit, admitted_call
from specllama.handlers.running.batch import BYTES_PER_TOKEN, counted, n_media
from specllama.handlers.running.media import UnresolvedParts, resolved
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model
from specllama.handlers.running.run_in_thread import run_in_thread
from specllama.handlers.running.terms import NO_WISHES, Wishes, in_time
from specllama.handlers.running.usage import Usage

Rows: TypeAlias = "memoryview[float]"
"""The vectors of one input: float32, one row per vector."""

FLOAT = 4  # bytes
AROUND = 8  # more special tokens than any model adds around a text


@dataclass(frozen=True, kw_only=True)
class EmbeddingsRequest:
    """The common form of a request. `dimensions`: how many leading numbers of each vector are
    returned, 0 for all. `normalize` is as in `--embd-normalize`; None: the server's options
    decide."""

    inputs: Sequence[UnresolvedParts]
    dimensions: int = 0
    normalize: int | None = None
    named: str | None = None
    """The model's name in the request."""
    shortens: bool = False
    """Whether inputs that are too long are cut off at the end. Each input is one text then."""
    keep_alive: float | None = None
    """The seconds for which a router keeps the model in memory after this request; with 0, it
    unloads the model then, unless others use it."""
    wishes: Wishes = NO_WISHES
    """The priority and the time limit that the body chooses."""


A = TypeVar("A", bound=EmbeddingsRequest)


@dataclass(frozen=True, kw_only=True)
class Embedded:
    """The vectors, and facts about them. Times are from `engine.system.now`."""

    model: str
    n_vector: int
    """The length of the model's vectors."""
    rows: Sequence[Rows]
    """The vectors of each input."""
    n_tokens: int
    """The tokens of all inputs."""
    arrived: float
    """When the request's model was resolved."""
    loaded: float
    """When the model was loaded."""

    def vectors(self) -> list[list[float]]:
        """Returns the vector of each input, as a list that is made when it is encoded."""
        return lazy(only_vector, self.rows, self.n_vector)


@dataclass(frozen=True, kw_only=True)
class EmbeddingsDialect(Generic[B, A]):
    """An API's form of requests and answers. `read` raises `EngineError` for faults that the
    description can't rule out; `form` makes the answer."""

    read: Callable[[B, Options], A]
    form: Callable[[A, Embedded], Any]
    one_each: str = ""
    """The message of the error for a model with one vector per token; "" to accept such models."""
    unknown: ErrorType = "invalid_request_error"
    """The error for a model name that doesn't exist."""


async def embed(dialect: EmbeddingsDialect[B, A], body: B) -> Response:
    """Returns the response to a request in a `dialect`."""
    model = resolve_model(body, unknown=dialect.unknown)
    arrived = system.now()
    request = await run_in_thread(dialect.read, body, model.options)
    await admit(model.name, sum(map(_estimated, request.inputs)))
    keep_afterwards(model, request.keep_alive)
    wishes = with_headers(request.wishes)
    async with in_time(wishes.timeout_ms):
        engine = await model.engine()
        loaded = system.now()
        engine.check_embeds()
        if dialect.one_each and engine.info.pooling == "none":
            raise invalid_request(dialect.one_each)
        if request.dimensions > (n_vector := engine.info.n_vector):
            raise invalid_request(f"dimensions: the model's vectors have only {n_vector}")
        rows, n_tokens = await until_disconnect(_embedded(model, engine, request, wishes))
    made = Embedded(
        model=model.name,
        n_vector=engine.info.n_vector,
        rows=rows,
        n_tokens=n_tokens,
        arrived=arrived,
        loaded=loaded,
    )
    return JSONAnswer(dialect.form(request, made))


async def _embedded(
    model: ResolvedModel, engine: EngineClient, request: EmbeddingsRequest, wishes: Wishes
) -> tuple[list[Rows], int]:
    """Returns the vectors of all inputs, and their total number of tokens."""
    normalize = request.normalize
    if normalize is None:
        normalize = model.options.engine.embedding.embd_normalize
    inputs = await resolved(model, engine, request.inputs, watch=False)
    if request.shortens:
        inputs = [await shortened(engine, str(text)) for [text] in inputs]
    if (trace := log_fields().trace) is not None:
        trace.attributes[OPERATION] = "embeddings"
    found: list[Rows] = []
    n_tokens = 0
    call = admitted_call()
    call.count(Usage(media=sum(map(n_media, inputs))))
    work = engine.embed(
        inputs,
        normalize=normalize,
        dimensions=request.dimensions,
        owner=call.owner,
        terms=call.limited(model.terms(wishes)),
        meter=call.meter(),
    )
    async with aclosing(counted(work)) as vectors:
        async for each in vectors:
            n_tokens += each.n_tokens
            found += split(each)
    return found, n_tokens


def _estimated(input: UnresolvedParts) -> int:
    """Returns the approximate number of an input's tokens, without those of media."""
    texts = sum(len(part) for part in input if isinstance(part, str))
    return texts // BYTES_PER_TOKEN + sum(isinstance(part, int) for part in input)


# ---- vectors -----------------------------------------------------------------------------


def split(vectors: Vectors) -> Iterator[Rows]:
    """Yields the rows of each input."""
    values = memoryview(vectors.values)  # as the engine process writes them: little-endian
    row = len(values) // sum(vectors.n_rows)
    start = 0
    for n in vectors.n_rows:
        yield values[start : start + n * row].cast("f", (n, row // FLOAT))
        start += n * row


def one_by_one(rows: Rows) -> list[list[float]]:
    """Returns the vectors as lists of numbers, each of which is made when it is encoded."""
    assert rows.shape is not None
    n, width = rows.shape
    flat, size = rows.cast("B"), width * FLOAT

    def vector(i: int) -> list[float]:
        return cast("list[float]", flat[i * size : (i + 1) * size].cast("f").tolist())

    return lazy(vector, range(n), width)


def only_vector(rows: Rows) -> list[float]:
    """Returns the numbers of the only row."""
    [vector] = cast("list[list[float]]", rows.tolist())
    return vector


# ---- inputs that are too long ------------------------------------------------------------


async def shortened(engine: EngineClient, text: str) -> PromptParts:
    """Returns `text` if the model can embed all of it. Otherwise returns its first tokens, as many
    as the model can embed, and the special tokens that end an input."""
    n_input = engine.info.n_input
    if 2 * len(text.encode()) + AROUND <= n_input:
        return [text]  # it fits: a token has a byte or more, even if the tokenizer adds spaces
    whole = await _tokens(engine, text, add_special=True)
    if len(whole) <= n_input:
        return [text]
    n_end = _n_behind(await _tokens(engine, text, add_special=False), whole)
    return [*whole[: n_input - n_end], *whole[len(whole) - n_end :]]


async def _tokens(engine: EngineClient, text: str, *, add_special: bool) -> list[int]:
    found = await engine.tokenize(
        [text], add_special=add_special, parse_special=True, with_pieces=False
    )
    return list(found.tokens)


def _n_behind(plain: Sequence[int], whole: Sequence[int]) -> int:
    """Returns the number of special tokens after the `plain` ones in the `whole`."""
    n_special = len(whole) - len(plain)
    for n_before in range(n_special + 1):
        if list(whole[n_before : n_before + len(plain)]) == list(plain):
            return n_special - n_before
    return 0
