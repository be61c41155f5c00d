"""Reads the configuration of MCP servers, the JSON with `mcpServers` that MCP clients share.

Messages name the place of a fault. They never quote a value: `env`, `headers`, `args` and `url` may
contain secrets.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from specllama.engine.helpers.tools.tools_jobs import McpServer
from specllama.engine.options.files import read_text
from specllama.engine.options.values import OptionError

SECTION: Final = "mcpServers"
MAX_SERVERS: Final = 64
MAX_SECONDS: Final = 600.0  # of one call
_MAX_TEXTS: Final = 4096  # arguments, variables or headers
_HTTP: Final = ("http", "streamable-http", "streamable_http", "streamablehttp")
_NAME: Final = re.compile(r"[^\x00-\x1f\x7f]{1,128}")
_VARIABLE: Final = re.compile(r"[^=\0]+")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_ADDRESS: Final = re.compile(r"https?://[^\s/?#]+[^\s]*", re.IGNORECASE)


class McpConfiguration(msgspec.Struct, frozen=True):
    """The servers in the order of the configuration, and warnings about entries that have no
    effect."""

    servers: tuple[McpServer, ...] = ()
    remarks: tuple[str, ...] = ()


def read_configuration(path: str, text: str) -> McpConfiguration:
    """Returns the servers of the file at `path` and of the JSON text `text`; both may be "". Raises
    `OptionError`, which names the option and the place in the JSON."""
    found: dict[str, McpServer] = {}
    remarks: list[str] = []
    sources = [("--mcp-servers-json", text)] if text else []
    if path:
        try:
            sources.insert(0, ("--mcp-servers-config", read_text(path)))
        except OptionError as error:
            raise OptionError(f"--mcp-servers-config: {error}") from None
    for option, source in sources:
        try:
            _read(source, found, remarks)
        except OptionError as error:
            raise OptionError(f"{option}: {error}") from None
    if sources and not found:
        remarks.append("the configuration of MCP servers has no server that can be used")
    return McpConfiguration(tuple(found.values()), tuple(remarks))


def check_text(text: str) -> str:
    """Returns `text` if it is a valid configuration. Raises `OptionError`."""
    _read(text, {}, [])
    return text


def _read(text: str, found: dict[str, McpServer], remarks: list[str]) -> None:
    try:
        document = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise OptionError(f"it is not valid JSON: {error}") from None
    entries = _object(document, "it").get(SECTION)
    if entries is None:
        remarks.append(f"the configuration of MCP servers has no {SECTION!r}")
        return
    for name, entry in _object(entries, SECTION).items():
        if not _NAME.fullmatch(name):
            raise OptionError(f"{SECTION}: the name {name[:128]!r} is empty, long or not printable")
        place = f"{SECTION}.{name}"
        if name in found:
            remarks.append(f"{place}: another server has this name; this one is left out")
            continue
        if len(found) == MAX_SERVERS:
            raise OptionError(f"{SECTION} has more than {MAX_SERVERS} servers")
        if (server := _server(name, _object(entry, place), place, remarks)) is not None:
            found[name] = server


def _server(
    name: str, entry: Mapping[str, Any], place: str, remarks: list[str]
) -> McpServer | None:
    if entry.get("disabled") not in (None, False) or entry.get("enabled") is False:
        return None
    command = _text(entry, "command", place)
    url = _text(entry, "url", place) or _text(entry, "serverUrl", place)
    kind = (_text(entry, "type", place) or _text(entry, "transport", place)).lower()
    if kind == "sse":
        remarks.append(f"{place}: the old transport 'sse' is not served; this one is left out")
        return None
    if kind not in ("", "stdio", *_HTTP):
        raise OptionError(f"{place}.type is neither 'stdio' nor 'http'")
    if kind in _HTTP or (not kind and not command):
        command = ""
    else:
        url = ""
    if not command and not url:
        remarks.append(f"{place} has neither a command nor a url; it is left out")
        return None
    if url and not _ADDRESS.fullmatch(url):
        raise OptionError(f"{place}.url is not an address such as https://example.org/mcp")
    return McpServer(
        name=name,
        command=command,
        args=_args(entry.get("args"), f"{place}.args"),
        env=_texts(entry.get("env"), f"{place}.env", _VARIABLE),
        cwd=_text(entry, "cwd", place),
        url=url,
        headers=_headers(entry.get("headers"), f"{place}.headers"),
        seconds=_seconds(entry.get("timeout_ms"), f"{place}.timeout_ms"),
    )


def _object(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OptionError(f"{place} is not an object")
    return value


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def _text(entry: Mapping[str, Any], key: str, place: str) -> str:
    value = entry.get(key)
    if value is None:
        return ""
    if not _is_text(value):
        raise OptionError(f"{place}.{key} is not a text")
    return str(value)


def _args(value: Any, place: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > _MAX_TEXTS:
        raise OptionError(f"{place} is not a list of texts")
    for number, each in enumerate(value):
        if not _is_text(each):
            raise OptionError(f"{place}[{number}] is not a text")
    return tuple(value)


def _texts(value: Any, place: str, key: re.Pattern[str]) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or len(value) > _MAX_TEXTS:
        raise OptionError(f"{place} is not an object of texts")
    for name, each in value.items():
        if not key.fullmatch(name):
            raise OptionError(f"{place}: {name[:128]!r} is not a valid name")
        if not _is_text(each):
            raise OptionError(f"{place}.{name} is not a text")
    return value


def _headers(value: Any, place: str) -> dict[str, str]:
    fields = _texts(value, place, _HEADER)
    for name, each in fields.items():
        if not each.isascii() or "\r" in each or "\n" in each:
            raise OptionError(f"{place}.{name} is not valid in an HTTP header")
    return fields


def _seconds(value: Any, place: str) -> float:
    if value is None:
        return McpServer.__struct_defaults__[-1]  # type: ignore[no-any-return]
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise OptionError(f"{place} is not a positive number of milliseconds")
    return min(float(value) / 1000, MAX_SECONDS)
