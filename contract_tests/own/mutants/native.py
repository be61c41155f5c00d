"""The native API: completions, tokens, gaps."""

import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Scope

import handlers.apis.native.format
import handlers.apis.native.results
import handlers.http.sse
import handlers.infill
import handlers.running.respond
import handlers.tokenize
from contract_tests.kit import checks
from contract_tests.kit.checks import generation
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.protocol.messages import Delta, Finished, Infill, Timings
from handlers.apis.native.format import NativeFormat
from handlers.http.json_answer import JSONAnswer
from handlers.http.sse import DONE
from handlers.running.kept_streams import KeptStream, Owner

MUTANTS = Mutants("Native API")


def _change_result(replace: Replace, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    original = NativeFormat.result

    def lie(self: NativeFormat, index: int, result: Finished) -> dict[str, Any]:
        return change(original(self, index, result))

    replace(NativeFormat, "result", lie)


@MUTANTS.caught_by(checks.plain_answers_are_as_described, r"\$: .*index")
def a_field_is_missing(replace: Replace) -> None:
    """Results are without `timings`."""
    _change_result(replace, lambda r: {k: v for k, v in r.items() if k != "timings"})


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "create_completion|/completion")
def a_field_has_another_name(replace: Replace) -> None:
    """`tokens_predicted` is called `n_predicted`."""
    _change_result(
        replace, lambda r: {("n_predicted" if k == "tokens_predicted" else k): r[k] for k in r}
    )


@MUTANTS.caught_by(checks.streams_are_as_described, r"event \d+, .*\"stop\":true")
def a_number_is_text(replace: Replace) -> None:
    """`tokens_cached` is a text of digits."""
    _change_result(replace, lambda r: {**r, "tokens_cached": str(r["tokens_cached"])})


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "/completion")
def a_number_is_null(replace: Replace) -> None:
    """`id_slot` is null."""
    _change_result(replace, lambda r: {**r, "id_slot": None})


@MUTANTS.caught_by(checks.stop_texts_are_never_shown, "==", lies=True)
def a_stop_text_is_shown(replace: Replace) -> None:
    """The text ends with the stop string."""
    _change_result(replace, lambda r: {**r, "content": r["content"] + r["stopping_word"]})


@MUTANTS.caught_by(checks.counts_add_up, "==", lies=True)
def cached_tokens_are_not_counted(replace: Replace) -> None:
    """`tokens_evaluated` leaves out what came from the cache."""
    _change_result(
        replace, lambda r: {**r, "tokens_evaluated": r["tokens_evaluated"] - r["tokens_cached"]}
    )


@MUTANTS.caught_by(generation.timings_follow_from_each_other, "prompt_ms", lies=True)
def a_time_is_in_seconds(replace: Replace) -> None:
    """`prompt_ms` is a thousandth of what it should be."""
    original = handlers.apis.native.results.timings_json

    def timings_json(timings: Timings) -> dict[str, Any]:
        right = original(timings)
        return {**right, "prompt_ms": right["prompt_ms"] / 1000}

    replace(handlers.apis.native.format, "timings_json", timings_json)


# ---- streams ---------------------------------------------------------------------------------


@MUTANTS.caught_by(checks.streams_are_as_described, "'a'} is not valid")
def streams_have_a_broken_event(replace: Replace) -> None:
    """An event without most of its fields comes before the last."""
    original = handlers.http.sse.sse_event

    def sse_event(data: Any, event: str | None = None) -> bytes:
        return b'data: {"content": "a"}\n\n' + original(data, event)

    replace(handlers.apis.native.format, "sse_event", sse_event)


@MUTANTS.caught_by(generation.streams_end_once, "`stop` in a stream", lies=True)
def streams_end_twice(replace: Replace) -> None:
    """The last event comes a second time."""
    original = NativeFormat.finish

    def finish(self: NativeFormat, index: int, result: Finished) -> bytes:
        return original(self, index, result) * 2

    replace(NativeFormat, "finish", finish)


@MUTANTS.caught_by(checks.streams_are_as_described, "DONE")
def native_streams_end_as_openais(replace: Replace) -> None:
    """A native stream ends with `[DONE]`."""

    async def end(self: NativeFormat) -> bytes:
        return DONE

    replace(NativeFormat, "end", end)


def _change_delta(replace: Replace, change: Callable[[bytes], bytes]) -> None:
    original = NativeFormat.delta

    def delta(self: NativeFormat, index: int, event: Delta) -> bytes:
        return change(original(self, index, event))

    replace(NativeFormat, "delta", delta)


@MUTANTS.caught_by(checks.characters_stay_whole, "UTF-8")
def characters_are_broken(replace: Replace) -> None:
    """An event has the first byte of a character and not the others."""

    def halve(event: bytes) -> bytes:
        text = event.decode()
        for character in text:
            if not character.isascii():
                return event.replace(character.encode(), character.encode()[:1], 1)
        return event

    _change_delta(replace, halve)


@MUTANTS.caught_by(checks.characters_stay_whole, "\ufffd", lies=True)
def characters_are_replaced(replace: Replace) -> None:
    """Question marks in the place of what tokens have a part of."""

    def replacing(event: bytes) -> bytes:
        return "".join(c if c.isascii() else "\ufffd" for c in event.decode()).encode()

    _change_delta(replace, replacing)


@MUTANTS.caught_by(checks.streams_outlive_their_clients, "got 404")
def streams_end_with_their_clients(replace: Replace) -> None:
    """A stream that is to be kept isn't."""

    def owner_of(scope: Scope) -> Owner | None:
        return None

    replace(handlers.running.respond, "owner_of", owner_of)


@MUTANTS.caught_by(checks.streams_outlive_their_clients, "==", lies=True)
def streams_come_back_from_the_beginning(replace: Replace) -> None:
    """A kept stream is told from its first byte, whatever its client has read."""
    original = KeptStream.read

    def read(self: KeptStream, offset: int = 0) -> AsyncIterator[bytes]:
        return original(self)

    replace(KeptStream, "read", read)


# ---- tokens and gaps -------------------------------------------------------------------------


@MUTANTS.caught_by(checks.tokens_and_text_correspond, "two", lies=True)
def spaces_get_lost(replace: Replace) -> None:
    """/detokenize trims its text."""
    original = handlers.tokenize.detokenize

    async def detokenize(body: dict[str, Any]) -> Response:
        answer = await original(body)
        return JSONAnswer({"content": json.loads(bytes(answer.body))["content"].strip()})

    replace(handlers.tokenize, "detokenize", detokenize)


@MUTANTS.caught_by(checks.tokens_and_text_correspond, "==", lies=True)
def tokens_come_backwards(replace: Replace) -> None:
    """/tokenize has the last token first."""
    original = handlers.tokenize.tokenize

    async def tokenize(body: dict[str, Any]) -> Response:
        answer = await original(body)
        return JSONAnswer({"tokens": json.loads(bytes(answer.body))["tokens"][::-1]})

    replace(handlers.tokenize, "tokenize", tokenize)


@MUTANTS.caught_by(generation.gaps_are_filled_between_both_texts, "behind the gap", lies=True)
def gaps_have_no_end(replace: Replace) -> None:
    """/infill doesn't look at `input_suffix`."""
    original = handlers.infill._gap

    def gap(body: dict[str, Any]) -> Infill:
        return msgspec.structs.replace(original(body), suffix=[])

    replace(handlers.infill, "_gap", gap)
