"""A stand-in for the Hugging Face hub, whose network faults can be switched on.

It answers huggingface_hub's requests: the description of a repository with its files, its tree, and
the files themselves. Like the real hub it sends large files from another host (`localhost` instead
of `127.0.0.1`), which must not see the token.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.support.threaded import ThreadedServer

CHUNK = 16 << 10  # bytes


@dataclass
class Faults:
    """Faults of the hub. A fault with a number `n_...` ends after so many answers."""

    bytes_per_second: int | None = None
    slow_from: int | None = None  # after these bytes, one by one until this changes
    break_after: int | None = None  # bytes of an answer, then the connection ends
    n_breaks: int = 1
    stall_after: int | None = None  # bytes of an answer, then nothing more is sent
    n_stalls: int = 1
    n_damaged: int = 0  # answers with one wrong byte
    n_unavailable: int = 0  # answers with status 503
    token: str = ""  # every request needs this token
    gated: bool = False  # refuses the files, but not the description
    no_ranges: bool = False  # ignores ranges: sends whole files
    no_validators: bool = False  # sends neither ETag nor Last-Modified


@dataclass
class Asked:
    """A request."""

    method: str
    host: str
    path: str
    range: str
    authorization: str


@dataclass
class Repository:
    """The files of a repository's newest commit, by their names."""

    files: dict[str, bytes]
    described_as: dict[str, str] = field(default_factory=dict)  # names in the description
    nonsense: str = ""  # the wrong part of the description: "sha", "digest" or "siblings"

    @property
    def commit(self) -> str:
        hasher = hashlib.sha1()
        for name, data in sorted(self.files.items()):
            hasher.update(name.encode() + b"\0" + data)
        return hasher.hexdigest()


class Hub:
    """The stand-in, a context manager. `url` is the value for HF_ENDPOINT."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.plain: dict[str, bytes] = {}  # other files, by path
        self.faults = Faults()
        self.requests: list[Asked] = []
        self._blobs: dict[str, bytes] = {}
        model = "/api/models/{user}/{repo}"
        file = "/{user}/{repo}/resolve/{revision}/{name:path}"
        routes = [
            Route(model, self._describe),
            Route(model + "/revision/{revision}", self._describe),
            Route(model + "/tree/{revision}", self._tree),
            Route(file, self._resolve, methods=["GET", "HEAD"]),
            Route("/cdn/{digest}", self._blob),
            Route("/plain/{name:path}", self._plain),
        ]
        self._app = Starlette(routes=routes)

    def __enter__(self) -> "Hub":
        self._server = ThreadedServer(self._app, "stand-in hub")
        self.port = self._server.port
        self.url = f"http://127.0.0.1:{self.port}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._server.stop()

    def reset(self) -> None:
        """Removes all repositories, files, faults and recorded requests."""
        self.repositories, self.plain, self.faults = {}, {}, Faults()
        self.requests.clear()

    def add(self, repository: str, files: dict[str, bytes]) -> Repository:
        """Adds a repository, or replaces its files by a new commit."""
        self.repositories[repository] = Repository(files)
        return self.repositories[repository]

    def downloads(self) -> list[Asked]:
        """Returns the requests for contents."""
        return [asked for asked in self.requests if asked.path.startswith(("/cdn/", "/plain/"))]

    # ---- answers ------------------------------------------------------------------------

    def _refusal(self, request: Request) -> Response | None:
        authorization = request.headers.get("authorization", "")
        self.requests.append(
            Asked(
                request.method,
                request.url.hostname or "",
                request.url.path,
                request.headers.get("range", ""),
                authorization,
            )
        )
        if self.faults.n_unavailable > 0:
            self.faults.n_unavailable -= 1
            return Response("busy", 503)
        if self.faults.token and authorization != f"Bearer {self.faults.token}":
            return _error(401, "RepoNotFound")
        return None

    def _found(self, request: Request) -> Repository | None:
        parameters = request.path_params
        return self.repositories.get(f"{parameters['user']}/{parameters['repo']}")

    async def _describe(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if (repository := self._found(request)) is None:
            return _error(401 if not request.headers.get("authorization") else 404, "RepoNotFound")
        name = "{user}/{repo}".format(**request.path_params)
        siblings = [
            {
                "rfilename": repository.described_as.get(path, path),
                "size": len(data),
                "blobId": _git_digest(data),
                "lfs": {"sha256": _digest(data), "size": len(data), "pointerSize": 130},
            }
            for path, data in sorted(repository.files.items())
        ]
        description: dict[str, Any] = {"id": name, "sha": repository.commit, "siblings": siblings}
        match repository.nonsense:
            case "sha":
                description["sha"] = "../../main"
            case "digest":
                for sibling in siblings:
                    sibling["lfs"] = {"sha256": "../../x", "size": 10, "pointerSize": 130}
            case "siblings":
                description["siblings"] = [17]
        return JSONResponse(description)

    async def _tree(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if (repository := self._found(request)) is None:
            return _error(404, "RepoNotFound")
        return JSONResponse(
            [
                {
                    "type": "file",
                    "path": repository.described_as.get(path, path),
                    "size": len(data),
                    "oid": _git_digest(data),
                    "lfs": {"oid": _digest(data), "size": len(data), "pointerSize": 130},
                }
                for path, data in sorted(repository.files.items())
            ]
        )

    async def _resolve(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if self.faults.gated:
            return _error(401, "GatedRepo")
        repository = self._found(request)
        if repository is None or request.path_params["name"] not in repository.files:
            return _error(404, "EntryNotFound")
        data = repository.files[request.path_params["name"]]
        digest = _digest(data)
        self._blobs[digest] = data
        return RedirectResponse(
            f"http://localhost:{self.port}/cdn/{digest}?signature=secret",
            302,
            {
                "X-Repo-Commit": repository.commit,
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(data)),
            },
        )

    async def _blob(self, request: Request) -> Response:
        # The signature gives access, not the token.
        token, self.faults.token = self.faults.token, ""
        refusal = self._refusal(request)
        self.faults.token = token
        return refusal or self._send(request, self._blobs[request.path_params["digest"]])

    async def _plain(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        data = self.plain.get(request.path_params["name"])
        return Response("no such file", 404) if data is None else self._send(request, data)

    def _send(self, request: Request, data: bytes) -> Response:
        start, end, status, headers = 0, len(data), 200, {}
        if not self.faults.no_validators:
            headers["ETag"] = f'"{_digest(data)}"'
        wanted = request.headers.get("range", "").removeprefix("bytes=")
        if wanted and not self.faults.no_ranges:
            first, _, last = wanted.partition("-")
            start, end = int(first), min(int(last) + 1 if last else len(data), len(data))
            if start >= end:
                return Response(None, 416, {"Content-Range": f"bytes */{len(data)}"})
            status = 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        body = data[start:end]
        # An answer of at most 4 bytes, the magic number of a file, is never damaged.
        if len(body) > 4 and self.faults.n_damaged > 0:
            self.faults.n_damaged -= 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        headers["Content-Length"] = str(len(body))
        return StreamingResponse(self._stream(body), status, headers)

    async def _stream(self, body: bytes) -> AsyncIterator[bytes]:
        faults = self.faults
        end = len(body)
        stalls = faults.stall_after is not None and faults.stall_after < end and faults.n_stalls > 0
        breaks = faults.break_after is not None and faults.break_after < end and faults.n_breaks > 0
        if stalls:
            faults.n_stalls -= 1
            end = faults.stall_after or 0
        elif breaks:
            faults.n_breaks -= 1
            end = faults.break_after or 0
        at = 0
        while at < end:  # the faults may change meanwhile
            chunk, rate = CHUNK, faults.bytes_per_second
            if faults.slow_from is not None:
                chunk, rate = (1, 20) if at >= faults.slow_from else (faults.slow_from - at, None)
            elif rate:
                chunk = max(1, rate // 20)
            chunk = min(chunk, CHUNK)
            yield body[at : min(at + chunk, end)]
            at += chunk
            if rate:
                await asyncio.sleep(chunk / rate)
        if stalls:
            await asyncio.sleep(3600)  # cancelled when the client gives up
        if breaks:
            raise ConnectionAbortedError("by a fault of the test")


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub that runs until the end of the block."""
    with Hub() as hub:
        yield hub


def _error(status: int, code: str) -> Response:
    return JSONResponse({"error": code}, status, {"X-Error-Code": code, "X-Error-Message": code})


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _git_digest(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
