"""Images, sounds, videos and documents of requests: their formats, and their data in prompts."""

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

    Two successive frames of a video are one image with `n_frames` of 2: the rows of the second
    frame follow those of the first. Some projectors merge them.
    """

    kind: MediaKind
    digest: bytes
    data: bytes
    width: int = 0
    height: int = 0
    n_frames: int = 1


ImageFormat = Literal["JPEG", "PNG", "GIF", "BMP", "WEBP"]
SoundFormat = Literal["WAV", "MP3", "FLAC"]
VideoFormat = Literal["MP4", "Matroska", "AVI", "MPEG-TS", "MPEG", "FLV", "Ogg", "ASF"]
"""Containers. "MP4" is also QuickTime, "Matroska" also WebM, and "ASF" also WMV."""
Format = ImageFormat | SoundFormat | VideoFormat
FormatKind = MediaKind | Literal["video"]

NAMES: Final = "JPEG, PNG, GIF, BMP, WebP, WAV, MP3 or FLAC"
VIDEO_NAMES: Final = "MP4, QuickTime, WebM, Matroska, AVI, MPEG, FLV, Ogg or ASF"
NO_VIDEOS: Final = 'videos need an extra of this server: pip install "specllama[video]"'

_PREFIXES: Final[tuple[tuple[bytes, Format], ...]] = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"fLaC", "FLAC"),
    (b"ID3", "MP3"),
    (b"\x1a\x45\xdf\xa3", "Matroska"),
    (b"\0\0\x01\xba", "MPEG"),
    (b"FLV\x01", "FLV"),
    (b"OggS", "Ogg"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "ASF"),
)
_RIFF: Final[dict[bytes, Format]] = {b"WEBP": "WEBP", b"WAVE": "WAV", b"AVI ": "AVI"}
_MP4_BOXES: Final = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
_STILL_BRANDS: Final = (b"avif", b"heic", b"heix", b"mif1")
"""Images in a container of MP4."""
_KINDS: Final[dict[Format, FormatKind]] = {
    **dict.fromkeys(("JPEG", "PNG", "GIF", "BMP", "WEBP"), "image"),
    **dict.fromkeys(("WAV", "MP3", "FLAC"), "audio"),
    **dict.fromkeys(
        ("MP4", "Matroska", "AVI", "MPEG-TS", "MPEG", "FLV", "Ogg", "ASF"),
        "video",
    ),
}


def format_of(data: bytes) -> Format | None:
    """The format of a file; None if it is unknown."""
    for prefix, format in _PREFIXES:
        if data.startswith(prefix):
            return format
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] in _MP4_BOXES:
        is_still = data[4:8] == b"ftyp" and data[8:12] in _STILL_BRANDS
        return None if is_still else "MP4"
    if _is_transport_stream(data):
        return "MPEG-TS"
    return "MP3" if _is_mp3_frame(data) else None


def kind_of(format: Format) -> FormatKind:
    """The kind of medium of the format."""
    return _KINDS[format]


def _is_transport_stream(data: bytes) -> bool:
    """True if packets of 188 bytes begin at the start of `data` with their byte of synchronization
    (ISO/IEC 13818-1, 2.4.3), or packets of 192 bytes that each have a time stamp of 4 bytes."""
    return data[0:377:188] == b"GGG" or data[4:389:192] == b"GGG"


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
    """The parts of a document for a model: texts, and pictures of pages without text.

    Also the parts of a video: its frames, and texts with their times. `digest` identifies the video
    with the rate of the frames.
    """

    parts: list[str | Media]
    digest: bytes = b""


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
