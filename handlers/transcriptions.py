"""POST /v1/audio/transcriptions: what recordings say."""

from typing import Any

from starlette.responses import PlainTextResponse, Response

from specllama.engine.errors import not_supported
from specllama.engine.helpers.render.renderer import template_source
from specllama.handlers.apis.native.request import generation_params
from specllama.handlers.apis.openai.request import chat_request
from specllama.handlers.apis.openai.transcription import TranscriptionFormat, transcription_messages
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.running.chat_batch import ChatBatch, prepare
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.respond import respond

_PARAMETERS = ("temperature", "max_tokens", "stream")


async def create_transcription(body: dict[str, Any]) -> Response:
    """The text as an object, as such, or in events. Raises EngineError (not_supported_error) if the
    model doesn't hear."""
    model = resolve_model(body)
    engine = await model.engine()
    if "audio" not in engine.info.modalities:
        raise not_supported(
            "The current model does not support audio input. Start the server with `--mmproj` and "
            "a model that hears"
        )
    messages = transcription_messages(body, template_source(model.options, engine.info))
    request = chat_request({"messages": messages}, model.options)
    asked = {name: body[name] for name in _PARAMETERS if name in body}
    params = generation_params(asked, model.options.engine.generation_defaults())
    prepared = await prepare(model, engine, request, params)
    if body.get("response_format") == "text" and not params.stream:
        async with ChatBatch(engine, prepared) as batch:
            [answer] = await until_disconnect(batch.results())
        return PlainTextResponse(answer.message.content)
    return await respond(
        lambda: ChatBatch(engine, prepared), TranscriptionFormat(), stream=params.stream
    )


create_transcription_alias = create_transcription
