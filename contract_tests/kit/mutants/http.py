"""HTTP: bodies, errors, keys, foreign pages, the description."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

from contract_tests.kit import checks, contract, lint
from contract_tests.kit.checks import servers
from contract_tests.kit.contract import JSON
from contract_tests.kit.mutants.exchange import Answer, Mutation, PassOn, Request
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import answers, at, errors, plain, requests, without

MUTANTS = Mutants("HTTP")

ACCEPTED = "expected 40[014], got .* 200"
"""How a check fails if the server accepts a request that it should reject."""


def failed(status: int, type: str = "server_error") -> Answer:
    """Returns an error in the server's own format."""
    return Answer.of(status, {"error": {"code": status, "message": "Oops.", "type": type}})


def _is_malformed(request: Request) -> bool:
    is_json = request.headers.get("content-type", "").startswith(JSON)
    return is_json and request.json is None and request.body.strip() != b"null"


@MUTANTS.caught_by(checks.malformed_json_is_refused, ACCEPTED)
def malformed_json_is_an_empty_object() -> Mutation:
    """A body that is no JSON is read as an object with hardly any fields."""
    few = {"prompt": "a", "content": "a", "n_predict": 1}
    return requests(lambda request: request.with_json(few) if _is_malformed(request) else request)


@MUTANTS.caught_by(checks.malformed_json_is_refused, "expected 400, got .* 500")
def malformed_json_is_a_server_error() -> Mutation:
    """A body that is no JSON causes a server error."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        return failed(500) if _is_malformed(request) else await pass_on(request)

    return mutation


def _is_invalid(request: Request) -> bool:
    """True if the body is JSON that the description rejects."""
    operation = contract.operations().get(request.operation)
    content = operation.definition.get("requestBody", {}).get("content", {}) if operation else {}
    if JSON not in content or _is_malformed(request) or not request.body:
        return False
    return any(lint.errors(content[JSON]["schema"], request.json))


@MUTANTS.caught_by(checks.errors_have_the_envelope, "500")
def bodies_are_not_validated() -> Mutation:
    """A JSON body that doesn't match its schema causes a server error."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        return failed(500) if _is_invalid(request) else await pass_on(request)

    return mutation


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "'text/html' is not a documented")
def answers_are_announced_as_html() -> Mutation:
    """The content type of JSON is text/html."""
    return answers(
        lambda request, answer: (
            answer.with_header("Content-Type", "text/html")
            if answer.kind == JSON and answer.is_success
            else answer
        )
    )


def _change_errors(change: Callable[[Answer], Answer], *statuses: int) -> Mutation:
    """Changes the answers with these statuses; without statuses, all errors."""

    def changed(_: Request, answer: Answer) -> Answer:
        is_meant = answer.status in statuses if statuses else not answer.is_success
        return change(answer) if is_meant else answer

    return answers(changed)


@MUTANTS.caught_by(checks.errors_have_the_envelope, "text/plain")
def errors_are_plain_text() -> Mutation:
    """Errors have a message and no envelope."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if answer.is_success or answer.kind != JSON:
            return answer
        return answer.with_header("Content-Type", "text/plain").with_content(b"This went wrong.")

    return mutation


@MUTANTS.caught_by(checks.errors_have_the_envelope, "^200: ")
def errors_have_the_status_of_success() -> Mutation:
    """Errors come with the status 200."""
    return _change_errors(lambda answer: answer.with_status(200))


@MUTANTS.caught_by(checks.errors_have_the_envelope, "'code': 405")
def errors_contain_another_status() -> Mutation:
    """The envelope's `code` is not the status of the answer."""
    return _in_404(at("error.code", lambda code: 405))


@MUTANTS.caught_by(checks.errors_have_the_envelope, "expected not_found_error")
def errors_have_the_wrong_type() -> Mutation:
    """The error for something missing has the type `server_error`."""
    return _in_404(at("error.type", lambda type: "server_error"))


def _in_404(change: Callable[[Any], Any]) -> Mutation:
    return errors(lambda status, document: change(document) if status == 404 else document)


@MUTANTS.caught_by(checks.errors_have_the_envelope, "500")
def bad_tokens_are_server_errors() -> Mutation:
    """Mistakes that only the engine can detect are answered with 500."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        is_meant = request.operation == "detokenize" and answer.status == 400
        return failed(500) if is_meant and not _is_invalid(request) else answer

    return mutation


@MUTANTS.caught_by(servers.allowed_methods_are_listed, "is not allowed, only")
def methods_are_not_listed() -> Mutation:
    """`Allow` is empty."""
    return _change_errors(lambda answer: answer.with_header("Allow", ""), 405)


@MUTANTS.not_caught(
    "The header is optional, and the kit neither overloads nor restarts a server, because it may "
    "be in use by others."
)
def refusals_do_not_say_when_to_come_back() -> Mutation:
    """503 is without `Retry-After`."""
    return _change_errors(lambda answer: answer.with_header("Retry-After", None), 503)


@MUTANTS.caught_by(servers.heads_have_no_body, "has a body")
def heads_have_a_body() -> Mutation:
    """The answer to HEAD is the one to GET."""
    return requests(
        lambda request: (
            dataclasses.replace(request, method="GET") if request.method == "HEAD" else request
        )
    )


@MUTANTS.caught_by(servers.requests_have_ids, "contract-tests-5519", as_described=True)
def ids_of_requests_are_forgotten() -> Mutation:
    """Every answer has an id made by the server, even if the client sent one."""
    return requests(lambda request: request.with_header("X-Request-Id", None))


@MUTANTS.caught_by(servers.requests_have_ids, "two requests with one", as_described=True)
def all_requests_have_one_id() -> Mutation:
    """Requests without an id all get the same one."""
    return requests(
        lambda request: (
            request
            if "x-request-id" in request.headers
            else request.with_header("X-Request-Id", "req_0")
        )
    )


# ---- keys and foreign pages ------------------------------------------------------------------


@MUTANTS.caught_by(checks.keys_are_wanted, ACCEPTED, as_described=True)
def every_key_is_right() -> Mutation:
    """A server with a key accepts any key."""
    return requests(lambda request: request if request.has_right_key else request.with_right_key())


@MUTANTS.caught_by(checks.keys_are_wanted, ACCEPTED, as_described=True)
def a_part_of_a_key_is_enough() -> Mutation:
    """The first letters of the key are accepted as the key."""

    def changed(request: Request) -> Request:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        is_part = bool(given) and (request.api_key or "").startswith(given)
        return request.with_right_key() if is_part and not request.has_right_key else request

    return requests(changed)


@MUTANTS.caught_by(checks.keys_are_wanted, "expected 200, got .* 401", as_described=True)
def keys_of_anthropics_clients_are_wrong() -> Mutation:
    """The header `x-api-key` is ignored."""
    return requests(lambda request: request.with_header("x-api-key", None))


@MUTANTS.caught_by(checks.keys_are_wanted, "without WWW-Authenticate")
def refusals_do_not_say_how_to_authenticate() -> Mutation:
    """401 is without `WWW-Authenticate`."""
    return _change_errors(lambda answer: answer.with_header("WWW-Authenticate", None), 401)


@MUTANTS.caught_by(
    servers.keys_are_wanted_everywhere, "GET /slots needs no key: 200", as_described=True
)
def one_operation_wants_no_key() -> Mutation:
    """The slots are shown without a key."""
    return requests(
        lambda request: request if request.has_right_key else request.with_right_key(),
        "list_slots",
    )


def _showing_the_key(operation: str, change: Callable[[bytes, bytes], bytes]) -> Mutation:
    """Changes the content of an operation's answer; `change` also gets the key."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if request.operation != operation or not answer.is_success:
            return answer
        key = (request.api_key or "").encode()
        return await answer.changed(lambda content: change(content, key))

    return mutation


@MUTANTS.caught_by(servers.keys_are_never_shown, "get_metrics", as_described=True)
def a_label_has_a_key() -> Mutation:
    """A metric has the key as a label."""
    line = b'llamacpp:requests_of_key{key="%b"} 1\n'
    return _showing_the_key("get_metrics", lambda content, key: content + line % key)


@MUTANTS.caught_by(servers.keys_are_never_shown, "list_slots", as_described=True)
def slots_have_keys() -> Mutation:
    """The slots have the key in the place of its name."""
    return _showing_the_key(
        "list_slots",
        lambda content, key: re.sub(rb'("key_name": *")[^"]*', rb"\g<1>" + key, content),
    )


@MUTANTS.caught_by(
    servers.public_operations_want_no_key, "expected 200, got .* 401", as_described=True
)
def the_health_wants_a_key() -> Mutation:
    """A public operation refuses requests without a key."""

    def changed(request: Request) -> Request:
        # Another operation needs a key, so its answer has the server's own words.
        return request if request.has_right_key else request.to("GET", "/props")

    return requests(changed, "get_health")


@MUTANTS.caught_by(servers.foreign_pages_change_nothing, "serves a foreign page", as_described=True)
def foreign_pages_may_do_everything() -> Mutation:
    """Pages of any origin may change the server's state."""
    return requests(lambda request: request.with_header("Origin", None))


# ---- operations without a model --------------------------------------------------------------


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "'fine'|`fine`|fine")
def the_health_has_another_word() -> Mutation:
    """`status` is `fine`, which the description doesn't list."""
    return plain(at("status", lambda status: "fine"), "get_health")


@MUTANTS.caught_by(servers.the_description_is_served, "without.*post /tokenize", as_described=True)
def an_operation_is_not_described() -> Mutation:
    """The served description lacks a path."""
    return plain(at("paths", without("/tokenize")), "get_openapi_json")


@MUTANTS.caught_by(servers.unsupported_operations_say_so, "answers 200", as_described=True)
def what_is_not_there_pretends() -> Mutation:
    """`POST /cors-proxy`, which is described as unsupported, answers with an empty page."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        if request.operation == "post_through_proxy":
            return Answer.of(200, "")
        return await pass_on(request)

    return mutation
