"""Transcriptions of recordings in OpenAI's form: the prompt for the model, and its answer."""

from specllama.engine.chat.output import Content
from specllama.engine.chat.request import ChatRequest, Message, MessagePart
from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.engine.wire.replies import Finished
from specllama.handlers.apis.generate import GenerationRequest
from specllama.handlers.apis.parameters import generation_params
from specllama.handlers.apis.results import deadline_json
from specllama.handlers.apis.thinking import template_variables, thinking_budget
from specllama.handlers.http import schemas
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.streams import DONE, error_frame, sse_event
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent
from specllama.handlers.running.media import PART, MediaInput

_QUESTION = "Transcribe audio to text"
_PERFORM = "Perform ASR."
_LFM2 = ("<|tool_list_start|>", "<|tool_list_end|>")
"""Markers in the chat templates of models whose user message is only the recording, with the task
in the system message."""


_PARAMETERS = ("temperature", "max_tokens", "stream")


def read_transcription(
    body: schemas.TranscriptionRequest, options: Options, *, template: str
) -> GenerationRequest:
    """Returns the conversation that requests the text of the file in `body`. `template` is the
    model's chat template. Raises EngineError (invalid_request_error) for an empty file."""
    asked = {name: value for name, value in body.items() if name in _PARAMETERS}
    return GenerationRequest(
        params=generation_params(asked, options.engine.generation_defaults()),
        what=ChatRequest(
            messages=_messages(body, template),
            reasoning_format=options.chat.reasoning_format,
            thinking_budget=thinking_budget({}, options),
            template_variables=template_variables(options, None),
        ),
    )


def _messages(body: schemas.TranscriptionRequest, template: str) -> list[Message]:
    if not body["file"]:
        raise invalid_request("file: the file is empty")
    alone = all(mark in template for mark in _LFM2)
    question = body.get("prompt") or ("" if alone else _QUESTION)
    if language := body.get("language"):
        question += f" (language: {language})"
    recording: MessagePart = {"type": PART, PART: MediaInput(body["file"], "file", "audio")}
    asked: list[MessagePart] = [{"type": "text", "text": question}] if question else []
    system: list[Message] = [{"role": "system", "content": _PERFORM}] if alone else []
    return [*system, {"role": "user", "content": [*asked, recording]}]


def transcription(text: str, finished: Finished) -> schemas.Transcription:
    """Returns the whole answer, or the last event of a stream."""
    n_prompt, n_decoded = finished.n_prompt, finished.n_decoded
    return {
        "type": "transcript.text.done",
        "text": text,
        "usage": {
            "type": "tokens",
            "input_tokens": n_prompt,
            "output_tokens": n_decoded,
            "total_tokens": n_prompt + n_decoded,
            "input_tokens_details": {"cached_tokens": finished.timings.cache_n},
        },
        **deadline_json(finished),
    }


class TranscriptionFormat:
    """The answer to one request (`handlers.running.respond.Format`)."""

    async def whole(self, results: list[ChatAnswer]) -> schemas.Transcription:
        [answer] = results
        return transcription(answer.message.content, answer.finished)

    def begin(self, event: ChatEvent) -> bytes:
        return b""

    def event(self, event: ChatEvent) -> bytes:
        made = b"".join(
            sse_event({"type": "transcript.text.delta", "delta": delta.text})
            for delta in event.deltas
            if isinstance(delta, Content)
        )
        if isinstance(event.source, Finished):
            made += sse_event(transcription(event.message.content, event.source))
        return made

    async def end(self) -> bytes:
        return DONE

    def failed(self, failure: HttpFailure) -> bytes:
        return error_frame(failure)
