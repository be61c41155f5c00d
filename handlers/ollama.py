"""Ollama's ways to use a model: POST /api/chat, /api/generate, /api/embed and /api/embeddings."""

from contextlib import aclosing
from typing import Any, cast

from starlette.responses import Response

from specllama.engine import system
from specllama.engine.errors import invalid_request
from specllama.engine.models.client import EngineClient
from specllama.engine.wire.requests import PromptParts
from specllama.handlers.apis.generate import Dialect, generate, unload_afterwards
from specllama.handlers.apis.ollama.format import (
    Watch,
    heading,
    ollama_chat_form,
    shortened,
)
from specllama.handlers.apis.ollama.generation import ollama_text_form
from specllama.handlers.apis.ollama.request import (
    frees_memory,
    generation_body,
    is_in_ollama_form,
    is_in_openai_form,
    openai_body,
    openai_messages,
    read_ollama_chat,
    read_ollama_generation,
)
from specllama.handlers.apis.unsupported import CHAT, refuse_unsupported
from specllama.handlers.chat import CHATS
from specllama.handlers.embeddings import Rows, split
from specllama.handlers.http import schemas
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.envelopes.ollama import (
    NDJSON,
    answer_as_openai,
    is_ollama_client,
    is_openai_client,
)
from specllama.handlers.http.json_answer import JSONAnswer, Lazy
from specllama.handlers.running.batch import counted
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model
from specllama.handlers.running.run_in_thread import run_in_thread

AS_IT_IS, EUCLIDEAN = -1, 2
"""Norms of embeddings."""


_CHATS = Dialect(
    read=read_ollama_chat,
    form=ollama_chat_form,
    supported=CHAT,
    unknown="not_found_error",
    media_type=NDJSON,
)
_TEXTS = Dialect(
    read=read_ollama_generation,
    form=ollama_text_form,
    unknown="not_found_error",
    media_type=NDJSON,
)


async def create_ollama_chat(body: dict[str, Any]) -> Response:
    """The answer in Ollama's format, or in OpenAI's if the request is that API's."""
    scope = current_scope()
    foreign = is_openai_client(scope) or is_in_openai_form(body)
    if is_ollama_client(scope) or is_in_ollama_form(body) or not foreign:
        if not body["messages"]:
            refuse_unsupported(body, CHAT)
            openai_body(body)  # raises as for a chat
            return await _load(body, {"message": {"role": "assistant", "content": ""}})
        return await generate(_CHATS, body)
    answer_as_openai(scope)
    messages = await run_in_thread(openai_messages, body["messages"])
    chat = cast(schemas.ChatCompletionRequest, {**body, "messages": messages})
    return await generate(CHATS, chat)


async def create_ollama_generation(body: dict[str, Any]) -> Response:
    """The continuation of a prompt: as a conversation, raw, or in front of a suffix."""
    if not (body.get("prompt") or body.get("suffix")):
        generation_body(body)  # raises as for a prompt
        return await _load(body, {"response": ""})
    return await generate(_TEXTS, body)


async def embed_ollama_inputs(body: dict[str, Any]) -> Response:
    """A vector of length 1 for each input; without any, the model is loaded."""
    begun = system.now()
    given = body.get("input") or []
    texts = [given] if isinstance(given, str) else given
    model = resolve_model(body, unknown="not_found_error")
    _mind_keep_alive(model, body)
    engine = await _embedding_engine(model)
    watch = Watch(begun, system.now())
    work = _vectors(engine, texts, body, EUCLIDEAN)
    vectors, n_tokens = await until_disconnect(work)
    return JSONAnswer(
        {
            "model": body.get("model") or model.name,
            "embeddings": Lazy(_vector, vectors, engine.info.n_vector),
            **watch.durations(),
            "prompt_eval_count": n_tokens,
        }
    )


async def embed_ollama_prompt(body: dict[str, Any]) -> Response:
    """The vector of one text as the model made it; none for no text."""
    model = resolve_model(body, unknown="not_found_error")
    _mind_keep_alive(model, body)
    engine = await _embedding_engine(model)
    prompt = body.get("prompt")
    work = _vectors(engine, [prompt] if prompt else [], body, AS_IT_IS)
    vectors, _ = await until_disconnect(work)
    return JSONAnswer({"embedding": _vector(vectors[0]) if vectors else []})


# ---- models ------------------------------------------------------------------------------


async def _load(body: dict[str, Any], empty: dict[str, Any]) -> Response:
    """The answer to a request that says nothing: it loads the model, or ends it."""
    model = resolve_model(body, unknown="not_found_error")
    head = heading(body.get("model") or model.name)
    if frees_memory(body.get("keep_alive")) and model.current.catalog.router:
        model.current.pool.unload_idle(model.name)
        return JSONAnswer({**head, **empty, "done": True, "done_reason": "unload"})
    _mind_keep_alive(model, body)
    await model.engine()
    return JSONAnswer({**head, **empty, "done": True, "done_reason": "load"})


def _mind_keep_alive(model: ResolvedModel, body: dict[str, Any]) -> None:
    """Before the model is leased."""
    if frees_memory(body.get("keep_alive")):
        unload_afterwards(model)


# ---- embeddings --------------------------------------------------------------------------


async def _embedding_engine(model: ResolvedModel) -> EngineClient:
    engine = await model.engine()
    engine.check_embeds()
    if engine.info.pooling == "none":
        raise invalid_request("the model has a vector for each token (--pooling none), not for all")
    return engine


async def _vectors(
    engine: EngineClient, texts: list[str], body: dict[str, Any], normalize: int
) -> tuple[list[Rows], int]:
    """The vectors of all texts, and the number of their tokens."""
    dimensions = int(body.get("dimensions") or 0)
    if dimensions > engine.info.n_vector:
        raise invalid_request(f"dimensions: the model's vectors have only {engine.info.n_vector}")
    whole = body.get("truncate") is False
    inputs: list[PromptParts] = [
        [text] if whole else await shortened(engine, text) for text in texts
    ]
    found: list[Rows] = []
    n_tokens = 0
    work = engine.embed(inputs, normalize=normalize, dimensions=dimensions)
    async with aclosing(counted(work)) as vectors:
        async for each in vectors:
            n_tokens += each.n_tokens
            found += split(each)
    return found, n_tokens


def _vector(rows: Rows) -> list[float]:
    [vector] = cast("list[list[float]]", rows.tolist())
    return vector
