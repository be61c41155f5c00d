"""What browsers say of where a request comes from, and for whom it is meant.

A web page can send requests to any server that its reader's machine reaches. The browser tells the
page's `Origin`; and a page whose own name was made to lead here (DNS rebinding) is given away by
the `Host`, which is that name.
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
    """Refuses requests for names that are none of the server's.

    On an address that only this machine reaches, these are localhost, addresses, and the names of
    --host and --allowed-hosts; on others, every name is right unless there are --allowed-hosts.
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
    """True if requests that come in at `address` may be for `host`; `own` is --host."""
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
    return RequestError(
        403, f"this server is not called {name}; if it should be, say so with --allowed-hosts"
    )


def _name(host: bytes) -> str:
    """The name in a `Host`, without the port, and without the brackets of an IPv6 address."""
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
    """True for the request of a page that is neither the server's own, nor of an origin that
    --cors-origins names, nor from this machine, as the server is."""
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
