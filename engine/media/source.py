"""A medium of a request, before it is fetched and decoded."""

import binascii
import re
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from specllama.engine.errors import invalid_request
from specllama.engine.wire.media import MediaKind

SourceKind: TypeAlias = MediaKind | Literal["document"]

_FETCHED: Final = re.compile(r"(https?|file)://", re.IGNORECASE)
_SPACES: Final = re.compile(r"\s+")
_URL_SAFE: Final = str.maketrans("-_", "+/")


@dataclass(frozen=True, slots=True)
class MediaSource:
    """The bytes of a file, or the URL (http, https or file) at which it is.

    `kind` is what the request says it is, None if it doesn't say. `place` leads to it in the
    request (`messages[0].content[1]`) and begins what is said about it in errors. `stand_in` is the
    text that takes its place if this server can't take it; without one it is refused then.
    """

    content: bytes | str
    kind: SourceKind | None = None
    place: str = ""
    stand_in: str = ""

    @classmethod
    def from_text(cls, text: str, kind: SourceKind | None = None, place: str = "") -> Self:
        """The source that a text stands for: a URL, a data URL, or base64 alone.

        Raises EngineError (invalid_request_error) for what is none of them.
        """
        if is_address(text):
            return cls(text, kind, place)
        try:
            return cls(from_data_url(text) if is_data_url(text) else from_base64(text), kind, place)
        except ValueError as e:
            raise invalid_request(f"{place}: {e}" if place else str(e)) from None


def is_address(text: str) -> bool:
    """Whether the file has to be fetched first."""
    return _FETCHED.match(text) is not None


def is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:"


def from_data_url(text: str) -> bytes:
    """The bytes in a URL such as `data:image/png;base64,...`, whatever type it claims to have.

    Raises ValueError with a sentence for the user.
    """
    head, comma, body = text.partition(",")
    if not comma:
        raise ValueError("it is a data URL without a comma in front of its data")
    if not head.lower().endswith(";base64"):
        raise ValueError("it is a data URL that is not base64")
    return from_base64(body)


def from_base64(text: str) -> bytes:
    """The bytes, of either alphabet, with or without padding.

    Raises ValueError with a sentence for the user.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        pass  # most texts have the usual form, which takes a fifth of the time
    text = _SPACES.sub("", text).translate(_URL_SAFE).rstrip("=")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:
        raise ValueError("it is neither a URL nor valid base64") from None
