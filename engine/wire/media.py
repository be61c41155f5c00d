"""Images, sounds and documents of requests: what they are, and how they go into a prompt."""

import hashlib
from typing import Final, Literal

import msgspec

from specllama.engine.errors import invalid_request, not_supported

MediaKind = Literal["image", "audio"]


class Media(msgspec.Struct, frozen=True):
    """A decoded image or sound at its place in a prompt.

    `digest`, the SHA-256 of the bytes it came in, is its identity. `data` are an image's RGB rows,
    three bytes a pixel, or a sound's samples: 32-bit floats, little-endian, one channel, at the
    rate that the projector asks for. `width` and `height` are pixels, and 0 for sound.
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
    """The format of a file, None if it is unknown."""
    for prefix, format in _PREFIXES:
        if data.startswith(prefix):
            return format
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "WEBP"
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "WAV"
    return "MP3" if _is_mp3_frame(data) else None


def kind_of(format: Format) -> MediaKind:
    """What a file of the format is."""
    return _KINDS[format]


def _is_mp3_frame(data: bytes) -> bool:
    """True for the header of a frame of MPEG audio, layer III: none of its fields is reserved."""
    if len(data) < 4 or data[0] != 0xFF or data[1] & 0xE0 != 0xE0:
        return False
    version, layer = data[1] >> 3 & 3, data[1] >> 1 & 3
    return version != 1 and layer == 1 and data[2] >> 4 != 15 and data[2] >> 2 & 3 != 3


MAX_PAGES: Final = 2000
MAX_CHARACTERS: Final = 1 << 22  # of all pages

_HEAD: Final = 1024  # bytes in which a PDF file may begin
NOT_READ: Final = "this server reads PDF files and texts in UTF-8, no other documents"


class Page(msgspec.Struct, frozen=True):
    """A page of a document. One without a text may still show something, as a scanned one does."""

    text: str
    shows: bool


class Document(msgspec.Struct, frozen=True):
    """What a model reads of a document: texts, and pictures of the pages without a text."""

    parts: list[str | Media]


def is_pdf(data: bytes) -> bool:
    return b"%PDF-" in data[:_HEAD]


def text_of(data: bytes) -> str | None:
    """The text that a file is; None if it is none in UTF-8."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    return None if "\0" in text else text


def page_digest(document: bytes, page: int) -> bytes:
    """The identity of a page's picture, by the document's."""
    return hashlib.sha256(b"page %d of " % page + document).digest()


def to_draw(pages: list[Page], *, images: bool) -> set[int]:
    """The numbers of the pages that a model has to see, since they have no text.

    Without `images` there are none. Raises EngineError (not_supported_error) if nothing is left to
    read then, and invalid_request_error if all pages are blank.
    """
    drawn = {number for number, page in enumerate(pages) if page.shows and not page.text}
    if not drawn and not any(page.text for page in pages):
        raise invalid_request("its pages are blank")
    if not images and not any(page.text for page in pages):
        raise not_supported(
            "its pages are pictures without a text, and this model sees no images; start the "
            "server with a model that does (--mmproj), or send the text"
        )
    return drawn if images else set()
