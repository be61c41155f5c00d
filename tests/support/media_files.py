"""Small files of images and sounds, made by code."""

import io
import math
import struct
import zlib
from typing import Final

from PIL import Image

WIDTH, HEIGHT = 5, 3
RATE: Final = 16000  # samples a second
N_SAMPLES: Final = 800


def picture(mode: str = "RGB", size: tuple[int, int] = (WIDTH, HEIGHT)) -> Image.Image:
    """Returns a gradient. All pixels of a small one differ."""
    image = Image.new("RGB", size)
    image.putdata(
        [
            (x * 40 % 256, y * 70 % 256, (x + y) * 20 % 256)
            for y in range(size[1])
            for x in range(size[0])
        ]
    )
    return image.convert(mode)


def image_file(format: str, mode: str = "RGB", **save: object) -> bytes:
    file = io.BytesIO()
    picture(mode).save(file, format, **save)
    return file.getvalue()


def blank_png(width: int, height: int) -> bytes:
    """Returns a black image of any size."""
    file = io.BytesIO()
    Image.new("RGB", (width, height)).save(file, "PNG")
    return file.getvalue()


def png_of_size(width: int, height: int) -> bytes:
    """Returns a file whose header claims any size, with hardly any pixels."""

    def chunk(name: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(bytes(64)))
        + chunk(b"IEND", b"")
    )


def webp_of_size(width: int, height: int) -> bytes:
    """Returns a header without data."""
    sizes = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    body = b"WEBP" + b"VP8X" + struct.pack("<I", 10) + bytes(4) + sizes
    return b"RIFF" + struct.pack("<I", len(body)) + body


def tone(n_samples: int = N_SAMPLES, rate: int = RATE) -> list[float]:
    return [0.5 * math.sin(2 * math.pi * 440 * i / rate) for i in range(n_samples)]


def wav_file(samples: list[float] | None = None, rate: int = RATE, channels: int = 1) -> bytes:
    """Returns a file of 32-bit floats, with each sample in all channels."""
    values = [value for value in (tone() if samples is None else samples) for _ in range(channels)]
    data = struct.pack(f"<{len(values)}f", *values)
    format = struct.pack("<HHIIHH", 3, channels, rate, rate * channels * 4, channels * 4, 32)
    chunks = b"fmt " + struct.pack("<I", len(format)) + format
    chunks += b"data" + struct.pack("<I", len(data)) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def mp3_file(n_frames: int = 12) -> bytes:
    """Silence: MPEG 1, layer III, 32 kbit/s, 44,100 Hz, one channel. 1,152 samples a frame."""
    return (b"\xff\xfb\x10\xc0" + bytes(100)) * n_frames


def flac_file(n_blocks: int = 4, value: int = 1000) -> bytes:
    """Blocks of 192 equal samples of 16 bits at 16,000 Hz, each written as one constant."""
    rate, channels, bits, block = RATE, 1, 16, 192
    total = n_blocks * block
    info = struct.pack(">HH", block, block) + bytes(6)
    packed = rate << 44 | (channels - 1) << 41 | (bits - 1) << 36 | total
    info += packed.to_bytes(8, "big") + bytes(16)
    file = b"fLaC" + bytes([0x80]) + len(info).to_bytes(3, "big") + info
    for number in range(n_blocks):
        # fixed block size, 192 samples; rate and bits as above; mono
        head = bytes([0xFF, 0xF8, 0x15, 0x08, number])
        head += bytes([_crc(head, 8, 0x07)])
        frame = head + bytes([0x00]) + struct.pack(">h", value)
        file += frame + struct.pack(">H", _crc(frame, 16, 0x8005))
    return file


def _crc(data: bytes, bits: int, polynomial: int) -> int:
    top, value = 1 << (bits - 1), 0
    for byte in data:
        value ^= byte << (bits - 8)
        for _ in range(8):
            value = (value << 1 ^ polynomial if value & top else value << 1) & ((1 << bits) - 1)
    return value


IMAGES: Final = {
    "JPEG": image_file("JPEG"),
    "PNG": image_file("PNG"),
    "GIF": image_file("GIF"),
    "BMP": image_file("BMP"),
    "WEBP": image_file("WEBP", lossless=True),
}
SOUNDS: Final = {"WAV": wav_file(), "MP3": mp3_file(), "FLAC": flac_file()}
FILES: Final = IMAGES | SOUNDS
