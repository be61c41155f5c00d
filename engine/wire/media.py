"""Images, sounds and documents of requests: their formats, and their data in prompts."""

import hashlib
from typing import Final, Literal

import msgspec

from specllama.engine.errors import invalid_request, not_supported

MediaKind = Literal["image", "audio"]


class Media(msgspec.Struct, frozen=True):
    """A decoded image or sound at its place in a prompt.

    `digest`, the SHA-256 of its file, identifies it. `data` has an image's RGB rows, three bytes
    per pixel, or a sound's samples: 32-bit floats, little-endian, one channel, at the projector's
    sample rate. `width` and `height` are in pixels, and 0 for sounds.
    """

    kind: MediaKind
    digest: bytes
    data: bytes
    width: int = 0
    height: int = 0


ImageFormat = Literal["JPEG", "PNG", "GIF", "BMP", "WEBP"]
SoundFormat = Literal["WAV", "MP3", "FLAC"]
Format = ImageFormat | SoundFormat

NAMES: Final = "JPEG, PNG, GIF, BMP, WebP, WAV, MP3 or FLAC"

_PREFIXES: Final[tuple[tuple[bytes, Format], ...]] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"fLaC", "FLAC"),
    (b"ID3", "MP3"),
)
_KINDS: Final[dict[Format, MediaKind]] = {
    **dict.fromkeys(("JPEG", "PNG", "GIF", "BMP", "WEBP"), "image"),
    **dict.fromkeys(("WAV", "MP3", "FLAC"), "audio"),
}


def format_of(data: bytes) -> Format | None:
    """The format of a file; None if it is unknown."""
    for prefix, format in _PREFIXES:
        if data.startswith(prefix):
            return format
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "WAV"
    return "MP3" if _is_mp3_frame(data) else None


def kind_of(format: Format) -> MediaKind:
    """The kind of medium of the format."""
    return _KINDS[format]


def _is_mp3_frame(data: bytes) -> bool:
    """True for the header of a frame of MPEG audio, layer III, without reserved values in its
    fields."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer = data[1] >> 3 & 3, data[1] >> 1 & 3
    return version != 1 and layer == 1 and data[2] >> 4 != 15 and data[2] >> 2 & 3 != 3


MAX_PAGES: Final = 2000
MAX_CHARACTERS: Final = 1 << 22  # of all pages

_HEAD: Final = 1024  # the header of a PDF file is in the first so many bytes
NOT_READ: Final = "this server reads PDF files and texts in UTF-8, no other documents"


class Page(msgspec.Struct, frozen=True):
    """A page of a document. `shows`: it has visible content, possibly without text, as a scan
    has."""

    text: str
    shows: bool


class Document(msgspec.Struct, frozen=True):
    """The parts of a document for a model: texts, and pictures of pages without text."""

    parts: list[str | Media]


def is_pdf(data: bytes) -> bool:
    return b"%PDF-" in data[:_HEAD]


def text_of(data: bytes) -> str | None:
    """The text of a file; None if it isn't a UTF-8 text."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def page_digest(document: bytes, page: int) -> bytes:
    """The digest of a page's picture, derived from the document's."""
    return hashlib.sha256(b"page %d of " % page + document).digest()


def to_draw(pages: list[Page], *, images: bool) -> set[int]:
    """The numbers of the pages to render as pictures, since they have no text; empty if the model
    doesn't support `images`.

    Raises EngineError: not_supported_error if no page can be used without images,
    invalid_request_error if all pages are blank.
    """
    drawn = {number for number, page in enumerate(pages) if page.shows and not page.text}
    if not drawn and not any(page.text for page in pages):
        raise invalid_request("its pages are blank")
    if not images and not any(page.text for page in pages):
        raise not_supported(
            "its pages are pictures without text, and this model doesn't support images; start "
            "the server with a model that does (--mmproj), or send the text"
        )
    return drawn if images else set()
