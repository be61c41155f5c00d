"""POST /embedding in the native format, POST /v1/embeddings in OpenAI's."""

from base64 import b64encode
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from typing import Any, TypeAlias

from starlette.responses import Response

from engine.errors import invalid_request, not_supported
from engine.pool.client import EngineClient
from engine.protocol.messages import Vectors
from handlers.apis.native.request import Prompt, parse_prompts
from handlers.http.disconnect import until_disconnect
from handlers.http.encoding import Lazy
from handlers.http.json_answer import JSONAnswer
from handlers.running.aside import aside
from handlers.running.served import Served, served
from handlers.running.usage import counted

Rows: TypeAlias = "memoryview[float]"
"""The vectors of one input: float32, with a row for each vector."""

FLOAT = 4  # bytes


async def create_embedding(body: dict[str, Any]) -> Response:
    """An object for each input, with a list of vectors."""
    model = served(body)
    engine = await model.engine()
    engine.check_embeds()
    return await until_disconnect(_native(model, engine, body))


create_embedding_alias = create_embedding


async def create_openai_embeddings(body: dict[str, Any]) -> Response:
    """A list object with a vector for each input; in the native format for `content`, which
    OpenAI doesn't know."""
    model = served(body)
    engine = await model.engine()
    engine.check_embeds()
    if engine.info.pooling == "none":
        raise invalid_request(
            "Pooling type 'none' is not OAI compatible. Please use a different pooling type"
        )
    work = _native if body.get("input") is None else _openai
    return await until_disconnect(work(model, engine, body))


async def _native(model: Served, engine: EngineClient, body: Mapping[str, Any]) -> Response:
    def answer(numbered: tuple[int, Rows]) -> dict[str, Any]:
        index, rows = numbered
        return {"index": index, "embedding": one_by_one(rows)}

    found = [rows async for each in _vectors(model, engine, body) for rows in split(each)]
    return JSONAnswer(Lazy(answer, [*enumerate(found)], engine.info.n_vector))


async def _openai(model: Served, engine: EngineClient, body: Mapping[str, Any]) -> Response:
    as_base64 = body.get("encoding_format") == "base64"

    def entry(numbered: tuple[int, Rows]) -> dict[str, Any]:
        index, rows = numbered
        made: dict[str, Any] = {"object": "embedding", "index": index}
        if as_base64:
            made["embedding"] = b64encode(rows.tobytes()).decode("ascii")
            made["encoding_format"] = "base64"
        else:
            made["embedding"] = rows.tolist()[0]
        return made

    found: list[Rows] = []
    n_tokens = 0
    async for vectors in _vectors(model, engine, body):
        n_tokens += vectors.n_tokens
        found += split(vectors)
    return JSONAnswer(
        {
            "object": "list",
            "model": body.get("model") or model.name,
            "data": Lazy(entry, [*enumerate(found)], engine.info.n_vector),
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }
    )


async def _vectors(
    model: Served, engine: EngineClient, body: Mapping[str, Any]
) -> AsyncIterator[Vectors]:
    inputs = await aside(parse_inputs, body)
    dimensions = int(body.get("dimensions") or 0)
    if dimensions > engine.info.n_vector:
        raise invalid_request(f"dimensions: the model's vectors have only {engine.info.n_vector}")
    norm = body.get("embd_normalize")
    normalize = model.options.engine.embedding.embd_normalize if norm is None else int(norm)
    work = engine.embed(inputs, normalize=normalize, dimensions=dimensions)
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


def one_by_one(rows: Rows) -> Lazy[int]:
    """The vectors as lists of numbers, each made when it is written."""
    assert rows.shape is not None
    n, width = rows.shape
    flat, size = rows.cast("B"), width * FLOAT
    return Lazy(lambda i: flat[i * size : (i + 1) * size].cast("f").tolist(), range(n), width)


# ---- inputs ------------------------------------------------------------------------------


def parse_inputs(body: Mapping[str, Any]) -> list[Prompt]:
    """The inputs of a request: those of `input` or, without it, of `content`.

    Raises EngineError (invalid_request_error, or not_supported_error for images and sounds).
    """
    for name in ("input", "content"):
        if (given := body.get(name)) is not None:
            if isinstance(given, list):
                given = [_text_of_parts(each, name) for each in given]
            return parse_prompts(_text_of_parts(given, name), name)
    raise invalid_request('"input" or "content" must be provided')


def _text_of_parts(value: Any, where: str) -> Any:
    """The text of an object with `content`, as in a chat's message; anything else as it is."""
    if not isinstance(value, Mapping) or "content" not in value:
        return value
    content = value["content"]
    if isinstance(content, str):
        return content
    if any(part["type"] != "text" for part in content):
        raise not_supported(f"{where}: this server can't embed images and sounds yet")
    return "".join(part["text"] for part in content)
