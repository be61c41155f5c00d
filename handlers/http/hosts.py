"""Checks of the headers `Host` and `Origin`, which protect the server from web pages.

A web page can send requests to any server that the browser's machine can reach. The browser sends
the page's origin in `Origin`. If an attacker has pointed the page's own host name to this server
(DNS rebinding), `Host` has that name.
"""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from specllama.engine.options.values import comma_separated
from specllama.handlers.http.errors import RequestError
from specllama.handlers.http.request_log import escaped
from specllama.handlers.options.addresses import is_loopback
from specllama.handlers.options.tables.http import HttpOptions

_MAX_SHOWN = 100  # characters of a name in an error


class Hosts:
    """Refuses requests whose `Host` is not a name of the server.

    On a loopback address, its names are localhost, IP addresses, and the names in --host and
    --allowed-hosts. On other addresses, every name is accepted unless --allowed-hosts is given.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            options: HttpOptions = scope["state"]["runtime"].options.http
            address = (scope.get("server") or ("",))[0]
            for name, value in scope["headers"]:
                if name == b"host" and not _is_called(
                    value, address, options.allowed_hosts, options.host
                ):
                    raise _not_called(value)
        await self.app(scope, receive, send)


@lru_cache(maxsize=256)
def _is_called(host: bytes, address: str, allowed: tuple[str, ...], own: str) -> bool:
    """True if requests to the server's `address` may have this `host`; `own` is --host."""
    if "*" in allowed or not (allowed or is_loopback(address)):
        return True
    name = _name(host)
    return (
        name in ("", "localhost", *allowed, *comma_separated(own.lower()))
        or name.endswith(".localhost")
        or _is_address(name)
    )


def _not_called(host: bytes) -> RequestError:
    name = escaped(_name(host), _MAX_SHOWN)
    return RequestError(403, f"{name} is not a name of this server; --allowed-hosts can allow it")


def _name(host: bytes) -> str:
    """Returns the name in a `Host`, without the port, and without the brackets of an IPv6
    address."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def permits(origins: Sequence[str], origin: str) -> bool:
    """True if pages of `origin` may use a server with these --cors-origins."""
    return "*" in origins or origin in origins or ("localhost" in origins and _is_here(origin))


def is_foreign(scope: Scope) -> bool:
    """True for requests from a web page, unless it is the server's own page, --cors-origins names
    its origin (* doesn't count), or both the page and the server are on this machine."""
    fields: dict[bytes, bytes] = dict(scope["headers"])
    if b"origin" not in fields:
        return False
    origin = fields[b"origin"].decode("latin-1")
    options: HttpOptions = scope["state"]["runtime"].options.http
    if permits([each for each in options.cors_origins if each != "*"], origin):
        return False
    if _is_here(origin) and is_loopback((scope.get("server") or ("",))[0]):
        return False
    return origin.partition("://")[2].lower() != fields.get(b"host", b"").decode("latin-1").lower()


def _is_here(origin: str) -> bool:
    try:
        host = urlsplit(origin).hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "127.0.0.1", "::1") or host.endswith(".localhost")
