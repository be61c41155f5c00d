"""Records the requests and answers of a test, whichever client sends them.

The clients in the tests are several libraries, which all send by httpx or httpx2, so these two are
patched. A request for an operation that the server doesn't offer ends its test as skipped.
"""

import contextlib
import functools
import importlib
import shlex
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract, lint
from contract_tests.kit.discovery import NOT_THERE, Offer

LONGEST = 2000
"""Characters of a body that reports show."""
KEPT = 200
"""Exchanges of one test that are kept for the case that it fails."""


@dataclass(frozen=True)
class Exchange:
    """One request and its answer; None if the connection failed or the time was up."""

    method: str
    url: str
    headers: Mapping[str, str]
    body: bytes
    answer: httpx.Response | None = None

    @property
    def operation(self) -> lint.Operation | None:
        with contextlib.suppress(AssertionError):
            request = httpx.Request(self.method, self.url)
            where = request.url.path.removeprefix(contract.prefix(request))
            return contract.find(self.method, where)
        return None

    @property
    def curl(self) -> str:
        """The request as a curl command, with `$API_KEY` in the place of the key."""
        parts = [f"curl -i -X {self.method} {shlex.quote(self.url)}"]
        for name, value in self.headers.items():
            match name.lower():
                case "authorization" | "x-api-key":
                    if value:  # a test may be about a wrong key
                        shown = "Bearer $API_KEY" if "earer" in value else "$API_KEY"
                        parts.append(f'-H "{name}: {shown}"')
                case "content-type" | "x-conversation-id" | "anthropic-version" | "origin":
                    parts.append(f"-H {shlex.quote(f'{name}: {value}')}")
        if self.body:
            parts.append(f"--data-binary {shlex.quote(_text(self.body))}")
        return " ".join(parts)

    @property
    def came(self) -> str:
        """The answer as text."""
        if self.answer is None:
            return "no answer"
        kind = contract.media_type(self.answer)
        return f"{self.answer.status_code} {kind}\n{_text(_content(self.answer))}".strip()

    def deviation(self) -> str | None:
        """Returns why the description doesn't allow this answer for any request, or None."""
        if self.operation is None or self.answer is None or not self.answer.is_closed:
            return None
        if not hasattr(self.answer, "_content"):
            return None  # the test read it as a stream
        try:
            contract.check(self.answer, self.answer.status_code)
        except (AssertionError, ValueError) as error:
            return str(error) or repr(error)
        return None


def _content(answer: httpx.Response) -> bytes:
    return answer.content if hasattr(answer, "_content") else b"(read as a stream)"


def _text(data: bytes) -> str:
    text = data.decode("utf-8", "replace")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(data)} bytes)"


class Watch:
    """The last exchanges with one server since `clear`."""

    def __init__(self, offer: Offer) -> None:
        self.offer = offer
        self.exchanges: deque[Exchange] = deque(maxlen=KEPT)
        self._is_deaf = False

    @contextlib.contextmanager
    def deaf(self) -> Iterator[None]:
        """Ignores requests meanwhile: they belong to no test."""
        self._is_deaf = True
        try:
            yield
        finally:
            self._is_deaf = False

    def clear(self) -> None:
        self.exchanges.clear()

    def note(self, exchange: Exchange) -> None:
        """Keeps an exchange. Skips the test if the server doesn't offer the operation."""
        self.exchanges.append(exchange)
        operation, answer = exchange.operation, exchange.answer
        if operation is None or answer is None or answer.status_code not in NOT_THERE:
            return
        if not self.offer.has(operation.name):
            skip_absent(operation.name)

    def hear(self, answer: Any) -> None:
        """Keeps an exchange of the library `requests`."""
        self.note(from_requests(answer))

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("httpx", "httpx2"):
                with contextlib.suppress(ModuleNotFoundError):
                    library = importlib.import_module(name)
                    self._listen(patch, library.Client)
                    self._listen_async(patch, library.AsyncClient)
            yield

    def _listen(self, patch: pytest.MonkeyPatch, client: Any) -> None:
        send: Callable[..., Any] = client.send

        @functools.wraps(send)
        def sending(this: Any, request: Any, **options: Any) -> Any:
            answer = None
            try:
                answer = send(this, request, **options)
            finally:
                self._record(request, answer)
            return answer

        patch.setattr(client, "send", sending)

    def _listen_async(self, patch: pytest.MonkeyPatch, client: Any) -> None:
        send: Callable[..., Any] = client.send

        @functools.wraps(send)
        async def sending(this: Any, request: Any, **options: Any) -> Any:
            answer = None
            try:
                answer = await send(this, request, **options)
            finally:
                self._record(request, answer)
            return answer

        patch.setattr(client, "send", sending)

    def _record(self, request: Any, answer: Any) -> None:
        if str(request.url).startswith(self.offer.url) and not self._is_deaf:
            body = getattr(request, "_content", b"")  # empty for a body that is sent in pieces
            if answer is not None and not isinstance(answer, httpx.Response):
                answer = _as_httpx(request, answer)
            self.note(Exchange(request.method, str(request.url), request.headers, body, answer))


def _as_httpx(request: Any, answer: Any) -> httpx.Response:
    """Returns an answer of httpx2 as one of httpx; a stream without its content."""
    asked = httpx.Request(
        request.method, str(request.url), content=getattr(request, "_content", b"")
    )
    options: dict[str, Any] = {"headers": list(answer.headers.multi_items()), "request": asked}
    if hasattr(answer, "_content"):
        options["headers"] = [
            (name, value)
            for name, value in options["headers"]
            if name.lower() not in ("content-encoding", "transfer-encoding")
        ]
        options["content"] = answer.content
    else:
        options["stream"] = httpx.ByteStream(b"")
    return httpx.Response(answer.status_code, **options)


def skip_absent(name: str) -> None:
    pytest.skip(f"not offered: {name}")


def from_requests(answer: Any) -> Exchange:
    """Returns an exchange of the library `requests`, which Schemathesis uses."""
    request = answer.request
    body = request.body or b""
    raw = body.encode() if isinstance(body, str) else bytes(body)
    asked = httpx.Request(request.method, request.url, content=raw)
    headers = [
        (name, value)
        for name, values in answer.headers.items()
        for value in (values if isinstance(values, list) else [values])
        if name.lower() not in ("content-encoding", "transfer-encoding", "content-length")
    ]
    content = answer.content or b""
    response = httpx.Response(answer.status_code, headers=headers, content=content, request=asked)
    return Exchange(request.method, request.url, dict(request.headers), raw, response)
