"""Ollama's operations with a model: POST /api/chat, /api/generate, /api/embed, /api/embeddings."""

from typing import Literal, TypedDict, cast

from starlette.responses import Response

from specllama.handlers.apis.embed import EmbeddingsDialect, embed
from specllama.handlers.apis.generate import (
    Dialect,
    generate,
    keep_afterwards,
    refuse_unsupported,
)
from specllama.handlers.apis.ollama.format import (
    Heading,
    heading,
    inputs_form,
    ollama_chat_form,
    prompt_form,
)
from specllama.handlers.apis.ollama.generation import ollama_text_form
from specllama.handlers.apis.ollama.request import (
    ONE_EACH,
    check_chat,
    check_generation,
    is_in_ollama_form,
    is_in_openai_form,
    openai_messages,
    read_ollama_chat,
    read_ollama_generation,
    read_ollama_inputs,
    read_ollama_prompt,
    seconds_of,
)
from specllama.handlers.apis.openai.request import SUPPORTED
from specllama.handlers.chat import CHATS
from specllama.handlers.http import schemas
from specllama.handlers.http.current import current_scope
from specllama.handlers.http.envelopes.ollama import (
    NDJSON,
    answer_as_openai,
    is_ollama_client,
    is_openai_client,
)
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.run_in_thread import run_in_thread

_CHATS = Dialect(
    read=read_ollama_chat,
    form=ollama_chat_form,
    supported=SUPPORTED,
    unknown="not_found_error",
    media_type=NDJSON,
)
_TEXTS = Dialect(
    read=read_ollama_generation,
    form=ollama_text_form,
    unknown="not_found_error",
    media_type=NDJSON,
)
_INPUTS = EmbeddingsDialect(
    read=read_ollama_inputs, form=inputs_form, one_each=ONE_EACH, unknown="not_found_error"
)
_PROMPTS = EmbeddingsDialect(
    read=read_ollama_prompt, form=prompt_form, one_each=ONE_EACH, unknown="not_found_error"
)


async def create_ollama_chat(body: schemas.OllamaChatRequest) -> Response:
    """The answer in Ollama's format, or in OpenAI's if the request has that API's form."""
    scope = current_scope()
    foreign = is_openai_client(scope) or is_in_openai_form(body)
    if is_ollama_client(scope) or is_in_ollama_form(body) or not foreign:
        if body["messages"]:
            return await generate(_CHATS, body)
        refuse_unsupported(body, SUPPORTED)
        check_chat(body)
        head, end = await _load(body)
        said: schemas.OllamaAnswerMessage = {"role": "assistant", "content": ""}
        answer: schemas.OllamaChatLoaded = {**head, "message": said, **end}
        return JSONAnswer(answer)
    answer_as_openai(scope)
    messages = await run_in_thread(openai_messages, body["messages"])
    # All of Ollama's own fields are null or missing in this body.
    chat = cast(schemas.ChatCompletionRequest, {**body, "messages": messages})
    return await generate(CHATS, chat)


async def create_ollama_generation(body: schemas.OllamaGenerateRequest) -> Response:
    """The answer to a prompt. The prompt is the user's message in a conversation, is sent to the
    model as it is (`raw`), or is continued up to a `suffix`."""
    if body.get("prompt") or body.get("suffix"):
        return await generate(_TEXTS, body)
    check_generation(body)
    head, end = await _load(body)
    answer: schemas.OllamaGenerateLoaded = {**head, "response": "", **end}
    return JSONAnswer(answer)


async def embed_ollama_inputs(body: schemas.OllamaEmbedRequest) -> Response:
    """A vector of length 1 for each input. Without inputs, the model is just loaded."""
    return await embed(_INPUTS, body)


async def embed_ollama_prompt(body: schemas.OllamaEmbeddingsRequest) -> Response:
    """The vector of one text, not normalized; an empty vector without a text."""
    return await embed(_PROMPTS, body)


# ---- models ------------------------------------------------------------------------------


class _Loaded(TypedDict):
    done: Literal[True]
    done_reason: schemas.OllamaLoadReason


async def _load(
    body: schemas.OllamaChatRequest | schemas.OllamaGenerateRequest,
) -> tuple[Heading, _Loaded]:
    """Loads the model, or unloads it for `keep_alive: 0`. Returns the beginning and the end of the
    answer to a request without messages or prompt."""
    model = resolve_model(body, unknown="not_found_error")
    head = heading(body.get("model") or model.name)
    seconds = seconds_of(body.get("keep_alive"))
    if seconds == 0 and model.current.catalog.router:
        model.current.pool.unload_idle(model.name)
        return head, {"done": True, "done_reason": "unload"}
    keep_afterwards(model, seconds)
    await model.engine()
    return head, {"done": True, "done_reason": "load"}
