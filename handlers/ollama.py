"""Ollama's ways to use a model: POST /api/chat, /api/generate, /api/embed and /api/embeddings."""

from contextlib import aclosing
from typing import Literal, TypedDict, cast

from starlette.responses import Response

from specllama.engine import system
from specllama.engine.errors import invalid_request
from specllama.engine.models.client import EngineClient
from specllama.engine.wire.requests import PromptParts
from specllama.handlers.apis.generate import Dialect, generate, unload_afterwards
from specllama.handlers.apis.ollama.format import (
    Heading,
    Watch,
    heading,
    ollama_chat_form,
    shortened,
)
from specllama.handlers.apis.ollama.generation import ollama_text_form
from specllama.handlers.apis.ollama.request import (
    check_chat,
    check_generation,
    frees_memory,
    is_in_ollama_form,
    is_in_openai_form,
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
from specllama.handlers.http.json_answer import JSONAnswer, lazy
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


async def create_ollama_chat(body: schemas.OllamaChatRequest) -> Response:
    """The answer in Ollama's format, or in OpenAI's if the request is that API's."""
    scope = current_scope()
    foreign = is_openai_client(scope) or is_in_openai_form(body)
    if is_ollama_client(scope) or is_in_ollama_form(body) or not foreign:
        if body["messages"]:
            return await generate(_CHATS, body)
        refuse_unsupported(body, CHAT)
        check_chat(body)
        head, end = await _load(body)
        said: schemas.OllamaAnswerMessage = {"role": "assistant", "content": ""}
        answer: schemas.OllamaChatLoaded = {**head, "message": said, **end}
        return JSONAnswer(answer)
    answer_as_openai(scope)
    messages = await run_in_thread(openai_messages, body["messages"])
    # It has none of the fields that are Ollama's alone.
    chat = cast(schemas.ChatCompletionRequest, {**body, "messages": messages})
    return await generate(CHATS, chat)


async def create_ollama_generation(body: schemas.OllamaGenerateRequest) -> Response:
    """The continuation of a prompt: as a conversation, raw, or in front of a suffix."""
    if body.get("prompt") or body.get("suffix"):
        return await generate(_TEXTS, body)
    check_generation(body)
    head, end = await _load(body)
    answer: schemas.OllamaGenerateLoaded = {**head, "response": "", **end}
    return JSONAnswer(answer)


async def embed_ollama_inputs(body: schemas.OllamaEmbedRequest) -> Response:
    """A vector of length 1 for each input; without any, the model is loaded."""
    begun = system.now()
    given = body.get("input") or []
    texts = [given] if isinstance(given, str) else given
    model = resolve_model(body, unknown="not_found_error")
    _mind_keep_alive(model, body.get("keep_alive"))
    engine = await _embedding_engine(model)
    watch = Watch(begun, system.now())
    dimensions, whole = int(body.get("dimensions") or 0), body.get("truncate") is False
    work = _vectors(engine, texts, EUCLIDEAN, dimensions, whole=whole)
    vectors, n_tokens = await until_disconnect(work)
    # They are made while they are encoded: as a list, which no type knows.
    made = lazy(_vector, vectors, engine.info.n_vector)
    answer: schemas.OllamaEmbedAnswer = {
        "model": body.get("model") or model.name,
        "embeddings": made,
        **watch.durations(),
        "prompt_eval_count": n_tokens,
    }
    return JSONAnswer(answer)


async def embed_ollama_prompt(body: schemas.OllamaEmbeddingsRequest) -> Response:
    """The vector of one text as the model made it; none for no text."""
    model = resolve_model(body, unknown="not_found_error")
    _mind_keep_alive(model, body.get("keep_alive"))
    engine = await _embedding_engine(model)
    prompt = body.get("prompt")
    work = _vectors(engine, [prompt] if prompt else [], AS_IT_IS)
    vectors, _ = await until_disconnect(work)
    answer: schemas.OllamaEmbeddingsAnswer = {"embedding": _vector(vectors[0]) if vectors else []}
    return JSONAnswer(answer)


# ---- models ------------------------------------------------------------------------------


class _Loaded(TypedDict):
    done: Literal[True]
    done_reason: schemas.OllamaLoadReason


async def _load(
    body: schemas.OllamaChatRequest | schemas.OllamaGenerateRequest,
) -> tuple[Heading, _Loaded]:
    """The beginning and the end of the answer to a request that says nothing: it loads the model,
    or ends it."""
    model = resolve_model(body, unknown="not_found_error")
    head = heading(body.get("model") or model.name)
    if frees_memory(body.get("keep_alive")) and model.current.catalog.router:
        model.current.pool.unload_idle(model.name)
        return head, {"done": True, "done_reason": "unload"}
    _mind_keep_alive(model, body.get("keep_alive"))
    await model.engine()
    return head, {"done": True, "done_reason": "load"}


def _mind_keep_alive(model: ResolvedModel, keep_alive: schemas.OllamaKeepAlive) -> None:
    """Before the model is leased."""
    if frees_memory(keep_alive):
        unload_afterwards(model)


# ---- embeddings --------------------------------------------------------------------------


async def _embedding_engine(model: ResolvedModel) -> EngineClient:
    engine = await model.engine()
    engine.check_embeds()
    if engine.info.pooling == "none":
        raise invalid_request("the model has a vector for each token (--pooling none), not for all")
    return engine


async def _vectors(
    engine: EngineClient, texts: list[str], norm: int, dimensions: int = 0, *, whole: bool = False
) -> tuple[list[Rows], int]:
    """The vectors of all texts, and the number of their tokens. A text that is too long is cut off
    unless all have to be `whole`."""
    if dimensions > engine.info.n_vector:
        raise invalid_request(f"dimensions: the model's vectors have only {engine.info.n_vector}")
    inputs: list[PromptParts] = [
        [text] if whole else await shortened(engine, text) for text in texts
    ]
    found: list[Rows] = []
    n_tokens = 0
    work = engine.embed(inputs, normalize=norm, dimensions=dimensions)
    async with aclosing(counted(work)) as vectors:
        async for each in vectors:
            n_tokens += each.n_tokens
            found += split(each)
    return found, n_tokens


def _vector(rows: Rows) -> list[float]:
    [vector] = cast("list[list[float]]", rows.tolist())
    return vector
