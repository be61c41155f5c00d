"""Configures Schemathesis for this description: which checks run, and which answers are right.

Each disabled check and each extra allowed status has its reason next to it.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import hypothesis
import schemathesis
from hypothesis import HealthCheck, Verbosity, reject
from schemathesis import Case, CheckFunction
from schemathesis.checks import ignored_auth
from schemathesis.config import SchemathesisConfig
from schemathesis.core.errors import InvalidSchema
from schemathesis.core.result import Err
from schemathesis.generation.jsonschema.strategy import DECLINED
from schemathesis.generation.meta import TestPhase
from schemathesis.pytest.lazy import get_all_tests
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi import negative

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import (
    ALIASES,
    COUNTING,
    EMBEDDING,
    ENDLESS,
    GEMINI,
    GENERATING_GEMINI,
    OLLAMA_EMBEDDING,
    REFUSED,
    RERANKING,
    RESPONSES,
    ROUTING,
    STREAMING,
)
from contract_tests.kit.server import SECONDS

# Schemathesis skips a mutation of a schema from which it can't generate values, but not one whose
# canonical form it doesn't support. A schema of the description itself still raises the error.
vars(negative)["DECLINED"] = (*DECLINED, InvalidSchema)

MODES = ("positive", "negative")
N_PREDICT = 2
"""The limit of generated tokens per request: the tests are about the form of requests."""

N_TEXTS = 3
"""The greatest number of texts for a prompt."""

MIN_MS = 600_000
"""The shortest time limit of a request. With a shorter one, the machine's speed would decide
between an answer and 503."""

TIME_LIMITS = ("timeout_ms", "t_max_prompt_ms", "timeoutMs", "tMaxPromptMs")
TIME_LIMIT_HEADERS = ("X-Request-Timeout-Ms", "X-Request-Prompt-Timeout-Ms")


@dataclass
class Settings:
    """The settings of this run, from pytest's command line."""

    max_examples: int = 25
    api_key: str | None = None
    in_full: bool = True
    """True if aliases and unsupported operations get as many requests as all others. A server of
    another make may have separate handlers for them."""
    chosen: Collection[str] | None = None
    """The operations (method and path) to test; None for all."""


settings = Settings()

UNHURRIED = hypothesis.settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    print_blob=False,
    verbosity=Verbosity.quiet,
)

LIGHT = 4
"""Examples for an alias or an unsupported operation, unless all are tested in full."""


def in_full(names: Collection[str]) -> list[str]:
    """Returns the operations among `names` that this run tests in full."""
    return [name for name in names if settings.in_full or name not in ALIASES]


def config(mode: str, max_examples: int) -> SchemathesisConfig:
    """Returns the settings for one mode: `positive` (valid requests) or `negative` (invalid
    ones)."""
    return SchemathesisConfig.from_dict(
        {
            "generation": {
                "mode": mode,
                "max-examples": max_examples,
                "deterministic": True,
                # We send a right key. That wrong keys are rejected is tested by the check
                # ignored_auth, which sends its own keys, and by test_statuses.py.
                "with-security-parameters": False,
            },
            "max-stream-events": 10_000,
            "request-timeout": SECONDS,
            "checks": {
                # The check compares with the methods of one operation; `Allow` lists all methods of
                # the path, HEAD included.
                "allow_header_conformance": {"enabled": False},
                # The check repeats each request three times: without a key and with wrong keys.
                "ignored_auth": {"enabled": settings.api_key is not None and mode == "positive"},
            },
            "operations": [
                *_light(max_examples),
                {
                    "include-operation-id": [
                        *(name for name in STREAMING if name not in RESPONSES),
                        "create_ollama_generation",
                        "apply_template",
                        "count_chat_tokens",
                        "count_chat_tokens_alias",
                        "count_message_tokens",
                    ],
                    "checks": _allowing(400, 501),
                },
                # No conversation and no item has a made-up id.
                {
                    "include-operation-id": [
                        *RESPONSES,
                        "count_response_tokens",
                        "count_response_tokens_alias",
                    ],
                    "checks": _allowing(400, 404, 501),
                },
                {"include-operation-id": "create_conversation", "checks": _allowing(400, 501)},
                # For `GET`, a method of Google's is a part of a model's name, so there is no 405.
                {
                    "include-operation-id": GEMINI,
                    "checks": {**_allowing(400, 501), "unsupported_method": {"enabled": False}},
                },
                # 501 from a server that was started for something else.
                {
                    "include-operation-id": [*EMBEDDING, *OLLAMA_EMBEDDING, *RERANKING],
                    "checks": _allowing(400, 501),
                },
                # 501 from a model without audio input.
                {
                    "include-operation-id": ["create_transcription", "create_transcription_alias"],
                    "checks": _allowing(400, 501),
                },
                {"include-operation-id": ["tokenize", "detokenize"], "checks": _allowing(400)},
                # Only one option switches it on, and there is no file to restore.
                {
                    "include-operation-id": ["act_on_slot", "set_props", "get_metrics", "predict"],
                    "checks": _allowing(400, 501),
                },
                # On a router, no model may have that name, or the model may already be in that
                # state.
                {
                    "include-operation-id": [*ROUTING, "remove_model"],
                    "checks": _allowing(400, 404, 501),
                },
                # The server always refuses these.
                {"include-operation-id": REFUSED, "checks": _allowing(403, 404, 501)},
                # No model has a made-up name.
                {"include-operation-id": "get_model", "checks": _allowing(404)},
                # An asset may have any name, and hardly any name has an asset.
                {
                    "include-operation-id": ["get_docs_asset", "get_page_asset"],
                    "checks": _allowing(404),
                },
                # Messages and items that don't fit together; media; tools that this server doesn't
                # have.
                {
                    "include-operation-id": [
                        "count_chat_tokens",
                        "count_chat_tokens_alias",
                        "compact_response",
                        "compact_response_alias",
                    ],
                    "checks": _allowing(400, 501),
                },
                # No response has a made-up id; 501 is for `stream`.
                {
                    "include-operation-id": [
                        "get_response",
                        "delete_response",
                        "list_response_input_items",
                        "cancel_response",
                    ],
                    "checks": _allowing(404, 501),
                },
            ],
        }
    )


def _light(max_examples: int) -> list[dict[str, Any]]:
    """Returns settings for operations that are described like others: few values of each parameter,
    and few examples."""
    if settings.in_full:
        return []
    phases = {"coverage": {"enabled": False}}
    generation = {"max-examples": min(LIGHT, max_examples)}
    few = {"include-operation-id": [*ALIASES, *REFUSED], "generation": generation, "phases": phases}
    # Operations that count tokens, and compaction, accept the bodies of another operation.
    return [few, {"include-operation-id": [*COUNTING, "compact_response"], "phases": phases}]


def _allowing(*statuses: int) -> dict[str, Any]:
    """Allows `statuses` for valid requests for reasons that a schema can't express: 400 for a token
    outside the vocabulary, a prompt longer than the context, a bias with token and value swapped,
    or a template that doesn't accept these messages; 501 for a value that is not in
    `x-supported-values`."""
    allowed = {"positive_data_acceptance": {"expected-statuses": ["2xx", *statuses]}}
    if 501 in statuses:
        allowed["not_a_server_error"] = {"expected-statuses": ["2xx", "4xx", 501]}
    return allowed


@cache
def _description(mode: str, max_examples: int) -> BaseSchema:
    return schemathesis.openapi.from_path(str(lint.DESCRIPTION), config=config(mode, max_examples))


def schema(mode: str, operation_id: str, max_examples: int | None = None) -> BaseSchema:
    """Returns one operation as a schema for requests of one mode. `max_examples` overrides the
    command line's."""

    def is_another(context: Any) -> bool:
        return bool(context.operation.definition.raw["operationId"] != operation_id)

    # Not `include`: an operation is tested if any include filter matches it, and the
    # configuration has include filters as well.
    return _description(mode, max_examples or settings.max_examples).exclude(is_another)


def operations(mode: str, tag: str | None = None) -> list[str]:
    """Returns the operations that get generated requests of one mode, or only those of `tag`."""
    return [
        name
        for name, each in contract.operations().items()
        if not (
            # Schemathesis would read an endless answer for ever. test_router_models.py reads such a
            # stream.
            name in ENDLESS
            # A request without a WebSocket's handshake is refused, however valid it is.
            or "x-websocket" in each.definition
            or (mode == "negative" and has_no_input(each.definition))
            or (tag is not None and tag not in each.definition["tags"])
            or (settings.chosen is not None and each.name not in settings.chosen)
        )
    ]


def has_no_input(definition: Mapping[str, Any]) -> bool:
    """True if an operation accepts no input that could be wrong."""
    return "x-refused" in definition or not (
        "requestBody" in definition or definition.get("parameters")
    )


def fuzz(
    mode: str,
    operation_id: str,
    test: Callable[[Case[Any]], None],
    max_examples: int | None = None,
) -> None:
    """Generates requests of one mode for one operation, and passes each to `test`.

    Schemathesis' own `parametrize` makes the requests of all operations when tests are collected.
    That takes half a minute and 2 GB in each process of pytest.
    """

    def tested_case(case: Case[Any]) -> None:  # Schemathesis passes `case` by its name
        test(case)

    chosen = schema(mode, operation_id, max_examples)
    [found] = get_all_tests(
        schema=chosen, test_func=tested_case, settings=UNHURRIED, given_kwargs=None
    )
    if isinstance(found, Err):
        raise found.err()
    _, run = found.ok()
    run()


def bound(case: Case[Any]) -> None:
    """Limits a request to `N_PREDICT` tokens and `N_TEXTS` texts, and gives it at least `MIN_MS`,
    unless it tries an invalid number.

    Not a `map_case` hook: those are not called for the cases of the coverage phase. A body is only
    replaced if it changes: Schemathesis then no longer knows a valid one among invalid requests.
    """
    if isinstance(case.body, dict):
        name = case.operation.definition.raw["operationId"]
        bounded = with_time(with_bounded_answer(name, case.body))
        if bounded is not case.body:
            case.body = bounded
    for name in TIME_LIMIT_HEADERS:
        if name in case.headers and _is_short(_number(case.headers[name])):
            case.headers[name] = str(MIN_MS)


def with_time(body: Any) -> Any:
    """Returns the body with time limits of at least `MIN_MS`, also those in an object of it, such
    as Google's `generationConfig`."""
    if not isinstance(body, dict):
        return body
    changed: dict[str, Any] = {
        name: MIN_MS for name in TIME_LIMITS if _is_number(body.get(name)) and _is_short(body[name])
    }
    for name, each in body.items():
        if (inner := with_time(each)) is not each:
            changed[name] = inner
    return {**body, **changed} if changed else body


def _is_short(milliseconds: float) -> bool:
    """True for a time limit below `MIN_MS`. 0 and negative numbers set no limit."""
    return 0 < milliseconds < MIN_MS


def _number(value: Any) -> float:
    """Returns the number that a header's value is; 0 if it is no number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def with_bounded_answer(operation_id: str, body: dict[str, Any]) -> dict[str, Any]:
    """Returns the body with limits of `N_PREDICT` tokens and `N_TEXTS` texts, unless it tries an
    invalid number. The body of an operation that generates nothing is returned as it is."""
    if operation_id in GENERATING_GEMINI:
        return _with_bounded_config(body)
    if operation_id == "create_ollama_generation":
        return _with_bounded_options(body)
    return _with_bounded_length(body) if operation_id in STREAMING else body


def _with_bounded_length(body: dict[str, Any]) -> dict[str, Any]:
    body = {**body}
    if isinstance(body.get("options"), dict) and _is_number(body["options"].get("num_predict")):
        body["options"] = {**body["options"], "num_predict": N_PREDICT}
    for name in ("n", "n_cmpl", "best_of"):
        if _is_many(body.get(name)):
            body[name] = N_TEXTS
    given = body.get("n_predict")
    valid = given is None or (_is_number(given) and -1 <= given < 2**31)
    if not valid or (given is not None and int(given) == 0):
        return body
    return {**body, "n_predict": N_PREDICT}


def _with_bounded_options(body: dict[str, Any]) -> dict[str, Any]:
    """Only `options` can have a limit."""
    options = body.get("options")
    if not isinstance(options, dict | None):
        return body
    given = (options or {}).get("num_predict")
    if given is None or (_is_number(given) and -2 <= given < 2**31):
        return {**body, "options": {**(options or {}), "num_predict": N_PREDICT}}
    return body


def _with_bounded_config(body: dict[str, Any]) -> dict[str, Any]:
    """Google's limits are in `generationConfig`."""
    bounded = body.get("generationConfig", {})
    if not isinstance(bounded, dict):
        return body
    bounded = {**bounded}
    if _is_many(bounded.get("candidateCount")):
        bounded["candidateCount"] = N_TEXTS
    given = bounded.get("maxOutputTokens")
    if given is None or (_is_number(given) and -1 <= given < 2**31 and int(given) != 0):
        bounded["maxOutputTokens"] = N_PREDICT
    return {**body, "generationConfig": bounded}


def _is_many(n: Any) -> bool:
    """True for a valid number of texts beyond `N_TEXTS`."""
    return _is_number(n) and N_TEXTS < n <= 1024


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def excluded_checks(case: Case[Any]) -> list[CheckFunction]:
    """Returns the checks that are not made for the answer to `case`.

    `ignored_auth` sends each request three more times. It doesn't depend on the values of fields,
    so it leaves out the requests that try all values of each field.
    """
    meta = case.meta
    is_covering = meta is not None and meta.phase.name == TestPhase.COVERAGE
    return [ignored_auth] if is_covering and not settings.in_full else []


def skip_spellings(case: Case[Any]) -> None:
    """Skips a request whose body is invalid only in that a whole number has a fraction.

    In the draft of JSON Schema that OpenAPI 3.0 builds upon, 1.0 is no integer. In every later
    draft it is one, and a server need not distinguish the two.
    """
    body = with_whole_numbers(case.body)
    # Compared as text: 1.0 == 1.
    if repr(body) == repr(case.body):
        return
    if _is_invalid(case, case.body) and not _is_invalid(case, body):
        reject()


def with_whole_numbers(value: Any) -> Any:
    """Returns the JSON value with each whole float as an integer (1.0 as 1)."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [with_whole_numbers(each) for each in value]
        case dict():
            return {name: with_whole_numbers(each) for name, each in value.items()}
    return value


def _is_invalid(case: Case[Any], body: Any) -> bool:
    definition = contract.operations()[case.operation.definition.raw["operationId"]].definition
    if "requestBody" not in definition or case.media_type != contract.JSON:
        return False
    described = definition["requestBody"]["content"][contract.JSON]
    return any(lint.errors(described["schema"], body))
