"""Reads the texts of a PDF file's pages, and renders pages as images, with PDFium."""

from contextlib import closing
from typing import Final

import msgspec
import numpy as np
import pypdfium2 as pdfium
from pypdfium2 import raw

from specllama.engine.helpers.decode.decode_jobs import Decoded, DecodeRefused
from specllama.engine.wire.media import Page

SCALE: Final = 150 / 72  # pixels per point, for 150 dpi
MAX_SIDE: Final = 2048  # pixels of an image

_SHOWN_AS_HYPHEN: Final = "\ufffe"  # marks a word division at the end of a line
_SAMPLE_PAGES: Final = (
    b"<</Type/Pages/Kids[3 0 R]/Count 1>>",
    b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]/Contents 4 0 R/Resources<</Font<</F<</Type/Font"
    b"/Subtype/Type1/BaseFont/Helvetica>>>>>>>>",
    b"<</Length 29>>stream\nBT /F 9 Tf 1 1 Td (a) Tj ET  \nendstream",
)


def warm_up() -> None:
    """Reads and renders one page, as a process that can't open files can't load fonts later."""
    objects = (b"<</Type/Catalog/Pages 2 0 R>>", *_SAMPLE_PAGES)
    body = b"".join(b"%d 0 obj%s endobj\n" % (n, each) for n, each in enumerate(objects, 1))
    sample = b"%PDF-1.4\n" + body + b"trailer<</Root 1 0 R>>\n%%EOF"
    read_pages(sample, max_pages=1, max_characters=10)
    draw_page(sample, 0)


def read_pages(data: bytes, max_pages: int, max_characters: int) -> Decoded | DecodeRefused:
    """Returns the pages in MessagePack: `list[Page]`. Raises PdfiumError for damaged files."""
    try:
        document = pdfium.PdfDocument(data)
    except pdfium.PdfiumError as e:
        if e.err_code == raw.FPDF_ERR_PASSWORD:
            return DecodeRefused("it is encrypted, and can't be read without its password")
        raise
    with closing(document):
        if len(document) > max_pages:
            return DecodeRefused(
                f"it has {len(document)} pages, more than the {max_pages} that are allowed"
            )
        if not len(document):
            return DecodeRefused("it has no pages")
        pages: list[Page] = []
        for number in range(len(document)):
            found = _page(document, number, max_characters)
            if found is None:
                return DecodeRefused("its text is longer than allowed in a request")
            max_characters -= len(found.text)
            pages.append(found)
    return Decoded(msgspec.msgpack.encode(pages))


def draw_page(data: bytes, number: int) -> Decoded:
    """Returns the image of a page. Raises PdfiumError if it can't be rendered."""
    with closing(pdfium.PdfDocument(data)) as document, closing(document[number]) as page:
        longest = max(page.get_size())
        if not 0 < longest < 1e6:
            raise ValueError("the page size is invalid")
        scale = min(SCALE, MAX_SIDE / longest)
        with closing(page.render(scale=scale, rev_byteorder=True, maybe_alpha=False)) as bitmap:
            rows = np.ascontiguousarray(bitmap.to_numpy()[:, :, :3])
    return Decoded(rows.tobytes(), rows.shape[1], rows.shape[0])


def _page(document: pdfium.PdfDocument, number: int, max_characters: int) -> Page | None:
    """Returns the page; None if its text is too long."""
    with closing(document[number]) as page, closing(page.get_textpage()) as words:
        if words.count_chars() > max_characters:
            return None
        text = words.get_text_bounded().replace("\r\n", "\n").replace("\0", "")
        has_picture = raw.FPDFPage_CountObjects(page) > 0
    return Page(text.replace(_SHOWN_AS_HYPHEN, "-").strip(), has_picture)
