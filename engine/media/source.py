"""A medium of a request, before it is fetched and decoded."""

import binascii
import re
from dataclasses import dataclass
from typing import Final, Literal, Self, TypeAlias

from specllama.engine.errors import invalid_request
from specllama.engine.wire.media import FormatKind

SourceKind: TypeAlias = FormatKind | Literal["document"]

_FETCHED: Final = re.compile(r"(https?|file)://", re.IGNORECASE)
_SPACES: Final = re.compile(r"\s+")
_URL_SAFE: Final = str.maketrans("-_", "+/")


@dataclass(frozen=True, slots=True)
class MediaSource:
    """The bytes of a file, or its URL (http, https or file).

    `kind` is the kind in the request, None without one. `place` is its place in the request
    (`messages[0].content[1]`), the prefix of error messages. `stand_in` is the text that replaces
    the medium if this server doesn't support it; without one, the medium is refused.
    """

    content: bytes | str
    kind: SourceKind | None = None
    place: str = ""
    stand_in: str = ""

    @classmethod
    def from_text(cls, text: str, kind: SourceKind | None = None, place: str = "") -> Self:
        """Returns the source that a text stands for: a URL, a data URL, or plain base64.

        Raises EngineError (invalid_request_error) for other texts.
        """
        if is_address(text):
            return cls(text, kind, place)
        try:
            return cls(from_data_url(text) if is_data_url(text) else from_base64(text), kind, place)
        except ValueError as e:
            raise invalid_request(f"{place}: {e}" if place else str(e)) from None


def is_address(text: str) -> bool:
    """Returns whether `text` is the URL of a file that has to be fetched."""
    return _FETCHED.match(text) is not None


def is_data_url(text: str) -> bool:
    return text[:5].lower() == "data:"


def from_data_url(text: str) -> bytes:
    """Returns the bytes in a URL such as `data:image/png;base64,...`, regardless of its type.

    Raises ValueError with a sentence for the user.
    """
    head, comma, body = text.partition(",")
    if not comma:
        raise ValueError("it is a data URL without a comma in front of its data")
    if not head.lower().endswith(";base64"):
        raise ValueError("it is a data URL that is not base64")
    return from_base64(body)


def from_base64(text: str) -> bytes:
    """Returns the bytes of base64 in either alphabet, with or without padding.

    Raises ValueError with a sentence for the user.
    """
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        pass  # most texts have the standard form, whose decoding is five times as fast
    text = _SPACES.sub("", text).translate(_URL_SAFE).rstrip("=")
    try:
        return binascii.a2b_base64(text + "=" * (-len(text) % 4), strict_mode=True)
    except ValueError:
        raise ValueError("it is neither a URL nor valid base64") from None
