"""Fetches a file over HTTP, within the rules of a request.

One GET without credentials or cookies, directly to the host: proxies of the environment are
ignored, as a proxy would resolve the name again. Up to MAX_REDIRECTS redirects are followed, to
which the same rules apply.
"""

import asyncio
import ssl
from typing import Final

import httpcore2
import httpx2

from specllama.engine.helpers.fetch.connecting import Connecting, Resolve, is_allowed, resolve
from specllama.engine.helpers.fetch.fetch_jobs import Rules, UnfetchableError

MAX_REDIRECTS: Final = 3
MAX_URL: Final = 8192  # characters

_REDIRECTS: Final = (301, 302, 303, 307, 308)
_HEADERS: Final = [
    (b"Accept", b"image/*, audio/*, */*;q=0.1"),
    (b"Accept-Encoding", b"identity"),
    (b"Connection", b"close"),
    (b"User-Agent", b"specllama"),
]


async def fetch(
    url: str, rules: Rules, *, resolve: Resolve = resolve, tls: ssl.SSLContext | None = None
) -> bytes:
    """Returns the body of the answer. Raises UnfetchableError."""
    try:
        async with asyncio.timeout(rules.seconds):
            return await _fetch(target(url, rules), rules, resolve, tls)
    except (TimeoutError, httpcore2.TimeoutException):
        raise UnfetchableError(f"fetching it takes more than {rules.seconds:g} s") from None
    except httpcore2.ConnectError:  # of TLS; other ones are UnfetchableErrors
        raise UnfetchableError(
            "its host can't be reached securely: its certificate may be invalid"
        ) from None
    except (httpcore2.ProtocolError, httpcore2.NetworkError, httpcore2.UnsupportedProtocol):
        raise UnfetchableError("its host's answer is incomplete, or not HTTP") from None


def target(url: str, rules: Rules, base: httpx2.URL | None = None) -> httpx2.URL:
    """Returns the address `url`, relative to `base`. Raises UnfetchableError if the rules forbid
    it."""
    if len(url) > MAX_URL:
        raise UnfetchableError(f"its URL is longer than {MAX_URL} characters")
    try:
        found = httpx2.URL(url) if base is None else base.join(url)
        host = found.raw_host.decode("ascii")
    except (httpx2.InvalidURL, UnicodeError, ValueError):
        raise UnfetchableError("its URL is not valid") from None
    if found.scheme not in ("http", "https") or not host:
        raise UnfetchableError("its URL is neither http nor https")
    if base is not None and (base.scheme, found.scheme) == ("https", "http"):
        raise UnfetchableError("its host redirects from https to http")
    if "%" in host or not 0 < (found.port or 80) < 65536:
        raise UnfetchableError("its URL is not valid")
    if found.userinfo:
        raise UnfetchableError("its URL has a user name or a password")
    if not is_allowed(host, rules.domains):
        raise UnfetchableError("its host is not in the list of --media-domains")
    return found


async def _fetch(
    url: httpx2.URL, rules: Rules, resolve: Resolve, tls: ssl.SSLContext | None
) -> bytes:
    timeouts = dict.fromkeys(("connect", "read", "write", "pool"), rules.seconds)
    async with httpcore2.AsyncConnectionPool(
        ssl_context=tls, network_backend=Connecting(rules, resolve), max_keepalive_connections=0
    ) as pool:
        for _ in range(MAX_REDIRECTS + 1):
            address = httpcore2.URL(
                scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
            )
            async with pool.stream(
                "GET", address, headers=_HEADERS, extensions={"timeout": timeouts}
            ) as response:
                headers = {name.lower(): value for name, value in response.headers}
                if response.status not in _REDIRECTS:
                    return await _body(response, headers, rules)
                url = target(headers.get(b"location", b"").decode("latin-1"), rules, url)
    raise UnfetchableError(f"its host redirects more than {MAX_REDIRECTS} times")


async def _body(response: httpcore2.Response, headers: dict[bytes, bytes], rules: Rules) -> bytes:
    if response.status != 200:
        raise UnfetchableError(f"its host answers with status {response.status}")
    if headers.get(b"content-encoding", b"identity").lower() != b"identity":
        raise UnfetchableError("its host's answer is compressed, which was not requested")
    length = headers.get(b"content-length", b"")
    if length.isdigit() and int(length) > rules.max_bytes:
        raise UnfetchableError(_too_large(rules))
    data = bytearray()
    async for part in response.aiter_stream():
        data += part
        if len(data) > rules.max_bytes:
            raise UnfetchableError(_too_large(rules))
    return bytes(data)


def _too_large(rules: Rules) -> str:
    return f"it has more than the {rules.max_bytes} bytes that are allowed"
