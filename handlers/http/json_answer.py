"""Plain JSON answers."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from specllama.handlers.http.disconnect import CancelOnDisconnect
from specllama.handlers.http.encoding import encode, is_large, parts

ENOUGH = 1 << 16  # bytes that leave together


class JSONAnswer(Response):
    """A response whose content is any value that msgspec can encode.

    Large content has no length in its head: it is encoded while it leaves, and others have their
    turn in between.
    """

    media_type = "application/json"

    def __init__(self, content: Any, *, headers: Mapping[str, str] | None = None) -> None:
        self._large = is_large(content)
        self._content = content
        if not self._large:
            super().__init__(content, headers=headers)
            return
        self.status_code = 200
        self.background = None
        self.init_headers(headers)

    def render(self, content: Any) -> bytes:
        return encode(content)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._large:
            await super().__call__(scope, receive, send)
            return
        with suppress(ClientDisconnect):  # the client has left
            async with CancelOnDisconnect(receive):
                await self._send_parts(send)

    async def _send_parts(self, send: Send) -> None:
        head = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        started, waiting, size = False, [], 0
        for part in parts(self._content):
            waiting.append(part)
            size += len(part)
            if size >= ENOUGH:
                if not started:
                    started = True
                    await send(head)
                await send(_body(waiting, more=True))
                waiting, size = [], 0
                await asyncio.sleep(0)
        if not started:
            await send(head)
        await send(_body(waiting, more=False))


def _body(waiting: list[bytes], *, more: bool) -> dict[str, Any]:
    return {"type": "http.response.body", "body": b"".join(waiting), "more_body": more}
