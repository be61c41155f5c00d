"""POST /v1/audio/transcriptions: the text of a recording."""

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.responses import PlainTextResponse, Response

from specllama.engine.errors import not_supported
from specllama.engine.helpers.render.renderer import template_source
from specllama.handlers.apis.generate import Dialect, generate
from specllama.handlers.apis.openai.transcription import TranscriptionFormat, read_transcription
from specllama.handlers.http import schemas
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.running.admission import admit
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.respond import Running, respond


async def create_transcription(body: schemas.TranscriptionRequest) -> Response:
    """The text as an object, as plain text, or in events. Raises EngineError (not_supported_error)
    if the model has no audio input."""
    model = resolve_model(body)
    await admit(model.name)
    engine = await model.engine()
    if "audio" not in engine.info.modalities:
        raise not_supported(
            "The current model does not support audio input. Start the server with `--mmproj` and "
            "a model with audio input"
        )
    template = template_source(model.options, engine.info)
    as_text = body.get("response_format") == "text" and not body.get("stream")
    dialect = Dialect(
        read=partial(read_transcription, template=template),
        form=lambda asked, facts: TranscriptionFormat(),
        respond=_text if as_text else respond,
    )
    return await generate(dialect, body)


create_transcription_alias = create_transcription


async def _text(
    start: Callable[[], Running[ChatEvent, ChatAnswer]], *_: Any, **__: Any
) -> Response:
    """Returns the text as plain text."""
    async with start() as running:
        [answer] = await until_disconnect(running.results())
    return PlainTextResponse(answer.message.content)
