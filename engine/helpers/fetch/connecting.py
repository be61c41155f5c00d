"""Connections to addresses that were checked, and to no others."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import ip_address
from typing import Any, Final

import httpcore2

from specllama.engine.helpers.fetch.addresses import is_public, parsed
from specllama.engine.helpers.fetch.errors import FetchError
from specllama.engine.helpers.fetch.fetch_jobs import Rules

MAX_TRIED: Final = 4  # addresses of a host

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the addresses of a host, as text. Raises OSError."""


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of `host` by the system. Raises OSError, UnicodeError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


def is_allowed(host: str, domains: Sequence[str]) -> bool:
    """True if `host` is one of `domains`, or below one, or if there are none."""
    host = host.lower().rstrip(".")
    return not domains or any(host == name or host.endswith(f".{name}") for name in domains)


class Connecting(httpcore2.AsyncNetworkBackend):
    """Resolves the name of a host once, checks every address that it has, and connects to one of
    these. What resolves the name a second time could be told another address."""

    def __init__(self, rules: Rules, resolve: Resolve = resolve) -> None:
        self._rules = rules
        self._resolve = resolve
        self._inner = httpcore2.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        """Raises FetchError if the rules forbid it, or if no address answers."""
        if not is_allowed(host, self._rules.domains):
            raise FetchError("its host is none of those that --media-domains names")
        addresses = await self._addresses(host, port)
        share = None if timeout is None else timeout / len(addresses)
        for address in addresses:
            try:
                stream = await self._inner.connect_tcp(address, port, timeout=share)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
            if not self._rules.private and _is_own(stream):
                await stream.aclose()
                raise FetchError(_NOT_PUBLIC)
            return stream
        raise FetchError("its host doesn't answer")

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            addresses = parsed(await self._resolve(host, port))
        except (OSError, UnicodeError, ValueError):
            addresses = []
        if not addresses:
            raise FetchError("its host is unknown")
        if not self._rules.private and not all(map(is_public, addresses)):
            raise FetchError(_NOT_PUBLIC)
        return [str(address) for address in addresses[:MAX_TRIED]]


_NOT_PUBLIC: Final = "its host has an address that is not public"


def _is_own(stream: httpcore2.AsyncNetworkStream) -> bool:
    """True if the other end is this machine, under a public address."""
    ours, theirs = (stream.get_extra_info(name)[0] for name in ("client_addr", "server_addr"))
    return ip_address(ours) == ip_address(theirs)
