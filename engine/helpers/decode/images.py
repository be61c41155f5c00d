"""Decodes the file of an image to pixels, like llama-server.

Transparent pixels have the colours in the file (on black in a GIF), a camera's orientation is
ignored, and an animation is reduced to its first frame.
"""

import io
import warnings
from typing import Final

import numpy as np
from PIL import Image, MpoImagePlugin, TiffImagePlugin

from specllama.engine.helpers.decode.decode_jobs import Decoded, DecodeRefused
from specllama.engine.wire.media import ImageFormat

MAX_SIDE: Final = 32768  # pixels

_OF_METADATA: Final = (MpoImagePlugin, TiffImagePlugin)  # imported for the metadata of JPEGs
_DEEP: Final = ("I", "I;16", "I;16B", "I;16L")  # grey, 16 bits

_SAMPLES: Final[tuple[tuple[str, ImageFormat], ...]] = (
    *(("RGB", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("I;16", "PNG")),
    *(("P", "GIF"), ("RGB", "BMP"), ("RGBA", "WEBP")),
)

Image.MAX_IMAGE_PIXELS = None  # checked in this module, with the limit of the request
warnings.simplefilter("ignore")  # Pillow's warnings about files


def warm_up() -> None:
    """Decodes one image of each format, because Pillow imports some modules at their first use,
    when the process can't open files any more."""
    for mode, format in _SAMPLES:
        file = io.BytesIO()
        Image.new(mode, (2, 2)).save(file, format)
        decode_image(file.getvalue(), format, max_pixels=4)


def decode_image(data: bytes, format: ImageFormat, max_pixels: int) -> Decoded | DecodeRefused:
    """Returns the RGB rows of the image. Raises any exception of the library for damaged files."""
    if format == "WEBP" and (reason := _too_large(_webp_size(data), max_pixels)):
        # Its decoder allocates memory for all pixels before it returns the size.
        return DecodeRefused(reason)
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
        return f"it has {width} x {height} pixels; the maximum of a side is {MAX_SIDE}"
    if width * height > max_pixels:
        return f"it has {width} x {height} pixels; the maximum is {max_pixels}"
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
    """Returns the width and height in the header of a WebP file. Raises IndexError or
    ValueError."""

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
    raise ValueError("not a WebP image")
