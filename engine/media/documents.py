"""Documents of requests: texts in UTF-8, and PDF files."""

import hashlib
from typing import Final

import msgspec

from specllama.engine.errors import invalid_request, not_supported
from specllama.engine.protocol.media import Media

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
