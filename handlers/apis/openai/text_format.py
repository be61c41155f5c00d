"""OpenAI's answers to completions of texts (`handlers.running.respond.Format`).

A chunk of a stream is the hot path of the server process, so everything in it except the text is
encoded once per stream.
"""

import codecs
import math
from collections.abc import Sequence

import msgspec

from specllama.engine.wire.replies import Delta, Finished, StopType, TokenProbs
from specllama.handlers.apis.generate import GenerationFacts
from specllama.handlers.apis.native.format import NativeFormat, completion_form
from specllama.handlers.apis.openai.format import Head, progress_field, timings_field, usage
from specllama.handlers.apis.openai.request import TextCompletionRequest
from specllama.handlers.apis.probabilities import Probabilities
from specllama.handlers.apis.results import deadline_json, timings_json
from specllama.handlers.http import schemas
from specllama.handlers.http.errors import HttpFailure
from specllama.handlers.http.json_answer import encode, lazy
from specllama.handlers.http.streams import DONE, error_frame
from specllama.handlers.running.batch import TextEvent
from specllama.handlers.running.choices import best


def text_form(request: TextCompletionRequest, facts: GenerationFacts) -> "TextFormat":
    """Returns the format of one answer of /v1/completions."""
    return TextFormat(
        Head.new(request.id, facts.model),
        timings_per_token=facts.params.timings_per_token,
        n=request.n_best,
        n_candidates=request.n,
        echoes=facts.echoes,
        has_prompt_probs=bool(facts.echoes) and request.probabilities is not None,
        probabilities=request.probabilities,
        native=completion_form(request, facts) if facts.verbose else None,
    )


def text_finish_reason(stop_type: StopType) -> schemas.TextFinishReason:
    return "stop" if stop_type in ("eos", "word") else "length"


class TextFormat:
    """The answer of /v1/completions (`handlers.running.respond.Format`), with the best `n` of
    `n_candidates` texts for each prompt; None: `n` texts are generated. `echoes` are the prompts as
    text; each answer begins with its prompt then, and reports the prompt's probabilities if it
    `has_prompt_probs`."""

    def __init__(
        self,
        head: Head,
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
        self._tail = b',"finish_reason":null}],' + head.fields("text_completion")
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
            return b""  # `_echo` sends the prompt, with its probabilities
        return self._chunk(event.index, self._echoes[event.index // self._n])

    def event(self, event: TextEvent) -> bytes:
        source = event.source
        echo = self._echo(event.index, source) if self._has_prompt_probs else b""
        if isinstance(source, Finished):
            return echo + self.finish(event.index, source)
        return echo + self.delta(event.index, source)

    def _echo(self, index: int, source: Delta | Finished) -> bytes:
        """Returns the chunk with the prompt and its probabilities, which precedes the text."""
        if index in self._logprobs_of or (isinstance(source, Delta) and source.progress):
            return b""
        prompt = self._echoes[index // self._n]
        assert self._probabilities is not None
        logprobs = self._logprobs_of[index] = TextLogprobs(self._probabilities, prompt)
        of_prompt = msgspec.structs.replace(source, probs=[])
        return self._chunk(index, prompt, encode(logprobs.take(of_prompt)))

    def _logprobs(self, index: int, source: Delta | Finished) -> schemas.TextLogprobs | None:
        """Returns the `logprobs` of the tokens in `source`, if the request wants them."""
        if self._probabilities is None or not source.probs:
            return None
        if (old := self._logprobs_of.get(index)) is not None:
            return old.take(msgspec.structs.replace(source, prompt_probs=[]))
        return {"content": self._probabilities.content(source.probs)}

    async def end(self) -> bytes:
        return DONE

    def failed(self, failure: HttpFailure) -> bytes:
        return error_frame(failure)

    async def whole(self, results: list[Finished]) -> schemas.OpenAICompletionResponse:
        """Returns a choice for each result, which begins with its prompt if there are `echoes`.
        `timings` (and `__verbose`, if there is a `native` format) are from the first result."""
        total = usage(results, results[:: self._n_candidates])
        chosen = best(results, self._n, self._n_candidates)
        head, first = self._head, chosen[0]
        answer: schemas.OpenAICompletionResponse = {
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "choices": [self._choice(index, result) for index, result in enumerate(chosen)],
            "usage": total,
            "timings": timings_json(first.timings),
        }
        if self._native:
            answer["__verbose"] = self._native.result(0, first)
        return answer

    def _choice(self, index: int, result: Finished) -> schemas.OpenAICompletionChoice:
        prompt = self._echoes[index // self._n] if self._echoes else ""
        probabilities = self._probabilities
        logprobs: schemas.TextLogprobs | None = None
        if probabilities and self._has_prompt_probs:
            logprobs = TextLogprobs(probabilities, prompt).take(result)
        elif probabilities:
            logprobs = {"content": probabilities.later(result.probs)}
        return {
            "text": prompt + result.text,
            "index": index,
            "logprobs": logprobs,
            "finish_reason": text_finish_reason(result.stop_type),
            **deadline_json(result),
        }

    def delta(self, index: int, event: Delta) -> bytes:
        return self._chunk(
            index,
            event.text,
            encode(self._logprobs(index, event)) if event.probs else b"null",
            timings_field(event.timings) if self._with_timings else b"",
            progress_field(event.progress) if event.progress else b"",
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
        """Returns the last chunk of one text. `usage` is the sum over all finished texts, so that
        the stream's last chunk has the total."""
        self._results.append(result)
        self._prompts.setdefault(index // self._n, result)
        head = self._head
        choice: schemas.OpenAICompletionChoice = {
            "text": result.text,
            "index": index,
            "logprobs": self._logprobs(index, result),
            "finish_reason": text_finish_reason(result.stop_type),
            **deadline_json(result),
        }
        chunk: schemas.OpenAICompletionResponse = {
            "choices": [choice],
            "id": head.id,
            "object": "text_completion",
            "created": head.created,
            "model": head.model,
            "system_fingerprint": head.fingerprint,
            "usage": usage(self._results, list(self._prompts.values())),
            "timings": timings_json(result.timings),
        }
        if self._native:
            chunk["__verbose"] = self._native.result(index, result)
        return b"data: " + encode(chunk) + b"\n\n"


# ---- probabilities, with those of the prompt ---------------------------------------------

_LEAST = 5e-324  # the smallest probability with a logarithm


class TextLogprobs:
    """OpenAI's older form of `logprobs` for the events of one answer: lists over all tokens of a
    text that begins with its prompt, `echo`. Completions that repeat their prompt have these lists
    besides `content`, which has only the generated tokens."""

    def __init__(self, probabilities: Probabilities, echo: str) -> None:
        self._probabilities = probabilities
        self._echo = echo
        self._n_text = 0  # characters of the tokens so far
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def take(self, source: Delta | Finished) -> schemas.TextLogprobs:
        """Returns the object for the tokens in `source`: those of the prompt, if it is the first
        event, and the new ones.

        A token's text has the characters that it completes, so that the joined texts of all tokens
        are the whole text. A prefix that the tokenizer has added is left out.
        """
        prompt, new = source.prompt_probs, source.probs
        post_sampling = self._probabilities.post_sampling
        texts = [self._decoder.decode(entry.piece) for entry in prompt]
        if prompt:
            said = "".join(texts)
            if said.endswith(self._echo):
                texts = _without(texts, len(said) - len(self._echo))
        texts += [self._decoder.decode(entry.piece) for entry in new]
        offsets: list[int] = []
        for text in texts:
            offsets.append(self._n_text)
            self._n_text += len(text)
        first = min(1, len(prompt))  # the first token has no probability
        values = [None] * first + [entry.value for entry in prompt[first:]]
        values += [_log(entry.value) if post_sampling else entry.value for entry in new]
        rivals: list[tuple[TokenProbs, bool] | None] = [None] * first
        rivals += [(entry, False) for entry in prompt[first:]]
        rivals += [(entry, post_sampling) for entry in new]
        return {
            "tokens": texts,
            "token_logprobs": values,
            "top_logprobs": lazy(self._top, rivals, 1 + self._probabilities.n_top),
            "text_offset": offsets,
            "content": self._probabilities.later(new),
        }

    def _top(self, each: tuple[TokenProbs, bool] | None) -> schemas.TextRivals | None:
        """Returns the alternatives and the token itself, by text. If two have the same text, the
        likelier one counts."""
        if each is None:
            return None
        entry, post_sampling = each
        found: dict[str, float] = {}
        for _, piece, value in entry.top[: self._probabilities.n_top]:
            found.setdefault(_name(piece), _log(value) if post_sampling else value)
        found.setdefault(_name(entry.piece), _log(entry.value) if post_sampling else entry.value)
        return found


def _name(piece: bytes) -> str:
    """Returns the text of a token; if it isn't valid UTF-8, its bytes in OpenAI's notation."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _without(texts: Sequence[str], n: int) -> list[str]:
    """Returns `texts` without their first `n` characters."""
    left: list[str] = []
    for text in texts:
        left.append(text[n:])
        n = max(0, n - len(text))
    return left


def _log(probability: float) -> float:
    return math.log(max(probability, _LEAST))
