"""Documents in messages, whichever API they come by."""

from typing import Any

from specllama.engine.errors import not_supported
from specllama.engine.media.source import MediaSource
from specllama.engine.wire.media import NOT_READ, is_pdf, text_of
from specllama.handlers.running.media import PART, MediaInput


def document_part(given: str, where: str, heading: str = "") -> dict[str, Any]:
    """A part of a content: a text, or, for PDF files and what has to be fetched first, a document
    (`handlers.running.media`). `heading` stands in a line in front of it.

    `given` is a URL or base64. Raises EngineError: invalid_request_error if it is neither,
    not_supported_error for a file that is neither a PDF nor a text.
    """
    content = MediaSource.from_text(given, "document", where).content
    if isinstance(content, str) or is_pdf(content):
        return {"type": PART, "media": MediaInput(content, where, "document", heading)}
    if (text := text_of(content)) is None:
        raise not_supported(f"{where}: {NOT_READ}")
    return {"type": "text", "text": f"{heading}\n{text}" if heading else text}
