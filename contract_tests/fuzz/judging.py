"""Judges answers by the kit's checks, and by rules that hold for any request."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from contract_tests.fuzz.requests import schema_of
from contract_tests.fuzz.wire import NOTHING, Answer, End, Sent, dumped
from contract_tests.kit import contract, lint
from contract_tests.kit.fuzzing import with_whole_numbers

BEFORE_OPERATIONS = frozenset((400, 401, 403, 404, 405, 408, 413, 415, 431))
"""Statuses of requests that don't reach an operation."""
SAID = 600
"""Characters of an answer that a fault repeats."""


@dataclass(frozen=True)
class Fault:
    """A fault of an answer. `kind` is a name for faults of one sort."""

    kind: str
    what: str
    operation: str = ""

    @property
    def signature(self) -> str:
        """A key that is equal for the same fault of another request."""
        gist = re.sub(r"'[^']*'|\"[^\"]*\"|\w*\d\w*", "#", self.what)
        return f"{self.kind} {self.operation} {gist[:110]}"


@dataclass(frozen=True)
class Rules:
    """Rules that depend on the server. With `unready`, 503 is right."""

    unready: bool = False


STRICT = Rules()


def judge(sent: Sent, answer: Answer, rules: Rules = STRICT) -> Iterator[Fault]:
    name = sent.operation or ""
    label = name or f"{sent.method} {sent.path[:40]}"
    for kind, what in _problems(sent, answer, rules):
        yield Fault(kind, what, label if sent.raw is None else "raw bytes")


def _problems(sent: Sent, answer: Answer, rules: Rules) -> Iterator[tuple[str, str]]:
    match answer.end:
        case End.LATE:
            yield "slow", f"{End.LATE.value}: {answer.seconds:.0f} s"
            return
        case End.ODD:
            yield "http", f"{End.ODD.value}: {answer.why}"
            return
        case End.CUT | End.CLOSED if sent.raw is None and not sent.halves:
            yield "http", f"{answer.end.value} {_said(answer)}"
            return
    if not answer.status:
        return
    yield from _status(sent, answer, rules)
    if answer.end is not End.WHOLE:
        return
    if not answer.header("X-Request-Id"):
        yield "answer", f"an answer without X-Request-Id: {_said(answer)}"
    if sent.operation is None or not sent.strict or sent.method == "HEAD":
        yield from _envelope(sent, answer)
    else:
        yield from _described(sent, answer)


def _status(sent: Sent, answer: Answer, rules: Rules) -> Iterator[tuple[str, str]]:
    status = answer.status
    if status == 503 and (rules.unready or "fail_on_no_slot" in sent.path):
        return
    if status >= 500 and status != 501:
        yield "server error", _said(answer)
    if sent.operation is None or not sent.strict:
        known = {200, 204, 304, 501, 503} | BEFORE_OPERATIONS
        if status not in known:
            yield "status", f"a status that no operation has: {_said(answer)}"


def _envelope(sent: Sent, answer: Answer) -> Iterator[tuple[str, str]]:
    """Checks the parts that any error has in its API's format."""
    if answer.status < 400 or sent.method == "HEAD":
        return
    document = answer.json
    error = document.get("error") if isinstance(document, dict) else None
    said = error.get("message") if isinstance(error, dict) else error
    if not (isinstance(said, str) and said):
        yield "answer", f"an error without its envelope: {_said(answer)}"
    elif isinstance(error, dict) and error.get("code") != answer.status:
        yield "answer", f"an error of another code: {_said(answer)}"


def _described(sent: Sent, answer: Answer) -> Iterator[tuple[str, str]]:
    assert sent.operation is not None
    operation = contract.operations()[sent.operation]
    documented = operation.definition["responses"]
    if str(answer.status) not in documented:
        yield "status", f"an undocumented status: {_said(answer)}"
        return
    if is_kept(sent) and answer.status == 200 and "stream" in answer.header("Content-Type"):
        if (whole := _completed(sent, answer)) is None:
            return
        answer = whole
    try:
        document = contract.check_answer(operation, _response(sent, answer))
    except AssertionError as error:
        yield "answer", f"{error}"[:2000]
        return
    except ValueError as error:
        yield "answer", f"invalid JSON: {error}; {_said(answer)}"
        return
    yield from _failed_streams(document)
    if answer.status < 300 and sent.body is not NOTHING and is_invalid(sent):
        problems = "; ".join(problems_of(sent)[:2])
        yield "accepted", f"a body that the description refuses has {answer.status}: {problems}"


def is_kept(sent: Sent) -> bool:
    """True for the stream of a conversation, which other clients may end or read in part."""
    named = any(name.lower() == "x-conversation-id" for name, _ in sent.headers)
    return named or sent.operation == "get_stream"


def _completed(sent: Sent, answer: Answer) -> Answer | None:
    """Returns a stream that another client has ended with the missing end event added. None if only
    the end was requested, or nothing was received."""
    if not answer.content or re.search("from=[^0&]", sent.path):
        return None
    media = contract.answers(contract.operations()[sent.operation or ""], 200)
    end = media.get(lint.EVENT_STREAM, {}).get("x-event-end")
    last = f"data: {end}\n\n".encode()
    if end is None or answer.content.endswith(last):
        return answer
    return replace(answer, content=answer.content + last)


def _failed_streams(document: Any) -> Iterator[tuple[str, str]]:
    """Yields errors within a stream, after its status."""
    for each in document if isinstance(document, list) else ():
        error = each.get("error") if isinstance(each, dict) else None
        if error is None:
            continue
        code = error.get("code") if isinstance(error, dict) else None
        kind = error.get("type") if isinstance(error, dict) else None
        if code == 500 or kind in ("server_error", "api_error"):
            yield "server error", f"an event of a stream: {str(error)[:SAID]}"


def problems_of(sent: Sent) -> Sequence[str]:
    """Returns the reasons why the description rejects a body."""
    schema = schema_of(sent.operation or "")
    if schema is None:
        return []
    return [*lint.errors(schema, with_whole_numbers(sent.body))]


def is_invalid(sent: Sent) -> bool:
    return bool(problems_of(sent))


def _response(sent: Sent, answer: Answer) -> httpx.Response:
    known = ("content-type", "content-encoding")
    headers = [(name, value) for name, value in sent.headers if name.lower() in known]
    content = sent.content
    if any(name.lower() == "transfer-encoding" for name, _ in sent.headers):
        content = b"" if sent.body is NOTHING else dumped(sent.body)
    request = httpx.Request(sent.method, "http://server/", headers=headers, content=content)
    return httpx.Response(
        answer.status, headers=[*answer.headers], content=answer.content, request=request
    )


def _said(answer: Answer) -> str:
    return f"{answer.status} {answer.content[:SAID].decode('utf-8', 'replace')}"
