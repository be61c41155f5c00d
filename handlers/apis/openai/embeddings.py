"""Inputs and answers of embeddings in the native format and in OpenAI's."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.handlers.apis.embed import (
    Embedded,
    EmbeddingsRequest,
    Rows,
    one_by_one,
    only_vector,
)
from specllama.handlers.apis.native.request import parse_prompts
from specllama.handlers.apis.openai.messages import content_parts
from specllama.handlers.apis.wishes import wishes_in
from specllama.handlers.http import schemas
from specllama.handlers.http.json_answer import lazy
from specllama.handlers.running.media import PART, UnresolvedParts

Body: TypeAlias = schemas.EmbeddingRequest | schemas.OpenAIEmbeddingRequest


@dataclass(frozen=True, kw_only=True)
class OpenAIEmbeddings(EmbeddingsRequest):
    """A request for embeddings. With `as_base64`, a vector is the base64 text of its bytes."""

    as_base64: bool


def read_embeddings(body: Body, options: Options) -> OpenAIEmbeddings:
    """Raises EngineError (invalid_request_error)."""
    norm = body.get("embd_normalize")
    return OpenAIEmbeddings(
        inputs=parse_inputs(body),
        dimensions=int(body.get("dimensions") or 0),
        normalize=None if norm is None else int(norm),
        named=body.get("model"),
        wishes=wishes_in(body),
        as_base64=body.get("encoding_format") == "base64",
    )


def native_embeddings(request: EmbeddingsRequest, made: Embedded) -> schemas.EmbeddingResponse:
    """Returns an object for each input, with a list of vectors."""

    def answer(numbered: tuple[int, Rows]) -> schemas.InputEmbedding:
        index, rows = numbered
        return {"index": index, "embedding": one_by_one(rows)}

    return lazy(answer, [*enumerate(made.rows)], made.n_vector)


def openai_embeddings(request: OpenAIEmbeddings, made: Embedded) -> schemas.OpenAIEmbeddingResponse:
    """Returns a list object with a vector for each input."""

    def entry(numbered: tuple[int, Rows]) -> schemas.OpenAIEmbedding:
        index, rows = numbered
        if not request.as_base64:
            return {"object": "embedding", "index": index, "embedding": only_vector(rows)}
        return {
            "object": "embedding",
            "index": index,
            "embedding": b64encode(rows.tobytes()).decode("ascii"),
            "encoding_format": "base64",
        }

    return {
        "object": "list",
        "model": request.named or made.model,
        "data": lazy(entry, [*enumerate(made.rows)], made.n_vector),
        "usage": {"prompt_tokens": made.n_tokens, "total_tokens": made.n_tokens},
    }


# ---- inputs ------------------------------------------------------------------------------


def parse_inputs(body: Body) -> list[UnresolvedParts]:
    """Returns the inputs of a request, from `input` or, without it, from `content`.

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
    """Returns the text of an object with `content`, "" for one with parts; any other value
    unchanged."""
    if _has_parts(value):
        return ""
    return value["content"] if isinstance(value, Mapping) and "content" in value else value


def _parts(content: Sequence[Mapping[str, Any]], where: str) -> UnresolvedParts:
    """Returns texts and media, as in a chat's message. Consecutive texts are joined."""
    found: UnresolvedParts = []
    for part in content_parts(content, where):
        if part["type"] == PART:
            found.append(part[PART])
        elif found and isinstance(found[-1], str):
            found[-1] += part["text"]
        else:
            found.append(part["text"])
    return found
