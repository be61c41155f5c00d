"""A server that is broken on purpose, for test_mutants.py.

    python -m contract_tests.own.mutants NAME [options of specllama]

Each function in `MUTANTS` breaks one thing in a process that then becomes the server. What takes
the place of a function has its signature, or the mutant ends at once; when it is used for the
first time, stderr says so (`EXERCISED`): a mutant that nobody has met can't be caught.
"""

import functools
import inspect
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, cast

import msgspec
from connexion.lifecycle import ConnexionRequest, ConnexionResponse
from jsonschema_rs import Draft202012Validator
from starlette.responses import Response
from starlette.types import Scope

import handlers.apis.native.format
import handlers.apis.openai.format
import handlers.http.application
import handlers.http.security
import handlers.http.sse
import handlers.http.validation
import handlers.models
import handlers.running.respond
import handlers.running.served
import handlers.slots
import handlers.tokenize
from engine.catalog.entry import Entry
from engine.errors import EngineError, ErrorInfo, ErrorType
from engine.pool.inventory import Inventory
from engine.pool.status import ModelStatus
from engine.protocol.messages import Delta, Finished, SlotState
from engine.shipped import model_path
from handlers.apis.native.format import NativeFormat
from handlers.apis.openai.format import TextFormat
from handlers.http import errors
from handlers.http.errors import Failure
from handlers.http.json_answer import JSONAnswer
from handlers.http.sse import DONE, EVENT_STREAM, Ping, error_frame
from handlers.running.kept_streams import KeptStream, Owner
from handlers.running.runtime import Runtime
from handlers.running.served import Served
from specllama.cli import main

Mutant = Callable[[], None]

EXERCISED = "the mutant was exercised"


def _replace(owner: object, name: str, lie: Callable[..., Any]) -> None:
    """Gives a module or a class another function of that name.

    Raises TypeError if its parameters are not those of the one it had, and AttributeError if it
    had none: callers would fail, which is no lie.
    """
    if (wanted := _parameters(getattr(owner, name))) != (given := _parameters(lie)):
        raise TypeError(f"{name} takes {wanted}, and what is to replace it {given}")
    met = functools.cache(lambda: print(EXERCISED, file=sys.stderr, flush=True))

    @functools.wraps(lie)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        met()
        return lie(*args, **kwargs)

    @functools.wraps(lie)
    async def asynchronous(*args: Any, **kwargs: Any) -> Any:
        met()
        return await lie(*args, **kwargs)

    setattr(owner, name, asynchronous if inspect.iscoroutinefunction(lie) else replacement)


def _parameters(function: Callable[..., Any]) -> list[tuple[str, Any, bool]]:
    """The name of each, how it is passed, and whether it may be left out."""
    return [
        (each.name, each.kind, each.default is not each.empty)
        for each in inspect.signature(function).parameters.values()
    ]


def healthy() -> None:
    """Nothing is broken."""


def malformed_json_is_an_empty_object() -> None:
    original = handlers.http.validation.decode

    def decode(raw: bytes) -> Any:
        try:
            return original(raw)
        except Exception:
            return {"prompt": "a", "content": "a"}

    _replace(handlers.http.validation, "decode", decode)


def malformed_json_is_a_server_error() -> None:
    def decode(raw: bytes) -> Any:
        return json.loads(raw)

    _replace(handlers.http.validation, "decode", decode)


def bodies_are_not_validated() -> None:
    class Anything:
        def is_valid(self, body: Any) -> bool:
            return True

    def compile_schema(schema: dict[str, Any]) -> Draft202012Validator:
        return cast(Draft202012Validator, Anything())

    _replace(handlers.http.validation, "compile_schema", compile_schema)


def _change_result(change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    original = NativeFormat.result

    def lie(self: NativeFormat, index: int, result: Finished) -> dict[str, Any]:
        return change(original(self, index, result))

    _replace(NativeFormat, "result", lie)


def a_field_is_missing() -> None:
    _change_result(lambda result: {k: v for k, v in result.items() if k != "timings"})


def a_number_is_text() -> None:
    _change_result(lambda result: {**result, "tokens_cached": str(result["tokens_cached"])})


def a_stop_text_is_shown() -> None:
    _change_result(
        lambda result: {**result, "content": result["content"] + result["stopping_word"]}
    )


def cached_tokens_are_not_counted() -> None:
    _change_result(lambda r: {**r, "tokens_evaluated": r["tokens_evaluated"] - r["tokens_cached"]})


def usage_is_off_by_one() -> None:
    original = handlers.apis.openai.format.usage

    def usage(
        results: Sequence[Finished], prompts: Sequence[Finished] | None = None
    ) -> dict[str, Any]:
        right = original(results, prompts)
        return {**right, "completion_tokens": right["completion_tokens"] + 1}

    _replace(handlers.apis.openai.format, "usage", usage)


def streams_have_no_end() -> None:
    original = handlers.http.sse.event_stream

    async def endless(frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for each in frames:
            if each != DONE:
                yield each

    def event_stream(
        frames: AsyncIterator[bytes],
        *,
        failed: Callable[[Failure], bytes] = error_frame,
        ping: Ping | None = None,
        headers: Mapping[str, str] | None = None,
        media_type: str = EVENT_STREAM,
    ) -> Response:
        return original(
            endless(frames), failed=failed, ping=ping, headers=headers, media_type=media_type
        )

    _replace(handlers.running.respond, "event_stream", event_stream)


def streams_have_a_broken_event() -> None:
    original = handlers.http.sse.sse_event

    def sse_event(data: Any, event: str | None = None) -> bytes:
        return b'data: {"content": "a"}\n\n' + original(data, event)

    _replace(handlers.apis.native.format, "sse_event", sse_event)


def streams_are_announced_as_text() -> None:
    stream = handlers.http.sse._EventStream
    original = stream.__init__

    def lie(
        self: handlers.http.sse._EventStream,
        frames: AsyncIterator[bytes],
        failed: Callable[[Failure], bytes],
        ping: Ping | None,
        headers: Mapping[str, str],
        media_type: str,
    ) -> None:
        original(self, frames, failed, ping, headers, "text/plain")

    _replace(stream, "__init__", lie)


def streams_repeat_a_piece() -> None:
    original = TextFormat.delta

    def delta(self: TextFormat, index: int, event: Delta) -> bytes:
        return original(self, index, event) * 2

    _replace(TextFormat, "delta", delta)


def _change_delta(change: Callable[[bytes], bytes]) -> None:
    original = NativeFormat.delta

    def delta(self: NativeFormat, index: int, event: Delta) -> bytes:
        return change(original(self, index, event))

    _replace(NativeFormat, "delta", delta)


def characters_are_broken() -> None:
    def halve(event: bytes) -> bytes:
        text = event.decode()
        for character in text:
            if not character.isascii():
                return event.replace(character.encode(), character.encode()[:1], 1)
        return event

    _change_delta(halve)


def characters_are_replaced() -> None:
    def replace(event: bytes) -> bytes:
        return "".join(c if c.isascii() else "\ufffd" for c in event.decode()).encode()

    _change_delta(replace)


def errors_are_plain_text() -> None:
    async def answer(request: ConnexionRequest, error: Exception) -> ConnexionResponse:
        failure = errors.describe(error, request.scope)
        return ConnexionResponse(
            status_code=failure.status, mimetype="text/plain", body=failure.info.message.encode()
        )

    _replace(handlers.http.application, "answer", answer)


def _change_failure(change: Callable[[Failure], Failure]) -> None:
    original = errors._failure

    def failure(
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
        details: dict[str, Any] | None = None,
    ) -> Failure:
        return change(original(status, message, headers, details))

    _replace(errors, "_failure", failure)


def errors_have_the_wrong_type() -> None:
    def change(right: Failure) -> Failure:
        if right.status != 404:
            return right
        return msgspec.structs.replace(right, info=ErrorInfo("server_error", right.info.message))

    _change_failure(change)


def bad_tokens_are_server_errors() -> None:
    original = errors.describe

    def describe(error: Exception, scope: Scope) -> Failure:
        right = original(error, scope)
        if not isinstance(error, EngineError) or right.status != 400:
            return right
        return msgspec.structs.replace(right, status=500)

    _replace(errors, "describe", describe)


def every_key_is_right() -> None:
    def is_api_key(candidate: str, keys: tuple[bytes, ...]) -> bool:
        return True

    _replace(handlers.http.security, "_is_api_key", is_api_key)


def a_part_of_a_key_is_enough() -> None:
    def is_api_key(candidate: str, keys: tuple[bytes, ...]) -> bool:
        return any(key.startswith(candidate.encode()) and candidate for key in keys)

    _replace(handlers.http.security, "_is_api_key", is_api_key)


def refusals_do_not_say_how_to_authenticate() -> None:
    _change_failure(lambda right: msgspec.structs.replace(right, headers={}))


def ollama_gets_the_envelope() -> None:
    def envelope_name(scope: Scope) -> str | None:
        return None

    _replace(errors, "_envelope_name", envelope_name)


def spaces_get_lost() -> None:
    original = handlers.tokenize.detokenize

    async def detokenize(body: dict[str, Any]) -> Response:
        answer = await original(body)
        return JSONAnswer({"content": json.loads(bytes(answer.body))["content"].strip()})

    _replace(handlers.tokenize, "detokenize", detokenize)


def slots_show_texts() -> None:
    def without_texts(slot: dict[str, Any]) -> dict[str, Any]:
        return slot

    _replace(handlers.slots, "without_texts", without_texts)


def slots_count_the_prompt_alone() -> None:
    original = handlers.slots.slot_json

    def slot_json(slot: SlotState, model: Served) -> dict[str, Any]:
        n_prompt = slot.n_prompt_tokens_processed + slot.n_prompt_tokens_cache
        return {**original(slot, model), "n_prompt_tokens": n_prompt}

    _replace(handlers.slots, "slot_json", slot_json)


def every_model_is_the_default_one() -> None:
    def find(current: Runtime, name: str | None, unknown: ErrorType) -> Entry:
        return current.catalog.entries[current.catalog.default]

    _replace(handlers.running.served, "find", find)


def unknown_models_are_the_default_one() -> None:
    original = handlers.running.served.find

    def find(current: Runtime, name: str | None, unknown: ErrorType) -> Entry:
        return current.catalog.find(name or "") or original(current, None, unknown)

    _replace(handlers.running.served, "find", find)


def everybody_may_look_for_models_again() -> None:
    _replace(handlers.models, "require_key", lambda scope: None)


def everything_can_be_removed() -> None:
    async def remove(self: Inventory, name: str) -> None:
        return None

    _replace(Inventory, "remove", remove)


def everything_can_be_downloaded() -> None:
    async def download(self: Inventory, name: str) -> None:
        return None

    _replace(Inventory, "download", download)


def a_status_forgets_its_failure() -> None:
    original = handlers.models._status_json

    def status_json(current: Runtime, entry: Entry, status: ModelStatus) -> dict[str, Any]:
        return {k: v for k, v in original(current, entry, status).items() if k != "failed"}

    _replace(handlers.models, "_status_json", status_json)


def events_tell_states_that_nobody_knows() -> None:
    original = handlers.http.sse.sse_event

    def sse_event(data: Any, event: str | None = None) -> bytes:
        return original(data, event).replace(b'"loaded"', b'"ready"')

    _replace(handlers.models, "sse_event", sse_event)


def streams_end_with_their_clients() -> None:
    def owner_of(scope: Scope) -> Owner | None:
        return None

    _replace(handlers.running.respond, "owner_of", owner_of)


def streams_come_back_from_the_beginning() -> None:
    original = KeptStream.read

    def read(self: KeptStream, offset: int = 0) -> AsyncIterator[bytes]:
        return original(self)

    _replace(KeptStream, "read", read)


MUTANTS: dict[str, Mutant] = {
    mutant.__name__: mutant
    for mutant in (
        healthy,
        malformed_json_is_an_empty_object,
        malformed_json_is_a_server_error,
        bodies_are_not_validated,
        a_field_is_missing,
        a_number_is_text,
        a_stop_text_is_shown,
        cached_tokens_are_not_counted,
        usage_is_off_by_one,
        streams_have_no_end,
        streams_have_a_broken_event,
        streams_are_announced_as_text,
        streams_repeat_a_piece,
        characters_are_broken,
        characters_are_replaced,
        errors_are_plain_text,
        errors_have_the_wrong_type,
        bad_tokens_are_server_errors,
        every_key_is_right,
        a_part_of_a_key_is_enough,
        refusals_do_not_say_how_to_authenticate,
        ollama_gets_the_envelope,
        spaces_get_lost,
        slots_show_texts,
        streams_end_with_their_clients,
        streams_come_back_from_the_beginning,
        slots_count_the_prompt_alone,
        every_model_is_the_default_one,
        unknown_models_are_the_default_one,
        everybody_may_look_for_models_again,
        everything_can_be_removed,
        everything_can_be_downloaded,
        a_status_forgets_its_failure,
        events_tell_states_that_nobody_knows,
    )
}

if __name__ == "__main__":
    assert model_path().exists()
    MUTANTS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
