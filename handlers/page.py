"""The page for chats at `/`: a client of this server in the browser."""

import functools
import hashlib
from pathlib import Path

from starlette.responses import PlainTextResponse, Response

from specllama.engine.errors import EngineError
from specllama.handlers.http.current import current_scope
from specllama.handlers.running.runtime import runtime

FILES = Path(__file__).parent / "webui"
"""The page's files. `vendor` has files of other projects, which tools/webui copies there."""

_MEDIA_TYPES = {
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".woff2": "font/woff2",
}
_NOSNIFF = {"x-content-type-options": "nosniff"}
_GUARDED = _NOSNIFF | {
    # Only the page's own scripts and styles, nothing from other hosts, and no frame around the
    # page. Only DOMPurify can insert HTML into it.
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
        "media-src data: blob:; font-src 'self'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types dompurify"
    ),
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
}
_FRESH = {"cache-control": "no-cache"}  # the page of a new version never loads old files


async def get_root() -> Response:
    """The page; for clients other than browsers, the text that Ollama's clients look for."""
    vary = {"vary": "Accept"}
    options = runtime().options.page
    if options.ui and not options.path and _accepts_html():
        headers = _GUARDED | _FRESH | vary
        return Response(_file("index.html")[0], media_type="text/html", headers=headers)
    return PlainTextResponse("Ollama is running", headers=vary)


def _accepts_html() -> bool:
    accepted = [value for name, value in current_scope()["headers"] if name == b"accept"]
    return any(b"text/html" in value.lower() for value in accepted)


async def get_page_asset(file: str) -> Response:
    """A file of the page. Raises EngineError (not_found_error)."""
    suffix = Path(file).suffix
    if file not in _names() or suffix not in _MEDIA_TYPES or not runtime().options.page.ui:
        raise EngineError.of("not_found_error", f"there is no asset {file}")
    content, tag = _file(file)
    headers = _NOSNIFF | _FRESH | {"etag": tag}
    if tag in _known():
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=_MEDIA_TYPES[suffix], headers=headers)


def _known() -> list[str]:
    """Returns the entity tags of the client's copies; weak tags count like strong ones."""
    given = b",".join(v for name, v in current_scope()["headers"] if name == b"if-none-match")
    return [each.strip().removeprefix("W/") for each in given.decode("latin-1").split(",")]


@functools.cache
def _names() -> dict[str, Path]:
    """Returns the page's files by name."""
    return {path.name: path for path in FILES.rglob("*") if path.is_file()}


@functools.cache
def _file(name: str) -> tuple[bytes, str]:
    """Returns a file's content and its entity tag."""
    content = _names()[name].read_bytes()
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'
