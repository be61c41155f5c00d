"""From the file of an image to its pixels, as llama-server has them.

What is transparent shows the colours that the file has there (over black in a GIF), the orientation
that a camera wrote is not followed, and a moving picture is its first frame.
"""

import io
import warnings
from typing import Final

import numpy as np
from PIL import Image, MpoImagePlugin, TiffImagePlugin

from specllama.engine.helpers.decode.decode_jobs import Decoded, DecodeRefused
from specllama.engine.wire.media import ImageFormat

MAX_SIDE: Final = 32768  # pixels

_OF_METADATA: Final = (MpoImagePlugin, TiffImagePlugin)  # imported for that of JPEGs
_DEEP: Final = ("I", "I;16", "I;16B", "I;16L")  # grey, 16 bits

_SAMPLES: Final[tuple[tuple[str, ImageFormat], ...]] = (
    *(("RGB", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("I;16", "PNG")),
    *(("P", "GIF"), ("RGB", "BMP"), ("RGBA", "WEBP")),
)

Image.MAX_IMAGE_PIXELS = None  # checked here, with a limit of the request
warnings.simplefilter("ignore")  # of Pillow, about files


def warm_up() -> None:
    """Decode one image of each format: Pillow imports some modules when they are needed first,
    which a process that can open no file couldn't."""
    for mode, format in _SAMPLES:
        file = io.BytesIO()
        Image.new(mode, (2, 2)).save(file, format)
        decode_image(file.getvalue(), format, max_pixels=4)


def decode_image(data: bytes, format: ImageFormat, max_pixels: int) -> Decoded | DecodeRefused:
    """The RGB rows of the image. Raises whatever the library raises for damaged files."""
    if format == "WEBP" and (reason := _too_large(_webp_size(data), max_pixels)):
        return DecodeRefused(
            reason
        )  # its decoder takes memory for all pixels before it tells the size
    with Image.open(io.BytesIO(data), formats=(format,)) as image:
        if reason := _too_large(image.size, max_pixels):
            return DecodeRefused(reason)
        rgb = _rgb(image)
    if reason := _too_large(rgb.size, max_pixels):
        return DecodeRefused(reason)
    return Decoded(rgb.tobytes(), rgb.width, rgb.height)


def _too_large(size: tuple[int, int], max_pixels: int) -> str:
    width, height = size
    if width <= 0 or height <= 0:
        return "it has no pixels"
    if max(size) > MAX_SIDE:
        return f"it has {width} x {height} pixels, and a side may have {MAX_SIDE}"
    if width * height > max_pixels:
        return f"it has {width} x {height} pixels, and there may be {max_pixels}"
    return ""


def _rgb(image: Image.Image) -> Image.Image:
    if image.format == "GIF" and "transparency" in image.info:
        opaque = image.convert("RGBA")
        black = Image.new("RGB", opaque.size)
        black.paste(opaque, mask=opaque.getchannel("A"))
        return black
    if image.mode in _DEEP:
        grey = np.asarray(image).astype(np.uint16) >> 8
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    return image.convert("RGB")


def _webp_size(data: bytes) -> tuple[int, int]:
    """The width and height in the header of a WebP file. Raises IndexError or ValueError."""

    def number(at: int, n_bytes: int) -> int:
        if at + n_bytes > len(data):
            raise ValueError("the header is cut off")
        return int.from_bytes(data[at : at + n_bytes], "little")

    match data[12:16]:
        case b"VP8X":
            return number(24, 3) + 1, number(27, 3) + 1
        case b"VP8L":
            bits = number(21, 4)
            return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
        case b"VP8 ":
            return number(26, 2) & 0x3FFF, number(28, 2) & 0x3FFF
    raise ValueError("no WebP image")
