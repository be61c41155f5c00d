"""OpenAI's answers to chats, and the parts that answers to completions of texts share with them.

A chunk of a stream is the hot path of the server process, so everything in it except the text is
encoded once per stream.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple, Self

from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatDelta,
    ChatMessage,
    Content,
    Reasoning,
    ToolCall,
)
from specllama.engine.wire.replies import (
    Delta,
    Finished,
    PromptProgress,
    Timings,
    TokenProbs,
)
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.native.format import NativeFormat, completion_form
from specllama.handlers.apis.openai.request import ChatCompletionRequest
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.apis.results import DEADLINES, deadline_json, progress_json, timings_json
from specllama.handlers.http import schemas
from specllama.handlers.http.build_info import build_info
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.json_answer import encode
from specllama.handlers.http.streams import DONE, error_frame
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent, FinishReason, finish_reason


def chat_form(request: ChatCompletionRequest, facts: GenerationFacts) -> "ChatFormat":
    """Returns the format of one answer of /v1/chat/completions."""
    params = facts.params
    return ChatFormat(
        Head.new(request.id, facts.model),
        timings_per_token=params.timings_per_token,
        include_usage=request.include_usage,
        n=request.n,
        probabilities=request.probabilities,
        native=completion_form(request, facts) if facts.verbose else None,
        old_calls=request.old_calls,
    )


class Head(NamedTuple):
    """The first fields of every answer to one request, and of every chunk."""

    id: str
    created: int
    model: str
    fingerprint: str

    @classmethod
    def new(cls, id: str, model: str) -> Self:
        """Returns the head of an answer that begins now."""
        return cls(id, int(time.time()), model, build_info())

    def fields(self, object_: str) -> bytes:
        """Returns the fields as JSON, without braces."""
        fields = {"id": self.id, "object": object_, "created": self.created, "model": self.model}
        return encode({**fields, "system_fingerprint": self.fingerprint})[1:-1]


def usage(results: Sequence[Finished], prompts: Sequence[Finished] | None = None) -> schemas.Usage:
    """Returns the token counts of all `results` together. A prompt with several texts counts once:
    `prompts` has one result for each prompt; None: every result has a prompt of its own."""
    prompts = results if prompts is None else prompts
    prompt = sum(result.n_prompt for result in prompts)
    completion = sum(result.n_decoded for result in results)
    timings = [result.timings for result in prompts]
    return {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {
            "cached_tokens": sum(each.cache_n for each in timings),
            "cached_ram_tokens": sum(each.cache_ram_n for each in timings),
            "cached_disk_tokens": sum(each.cache_disk_n for each in timings),
        },
    }


def _reason(reason: FinishReason, old_calls: bool) -> schemas.ChatFinishReason:
    return "function_call" if old_calls and reason == "tool_calls" else reason


def chat_message(message: ChatMessage, *, old_calls: bool = False) -> schemas.ChatCompletionMessage:
    """Returns a message of the assistant. `content` is null if there are calls and no text.
    `refusal`, which strict clients require, is always null. OpenAI's old form, with `old_calls`,
    has one call, without an id."""
    made: schemas.ChatCompletionMessage = {
        "role": "assistant",
        "content": message.content,
        "refusal": None,
    }
    if message.reasoning:
        made["reasoning_content"] = message.reasoning
    if message.calls:
        made["content"] = message.content or None
        if old_calls:
            call = message.calls[0]
            made["function_call"] = {"name": call.name, "arguments": call.arguments}
        else:
            made["tool_calls"] = [_tool_call(call) for call in message.calls]
    return made


def _tool_call(call: ToolCall) -> schemas.ToolCall:
    if call.free_text:
        custom: schemas.CalledCustomTool = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function: schemas.CalledFunction = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


_AUTHOR = b'{"role":"assistant","content":null}'
"""The first delta of an answer. Chunks with the progress of the prompt have it, too."""


class ChatFormat:
    """The answer of /v1/chat/completions (`handlers.running.respond.Format`), with `n`
    choices; `old_calls` are in OpenAI's old form."""

    def __init__(
        self,
        head: Head,
        *,
        timings_per_token: bool = False,
        include_usage: bool = False,
        n: int = 1,
        probabilities: Probabilities | None = None,
        native: NativeFormat | None = None,
        old_calls: bool = False,
    ) -> None:
        self._head = head
        self._tail = b',"finish_reason":null}],' + head.fields("chat.completion.chunk")
        self._with_timings = timings_per_token
        self._old_calls = old_calls
        self._include_usage = include_usage
        self._n = n
        self._probabilities = probabilities
        self._native = native
        self._results: list[Finished] = []
        self._opened: set[int] = set()

    def begin(self, event: ChatEvent) -> bytes:
        return b""  # the progress of the prompt comes before the chunk with the role

    def event(self, event: ChatEvent) -> bytes:
        source, index = event.source, event.index
        timings = timings_field(source.timings) if self._with_timings else b""
        if isinstance(source, Delta) and source.progress:
            return self._chunk(index, _AUTHOR, timings + progress_field(source.progress))
        parts = [] if index in self._opened else [self._chunk(index, _AUTHOR)]
        self._opened.add(index)
        calls, as_json = event.message.calls, _old_delta if self._old_calls else _delta
        probs = event.probs
        for delta in event.deltas:
            if isinstance(delta, Content) and probs:
                parts.append(self._chunk(index, as_json(delta, calls), timings, probs))
                probs = ()
            else:
                parts.append(self._chunk(index, as_json(delta, calls), timings))
        if isinstance(source, Finished):
            parts.append(self._finish(source, event.message, index))
        return b"".join(parts)

    async def end(self) -> bytes:
        return DONE

    def failed(self, failure: HttpFailure) -> bytes:
        return error_frame(failure)

    async def whole(self, results: list[ChatAnswer]) -> schemas.ChatCompletionResponse:
        finished = [answer.finished for answer in results]
        head, first = self._head, finished[0]
        answer: schemas.ChatCompletionResponse = {
            "id": head.id,
            "object": "chat.completion",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "choices": [self._choice(index, answer) for index, answer in enumerate(results)],
            "usage": usage(finished, finished[:1]),
            "timings": timings_json(first.timings),
        }
        if self._native:
            answer["__verbose"] = self._native.result(0, first)
        return answer

    def _choice(self, index: int, answer: ChatAnswer) -> schemas.ChatCompletionChoice:
        probabilities = self._probabilities
        return {
            "finish_reason": _reason(answer.finish_reason, self._old_calls),
            "index": index,
            "message": chat_message(answer.message, old_calls=self._old_calls),
            "logprobs": {"content": probabilities.later(answer.probs)} if probabilities else None,
            **deadline_json(answer.finished),
        }

    def _finish(self, result: Finished, message: ChatMessage, index: int) -> bytes:
        """Returns the end of one choice: a chunk with the finish reason. If the client requests
        token counts, another chunk, without choices, has them after the end of the last choice.
        `timings` are in the last of these chunks."""
        self._results.append(result)
        chunk = self._last_chunk()
        reason = _reason(finish_reason(message, result), self._old_calls)
        chunk["choices"].append({"index": index, "delta": {}, "finish_reason": reason})
        if result.deadline:
            chunk["choices"][0]["deadline"] = DEADLINES[result.deadline]
        if self._native:
            chunk["__verbose"] = self._native.result(index, result)
        chunks = [chunk]
        if self._include_usage and len(self._results) == self._n:
            chunks.append(self._last_chunk())
            chunks[-1]["usage"] = usage(self._results, self._results[:1])
        chunks[-1]["timings"] = timings_json(result.timings)
        return b"".join(b"data: " + encode(chunk) + b"\n\n" for chunk in chunks)

    def _last_chunk(self) -> schemas.ChatCompletionChunk:
        head = self._head
        return {
            "choices": [],
            "id": head.id,
            "object": "chat.completion.chunk",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
        }

    def _chunk(
        self, index: int, delta: bytes, more: bytes = b"", probs: Sequence[TokenProbs] = ()
    ) -> bytes:
        logprobs = b""
        if probs and self._probabilities:
            logprobs = b',"logprobs":' + encode({"content": self._probabilities.content(probs)})
        begin = b'data: {"choices":[{"index":%d,"delta":' % index
        return b"".join((begin, delta, logprobs, self._tail, more, b"}\n\n"))


def _delta(delta: ChatDelta, calls: Sequence[ToolCall]) -> bytes:
    """Returns the JSON of OpenAI's `delta`. `calls` are the answer's calls so far."""
    match delta:
        case Content(text):
            return b'{"content":' + encode(text) + b"}"
        case Reasoning(text):
            return b'{"reasoning_content":' + encode(text) + b"}"
        case CallStart(index, id, name, free_text):
            call = _tool_call(ToolCall(id, name, free_text=free_text))
            return encode({"tool_calls": [{"index": index, **call}]})
        case CallArguments(index, text):
            kind, name = (
                ("custom", "input") if calls[index].free_text else ("function", "arguments")
            )
            return encode({"tool_calls": [{"index": index, kind: {name: text}}]})


def _old_delta(delta: ChatDelta, calls: Sequence[ToolCall]) -> bytes:
    """Returns the JSON of `delta`, with a call in OpenAI's old form."""
    match delta:
        case CallStart(_, _, name):
            return encode({"function_call": {"name": name, "arguments": ""}})
        case CallArguments(_, text):
            return encode({"function_call": {"arguments": text}})
    return _delta(delta, calls)


def timings_field(timings: Timings) -> bytes:
    """Returns the JSON of the field `timings`, with a comma before it."""
    return b',"timings":' + encode(timings_json(timings))


def progress_field(progress: PromptProgress | None) -> bytes:
    """Returns the JSON of the field `prompt_progress`, with a comma before it."""
    return b',"prompt_progress":' + encode(progress_json(progress))
