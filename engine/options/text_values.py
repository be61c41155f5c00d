"""Options that are texts: repositories, addresses, tokens, stop texts, sizes of memory and JSON.
Converts the text of a command line or an environment variable to a checked value, and back.

Every function raises `OptionError` like those of `engine.options.values`.
"""

import ipaddress
import re
import shlex
import urllib.parse
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from specllama.engine.formats import oci_names
from specllama.engine.options.values import (
    OptionError,
    check_text,
    comma_separated,
    integer,
    quote,
    show_comma_separated,
)

_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{1,2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", '"': '"', "\\": "\\"}
_HF_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}"
_HF_REPO = re.compile(rf"{_HF_NAME}/{_HF_NAME}(:[A-Za-z0-9][A-Za-z0-9._-]{{0,63}})?")
_DOMAIN = re.compile(r"[a-z0-9_-]{1,63}(\.[a-z0-9_-]{1,63}){0,126}")
_TOKEN = re.compile(r"[!-~]{0,1024}")


def replacement(text: str) -> tuple[tuple[str, str], ...]:
    """Returns pairs of words in shell syntax: a text and its replacement."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise OptionError(f"{quote(text)} can't be read: {error}") from None
    if len(words) % 2 or not words or not all(words[::2]):
        raise OptionError(f"{quote(text)} is not a pair of a text and its replacement")
    return tuple(zip(words[::2], words[1::2], strict=True))


def show_replacements(pairs: Sequence[tuple[str, str]]) -> str:
    return shlex.join(word for pair in pairs for word in pair)


def sequence_breaker(text: str) -> tuple[str, ...]:
    """Returns one breaker as written; 'none' stands for no breaker."""
    if not text:
        raise OptionError('a sequence breaker can\'t be empty ("none" removes all)')
    return () if text == "none" else (text,)


def stop_text(text: str) -> tuple[str, ...]:
    """Returns one stop text as written."""
    if not text:
        raise OptionError("a stop text can't be empty")
    return (text,)


def show_texts(texts: Sequence[str]) -> str:
    return " ".join(texts) or "none"


def unescape(text: str) -> str:
    r"""Returns `text` with \n, \t, \\, \x41 and similar sequences resolved. Raises `OptionError` if
    the result contains a null character."""
    plain = _ESCAPE.sub(_unescape, text)
    check_text(plain)
    return plain


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] == "x" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, "\\" + code)


def hf_repo(text: str) -> str:
    """Returns USER/REPO or USER/REPO:QUANT, with the characters that the Hugging Face Hub
    permits."""
    if text and (not _HF_REPO.fullmatch(text) or ".." in text or "--" in text):
        raise OptionError(f"{quote(text)} does not look like USER/REPO or USER/REPO:QUANT")
    return text


def hf_file(text: str) -> str:
    """Returns the path of a file in a repository."""
    parts = text.split("/")
    if text and (not text.isprintable() or "\\" in text or {"", ".", ".."} & set(parts)):
        raise OptionError(f"{quote(text)} is not the path of a file in a repository")
    return text


def docker_repo(text: str) -> str:
    """Returns [HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST], as Docker writes it."""
    try:
        if text:
            oci_names.reference(text)
    except ValueError as error:
        raise OptionError(f"{quote(text)} does not look like [HOST/]NAME[:TAG]: {error}") from None
    return text


def token(text: str) -> str:
    """Returns a secret for an HTTP header. Messages don't quote it."""
    if not _TOKEN.fullmatch(text.strip()):
        raise OptionError("the token has invalid characters or is longer than 1024 characters")
    return text.strip()


def url(text: str) -> str:
    """Returns an http or https address."""
    try:
        parts = urllib.parse.urlsplit(text)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if text and not (valid and text.isprintable() and " " not in text):
        raise OptionError(f"{quote(text)} is not an address such as https://example.org/a.gguf")
    return text


def domains(text: str) -> tuple[str, ...]:
    """Returns the names of hosts, in lower case and without a leading `*.`."""
    found = []
    for element in comma_separated(text):
        name = element.lower().removeprefix("*.").rstrip(".")
        if not (_DOMAIN.fullmatch(name) or _is_address(name)):
            raise OptionError(f"{quote(element)} is not the name of a domain such as example.org")
        found.append(name)
    return tuple(found)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def json_object(text: str) -> dict[str, Any]:
    """Returns a JSON object that can also be sent to the engine process."""
    try:
        value = msgspec.json.decode(text)
        msgspec.msgpack.encode(value)
    except (msgspec.MsgspecError, RecursionError, OverflowError, UnicodeError) as error:
        raise OptionError(f"{quote(text)} is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise OptionError(f"{quote(text)} is not a JSON object")
    return value


def show_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# ---- Sizes of memory by device.


HOST: Final = "host"
"""The name of the host's memory among the devices."""
EVERY_GPU: Final = "gpu"
"""Stands for each GPU that has no size of its own."""
MAX_SIZE: Final = 1 << 30  # MiB
_DEVICE: Final = re.compile(r"[A-Za-z][\w.:-]{0,63}")


class MemorySize(NamedTuple):
    """The memory for models on a device: a number of MiB, or a percentage of its memory."""

    device: str
    number: int
    is_percentage: bool = False

    def of(self, n_total: int) -> int:
        """Returns the bytes on a device with `n_total` bytes."""
        return n_total * self.number // 100 if self.is_percentage else self.number << 20


def memory_sizes(text: str) -> tuple[MemorySize, ...]:
    """Returns the sizes in `text`: elements DEVICE=SIZE, separated by commas. A SIZE without a
    device is that of the host. It is a number of MiB, or a percentage such as 80%."""
    found = tuple(_memory_size(element.strip()) for element in text.split(","))
    devices = [size.device for size in found]
    for device in devices:
        if devices.count(device) > 1:
            raise OptionError(f"{quote(device)} has several sizes")
    return found


def show_memory_sizes(sizes: Sequence[MemorySize]) -> str:
    return show_comma_separated(
        [f"{each.device}={each.number}{'%' * each.is_percentage}" for each in sizes]
    )


def _memory_size(text: str) -> MemorySize:
    device, equals, size = text.rpartition("=")
    device = device.strip() if equals else HOST
    if not _DEVICE.fullmatch(device):
        raise OptionError(f"{quote(device)} is not the name of a device")
    size = size.strip()
    if size.endswith("%"):
        return MemorySize(device, integer(size[:-1], 1, 100), is_percentage=True)
    return MemorySize(device, integer(size, 1, MAX_SIZE))
