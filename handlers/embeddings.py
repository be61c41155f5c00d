"""POST /embedding in the native format, POST /v1/embeddings in OpenAI's."""

from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeAlias, cast

from starlette.responses import Response

from specllama.engine.errors import invalid_request
from specllama.engine.models.client import EngineClient
from specllama.engine.wire.replies import Vectors
from specllama.handlers.apis.native.request import parse_prompts
from specllama.handlers.apis.openai.messages import content_parts
from specllama.handlers.http import schemas
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.http.json_answer import JSONAnswer, lazy
from specllama.handlers.running.batch import counted
from specllama.handlers.running.media import PART, UnresolvedParts, resolved
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model
from specllama.handlers.running.run_in_thread import run_in_thread

Body: TypeAlias = schemas.EmbeddingRequest | schemas.OpenAIEmbeddingRequest
Rows: TypeAlias = "memoryview[float]"
"""The vectors of one input: float32, with a row for each vector."""

FLOAT = 4  # bytes


async def create_embedding(body: schemas.EmbeddingRequest) -> Response:
    """An object for each input, with a list of vectors."""
    model = resolve_model(body)
    engine = await model.engine()
    engine.check_embeds()
    return await until_disconnect(_native(model, engine, body))


create_embedding_alias = create_embedding


async def create_openai_embeddings(body: schemas.OpenAIEmbeddingRequest) -> Response:
    """A list object with a vector for each input; in the native format for `content`, which
    OpenAI doesn't know."""
    model = resolve_model(body)
    engine = await model.engine()
    engine.check_embeds()
    if engine.info.pooling == "none":
        raise invalid_request(
            "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
        )
    work = _native if body.get("input") is None else _openai
    return await until_disconnect(work(model, engine, body))


async def _native(model: ResolvedModel, engine: EngineClient, body: Body) -> Response:
    def answer(numbered: tuple[int, Rows]) -> schemas.InputEmbedding:
        index, rows = numbered
        return {"index": index, "embedding": one_by_one(rows)}

    found = [rows async for each in _vectors(model, engine, body) for rows in split(each)]
    return JSONAnswer(lazy(answer, [*enumerate(found)], engine.info.n_vector))


async def _openai(model: ResolvedModel, engine: EngineClient, body: Body) -> Response:
    as_base64 = body.get("encoding_format") == "base64"

    def entry(numbered: tuple[int, Rows]) -> schemas.OpenAIEmbedding:
        index, rows = numbered
        if not as_base64:
            [vector] = cast("list[list[float]]", rows.tolist())
            return {"object": "embedding", "index": index, "embedding": vector}
        text = b64encode(rows.tobytes()).decode("ascii")
        return {
            "object": "embedding",
            "index": index,
            "embedding": text,
            "encoding_format": "base64",
        }

    found: list[Rows] = []
    n_tokens = 0
    async for vectors in _vectors(model, engine, body):
        n_tokens += vectors.n_tokens
        found += split(vectors)
    answer: schemas.OpenAIEmbeddingResponse = {
        "object": "list",
        "model": body.get("model") or model.name,
        "data": lazy(entry, [*enumerate(found)], engine.info.n_vector),
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
    return JSONAnswer(answer)


async def _vectors(
    model: ResolvedModel, engine: EngineClient, body: Body
) -> AsyncIterator[Vectors]:
    inputs = await run_in_thread(parse_inputs, body)
    dimensions = int(body.get("dimensions") or 0)
    if dimensions > engine.info.n_vector:
        raise invalid_request(f"dimensions: the model's vectors have only {engine.info.n_vector}")
    norm = body.get("embd_normalize")
    normalize = model.options.engine.embedding.embd_normalize if norm is None else int(norm)
    resolved_inputs = await resolved(model, engine, inputs, watch=False)
    work = engine.embed(resolved_inputs, normalize=normalize, dimensions=dimensions)
    async with aclosing(counted(work)) as vectors:
        async for each in vectors:
            yield each


def split(vectors: Vectors) -> Iterator[Rows]:
    """The rows of each input."""
    values = memoryview(vectors.values)  # as the engine process writes them: little-endian
    row = len(values) // sum(vectors.n_rows)
    start = 0
    for n in vectors.n_rows:
        yield values[start : start + n * row].cast("f", (n, row // FLOAT))
        start += n * row


def one_by_one(rows: Rows) -> list[list[float]]:
    """The vectors as lists of numbers, each made when it is written."""
    assert rows.shape is not None
    n, width = rows.shape
    flat, size = rows.cast("B"), width * FLOAT

    def vector(i: int) -> list[float]:
        return cast("list[float]", flat[i * size : (i + 1) * size].cast("f").tolist())

    return lazy(vector, range(n), width)


# ---- inputs ------------------------------------------------------------------------------


def parse_inputs(body: Body) -> list[UnresolvedParts]:
    """The inputs of a request: those of `input` or, without it, of `content`.

    Raises EngineError (invalid_request_error).
    """
    for name, value in (("input", body.get("input")), ("content", body.get("content"))):
        if value is not None:
            given: Any = value
            several = isinstance(given, list)
            inputs = parse_prompts(
                [_text(each) for each in given] if several else _text(given),
                name,
                body.get("image_data"),
            )
            if several and len(inputs) == len(given):
                places = [f"{name}[{index}]" for index in range(len(given))]
            else:
                given, places = [given], [name]
            return [
                _parts(each["content"], f"{where}.content") if _has_parts(each) else parts
                for each, parts, where in zip(given, inputs, places, strict=True)
            ]
    raise invalid_request('"input" or "content" must be provided')


def _has_parts(value: Any) -> bool:
    return isinstance(value, Mapping) and isinstance(value.get("content"), list)


def _text(value: Any) -> Any:
    """The text of an object with `content`, "" for one with parts; anything else as it is."""
    if _has_parts(value):
        return ""
    return value["content"] if isinstance(value, Mapping) and "content" in value else value


def _parts(content: Sequence[Mapping[str, Any]], where: str) -> UnresolvedParts:
    """Texts and media, as in a chat's message; texts without one between them are one."""
    found: UnresolvedParts = []
    for part in content_parts(content, where):
        if part["type"] == PART:
            found.append(part[PART])
        elif found and isinstance(found[-1], str):
            found[-1] += part["text"]
        else:
            found.append(part["text"])
    return found
