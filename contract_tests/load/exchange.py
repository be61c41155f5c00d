"""One request and its answer, even if the connection breaks."""

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx

from contract_tests.load.asks import Ask

FOR_EVER = "no answer in time"
LEFT = "the client has left"


@dataclass
class Exchange:
    """A request and its answer. `cut` is the reason why the connection ended before the answer did.
    `begun` and `ended` are seconds of `time.monotonic`, `port` is the client's port."""

    ask: Ask
    number: int
    begun: float = field(default_factory=time.monotonic)
    ended: float = 0.0
    port: int = 0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes = b""
    cut: str = ""
    request: httpx.Request | None = None

    @property
    def seconds(self) -> float:
        return self.ended - self.begun

    def response(self) -> httpx.Response:
        """Returns the whole answer as an httpx response, already decompressed."""
        assert self.request is not None
        headers = {k: v for k, v in self.headers.items() if k != "transfer-encoding"}
        return httpx.Response(
            self.status, headers=headers, content=self.content, request=self.request
        )

    def as_text(self) -> str:
        """Returns the request and the answer, shortened, for reports."""
        request = f"{self.ask.method} {self.ask.path} ({self.ask.name}, number {self.number})"
        body = json.dumps(self.ask.body(self.number))
        answer = f"status {self.status}, {len(self.content)} bytes in {self.seconds:.1f} s"
        end = f", cut: {self.cut}" if self.cut else ""
        return f"{request}\n  body {body:.600}\n  {answer}{end}\n  {self.content[-600:]!r}"


class Client:
    """A client that sends one request after the other. Half of the clients keep their
    connections."""

    def __init__(self, url: str, number: int, patience: float, key: str = "") -> None:
        self.number = number
        self._patience = patience
        keep = httpx.Limits(max_connections=1, max_keepalive_connections=number % 2)
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=None,
            trust_env=False,
            transport=httpx.AsyncHTTPTransport(verify=True, limits=keep),
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )
        self._port = 0

    async def close(self) -> None:
        await self._http.aclose()

    async def send(self, ask: Ask, number: int, leaves: float | None = None) -> Exchange:
        """Sends a request and returns its exchange. `leaves` is the time in seconds when the client
        leaves."""
        exchange = Exchange(ask, number)
        limit = self._patience if leaves is None else leaves
        try:
            async with asyncio.timeout(limit):
                await self._exchange(exchange)
        except TimeoutError:
            exchange.cut = FOR_EVER if leaves is None else LEFT
        except (httpx.HTTPError, OSError) as error:
            exchange.cut = f"{type(error).__name__}: {error}"
        exchange.ended = time.monotonic()
        exchange.port = self._port
        return exchange

    async def _exchange(self, exchange: Exchange) -> None:
        ask = exchange.ask
        body = ask.body(exchange.number)
        request = self._http.build_request(
            ask.method,
            ask.path,
            json=body if ask.method == "POST" else None,
            extensions={"trace": self._trace},
        )
        exchange.request = request
        response = await self._http.send(request, stream=True)
        try:
            exchange.status = response.status_code
            exchange.headers = dict(response.headers)
            async for chunk in response.aiter_raw():
                exchange.content += chunk
        finally:
            await response.aclose()

    async def _trace(self, event: str, info: Any) -> None:
        if event == "connection.connect_tcp.complete":
            address = info["return_value"].get_extra_info("client_addr")
            self._port = address[1] if address else 0
