"""Checks whether the description allows an answer."""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import httpx

from contract_tests.kit import lint
from contract_tests.kit.events import Event, check_events, read_events

JSON = "application/json"


@cache
def document() -> lint.Document:
    return lint.load()


@cache
def operations() -> dict[str, lint.Operation]:
    """Returns all operations by `operationId`."""
    return {each.definition["operationId"]: each for each in lint.operations(document())}


def find(method: str, path: str) -> lint.Operation:
    """Returns the operation at a path that a request uses."""
    path = path.partition("?")[0]
    found = [each for each in operations().values() if each.method == method.lower()]
    # A path without parameters takes precedence.
    for operation in sorted(found, key=lambda each: "{" in each.path):
        if re.fullmatch(_pattern(operation), path, re.DOTALL):
            return operation
    raise AssertionError(f"the description has no {method} {path}")


def _pattern(operation: lint.Operation) -> str:
    """Returns a regular expression for the paths of an operation. A parameter of the format `path`
    may contain slashes."""
    pattern = re.escape(operation.path)
    for each in operation.definition.get("parameters", ()):
        if each["in"] == "path":
            value = ".*" if each["schema"].get("format") == "path" else "[^/]+"
            pattern = pattern.replace(re.escape(f"{{{each['name']}}}"), value)
    return pattern


def is_public(operation: lint.Operation) -> bool:
    """Whether the operation accepts a request without an API key."""
    security = operation.definition.get("security", document()["security"])
    return not security or {} in security


def answers(operation: lint.Operation, status: int) -> Mapping[str, Any]:
    """Returns the described answers with one status: media type objects by content type."""
    responses = operation.definition["responses"]
    assert str(status) in responses, f"{operation.name} has no documented status {status}"
    content: Mapping[str, Any] = responses[str(status)].get("content", {})
    return content


def media_type(response: httpx.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip()


def check(response: httpx.Response, status: int = 200) -> Any:
    """Returns the document in `response`, or the list of a stream's documents.

    Fails unless the response has the status `status`, and status, headers, content type and
    body are as the description says.
    """
    request = response.request
    base = prefix(request)
    operation = find(request.method, request.url.path.removeprefix(base))
    said = f"{operation.name}: {response.status_code} {response.text:.500}"
    assert response.status_code == status, f"expected {status}, got {said}"
    return check_answer(operation, response)


def check_answer(operation: lint.Operation, response: httpx.Response) -> Any:
    """Returns the document in the answer of a known operation, with any documented status."""
    request, status = response.request, response.status_code
    said = f"{operation.name}: {status} {response.text:.500}"
    described = answers(operation, status)
    kind = media_type(response)
    if not described:
        assert not response.content, f"an answer without content has some: {said}"
        _check_headers(operation, status, response)
        return None
    assert kind in described, f"{kind!r} is not a documented content type of {said}"
    _check_headers(operation, status, response)
    form = request.headers.get("content-type", "").startswith("multipart/")
    is_json = not form and "content-encoding" not in request.headers
    asked = json.loads(request.content) if status == 200 and is_json and request.content else None
    if kind == lint.EVENT_STREAM:
        return check_stream(operation, list(read_events([response.content])), asked)
    if kind == lint.LINES:
        return check_lines(described[kind], response.content)
    if kind != JSON:
        return response.content
    body = json.loads(response.content, parse_constant=_no_constant)
    problems = list(lint.errors(described[kind]["schema"], body, asked))
    assert not problems, f"{problems} in {said}"
    return body


def check_stream(operation: lint.Operation, events: list[Event], asked: Any = None) -> list[Any]:
    """Validates the events of a successful response to a body `asked`, and returns their
    documents."""
    return check_events(answers(operation, 200)[lint.EVENT_STREAM], events, asked)


def check_lines(media: Mapping[str, Any], content: bytes) -> list[Any]:
    """Validates the lines of one whole stream, and returns their documents. Only the last line may
    be an error."""
    text = content.decode("utf-8")
    lines = text.splitlines()  # also splits at line ends other than the line feed
    assert lines, "the stream has no lines"
    assert lines == text.split("\n")[:-1], f"not lines that end with line feeds: {text[-300:]!r}"
    for i, line in enumerate(lines):
        problems = list(lint.line_errors(media, line))
        assert not problems, f"line {i}, {line:.500}: {problems}"
    documents = [json.loads(line) for line in lines]
    assert not any("error" in document for document in documents[:-1]), "an error is not the end"
    return documents


def check_envelope(response: httpx.Response, status: int, type_: str | None = None) -> Any:
    """Returns the `error` of an answer to a request that the description doesn't have."""
    assert response.status_code == status, f"{response.status_code}: {response.text:.500}"
    assert media_type(response) == JSON, f"{media_type(response)}: {response.text:.500}"
    error = response.json()["error"]
    assert error["code"] == status, error
    assert isinstance(error["message"], str), error
    assert error["message"], error
    assert isinstance(error["type"], str), error
    assert type_ in (None, error["type"]), f"expected {type_}: {error}"
    return error


def message(response: httpx.Response) -> str:
    """Returns the message of an error, in the envelope or in Ollama's form."""
    error = response.json()["error"]
    return str(error if isinstance(error, str) else error["message"])


def _check_headers(operation: lint.Operation, status: int, response: httpx.Response) -> None:
    described = operation.definition["responses"][str(status)].get("headers", {})
    for name, header in described.items():
        if header.get("required") is False and name not in response.headers:
            continue
        assert name in response.headers, f"{operation.name} {status} is without {name}"
        value: Any = response.headers[name]
        if header["schema"].get("type") == "integer" and value.isdecimal():
            value = int(value)
        problems = list(lint.errors(header["schema"], value))
        assert not problems, f"{operation.name} {status}, {name}: {problems}"


def prefix(request: httpx.Request) -> str:
    """Returns the API prefix before a path of the description."""
    path = request.url.path
    for each in sorted(document()["paths"], key=len, reverse=True):
        fixed = each.partition("{")[0]
        at = path.rfind(fixed) if fixed != each else len(path) - len(fixed)
        if at >= 0 and path[at : at + len(fixed)] == fixed:
            return path[:at]
    return ""


def _no_constant(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")


def is_form(operation: lint.Operation) -> bool:
    """True if an operation accepts a form with files instead of JSON."""
    content = operation.definition.get("requestBody", {}).get("content", {})
    return "multipart/form-data" in content


def streaming() -> Iterator[lint.Operation]:
    """Returns the operations that stream if a JSON body asks for it."""
    for operation in operations().values():
        if {lint.EVENT_STREAM, JSON} <= _successes(operation) and _has_stream(operation):
            yield operation


def _has_stream(operation: lint.Operation) -> bool:
    """True if `stream` is a field of a JSON body."""
    content = operation.definition.get("requestBody", {}).get("content", {})
    nodes = lint.walk(content.get(JSON, {}).get("schema", {}), "")
    return any("stream" in node.schema.get("properties", {}) for node in nodes)


def endless() -> Iterator[lint.Operation]:
    """Returns the operations whose answer is always a stream that only the client ends. Operations
    that repeat a finite stream are left out."""
    for operation in operations().values():
        media = answers(operation, 200) if "200" in operation.definition["responses"] else {}
        ends = "x-event-end" in media.get(lint.EVENT_STREAM, {})
        if {lint.EVENT_STREAM} == _successes(operation) and not ends:
            yield operation


def _successes(operation: lint.Operation) -> set[str]:
    return set(operation.definition["responses"].get("200", {}).get("content", {}))
