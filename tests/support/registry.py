"""A stand-in for a container registry, whose faults can be switched on.

Like Docker Hub it gives tokens, and sends the contents from another host (`127.0.0.1` instead of
`localhost`), which must not see them.
"""

import asyncio
import hashlib
import json
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
DOCKER = "application/vnd.docker.ai.gguf.v3"
MODELPACK = "application/vnd.cncf.model.weight.v1.raw"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


@dataclass
class Faults:
    """Faults of the registry. A fault with a number `n_...` ends after so many answers."""

    asks_token: bool = False
    challenge: str = ""  # instead of the right one
    token: bytes | None = None  # the answer of the token server, instead of the right one
    token_elsewhere: bool = False  # the token server redirects to another one
    n_expired: int = 0  # requests for contents whose token has expired
    break_after: int | None = None  # bytes of an answer, then the connection ends; once
    stall_after: int | None = None  # bytes of an answer, then nothing more is sent; once
    n_damaged: int = 0  # contents with one wrong byte
    status: int = 0  # of all answers
    n_busy: int = 0  # answers with status 429
    cdn_status: int = 0
    cdn_host: str = ""  # instead of the right one


@dataclass
class Asked:
    """A request."""

    host: str
    path: str
    query: dict[str, str]
    range: str
    authorization: str
    accept: str


@dataclass
class Registry:
    """The stand-in, a context manager. `host` is the prefix of a model's name."""

    manifests: dict[str, bytes] = field(default_factory=dict)  # by repository:version
    blobs: dict[str, bytes] = field(default_factory=dict)
    faults: Faults = field(default_factory=Faults)
    requests: list[Asked] = field(default_factory=list)

    def __enter__(self) -> "Registry":
        routes = [
            Route("/v2/{name:path}/manifests/{version}", self._manifest),
            Route("/v2/{name:path}/blobs/{digest}", self._blob),
            Route("/token", self._token),
            Route("/cdn/{digest}", self._cdn),
        ]
        self._n_tokens = 0
        self._server = ThreadedServer(Starlette(routes=routes), "stand-in registry")
        self.port = self._server.port
        self.host = f"localhost:{self.port}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._server.stop()

    def reset(self) -> None:
        """Removes all models, faults and recorded requests."""
        self.manifests, self.blobs, self.faults = {}, {}, Faults()
        self.requests.clear()
        self._n_tokens = 0

    def add(self, name: str, *layers: tuple[str, bytes, dict[str, Any] | None]) -> str:
        """Adds a model `repository:tag` with layers (media type, content, annotations). Returns the
        digest of its manifest."""
        described = [self.layer(*layer) for layer in layers]
        return self.push(name, {"mediaType": MANIFEST, "schemaVersion": 2, "layers": described})

    def layer(
        self, kind: str, data: bytes, annotations: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Adds the content of a layer, and returns the description of the layer."""
        self.blobs[digest(data)] = data
        described = {"mediaType": kind, "digest": digest(data), "size": len(data)}
        return described | ({"annotations": annotations} if annotations else {})

    def push(self, name: str, manifest: Any) -> str:
        """Stores a manifest, or other data in its place, and returns its digest."""
        data = manifest if isinstance(manifest, bytes) else json.dumps(manifest).encode()
        self.manifests[name] = data
        self.manifests[f"{name.partition(':')[0]}:{digest(data)}"] = data
        return digest(data)

    def downloads(self) -> list[Asked]:
        """Returns the requests for contents."""
        return [asked for asked in self.requests if asked.path.startswith("/cdn/")]

    # ---- answers ------------------------------------------------------------------------

    def _note(self, request: Request) -> None:
        headers = request.headers
        self.requests.append(
            Asked(
                request.url.hostname or "",
                request.url.path,
                dict(request.query_params),
                headers.get("range", ""),
                headers.get("authorization", ""),
                headers.get("accept", ""),
            )
        )

    def _refusal(self, request: Request) -> Response | None:
        self._note(request)
        faults = self.faults
        if faults.status:
            return Response("no", faults.status)
        if faults.n_busy > 0:
            faults.n_busy -= 1
            return Response("toomanyrequests", 429)
        name = request.path_params["name"]
        right = f"Bearer {name}#{self._n_tokens}"
        if faults.n_expired > 0 and "/blobs/" in request.url.path:
            faults.n_expired -= 1
            right = ""
        if not faults.asks_token or request.headers.get("authorization") == right:
            return None
        challenge = f'Bearer realm="http://{self.host}/token",service="here",'
        challenge += f'scope="repository:{name}:pull"'
        headers = {"WWW-Authenticate": faults.challenge or challenge}
        return JSONResponse({"errors": [{"code": "UNAUTHORIZED"}]}, 401, headers)

    async def _token(self, request: Request) -> Response:
        self._note(request)
        if self.faults.token is not None:
            return Response(self.faults.token)
        if self.faults.token_elsewhere:
            return RedirectResponse(f"http://127.0.0.1:{self.port}/token?{request.query_params}")
        self._n_tokens += 1
        name = request.query_params["scope"].split(":")[1]
        return JSONResponse({"token": f"{name}#{self._n_tokens}", "expires_in": 60})

    async def _manifest(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        data = self.manifests.get("{name}:{version}".format(**request.path_params))
        if data is None:
            return JSONResponse({"errors": [{"code": "MANIFEST_UNKNOWN"}]}, 404)
        return Response(data, media_type=MANIFEST)

    async def _blob(self, request: Request) -> Response:
        if refusal := self._refusal(request):
            return refusal
        if request.path_params["digest"] not in self.blobs:
            return JSONResponse({"errors": [{"code": "BLOB_UNKNOWN"}]}, 404)
        path = request.path_params["digest"]
        host = self.faults.cdn_host or f"127.0.0.1:{self.port}"
        return RedirectResponse(f"http://{host}/cdn/{path}?signature=secret", 307)

    async def _cdn(self, request: Request) -> Response:
        self._note(request)
        if self.faults.cdn_status:
            return Response("no", self.faults.cdn_status)
        data = self.blobs[request.path_params["digest"]]
        start, end, status, headers = 0, len(data), 200, {}
        if wanted := request.headers.get("range", "").removeprefix("bytes="):
            first, _, last = wanted.partition("-")
            start, end, status = int(first), min(int(last) + 1, len(data)), 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
        body = data[start:end]
        if self.faults.n_damaged > 0:
            self.faults.n_damaged -= 1
            body = body[:-1] + bytes([body[-1] ^ 1])
        headers["Content-Length"] = str(len(body))
        return StreamingResponse(self._stream(body), status, headers)

    async def _stream(self, body: bytes) -> AsyncIterator[bytes]:
        stalls, self.faults.stall_after = self.faults.stall_after, None
        breaks, self.faults.break_after = self.faults.break_after, None
        end = next((each for each in (stalls, breaks) if each is not None), len(body))
        for start in range(0, end, CHUNK):
            yield body[start : min(start + CHUNK, end)]
        if stalls is not None:
            await asyncio.sleep(3600)  # cancelled when the client gives up
        if breaks is not None:
            raise ConnectionAbortedError("by a fault of the test")


@contextmanager
def serving() -> Iterator[Registry]:
    """A registry that runs until the end of the block."""
    with Registry() as registry:
        yield registry


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()
