"""OpenAI's answers: completions and chat completions, whole and in chunks.

Pure functions over the engine's results. A chunk of a stream is the hot path of the server
process, so everything in it but the text is encoded once per stream.
"""

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from specllama.engine.chat.output import (
    CallArguments,
    CallStart,
    ChatDelta,
    ChatMessage,
    Content,
    Reasoning,
    ToolCall,
)
from specllama.engine.wire.replies import Delta, Finished, StopType, Timings, TokenProbs
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.native.format import NativeFormat, completion_form, progress_json
from specllama.handlers.apis.native.probabilities import Probabilities
from specllama.handlers.apis.native.results import timings_json
from specllama.handlers.apis.openai.request import ChatCompletionRequest, TextCompletionRequest
from specllama.handlers.apis.openai.text_logprobs import TextLogprobs
from specllama.handlers.http.build_info import build_info
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.json_answer import encode
from specllama.handlers.http.streams import DONE, error_frame
from specllama.handlers.running.batch import TextEvent
from specllama.handlers.running.chat_batch import ChatAnswer, ChatEvent, FinishReason, finish_reason
from specllama.handlers.running.choices import best


def text_form(asked: TextCompletionRequest, facts: GenerationFacts) -> "TextFormat":
    """The format of one answer of /v1/completions."""
    return TextFormat(
        head("text_completion", facts.model, asked.id),
        timings_per_token=facts.params.timings_per_token,
        n=asked.n_best,
        n_candidates=asked.n,
        echoes=facts.echoes,
        has_prompt_probs=bool(facts.echoes) and asked.probabilities is not None,
        probabilities=asked.probabilities,
        native=completion_form(asked, facts) if facts.verbose else None,
    )


def chat_form(asked: ChatCompletionRequest, facts: GenerationFacts) -> "ChatFormat":
    """The format of one answer of /v1/chat/completions."""
    params = facts.params
    object_ = "chat.completion.chunk" if params.stream else "chat.completion"
    return ChatFormat(
        head(object_, facts.model, asked.id),
        timings_per_token=params.timings_per_token,
        include_usage=asked.include_usage,
        n=asked.n,
        probabilities=asked.probabilities,
        native=completion_form(asked, facts) if facts.verbose else None,
        old_calls=asked.old_calls,
    )


def head(object_: str, model: str, id: str | None) -> dict[str, Any]:
    """The fields that begin every answer to one request, chunks included."""
    return {
        "id": id,
        "object": object_,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": build_info(),
    }


def text_finish_reason(stop_type: StopType) -> str:
    return "stop" if stop_type in ("eos", "word") else "length"


def usage(results: Sequence[Finished], prompts: Sequence[Finished] | None = None) -> dict[str, Any]:
    """The tokens of all `results` together. A prompt counts once, whatever number of texts
    goes on from it: `prompts` are the results of different prompts, or None for all."""
    prompts = results if prompts is None else prompts
    prompt = sum(result.n_prompt for result in prompts)
    completion = sum(result.n_decoded for result in results)
    cached = sum(result.timings.cache_n for result in prompts)
    return {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def text_completion(
    head: dict[str, Any],
    results: list[Finished],
    *,
    usage: dict[str, Any],
    echoes: Sequence[str] = (),
    has_prompt_probs: bool = False,
    probabilities: Probabilities | None = None,
    native: NativeFormat | None = None,
) -> dict[str, Any]:
    """The answer of /v1/completions, with a choice for each result, behind its prompt if there
    are `echoes`, whose probabilities are told if it `has_prompt_probs`. `timings` (and
    `__verbose`, if there is a `native` format) are those of the first."""
    n_each = len(results) // max(len(echoes), 1)
    prompts = [echoes[index // n_each] if echoes else "" for index in range(len(results))]
    choices = [
        {
            "text": prompts[index] + result.text,
            "index": index,
            "logprobs": TextLogprobs(probabilities, prompts[index]).take(result)
            if probabilities and has_prompt_probs
            else _later(probabilities, result.probs),
            "finish_reason": text_finish_reason(result.stop_type),
        }
        for index, result in enumerate(results)
    ]
    return _whole(head, choices, usage, results[0], native)


def chat_completion(
    head: dict[str, Any],
    answers: list[ChatAnswer],
    *,
    probabilities: Probabilities | None = None,
    native: NativeFormat | None = None,
    old_calls: bool = False,
) -> dict[str, Any]:
    """The answer of /v1/chat/completions, with a choice for each of `answers`; `old_calls` are in
    OpenAI's old form."""
    results = [answer.finished for answer in answers]
    choices: list[dict[str, Any]] = []
    for index, answer in enumerate(answers):
        choice = {
            "finish_reason": _reason(answer.finish_reason, old_calls),
            "index": index,
            "message": chat_message(answer.message, old_calls=old_calls),
            "logprobs": _later(probabilities, answer.probs),
        }
        choices.append(choice)
    return _whole(head, choices, usage(results, results[:1]), results[0], native)


def _later(
    probabilities: Probabilities | None, probs: Sequence[TokenProbs]
) -> dict[str, Any] | None:
    return {"content": probabilities.later(probs)} if probabilities else None


def _reason(reason: FinishReason, old_calls: bool) -> str:
    return "function_call" if old_calls and reason == "tool_calls" else reason


def chat_message(message: ChatMessage, *, old_calls: bool = False) -> dict[str, Any]:
    """A message of the assistant. `content` is null if there are calls and no text, `refusal`
    always: strict clients want it to be there. The old form of OpenAI's API has one call, without
    an id."""
    made: dict[str, Any] = {"role": "assistant", "content": message.content, "refusal": None}
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


def _tool_call(call: ToolCall) -> dict[str, Any]:
    if call.free_text:
        custom = {"name": call.name, "input": call.arguments}
        return {"id": call.id, "type": "custom", "custom": custom}
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _whole(
    head: dict[str, Any],
    choices: list[dict[str, Any]],
    usage: dict[str, Any],
    first: Finished,
    native: NativeFormat | None,
) -> dict[str, Any]:
    answer = {**head, "choices": choices, "usage": usage}
    if native:
        answer["__verbose"] = native.result(0, first)
    answer["timings"] = timings_json(first.timings)
    return answer


class TextFormat:
    """The answer of /v1/completions (`handlers.running.respond.Format`), with `n` texts for each
    prompt: the best of `n_candidates`, None for as many as `n`. With `echoes`, the prompts as
    text, each text begins with its own, whose probabilities are told if it `has_prompt_probs`."""

    def __init__(
        self,
        head: dict[str, Any],
        *,
        timings_per_token: bool = False,
        n: int = 1,
        n_candidates: int | None = None,
        echoes: Sequence[str] = (),
        has_prompt_probs: bool = False,
        probabilities: Probabilities | None = None,
        native: NativeFormat | None = None,
    ) -> None:
        self._head = head
        self._tail = b',"finish_reason":null}],' + encode(head)[1:-1]
        self._with_timings = timings_per_token
        self._n = n
        self._has_prompt_probs = has_prompt_probs
        self._logprobs_of: dict[int, TextLogprobs] = {}  # by choice
        self._probabilities = probabilities
        self._native = native
        self._results: list[Finished] = []
        self._prompts: dict[int, Finished] = {}
        self._n_candidates = n if n_candidates is None else n_candidates
        self._echoes = echoes

    def begin(self, event: TextEvent) -> bytes:
        if not self._echoes or self._has_prompt_probs:
            return b""  # it comes with its probabilities
        return self._chunk(event.index, self._echoes[event.index // self._n])

    def event(self, event: TextEvent) -> bytes:
        source = event.source
        echo = self._echo(event.index, source) if self._has_prompt_probs else b""
        if isinstance(source, Finished):
            return echo + self.finish(event.index, source)
        return echo + self.delta(event.index, source)

    def _echo(self, index: int, source: Delta | Finished) -> bytes:
        """The chunk with the prompt and its probabilities, before the first one with anything of
        the text."""
        if index in self._logprobs_of or (isinstance(source, Delta) and source.progress):
            return b""
        prompt = self._echoes[index // self._n]
        assert self._probabilities is not None
        told = self._logprobs_of[index] = TextLogprobs(self._probabilities, prompt)
        of_prompt = msgspec.structs.replace(source, probs=[])
        return self._chunk(index, prompt, encode(told.take(of_prompt)))

    def _told(self, index: int, source: Delta | Finished) -> dict[str, Any] | None:
        """`logprobs` of the tokens that `source` has, if they are wanted."""
        if self._probabilities is None or not source.probs:
            return None
        if (old := self._logprobs_of.get(index)) is not None:
            return old.take(msgspec.structs.replace(source, prompt_probs=[]))
        return self._probabilities.logprobs(source.probs)

    async def end(self) -> bytes:
        return DONE

    def failed(self, failure: HttpFailure) -> bytes:
        return error_frame(failure)

    async def whole(self, results: list[Finished]) -> dict[str, Any]:
        return text_completion(
            self._head,
            best(results, self._n, self._n_candidates),
            usage=usage(results, results[:: self._n_candidates]),
            echoes=self._echoes,
            has_prompt_probs=self._has_prompt_probs,
            probabilities=self._probabilities,
            native=self._native,
        )

    def delta(self, index: int, event: Delta) -> bytes:
        return self._chunk(
            index,
            event.text,
            encode(self._told(index, event)) if event.probs else b"null",
            _timings(event.timings) if self._with_timings else b"",
            _progress(event) if event.progress else b"",
            self._verbose(index, event) if self._native else b"",
        )

    def _chunk(self, index: int, text: str, logprobs: bytes = b"null", *more: bytes) -> bytes:
        return b"".join(
            (
                b'data: {"choices":[{"text":',
                encode(text),
                b',"index":%d,"logprobs":' % index,
                logprobs,
                self._tail,
                *more,
                b"}\n\n",
            )
        )

    def _verbose(self, index: int, event: Delta) -> bytes:
        return b',"__verbose":' + self._native.delta_json(index, event) if self._native else b""

    def finish(self, index: int, result: Finished) -> bytes:
        """The last chunk of one text. `usage` adds up what has finished so far, so that
        the stream's last chunk has it for all."""
        self._results.append(result)
        self._prompts.setdefault(index // self._n, result)
        choice = {
            "text": result.text,
            "index": index,
            "logprobs": self._told(index, result),
            "finish_reason": text_finish_reason(result.stop_type),
        }
        chunk = {
            "choices": [choice],
            **self._head,
            "usage": usage(self._results, list(self._prompts.values())),
            "timings": timings_json(result.timings),
        }
        if self._native:
            chunk["__verbose"] = self._native.result(index, result)
        return b"data: " + encode(chunk) + b"\n\n"


_AUTHOR = b'{"role":"assistant","content":null}'
"""The delta that begins an answer. Reports on the prompt have it, too."""


class ChatFormat:
    """The answer of /v1/chat/completions (`handlers.running.respond.Format`), with `n`
    choices; `old_calls` are in OpenAI's old form."""

    def __init__(
        self,
        head: dict[str, Any],
        *,
        timings_per_token: bool = False,
        include_usage: bool = False,
        n: int = 1,
        probabilities: Probabilities | None = None,
        native: NativeFormat | None = None,
        old_calls: bool = False,
    ) -> None:
        self._head = head
        self._tail = b',"finish_reason":null}],' + encode(head)[1:-1]
        self._with_timings = timings_per_token
        self._old_calls = old_calls
        self._include_usage = include_usage
        self._n = n
        self._probabilities = probabilities
        self._native = native
        self._results: list[Finished] = []
        self._opened: set[int] = set()

    def begin(self, event: ChatEvent) -> bytes:
        return b""  # reports on the prompt come before the chunk that names the author

    def event(self, event: ChatEvent) -> bytes:
        source, index = event.source, event.index
        timings = _timings(source.timings) if self._with_timings else b""
        if isinstance(source, Delta) and source.progress:
            return self._chunk(index, _AUTHOR, timings + _progress(source))
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

    async def whole(self, results: list[ChatAnswer]) -> dict[str, Any]:
        return chat_completion(
            self._head,
            results,
            probabilities=self._probabilities,
            native=self._native,
            old_calls=self._old_calls,
        )

    def _finish(self, result: Finished, message: ChatMessage, index: int) -> bytes:
        """The end of one choice: a chunk with the reason of the end. The counts of tokens come
        in one more chunk, without choices, after the last choice if the client asked for them.
        `timings` are in the very last."""
        self._results.append(result)
        choice: dict[str, Any] = {
            "index": index,
            "delta": {},
            "finish_reason": _reason(finish_reason(message, result), self._old_calls),
        }
        chunks: list[dict[str, Any]] = [{"choices": [choice], **self._head}]
        if self._native:
            chunks[0]["__verbose"] = self._native.result(index, result)
        if self._include_usage and len(self._results) == self._n:
            total = usage(self._results, self._results[:1])
            chunks.append({"choices": [], **self._head, "usage": total})
        chunks[-1]["timings"] = timings_json(result.timings)
        return b"".join(b"data: " + encode(chunk) + b"\n\n" for chunk in chunks)

    def _chunk(
        self, index: int, delta: bytes, more: bytes = b"", probs: Sequence[TokenProbs] = ()
    ) -> bytes:
        logprobs = b""
        if probs and self._probabilities:
            logprobs = b',"logprobs":' + encode(self._probabilities.logprobs(probs))
        begin = b'data: {"choices":[{"index":%d,"delta":' % index
        return b"".join((begin, delta, logprobs, self._tail, more, b"}\n\n"))


def _delta(delta: ChatDelta, calls: Sequence[ToolCall]) -> bytes:
    """The JSON of OpenAI's `delta`; `calls` are those that have begun."""
    match delta:
        case Content(text):
            return b'{"content":' + encode(text) + b"}"
        case Reasoning(text):
            return b'{"reasoning_content":' + encode(text) + b"}"
        case CallStart(index, id, name, free_text):
            call = {"index": index, **_tool_call(ToolCall(id, name, free_text=free_text))}
            return encode({"tool_calls": [call]})
        case CallArguments(index, text):
            kind, name = (
                ("custom", "input") if calls[index].free_text else ("function", "arguments")
            )
            return encode({"tool_calls": [{"index": index, kind: {name: text}}]})


def _old_delta(delta: ChatDelta, calls: Sequence[ToolCall]) -> bytes:
    """The same with a call in OpenAI's old form."""
    match delta:
        case CallStart(_, _, name):
            return encode({"function_call": {"name": name, "arguments": ""}})
        case CallArguments(_, text):
            return encode({"function_call": {"arguments": text}})
    return _delta(delta, calls)


def _timings(timings: Timings) -> bytes:
    return b',"timings":' + encode(timings_json(timings))


def _progress(event: Delta) -> bytes:
    return b',"prompt_progress":' + encode(progress_json(event.progress))
