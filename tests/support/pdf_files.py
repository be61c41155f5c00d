"""Small PDF files, made by code."""

import zlib
from collections.abc import Sequence

SCAN = b"q 60 0 0 60 9 9 cm BI /W 2 /H 1 /CS /G /BPC 8 ID \x00\xff EI Q"
"""The operators of a page that draw an image."""


def words(text: str) -> bytes:
    """Returns the operators of a page that write a text."""
    return b"BT /F 12 Tf 9 40 Td (" + text.encode("latin-1") + b") Tj ET"


def pdf(*pages: bytes, extra: Sequence[bytes] = (), trailer: bytes = b"") -> bytes:
    """Returns a file whose pages have these contents. `extra` are more objects, numbered from 3 + 2
    times the number of pages."""
    numbers = range(4, 4 + 2 * len(pages), 2)
    kids = b" ".join(b"%d 0 R" % n for n in numbers)
    objects = [
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%b]/Count %d/MediaBox[0 0 200 100]>>" % (kids, len(pages)),
        b"<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>",
    ]
    for number, page in zip(numbers, pages, strict=True):
        more = b"/Resources<</Font<</F 3 0 R>>>>/Contents %d 0 R" % (number + 1)
        objects.append(b"<</Type/Page/Parent 2 0 R%b>>" % more)
        packed = zlib.compress(page)
        head = b"<</Length %d/Filter/FlateDecode>>" % len(packed)
        objects.append(head + b"stream\n" + packed + b"\nendstream")
    return assembled([*objects, *extra], trailer)


def assembled(objects: Sequence[bytes], trailer: bytes = b"") -> bytes:
    """Returns a file of these objects, the first of which is its root."""
    file = bytearray(b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n")
    places = []
    for number, each in enumerate(objects, 1):
        places.append(len(file))
        file += b"%d 0 obj\n%b\nendobj\n" % (number, each)
    start = len(file)
    file += b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    for place in places:
        file += b"%010d 00000 n \n" % place
    root = b"<</Size %d/Root 1 0 R%b>>" % (len(objects) + 1, trailer)
    return bytes(file + b"trailer\n" + root + b"\nstartxref\n%d\n%%%%EOF\n" % start)


def encrypted() -> bytes:
    """Returns a file that needs a password."""
    lock = b"<</Filter/Standard/V 1/R 2/P -4/O<%b>/U<%b>>>" % (b"31" * 32, b"32" * 32)
    number = 6
    return pdf(words("a"), extra=[lock], trailer=b"/Encrypt %d 0 R/ID[<00><00>]" % number)


def bomb() -> bytes:
    """Returns a short file whose page is 4 GiB of zeros."""
    # 16 MiB again and again, between zlib's header and checksum (RFC 1950): compressing all of it
    # takes half a minute.
    engine = zlib.compressobj(9, wbits=-15)
    part = engine.compress(bytes(1 << 24)) + engine.flush(zlib.Z_FULL_FLUSH)
    checksum = ((1 << 32) % 65521 << 16 | 1).to_bytes(4, "big")
    packed = b"\x78\xda" + part * 256 + engine.flush() + checksum
    twice = zlib.compress(packed, 9)
    head = b"<</Length %d/Filter[/FlateDecode/FlateDecode]>>" % len(twice)
    page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R>>"
    pages = b"<</Type/Pages/Kids[3 0 R]/Count 1>>"
    stream = head + b"stream\n" + twice + b"\nendstream"
    return assembled([b"<</Type/Catalog/Pages 2 0 R>>", pages, page, stream])
