"""The formats of images and sounds, known by the first bytes of a file and by nothing else."""

from typing import Final, Literal

from specllama.engine.protocol.media import MediaKind

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
