"""OpenAI's answers: completions and chat completions, whole and in chunks.

Pure functions over the engine's results. A chunk of a stream is the hot path of the server
process, so everything in it but the text is encoded once per stream.
"""

import secrets
import time
from typing import Any

import msgspec

from engine.protocol import Delta, Finished, StopType, Timings
from handlers.answers import build_info
from handlers.generation import timings_json

_encode = msgspec.json.Encoder().encode


def head(object_: str, model: str) -> dict[str, Any]:
    """What every answer of one request begins with, chunks included."""
    return {
        "id": "chatcmpl-" + secrets.token_urlsafe(24),
        "object": object_,
        "created": int(time.time()),
        "model": model,
        "system_fingerprint": build_info(),
    }


def finish_reason(stop_type: StopType) -> str:
    return "stop" if stop_type in ("eos", "word") else "length"


def usage(results: list[Finished]) -> dict[str, Any]:
    """The tokens of all `results` together."""
    prompt = sum(result.n_prompt for result in results)
    completion = sum(result.n_decoded for result in results)
    cached = sum(result.timings.cache_n for result in results)
    return {
        "completion_tokens": completion,
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def text_completion(head: dict[str, Any], results: list[Finished]) -> dict[str, Any]:
    """The answer of /v1/completions, with a choice for each prompt. `timings` are those of
    the first."""
    choices = [
        {
            "text": result.text,
            "index": index,
            "logprobs": None,
            "finish_reason": finish_reason(result.stop_type),
        }
        for index, result in enumerate(results)
    ]
    return {
        **head,
        "choices": choices,
        "usage": usage(results),
        "timings": timings_json(results[0].timings),
    }


def chat_completion(head: dict[str, Any], result: Finished) -> dict[str, Any]:
    """The answer of /v1/chat/completions."""
    choice = {
        "finish_reason": finish_reason(result.stop_type),
        "index": 0,
        "message": {"role": "assistant", "content": result.text},
    }
    return {
        **head,
        "choices": [choice],
        "usage": usage([result]),
        "timings": timings_json(result.timings),
    }


class TextChunks:
    """The events of a /v1/completions stream, as bytes ready to be sent."""

    def __init__(self, head: dict[str, Any], *, timings_per_token: bool = False) -> None:
        self._head = head
        self._tail = b"," + _encode(head)[1:-1]
        self._with_timings = timings_per_token
        self._results: list[Finished] = []

    def delta(self, index: int, event: Delta) -> bytes:
        return b"".join(
            (
                b'data: {"choices":[{"text":',
                _encode(event.text),
                b',"index":%d,"logprobs":null,"finish_reason":null}]' % index,
                self._tail,
                _timings(event.timings) if self._with_timings else b"",
                b"}\n\n",
            )
        )

    def finish(self, index: int, result: Finished) -> bytes:
        """The last chunk of one prompt. `usage` adds up what has finished so far, so that
        the stream's last chunk has it for all."""
        self._results.append(result)
        choice = {
            "text": result.text,
            "index": index,
            "logprobs": None,
            "finish_reason": finish_reason(result.stop_type),
        }
        chunk = {
            "choices": [choice],
            **self._head,
            "usage": usage(self._results),
            "timings": timings_json(result.timings),
        }
        return b"data: " + _encode(chunk) + b"\n\n"


class ChatChunks:
    """The events of a /v1/chat/completions stream, as bytes ready to be sent."""

    def __init__(
        self,
        head: dict[str, Any],
        *,
        timings_per_token: bool = False,
        include_usage: bool = False,
    ) -> None:
        self._head = head
        self._tail = b'},"finish_reason":null}],' + _encode(head)[1:-1]
        self._with_timings = timings_per_token
        self._include_usage = include_usage

    def begin(self) -> bytes:
        """Who speaks; before any text."""
        delta = b'"role":"assistant","content":null'
        return b"".join((b'data: {"choices":[{"index":0,"delta":{', delta, self._tail, b"}\n\n"))

    def delta(self, event: Delta) -> bytes:
        return self._text(event.text, event.timings)

    def finish(self, result: Finished) -> bytes:
        """The end of the stream: text that no delta has carried, then a chunk with the reason
        of the end. The counts of tokens come in one more chunk, without choices, if the client
        asked for them. `timings` are in the very last."""
        parts = [self._text(result.text, result.timings)] if result.text else []
        reason = finish_reason(result.stop_type)
        chunks: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}], **self._head}
        ]
        if self._include_usage:
            chunks.append({"choices": [], **self._head, "usage": usage([result])})
        chunks[-1]["timings"] = timings_json(result.timings)
        parts += [b"data: " + _encode(chunk) + b"\n\n" for chunk in chunks]
        return b"".join(parts)

    def _text(self, text: str, timings: Timings) -> bytes:
        return b"".join(
            (
                b'data: {"choices":[{"index":0,"delta":{"content":',
                _encode(text),
                self._tail,
                _timings(timings) if self._with_timings else b"",
                b"}\n\n",
            )
        )


def _timings(timings: Timings) -> bytes:
    return b',"timings":' + _encode(timings_json(timings))
