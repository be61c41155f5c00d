"""Connections to checked addresses only."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, Final

import httpcore2

from specllama.engine.helpers.fetch.fetch_jobs import Rules, UnfetchableError

# ---- Public addresses: only they lead to servers on the internet.
#
# All others could be this machine, a network that only it reaches, or a metadata service that a
# cloud provider offers to each machine.


Address = IPv4Address | IPv6Address

_NOT_PUBLIC_4: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # shared with a provider
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # a provider's service on each of its machines
        "169.254.0.0/16",  # link-local, and the metadata of machines
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # IETF protocol assignments
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/3",  # multicast, reserved, broadcast
    )
)
_GLOBAL_6: Final = IPv6Network("2000::/3")
"""All other addresses are private, local, multicast, or forms of IPv4 addresses (mapped,
translated)."""
_NOT_PUBLIC_6: Final = tuple(
    IPv6Network(text)
    for text in (
        "2001::/23",  # protocols, including Teredo
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4: an IPv4 address
        "2620:4f:8000::/48",  # names of private addresses
        "3fff::/20",  # documentation
    )
)


def is_public(address: Address) -> bool:
    """Returns whether the address belongs to a host on the internet."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    return (
        address.scope_id is None
        and address in _GLOBAL_6
        and not any(address in network for network in _NOT_PUBLIC_6)
    )


def parsed(texts: Iterable[str]) -> list[Address]:
    """Returns the addresses without repetition. Raises ValueError for an invalid text."""
    return list(dict.fromkeys(ip_address(text) for text in texts))


MAX_TRIED: Final = 4  # addresses of a host

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Returns the addresses of a host, as text. Raises OSError."""


async def resolve(host: str, port: int) -> list[str]:
    """Returns the addresses of `host` from the system's resolver. Raises OSError, UnicodeError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for *_, sockaddr in found]


def is_allowed(host: str, domains: Sequence[str]) -> bool:
    """Returns whether `host` is one of `domains`, or a subdomain of one. Always true without
    domains."""
    host = host.lower().rstrip(".")
    return not domains or any(host == name or host.endswith(f".{name}") for name in domains)


class Connecting(httpcore2.AsyncNetworkBackend):
    """Resolves the name of a host once, checks all of its addresses, and connects to one of them. A
    second resolution could return other addresses."""

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
        """Raises UnfetchableError if the rules forbid the connection, or if no address answers."""
        if not is_allowed(host, self._rules.domains):
            raise UnfetchableError("its host is not in the list of --media-domains")
        addresses = await self._addresses(host, port)
        share = None if timeout is None else timeout / len(addresses)
        for address in addresses:
            try:
                stream = await self._inner.connect_tcp(address, port, timeout=share)
            except (httpcore2.ConnectError, httpcore2.ConnectTimeout):
                continue
            if not self._rules.private and _is_own(stream):
                await stream.aclose()
                raise UnfetchableError(_NOT_PUBLIC)
            return stream
        raise UnfetchableError("its host doesn't answer")

    async def _addresses(self, host: str, port: int) -> list[str]:
        try:
            addresses = parsed(await self._resolve(host, port))
        except (OSError, UnicodeError, ValueError):
            addresses = []
        if not addresses:
            raise UnfetchableError("its host is unknown")
        if not self._rules.private and not all(map(is_public, addresses)):
            raise UnfetchableError(_NOT_PUBLIC)
        return [str(address) for address in addresses[:MAX_TRIED]]


_NOT_PUBLIC: Final = "its host has an address that is not public"


def _is_own(stream: httpcore2.AsyncNetworkStream) -> bool:
    """Returns whether the other end of the connection is this machine, with a public address."""
    ours, theirs = (stream.get_extra_info(name)[0] for name in ("client_addr", "server_addr"))
    return ip_address(ours) == ip_address(theirs)
