"""The operator's own files (`--path`), which replace the page for chats and need no API key."""

import functools
from pathlib import PurePosixPath

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from specllama.handlers.options import ServerOptions


class OwnFiles:
    """Answers requests for the files in --path, which win over operations with the same path."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            options: ServerOptions = scope["state"]["runtime"].options
            if options.page.path and options.page.ui:
                name = _name(scope, options.http.api_prefix)
                found = await _own_file(options.page.path, name, scope) if name else None
                if found is not None:
                    await found(scope, receive, send)
                    return
        await self.app(scope, receive, send)


def _name(scope: Scope, prefix: str) -> str:
    """Returns the path of the requested file, relative to the directory; "" for a path that is not
    below the API's prefix."""
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    base = prefix.rstrip("/") + "/"
    if not path.startswith(base):
        return ""
    name = path.removeprefix(base)
    return name + "index.html" if not name or name.endswith("/") else str(name)


async def _own_file(directory: str, name: str, scope: Scope) -> Response | None:
    """Returns the answer with a file of `directory`; None if there is no such file. Hidden files
    and paths out of the directory are treated as missing."""
    parts = PurePosixPath(name).parts
    if any(part.startswith(".") and part != ".well-known" for part in parts):
        return None
    try:
        found = await _files(directory).get_response("/".join(parts), scope)
    except (HTTPException, ValueError, OSError):
        return None
    found.headers["x-content-type-options"] = "nosniff"
    return found


@functools.cache
def _files(directory: str) -> StaticFiles:
    return StaticFiles(directory=directory, follow_symlink=False)
