"""Ollama's ways to use a model: POST /api/chat, /api/generate, /api/embed and /api/embeddings."""

from contextlib import aclosing
from functools import partial
from typing import Any, cast

import msgspec
from starlette.responses import Response

from specllama.engine.errors import invalid_request
from specllama.engine.models.client import EngineClient
from specllama.engine.wire.requests import Infill, Prompt, PromptParts
from specllama.handlers.apis.native.probabilities import chat_probabilities
from specllama.handlers.apis.native.request import generation_params
from specllama.handlers.apis.ollama.format import OllamaFormat, Watch, heading, shortened
from specllama.handlers.apis.ollama.generation import GenerationFormat
from specllama.handlers.apis.ollama.request import (
    frees_memory,
    generation_body,
    image_parts,
    is_in_ollama_form,
    is_in_openai_form,
    openai_body,
    openai_messages,
)
from specllama.handlers.apis.openai.request import chat_request
from specllama.handlers.apis.unsupported import CHAT, refuse_unsupported, remark
from specllama.handlers.chat import create_chat_completion
from specllama.handlers.embeddings import Rows, split
from specllama.handlers.http.current import current_scope, until_disconnect
from specllama.handlers.http.envelopes.ollama import (
    NDJSON,
    answer_as_openai,
    is_ollama_client,
    is_openai_client,
)
from specllama.handlers.http.json_answer import JSONAnswer, Lazy
from specllama.handlers.running.batch import counted
from specllama.handlers.running.chat_batch import ChatBatch, PreparedChat, plain_text, prepare
from specllama.handlers.running.media import PART, resolved
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model
from specllama.handlers.running.respond import respond
from specllama.handlers.running.run_in_thread import run_in_thread

AS_IT_IS, EUCLIDEAN = -1, 2
"""Norms of embeddings."""


async def create_ollama_chat(body: dict[str, Any]) -> Response:
    """The answer in Ollama's format, or in OpenAI's if the request is that API's."""
    scope = current_scope()
    foreign = is_openai_client(scope) or is_in_openai_form(body)
    if is_ollama_client(scope) or is_in_ollama_form(body) or not foreign:
        return await _chat_answer(body)
    answer_as_openai(scope)
    messages = await run_in_thread(openai_messages, body["messages"])
    return await create_chat_completion({**body, "messages": messages})


async def create_ollama_generation(body: dict[str, Any]) -> Response:
    """The continuation of a prompt: as a conversation, raw, or in front of a suffix."""
    asked = generation_body(body)
    model = resolve_model(body, unknown="not_found_error")
    if not (body.get("prompt") or body.get("suffix")):
        return await _without_prompt(model, body, {"response": ""})
    _mind_keep_alive(model, body)
    params = await run_in_thread(
        generation_params, asked, model.options.engine.generation_defaults()
    )
    params, probabilities = chat_probabilities(asked, params)
    params = msgspec.structs.replace(params, return_progress=False)
    watch = Watch()
    engine = await model.engine()
    watch.loaded()
    prompt: Prompt | None = None
    if suffix := body.get("suffix"):
        prompt = Infill(prefix=[body.get("prompt") or ""], suffix=[suffix])
        prepared = plain_text([], params)
    elif body.get("raw"):
        images = [part[PART] for part in image_parts(body.get("images"), "images")]
        [raw] = await resolved(model, engine, [[*images, body["prompt"]]])
        prepared = plain_text(raw, params)
    else:
        request = await run_in_thread(chat_request, asked, model.options)
        request = msgspec.structs.replace(request, repeat_given=False)
        prepared = await prepare(model, engine, request, params)
        if before := body.get("context"):
            prompt = [*before, *prepared.prompt]
    # Tokens can't say again what the images were.
    plain = bool(suffix or body.get("raw") or body.get("images"))
    form = GenerationFormat(
        body.get("model") or model.name,
        watch,
        probabilities,
        None if plain else partial(_context, engine, prepared, body.get("context") or []),
    )
    return await respond(
        lambda: ChatBatch(engine, prepared, prompt=prompt),
        form,
        stream=params.stream,
        media_type=NDJSON,
    )


async def embed_ollama_inputs(body: dict[str, Any]) -> Response:
    """A vector of length 1 for each input; without any, the model is loaded."""
    watch = Watch()
    given = body.get("input") or []
    texts = [given] if isinstance(given, str) else given
    model = resolve_model(body, unknown="not_found_error")
    _mind_keep_alive(model, body)
    engine = await _embedding_engine(model)
    watch.loaded()
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


async def _chat_answer(body: dict[str, Any]) -> Response:
    asked = await run_in_thread(openai_body, body)
    refuse_unsupported(asked, CHAT)
    model = resolve_model(body, unknown="not_found_error")
    if not body["messages"]:
        message = {"role": "assistant", "content": ""}
        return await _without_prompt(model, body, {"message": message})
    _mind_keep_alive(model, body)
    params = await run_in_thread(
        generation_params, asked, model.options.engine.generation_defaults()
    )
    params, probabilities = chat_probabilities(asked, params)
    params = msgspec.structs.replace(params, return_progress=False)
    form = OllamaFormat(body.get("model") or model.name, probabilities)
    engine = await model.engine()
    form.watch.loaded()
    request = await run_in_thread(chat_request, asked, model.options)
    request = msgspec.structs.replace(request, repeat_given=False)
    prepared = await prepare(model, engine, request, params)
    return await respond(
        lambda: ChatBatch(engine, prepared), form, stream=params.stream, media_type=NDJSON
    )


async def _context(
    engine: EngineClient, prepared: PreparedChat, before: list[int], text: str
) -> list[int]:
    """The tokens of all that was said, for the `context` of a request that goes on with it."""
    asked = "".join(part for part in prepared.prompt if isinstance(part, str))
    said: PromptParts = [*before, asked + text]
    found = await engine.tokenize(said, add_special=True, parse_special=True, with_pieces=False)
    return list(found.tokens)


# ---- models ------------------------------------------------------------------------------


async def _without_prompt(
    model: ResolvedModel, body: dict[str, Any], empty: dict[str, Any]
) -> Response:
    """The answer to a request that says nothing: it loads the model, or ends it."""
    head = heading(body.get("model") or model.name)
    if frees_memory(body.get("keep_alive")) and model.current.catalog.router:
        model.current.pool.unload_idle(model.name)
        return JSONAnswer({**head, **empty, "done": True, "done_reason": "unload"})
    _mind_keep_alive(model, body)
    await model.engine()
    return JSONAnswer({**head, **empty, "done": True, "done_reason": "load"})


def _mind_keep_alive(model: ResolvedModel, body: dict[str, Any]) -> None:
    """Before the model is leased: a router unloads it after the request, if the request wants that
    and nobody else works with it."""
    if not frees_memory(body.get("keep_alive")):
        return
    if not model.current.catalog.router:
        remark("keep_alive: the only model of a server stays loaded")
        return
    current_scope()["state"]["leases"].callback(model.current.pool.unload_idle, model.name)


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
