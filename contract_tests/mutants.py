"""A server that is broken on purpose, for test_mutants.py.

    python -m contract_tests.mutants NAME [options of specllama]

Each function in `MUTANTS` breaks one thing in a process that then becomes the server.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any

from connexion.lifecycle import ConnexionResponse

import handlers.chat
import handlers.completion
import handlers.http.application
import handlers.http.security
import handlers.http.sse
import handlers.http.validation
import handlers.models
import handlers.native_format
import handlers.openai_format
import handlers.served
import handlers.tokenize
from engine.embedded import model_path
from handlers.answers import JSONAnswer
from handlers.http import errors
from handlers.native_format import NativeFormat
from specllama.cli import main

Mutant = Callable[[], None]


def _replace(owner: Any, name: str, value: Any) -> Any:
    """Gives a module or a class another attribute; what it had before. Fails if it had none:
    nothing would be broken."""
    original = getattr(owner, name)
    setattr(owner, name, value)
    return original


def healthy() -> None:
    """Nothing is broken."""


def malformed_json_is_an_empty_object() -> None:
    def decode(raw: bytes) -> Any:
        try:
            return original(raw)
        except Exception:
            return {"prompt": "a", "content": "a"}

    original = _replace(handlers.http.validation, "decode", decode)


def malformed_json_is_a_server_error() -> None:
    def decode(raw: bytes) -> Any:
        import json

        return json.loads(raw)

    _replace(handlers.http.validation, "decode", decode)


def bodies_are_not_validated() -> None:
    class Anything:
        def is_valid(self, body: Any) -> bool:
            return True

    _replace(handlers.http.validation, "compile_schema", lambda schema: Anything())


def _change_result(change: Callable[[dict[str, Any]], Mapping[str, Any]]) -> None:
    def result(self: Any, index: int, finished: Any) -> Any:
        return change(original(self, index, finished))

    original = _replace(NativeFormat, "result", result)


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
    def usage(results: Any) -> Any:
        right = original(results)
        return {**right, "completion_tokens": right["completion_tokens"] + 1}

    original = _replace(handlers.openai_format, "usage", usage)


def streams_have_no_end() -> None:
    for module in (handlers.completion, handlers.chat):
        _replace(module, "DONE", b"")


def streams_have_a_broken_event() -> None:
    def frame(data: Any) -> bytes:
        return b'data: {"content": "a"}\n\n' + bytes(original(data))

    original = _replace(handlers.native_format, "frame", frame)


def streams_are_announced_as_text() -> None:
    _replace(handlers.http.sse._EventStream, "media_type", "text/plain")


def streams_repeat_a_piece() -> None:
    def delta(self: Any, index: int, event: Any) -> bytes:
        return bytes(original(self, index, event)) * 2

    original = _replace(handlers.openai_format.TextChunks, "delta", delta)


def _change_delta(change: Callable[[bytes], bytes]) -> None:
    def delta(self: Any, index: int, event: Any) -> bytes:
        return change(original(self, index, event))

    original = _replace(NativeFormat, "delta", delta)


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
    async def answer(request: Any, error: Exception) -> ConnexionResponse:
        failure = errors.describe(error, request.scope)
        return ConnexionResponse(
            status_code=failure.status, mimetype="text/plain", body=failure.info.message.encode()
        )

    _replace(handlers.http.application, "answer", answer)


def errors_have_the_wrong_type() -> None:
    errors._TYPE[404] = "server_error"


def bad_tokens_are_server_errors() -> None:
    errors.STATUS["invalid_request_error"] = 500


def every_key_is_right() -> None:
    _replace(handlers.http.security, "_is_api_key", lambda candidate, keys: True)


def a_part_of_a_key_is_enough() -> None:
    def is_api_key(candidate: str, keys: Any) -> bool:
        return any(key.startswith(candidate.encode()) and candidate for key in keys)

    _replace(handlers.http.security, "_is_api_key", is_api_key)


def refusals_do_not_say_how_to_authenticate() -> None:
    def failure(status: int, message: str, headers: Any = None) -> Any:
        return original(status, message)

    original = _replace(errors, "_failure", failure)


def spaces_get_lost() -> None:
    async def detokenize(body: dict[str, Any]) -> Any:
        answer = await original(body)
        assert isinstance(answer, JSONAnswer)
        text = bytes(answer.body)
        return JSONAnswer({"content": text.decode().split('"', 3)[3].rsplit('"', 1)[0].strip()})

    original = _replace(handlers.tokenize, "detokenize", detokenize)


def every_model_is_the_default_one() -> None:
    def find(current: Any, name: str | None) -> Any:
        return current.catalog.entries[current.catalog.default]

    _replace(handlers.served, "find", find)


def unknown_models_are_the_default_one() -> None:
    def find(current: Any, name: str | None) -> Any:
        return current.catalog.find(name or "") or original(current, None)

    original = _replace(handlers.served, "find", find)


def a_status_forgets_its_failure() -> None:
    def status_json(entry: Any, status: Any) -> Any:
        return {k: v for k, v in original(entry, status).items() if k != "failed"}

    original = _replace(handlers.models, "_status_json", status_json)


def events_tell_states_that_nobody_knows() -> None:
    def frame(data: Any) -> bytes:
        return bytes(original(data)).replace(b'"loaded"', b'"ready"')

    original = _replace(handlers.models, "frame", frame)


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
        spaces_get_lost,
        every_model_is_the_default_one,
        unknown_models_are_the_default_one,
        a_status_forgets_its_failure,
        events_tell_states_that_nobody_knows,
    )
}

if __name__ == "__main__":
    assert model_path().exists()
    MUTANTS[sys.argv[1]]()
    sys.exit(main(sys.argv[2:]))
