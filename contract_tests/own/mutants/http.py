"""HTTP: bodies, errors, keys, foreign pages, the description."""

import json
from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec
from connexion.lifecycle import ConnexionRequest, ConnexionResponse
from connexion.middleware.abstract import ROUTING_CONTEXT
from jsonschema_rs import Draft202012Validator
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn._types import ASGISendEvent
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

import handlers.description
import handlers.health
import handlers.http.application
import handlers.http.notes
import handlers.http.security
import handlers.http.stack
import handlers.http.validation
import handlers.refused
from contract_tests.kit import checks
from contract_tests.kit.checks import servers
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.errors import EngineError, ErrorInfo
from handlers.http import errors
from handlers.http.errors import Failure
from handlers.http.json_answer import JSONAnswer
from handlers.http.schema import Schema
from handlers.http.security import is_known

MUTANTS = Mutants("HTTP")

ACCEPTED = "expected 40[014], got .* 200"
"""The failure of a check where a request should have been refused."""


@MUTANTS.caught_by(checks.malformed_json_is_refused, ACCEPTED)
def malformed_json_is_an_empty_object(replace: Replace) -> None:
    """A body that is no JSON is read as one with hardly any fields."""
    original = handlers.http.validation.decode

    def decode(raw: bytes) -> Any:
        try:
            return original(raw)
        except Exception:
            return {"prompt": "a", "content": "a"}

    replace(handlers.http.validation, "decode", decode)


@MUTANTS.caught_by(checks.malformed_json_is_refused, "expected 400, got .* 500")
def malformed_json_is_a_server_error(replace: Replace) -> None:
    """A body that is no JSON ends in an exception."""

    def decode(raw: bytes) -> Any:
        return json.loads(raw)

    replace(handlers.http.validation, "decode", decode)


@MUTANTS.caught_by(checks.errors_have_the_envelope, "500")
def bodies_are_not_validated(replace: Replace) -> None:
    """Handlers get bodies of any form."""

    class Anything:
        def is_valid(self, body: Any) -> bool:
            return True

    def known(self: handlers.http.validation._Compiled, schema: Schema) -> Draft202012Validator:
        return cast(Draft202012Validator, Anything())

    replace(handlers.http.validation._Compiled, "known", known)


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "'text/html' is not a documented")
def answers_are_announced_as_html(replace: Replace) -> None:
    """The content type of JSON is text/html."""
    original = JSONAnswer.render

    def render(self: JSONAnswer, content: Any) -> bytes:
        self.media_type = "text/html"
        return original(self, content)

    replace(JSONAnswer, "render", render)


@MUTANTS.caught_by(checks.errors_have_the_envelope, "text/plain")
def errors_are_plain_text(replace: Replace) -> None:
    """Errors have a message and no envelope."""

    async def answer(request: ConnexionRequest, error: Exception) -> ConnexionResponse:
        failure = errors.describe(error, request.scope)
        return ConnexionResponse(
            status_code=failure.status, mimetype="text/plain", body=failure.info.message.encode()
        )

    replace(handlers.http.application, "answer", answer)


def _change_answer(
    replace: Replace, change: Callable[[ConnexionRequest, ConnexionResponse], None]
) -> None:
    original = errors.answer

    async def answer(request: ConnexionRequest, error: Exception) -> ConnexionResponse:
        response = await original(request, error)
        change(request, response)
        return response

    replace(handlers.http.application, "answer", answer)


@MUTANTS.caught_by(checks.errors_have_the_envelope, "^200: ")
def errors_have_the_status_of_success(replace: Replace) -> None:
    """Errors come with the status 200."""

    def change(request: ConnexionRequest, response: ConnexionResponse) -> None:
        response.status_code = 200

    _change_answer(replace, change)


@MUTANTS.caught_by(checks.errors_have_the_envelope, "'code': 405")
def errors_tell_another_status(replace: Replace) -> None:
    """The envelope's `code` is not the status of the answer."""

    def change(request: ConnexionRequest, response: ConnexionResponse) -> None:
        if response.status_code == 404:
            response.body = response.body.replace(b'"code":404', b'"code":405')

    _change_answer(replace, change)


def _change_failure(replace: Replace, change: Callable[[Failure], Failure]) -> None:
    original = errors._failure

    def failure(
        status: int,
        message: str,
        headers: dict[str, str] | None = None,
        details: dict[str, Any] | None = None,
    ) -> Failure:
        return change(original(status, message, headers, details))

    replace(errors, "_failure", failure)


@MUTANTS.caught_by(checks.errors_have_the_envelope, "expected not_found_error")
def errors_have_the_wrong_type(replace: Replace) -> None:
    """What is not found is a `server_error`."""

    def change(right: Failure) -> Failure:
        if right.status != 404:
            return right
        return msgspec.structs.replace(right, info=ErrorInfo("server_error", right.info.message))

    _change_failure(replace, change)


@MUTANTS.caught_by(checks.errors_have_the_envelope, "500")
def bad_tokens_are_server_errors(replace: Replace) -> None:
    """What only the engine can refuse is answered with 500."""
    original = errors.describe

    def describe(error: Exception, scope: Scope) -> Failure:
        right = original(error, scope)
        if not isinstance(error, EngineError) or right.status != 400:
            return right
        return msgspec.structs.replace(right, status=500)

    replace(errors, "describe", describe)


@MUTANTS.caught_by(servers.allowed_methods_are_told, "is not allowed, only")
def methods_are_not_told(replace: Replace) -> None:
    """`Allow` is empty."""

    def allowed_methods(scope: Scope) -> list[str]:
        return []

    replace(errors, "_allowed_methods", allowed_methods)


@MUTANTS.not_caught(
    "The header is optional: the description says `where that can be said`, and a server is "
    "neither overloaded nor restarted by the kit, which has to leave other people's servers alone."
)
def refusals_do_not_say_when_to_come_back(replace: Replace) -> None:
    """503 is without `Retry-After`."""

    def change(request: ConnexionRequest, response: ConnexionResponse) -> None:
        response.headers.pop("Retry-After", None)

    _change_answer(replace, change)


@MUTANTS.caught_by(servers.heads_have_no_body, "has a body")
def heads_have_a_body(replace: Replace) -> None:
    """The answer to HEAD is the one to GET."""
    original = RequestResponseCycle.send

    async def send(self: RequestResponseCycle, message: ASGISendEvent) -> None:
        if self.scope["method"] == "HEAD":
            self.scope["method"] = "GET"
        await original(self, message)

    replace(RequestResponseCycle, "send", send)


@MUTANTS.caught_by(servers.requests_have_ids, "contract-tests-5519", lies=True)
def ids_of_requests_are_forgotten(replace: Replace) -> None:
    """Every answer has an id of the server's own."""
    original = handlers.http.notes.request_id

    def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
        return original(())

    replace(handlers.http.notes, "request_id", request_id)


@MUTANTS.caught_by(servers.requests_have_ids, "two requests with one", lies=True)
def all_requests_have_one_id(replace: Replace) -> None:
    """Those that bring none along."""
    original = handlers.http.notes.request_id

    def request_id(headers: Iterable[tuple[bytes, bytes]]) -> str:
        given = [value for name, value in headers if name == handlers.http.notes.HEADER]
        return original(headers) if given else "req_0"

    replace(handlers.http.notes, "request_id", request_id)


# ---- who may do what -------------------------------------------------------------------------


@MUTANTS.caught_by(checks.keys_are_wanted, ACCEPTED, lies=True)
def every_key_is_right(replace: Replace) -> None:
    """A server with a key takes any."""

    def is_api_key(candidate: str, keys: tuple[bytes, ...]) -> bool:
        return True

    replace(handlers.http.security, "_is_api_key", is_api_key)


@MUTANTS.caught_by(checks.keys_are_wanted, ACCEPTED, lies=True)
def a_part_of_a_key_is_enough(replace: Replace) -> None:
    """The first letters of the key open the door."""

    def is_api_key(candidate: str, keys: tuple[bytes, ...]) -> bool:
        return any(key.startswith(candidate.encode()) and candidate for key in keys)

    replace(handlers.http.security, "_is_api_key", is_api_key)


@MUTANTS.caught_by(checks.keys_are_wanted, "expected 200, got .* 401", lies=True)
def keys_of_anthropics_clients_are_wrong(replace: Replace) -> None:
    """The header `x-api-key` is not looked at."""

    def api_key_info(api_key: str, request: ConnexionRequest) -> dict[str, str] | None:
        return None

    replace(handlers.http.security, "api_key_info", api_key_info)


@MUTANTS.caught_by(checks.keys_are_wanted, "without WWW-Authenticate", lies=True)
def refusals_do_not_say_how_to_authenticate(replace: Replace) -> None:
    """401 is without `WWW-Authenticate`."""
    _change_failure(replace, lambda right: msgspec.structs.replace(right, headers={}))


def _operation(scope: Scope) -> str:
    found = scope["extensions"][ROUTING_CONTEXT]["operation_id"] if scope["type"] == "http" else ""
    return (found or "").rpartition(".")[2]


@MUTANTS.caught_by(servers.keys_are_wanted_everywhere, "GET /slots wants no key: 200", lies=True)
def one_operation_wants_no_key(replace: Replace) -> None:
    """Anybody may see the slots."""
    original = handlers.http.stack.Security.__call__

    async def call(
        self: handlers.http.stack.Security, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if _operation(scope) == "list_slots":
            await self.app(scope, receive, send)
        else:
            await original(self, scope, receive, send)

    replace(handlers.http.stack.Security, "__call__", call)


@MUTANTS.caught_by(servers.public_operations_want_no_key, "expected 200, got .* 401", lies=True)
def the_health_wants_a_key(replace: Replace) -> None:
    """A public operation refuses who brings no key."""
    original = handlers.http.stack.Security.__call__

    async def call(
        self: handlers.http.stack.Security, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if _operation(scope) == "get_health" and not is_known(scope):
            raise HTTPException(401)
        await original(self, scope, receive, send)

    replace(handlers.http.stack.Security, "__call__", call)


@MUTANTS.caught_by(servers.foreign_pages_change_nothing, "serves a foreign page", lies=True)
def foreign_pages_may_do_everything(replace: Replace) -> None:
    """Pages of any origin may change the server's state."""

    def is_foreign(scope: Scope) -> bool:
        return False

    replace(handlers.http.stack, "is_foreign", is_foreign)


# ---- operations without a model --------------------------------------------------------------


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "'fine'|\"fine\"|fine")
def the_health_has_another_word(replace: Replace) -> None:
    """`status` is none of the described values."""

    async def get_health() -> JSONAnswer:
        return JSONAnswer({"status": "fine"})

    replace(handlers.health, "get_health", get_health)


@MUTANTS.caught_by(servers.the_description_is_served, "without.*post /tokenize", lies=True)
def an_operation_is_not_described(replace: Replace) -> None:
    """The served description lacks a path."""
    original = handlers.description.get_openapi_json

    async def get_openapi_json() -> Response:
        document = json.loads(bytes((await original()).body))
        del document["paths"]["/tokenize"]
        return JSONAnswer(document)

    replace(handlers.description, "get_openapi_json", get_openapi_json)


@MUTANTS.caught_by(servers.what_is_refused_says_so, "answers 200", lies=True)
def what_is_not_there_pretends(replace: Replace) -> None:
    """The compaction of conversations, which nobody does, is an empty list."""

    async def compact_response() -> Response:
        return JSONAnswer({"output": []})

    replace(handlers.refused, "compact_response", compact_response)
