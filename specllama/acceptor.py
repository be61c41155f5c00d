"""Accepts many connections in one turn of the event loop.

uvloop accepts one connection per turn, and a turn also begins the requests that have arrived. In a
burst of thousands of connections, a new one would wait until most of the others are served, and the
system would reset connections that don't fit into its list of waiting ones. asyncio's own loop
accepts all waiting connections in one turn, so it doesn't need this module.
"""

import asyncio
import errno
import functools
import logging
import socket
import ssl
from collections.abc import Callable

log = logging.getLogger("http")

AT_ONCE = 128
"""The largest number of connections that one turn of the event loop accepts. Accepting one takes
about 50 microseconds."""
PAUSE = 1.0
"""The time in seconds without accepting, when the process or the system has no room for another
connection."""
_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Acceptor:
    """Accepts the connections of a listening socket, which it closes at its end. Has the methods of
    `asyncio.Server` that uvicorn calls."""

    def __init__(
        self,
        listener: socket.socket,
        new_protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._new_protocol = new_protocol
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[object]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        listener.setblocking(False)
        self._resume()

    @property
    def sockets(self) -> tuple[socket.socket, ...]:
        """The listening socket."""
        return (self._listener,)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listener, self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionAbortedError:  # the client has left
                continue
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                log.error("no connection is accepted for %g s: %s", PAUSE, error.strerror)
                self._loop.remove_reader(self._listener)
                self._resuming = self._loop.call_later(PAUSE, self._resume)
                return
            connection.setblocking(False)
            opening = self._loop.create_task(
                self._loop.connect_accepted_socket(self._new_protocol, connection, ssl=self._tls)
            )
            self._opening.add(opening)
            opening.add_done_callback(functools.partial(self._opened, connection))

    def _opened(self, connection: socket.socket, opening: "asyncio.Task[object]") -> None:
        self._opening.discard(opening)
        if opening.cancelled():
            connection.close()
        elif (error := opening.exception()) is not None:
            connection.close()
            level = logging.DEBUG if isinstance(error, OSError) else logging.ERROR
            log.log(level, "a connection could not be opened: %s", error)  # OSError: also of TLS

    def close(self) -> None:
        """Accepts no further connection, and ends TLS handshakes. Open connections stay open."""
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listener)
        self._listener.close()
        for opening in self._opening:
            opening.cancel()

    async def wait_closed(self) -> None:
        """Waits for the end of the connections that `close` ended."""
        if self._opening:
            await asyncio.wait(self._opening)
