"""Pixels of images, and errors for images that can't be decoded."""

import io

import pytest
from PIL import Image

from specllama.engine.helpers.decode.decode_jobs import Decode, Decoded, DecodeRefused
from specllama.engine.helpers.decode.decode_main import answer
from specllama.engine.helpers.decode.images import MAX_SIDE, decode_image
from specllama.engine.wire.media import Format, ImageFormat, format_of
from tests.support.media_files import (
    FILES,
    HEIGHT,
    IMAGES,
    WIDTH,
    image_file,
    picture,
    png_of_size,
    webp_of_size,
)

PIXELS = WIDTH * HEIGHT


def decoded(data: bytes, format: ImageFormat = "PNG") -> Decoded:
    found = decode_image(data, format, PIXELS)
    assert isinstance(found, Decoded)
    return found


def tried(data: bytes, format: Format, max_pixels: int = PIXELS) -> Decoded | DecodeRefused:
    return answer(Decode(data, format, max_pixels, 16000, 10.0))


@pytest.mark.parametrize("format", IMAGES)
def test_every_format(format: ImageFormat) -> None:
    found = decoded(IMAGES[format], format)
    assert (found.width, found.height, len(found.data)) == (WIDTH, HEIGHT, 3 * PIXELS)
    if format != "JPEG":  # the only one that loses something
        assert found.data == picture().tobytes()


@pytest.mark.parametrize("mode", ["L", "P", "1", "LA", "RGBA"])
def test_every_kind_of_png(mode: str) -> None:
    expected = picture(mode).convert("RGB").tobytes()
    assert decoded(image_file("PNG", mode)).data == expected


def test_sixteen_bits_of_grey_keep_their_upper_eight() -> None:
    file = io.BytesIO()
    values = [0, 255, 256, 0x1234, 0x80FF, 0xFFFF]
    image = Image.new("I;16", (len(values), 1))
    for x, value in enumerate(values):
        image.putpixel((x, 0), value)
    image.save(file, "PNG")
    assert decoded(file.getvalue()).data == bytes(v >> 8 for v in values for _ in range(3))


def test_cmyk() -> None:
    assert len(decoded(image_file("JPEG", "CMYK"), "JPEG").data) == 3 * PIXELS


def test_transparent_pixels_show_their_colours() -> None:
    image = picture("RGBA")
    image.putalpha(0)
    for format in ("PNG", "WEBP"):
        file = io.BytesIO()
        image.save(file, format, lossless=True, exact=True)
        assert decoded(file.getvalue(), format).data == picture().tobytes()


def test_transparent_pixels_of_a_gif_are_black() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    file = io.BytesIO()
    image.save(file, "GIF", transparency=1)
    assert decoded(file.getvalue(), "GIF").data == bytes([10, 20, 30, 0, 0, 0])


def test_of_a_moving_picture_the_first_frame() -> None:
    for format in ("GIF", "WEBP"):
        file = io.BytesIO()
        picture().save(
            file,
            format,
            save_all=True,
            append_images=[Image.new("RGB", (WIDTH, HEIGHT))],
            lossless=True,
        )
        assert decoded(file.getvalue(), format).data == picture().tobytes()


def test_the_orientation_of_a_camera_is_not_followed() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    found = decoded(image_file("JPEG", exif=exif), "JPEG")
    assert found == decoded(IMAGES["JPEG"], "JPEG")


@pytest.mark.parametrize("format", IMAGES)
def test_as_many_pixels_as_there_may_be(format: ImageFormat) -> None:
    assert isinstance(tried(IMAGES[format], format), Decoded)
    refused = tried(IMAGES[format], format, PIXELS - 1)
    assert refused == DecodeRefused("it has 5 x 3 pixels; the maximum is 14")


@pytest.mark.parametrize(
    "data", [png_of_size(100_000, 100_000), png_of_size(30_000, 30_000), webp_of_size(16383, 16383)]
)
def test_a_header_is_enough_to_refuse(data: bytes) -> None:
    format = format_of(data)
    assert format is not None
    refused = tried(data, format, 1 << 26)
    assert isinstance(refused, DecodeRefused)
    assert "pixels; the maximum" in refused.reason


def test_extreme_sides() -> None:
    for size in ((MAX_SIDE, 1), (1, MAX_SIDE)):
        file = io.BytesIO()
        Image.new("RGB", size).save(file, "PNG")
        found = tried(file.getvalue(), "PNG", 1 << 26)
        assert isinstance(found, Decoded)
        assert (found.width, found.height) == size
    refused = tried(png_of_size(1, MAX_SIDE + 1), "PNG", 1 << 26)
    assert refused == DecodeRefused(
        f"it has 1 x {MAX_SIDE + 1} pixels; the maximum of a side is {MAX_SIDE}"
    )


def test_no_pixels() -> None:
    assert isinstance(tried(png_of_size(0, 5), "PNG"), DecodeRefused)


@pytest.mark.parametrize("format", FILES)
@pytest.mark.parametrize("other", FILES)
def test_the_first_bytes_determine_the_type_of_a_file(format: Format, other: Format) -> None:
    """Data after the first format is never read, and a file isn't tried as another format."""
    if format == other:
        return
    alone, followed = tried(FILES[format], format), tried(FILES[format] + FILES[other], format)
    assert isinstance(alone, Decoded)
    if format in IMAGES:
        assert followed == alone
    assert isinstance(followed, Decoded)
    if other in IMAGES:
        assert isinstance(tried(FILES[format], other), DecodeRefused)


def test_truncated_files() -> None:
    for format, data in IMAGES.items():
        for n in range(len(data) - 12):
            found = tried(data[:n], format)  # type: ignore[arg-type]
            assert isinstance(found, Decoded | DecodeRefused)
            if n < len(data) // 2:
                assert isinstance(found, DecodeRefused)
