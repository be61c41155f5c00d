"""Formats are known by their first bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.wire.media import Format, format_of, kind_of
from tests.support.media_files import FILES, IMAGES


@pytest.mark.parametrize("format", FILES)
def test_every_format(format: str) -> None:
    found = format_of(FILES[format])
    assert found == format
    assert found is not None
    assert (kind_of(found) == "image") == (format in IMAGES)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"B", b"\xff", b"\xff\xfb\x10", b"RIFF", b"RIFF\0\0\0\0CDXA", b"\xff\xfe<\0h\0"),
        *(
            b"<svg/>",
            b"<html>",
            b"%PDF-1.7",
            b"Ogg",
            b"G" + bytes(400),
            b"#EXTM3U\n",
            b"\0\0\0\x1cftypavif",
            b"II*\0",
            b"\xff\xff\xff\xff",
        ),
    ],
)
def test_invalid_values(data: bytes) -> None:
    assert format_of(data) is None


@pytest.mark.parametrize(
    ("data", "format"),
    [
        (b"\0\0\0\x1cftypisom", "MP4"),
        (b"\0\0\0\x08wide\0\0\0\0mdat", "MP4"),
        (b"\x1a\x45\xdf\xa3", "Matroska"),
        (b"RIFF\0\0\0\0AVI LIST", "AVI"),
        ((b"G" + bytes(187)) * 3, "MPEG-TS"),
        ((b"time" + b"G" + bytes(187)) * 3, "MPEG-TS"),
        (b"\0\0\x01\xba", "MPEG"),
        (b"FLV\x01\x05", "FLV"),
        (b"OggS\0", "Ogg"),
        (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11\xa6\xd9", "ASF"),
    ],
)
def test_containers_of_videos(data: bytes, format: Format) -> None:
    assert format_of(data) == format
    assert kind_of(format) == "video"


def test_an_mp3_may_begin_with_a_tag() -> None:
    assert format_of(b"ID3\4\0\0\0\0\0\0" + FILES["MP3"]) == "MP3"


@given(st.binary(max_size=64))
def test_any_bytes(data: bytes) -> None:
    format_of(data)
