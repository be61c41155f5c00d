"""Values of options for addresses: hosts, origins, header names, the API prefix.

As in `engine.options.values`, every function raises `OptionError` with a sentence that quotes the
text and names the expected form.
"""

import re
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from specllama.engine.options.values import OptionError, comma_separated, quote

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[A-Za-z0-9._\[\]:-]+|null")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_TOKEN = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_COLLECTOR = re.compile(r"https?://[A-Za-z0-9._\[\]:-]+(/[A-Za-z0-9._~/-]*)?")
_API_PREFIX = re.compile(r"(/[A-Za-z0-9._~-]+)*")


def hosts(text: str) -> str:
    """Checks a list of addresses and socket paths, separated by commas."""
    comma_separated(text)
    return text


def origins(text: str) -> tuple[str, ...]:
    """Returns origins of web pages; * stands for all, localhost for all origins on this machine."""
    found = comma_separated(text)
    for origin in found:
        if origin not in ("*", "localhost") and not _ORIGIN.fullmatch(origin):
            raise OptionError(f"{quote(origin)} is not an origin such as https://example.org:8443")
    return found


def host_names(text: str) -> tuple[str, ...]:
    """Returns names of hosts, without ports; * stands for all."""
    found = comma_separated(text)
    for name in found:
        if name != "*" and not _HOST_NAME.fullmatch(name):
            raise OptionError(f"{quote(name)} is not the name of a host such as llm.example.org")
    return tuple(name.lower() for name in found)


def header_list(text: str) -> tuple[str, ...]:
    """Returns names of methods or header fields; * stands for all."""
    found = comma_separated(text)
    for name in found:
        if not _TOKEN.fullmatch(name):
            raise OptionError(f"{quote(name)} is not a valid name in an HTTP header")
    return found


def collector(text: str) -> str:
    """Returns the address of a collector, without a trailing slash."""
    if not _COLLECTOR.fullmatch(text):
        raise OptionError(f"{quote(text)} is not an address such as http://localhost:4318")
    return text.rstrip("/")


def api_prefix(text: str) -> str:
    """Returns a path such as /api, without a trailing slash."""
    path = text.removesuffix("/")
    if not _API_PREFIX.fullmatch(path):
        raise OptionError(
            f"{quote(text)} is not a path such as /llm/v2 (a leading slash, then letters, "
            "digits, and . _ ~ -)"
        )
    return path


def is_local(host: str) -> bool:
    """True for an address in --host that only this machine can reach, or the path of a socket."""
    return "/" in host or host.endswith(".sock") or host == "localhost" or is_loopback(host)


@lru_cache(maxsize=256)
def is_loopback(address: str) -> bool:
    """True for a loopback IP address."""
    try:
        found = ip_address(address)
    except ValueError:
        return False  # the path of a UNIX socket, or a name
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback
