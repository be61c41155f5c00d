"""A reverse proxy in front of a server. It passes everything on unchanged, and streams as they
arrive, unless a mutation is switched on.

It runs in a thread of the process that sends the requests. It reads requests as a whole before it
passes them on, with the server's `Host`.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import uvicorn

from contract_tests.kit.mutants.exchange import Answer, Head, Mutation, Request, unchanged

NO_LIMIT = 10**9
"""Seconds; an idle connection stays open."""


class Active:
    """A mutation that is switched on."""

    def __init__(self, mutation: Mutation) -> None:
        self.mutation = mutation
        self.exercised = False
        """True if the mutation has changed something."""
        self.error: Exception | None = None
        """The exception of a mutation that got an answer which the description doesn't allow."""


class Proxy:
    """The proxy of the server at `server_url`, which needs `api_key`."""

    def __init__(self, server_url: str, api_key: str | None = None) -> None:
        self._server = httpx.URL(server_url.rstrip("/"))
        self._prefix = self._server.path.rstrip("/")
        self._api_key = api_key
        self._active: Active | None = None
        # asyncio disables Nagle's algorithm only for sockets with the protocol TCP.
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.listen()
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}{self._prefix}"
        config = uvicorn.Config(
            self._serve,
            interface="asgi3",
            http="httptools",
            ws="none",
            lifespan="off",
            log_config=None,
            log_level="critical",  # a connection closed during an answer is no error here
            access_log=False,
            proxy_headers=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=NO_LIMIT,
            timeout_graceful_shutdown=0,
        )
        self._uvicorn = uvicorn.Server(config)
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._uvicorn.should_exit = True
        self._thread.join()
        self._socket.close()

    @contextlib.contextmanager
    def mutated(self, mutation: Mutation) -> Iterator[Active]:
        """Answers all requests by `mutation` while the context is open."""
        self._active = active = Active(mutation)
        try:
            yield active
        finally:
            self._active = None

    async def _run(self) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncHTTPTransport(limits=limits) as self._transport:
            await self._uvicorn.serve(sockets=[self._socket])

    async def _serve(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application. It ends when the client leaves, and closes the server's
        connection."""
        request = await self._request(scope, receive)
        if request is None:
            return
        answering = asyncio.create_task(self._answer(request, scope, send))
        leaving = asyncio.create_task(_left(receive))
        try:
            await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            answering.cancel()
            # This raises an exception if the connection has to be closed during an answer.
            with contextlib.suppress(asyncio.CancelledError):
                await answering

    async def _request(self, scope: Any, receive: Any) -> Request | None:
        """Returns the request with its whole body; None if the client leaves before its end."""
        body = b""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
        query = scope["query_string"]
        target = scope["raw_path"] + (b"?" + query if query else b"")
        headers = httpx.Headers(scope["headers"])
        headers["Host"] = self._server.netloc.decode()
        headers.pop("Expect", None)  # the whole body has arrived
        method, prefix = scope["method"], self._prefix
        return Request(method, target.decode("latin-1"), headers, body, prefix, self._api_key)

    async def _answer(self, request: Request, scope: Any, send: Any) -> None:
        active = self._active
        if active is None:
            await self._answer_with(Active(unchanged), request, scope, send)
            return
        try:
            # A compressed body can't be changed.
            plain = request.with_header("Accept-Encoding", None)
            await self._answer_with(active, plain, scope, send)
        except ConnectionError:
            raise
        except Exception as error:
            active.error = error
            raise

    async def _answer_with(self, active: Active, request: Request, scope: Any, send: Any) -> None:
        async with contextlib.AsyncExitStack() as stack:
            asked = _Asked(self, stack, notes=active.mutation is not unchanged)
            try:
                answer = await active.mutation(request, asked)
            except httpx.TransportError as error:
                answer = Answer.of(502, {"error": f"the server doesn't answer: {error!r}"})
            active.exercised |= asked.requests != [request] or asked.head != answer.head
            if request.method == "HEAD" and any(each.method != "HEAD" for each in asked.requests):
                # uvicorn reads this method to decide whether it leaves out the body.
                scope["method"] = "GET"
            await send(
                {
                    "type": "http.response.start",
                    "status": answer.status,
                    "headers": [(name.lower(), value) for name, value in answer.headers.raw],
                }
            )
            n_sent = 0
            async for piece in answer.body:
                if asked.notes:
                    active.exercised |= asked.body[n_sent : n_sent + len(piece)] != piece
                    n_sent += len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            active.exercised |= n_sent != len(asked.body)
            await send({"type": "http.response.body"})

    async def ask(self, request: Request) -> httpx.Response:
        """Returns the server's own answer with an unread body."""
        return await self._transport.handle_async_request(
            httpx.Request(
                request.method,
                self._server,
                headers=request.headers,
                stream=httpx.ByteStream(request.body),
                extensions={"target": request.target.encode("latin-1")},
            )
        )


class _Asked:
    """The requests to the server for one answer and, with `notes`, the server's answers."""

    def __init__(self, proxy: Proxy, stack: contextlib.AsyncExitStack, *, notes: bool) -> None:
        self._proxy = proxy
        self._stack = stack
        self.notes = notes
        self.requests: list[Request] = []
        self.head: Head | None = None
        """The status and headers of the last answer."""
        self.body = bytearray()
        """The part of the last answer's body that has been read."""

    async def __call__(self, request: Request) -> Answer:
        self.requests.append(request)
        response = await self._proxy.ask(request)
        self._stack.push_async_callback(response.aclose)
        body = response.aiter_raw()
        if self.notes:
            self.body = bytearray()
            body = self._noted(body)
        answer = Answer(response.status_code, response.headers, body)
        self.head = answer.head
        return answer

    async def _noted(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        noted = self.body
        async for piece in pieces:
            noted += piece
            yield piece


async def _left(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
