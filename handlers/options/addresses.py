"""The texts of options that say where the server is found.

As in `engine.options.values`, every function raises `OptionError` with a sentence that quotes the
text and says what is expected.
"""

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from specllama.engine.options.values import OptionError, comma_separated, quote

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9._\[\]:-]+|null")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_API_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def hosts(text: str) -> str:
    """Addresses and socket paths, separated by commas."""
    comma_separated(text)
    return text


def origins(text: str) -> tuple[str, ...]:
    """Origins of web pages; * stands for all, localhost for those of this machine."""
    found = comma_separated(text)
    for origin in found:
        if origin not in ("*", "localhost") and not _ORIGIN.fullmatch(origin):
            raise OptionError(f"{quote(origin)} is not an origin such as https://example.org:8443")
    return found


def host_names(text: str) -> tuple[str, ...]:
    """Names of hosts, without ports; * stands for all."""
    found = comma_separated(text)
    for name in found:
        if name != "*" and not _HOST_NAME.fullmatch(name):
            raise OptionError(f"{quote(name)} is not the name of a host such as llm.example.org")
    return tuple(name.lower() for name in found)


def header_list(text: str) -> tuple[str, ...]:
    """Names of methods or header fields; * stands for all."""
    found = comma_separated(text)
    for name in found:
        if not _TOKEN.fullmatch(name):
            raise OptionError(f"{quote(name)} is no name that a header of HTTP can have")
    return found


def api_prefix(text: str) -> str:
    """A path such as /api, without the trailing slash."""
    path = text.removesuffix("/")
    if not _API_PREFIX.fullmatch(path):
        raise OptionError(
            f"{quote(text)} is not a path such as /llm/v2 (a leading slash, then letters, "
            "digits, and . _ ~ -)"
        )
    return path


def is_local(host: str) -> bool:
    """True for an address of --host that only this machine reaches, or the path of a socket."""
    return "/" in host or host.endswith(".sock") or host == "localhost" or is_loopback(host)


@lru_cache(maxsize=256)
def is_loopback(address: str) -> bool:
    """True for an IP address that only this machine reaches."""
    try:
        found = ip_address(address)
    except ValueError:
        return False  # the path of a UNIX socket, or a name
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback
