"""Requests manifests from a registry, following the OCI distribution specification.

There is no login, so only public repositories are available. A registry that requires a token names
the server that issues the token. A token is only sent to the registry that it was issued for.
"""

import re
from typing import Any, Final, NamedTuple
from urllib.request import parse_http_list, parse_keqv_list

import httpx2
import msgspec

from specllama.engine.formats.gguf_names import FilePart, is_gguf, is_model, parts_of
from specllama.engine.formats.oci_names import Reference, sha256
from specllama.engine.helpers.download.http_errors import (
    NETWORK_FAILURES,
    DownloadError,
    TransientError,
    check_status,
    network_failure,
)
from specllama.engine.helpers.download.hub_layout import is_inside

# ---- Manifests of registries: which of their layers are a model's files.
#
# Docker's manifests have a media type for GGUF, but no file names. Those of ModelPack
# (https://github.com/modelpack/model-spec) name each file in an annotation. A
# manifest may be hostile: its names and sizes are checked.


_MAX_FILE_NAME: Final = 180  # bytes of UTF-8
_MAX_SIZE: Final = 1 << 53  # bytes

_TITLES: Final = ("org.cncf.model.filepath", "org.opencontainers.image.title")
_RAW: Final = "application/vnd.cncf.model.weight.v1.raw"
_ADAPTER: Final = ".lora"  # end of an adapter's media type in Docker's manifests


class Descriptor(msgspec.Struct, frozen=True):
    """A reference to a layer, or to a manifest of an index."""

    mediaType: str = ""  # noqa: N815
    digest: str = ""
    size: int = 0
    annotations: dict[str, Any] | None = None


class Manifest(msgspec.Struct, frozen=True):
    """A manifest, or an index of several."""

    layers: list[Descriptor] | None = None
    manifests: list[Descriptor] | None = None


class File(NamedTuple):
    """A file of the model, with its name on this machine."""

    name: str
    digest: str  # SHA-256 in hexadecimal
    size: int  # bytes


_manifest_decoder = msgspec.json.Decoder(Manifest)


def read_manifest(data: bytes, what: str) -> Manifest:
    """Returns the decoded manifest. Raises DownloadError, in which `what` names the model."""
    try:
        return _manifest_decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise DownloadError(f"the registry sent an invalid manifest of {what}") from None


def digest_of(descriptor: Descriptor, what: str) -> str:
    """Raises DownloadError."""
    try:
        return sha256(descriptor.digest)
    except ValueError as error:
        raise DownloadError(f"the manifest of {what} is invalid: {error}") from None


def model_files(manifest: Manifest, what: str) -> list[File]:
    """Returns the files of the model, the first part first; empty if no layer is a model. Raises
    DownloadError."""
    layers = [layer for layer in manifest.layers or [] if _is_model(layer)]
    if not layers:
        return []
    first = _title(layers[0])
    if first:
        by_name = {_title(layer): layer for layer in reversed(layers)}
        names = parts_of(first)
        if missing := [name for name in names if name not in by_name]:
            raise DownloadError(f"{what} lacks a part of the model: {_legible(missing[0])}")
        return [_file(name, by_name[name], what) for name in names]
    if len(layers) == 1:
        return [_file("model.gguf", layers[0], what)]
    names = FilePart("model", 1, len(layers)).file_names()
    return [_file(name, layer, what) for name, layer in zip(names, layers, strict=True)]


def _is_model(layer: Descriptor) -> bool:
    kind, title = layer.mediaType, _title(layer)
    if kind != _RAW and ("gguf" not in kind or kind.endswith(_ADAPTER)):
        return False
    return is_model(title) or (kind != _RAW and not is_gguf(title))


def _title(layer: Descriptor) -> str:
    """Returns the file's name; "" if the layer has none."""
    annotations = layer.annotations or {}
    titles = (annotations.get(title) for title in _TITLES)
    return next((title for title in titles if isinstance(title, str) and title), "")


def _file(name: str, layer: Descriptor, what: str) -> File:
    if not is_inside(name) or any(
        len(component.encode("utf-8", "replace")) > _MAX_FILE_NAME for component in name.split("/")
    ):
        raise DownloadError(f"the manifest of {what} has an unsafe file name: {_legible(name)}")
    if not 0 < layer.size < _MAX_SIZE:
        raise DownloadError(f"the manifest of {what} is invalid: a layer has {layer.size} bytes")
    return File(name, digest_of(layer, what), layer.size)


def _legible(text: str) -> str:
    return ascii(text[:100])


MAX_MANIFEST: Final = 4 << 20  # bytes, the size that the specification recommends to accept
MAX_TOKEN: Final = 64 << 10  # bytes of the answer with a token

_ACCEPT: Final = ", ".join(
    (
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    )
)
_PLAIN_HTTP: Final = ("localhost", "127.0.0.1")
_TOKEN: Final = re.compile(r"[!-~]{1,32768}")


class _Answer(msgspec.Struct, frozen=True):
    """A token server's answer; the two names are equivalent."""

    token: str | None = None
    access_token: str | None = None


_token_decoder = msgspec.json.Decoder(_Answer)


class Registry:
    """One repository of a registry. `headers` are for requests to it, and change with its token."""

    def __init__(self, client: httpx2.Client, reference: Reference) -> None:
        self._client = client
        self._host = reference.host
        scheme = "http" if reference.host.partition(":")[0] in _PLAIN_HTTP else "https"
        self._root = httpx2.URL(f"{scheme}://{reference.host}/v2/{reference.repository}/")
        self._scope = f"repository:{reference.repository}:pull"
        self.headers: dict[str, str] = {}

    def blob_url(self, digest: str) -> str:
        return f"{self._root}blobs/sha256:{digest}"

    def manifest(self, version: str, what: str, *, may_renew: bool = True) -> bytes:
        """Returns the manifest of a tag or a digest, which messages call `what`. With `may_renew`,
        the registry may ask for a token first. Raises DownloadError."""
        url = f"{self._root}manifests/{version}"
        headers = {**self.headers, "Accept": _ACCEPT, "Accept-Encoding": "identity"}
        try:
            with self._client.stream("GET", url, headers=headers) as response:
                if not (may_renew and self._is_challenge(response)):
                    self._check(response, what)
                    return _read(response, MAX_MANIFEST, f"a manifest of {what}")
                self._renew(response, what)
        except NETWORK_FAILURES as error:
            raise network_failure(error, url, what) from error
        return self.manifest(version, what, may_renew=False)

    def check(self, response: httpx2.Response, what: str) -> None:
        """Raises a DownloadError if the status of `response` is an error. Tokens are valid for
        minutes: if the token has expired, the next attempt uses a new one."""
        if self._is_challenge(response):
            self._renew(response, what)
            raise TransientError(f"{self._host} rejects the token that it issued for {what}")
        self._check(response, what)

    def _check(self, response: httpx2.Response, what: str) -> None:
        if response.status_code in (401, 403):
            raise DownloadError(
                f"{response.url.host} refuses {what} (status {response.status_code}): check the "
                "name; private repositories are not supported"
            )
        check_status(response, what)

    def _is_challenge(self, response: httpx2.Response) -> bool:
        return response.status_code == 401 and response.url.origin == self._root.origin

    def _renew(self, response: httpx2.Response, what: str) -> None:
        """Requests a token from the server that the answer names. Raises DownloadError."""
        challenge = _bearer_challenge(response.headers.get_list("WWW-Authenticate"))
        if not challenge:
            self._check(response, what)
        url = self._token_url(challenge)
        self.headers.pop("Authorization", None)
        name = f"the token for {what}"
        try:
            headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
            # Without redirects: they could lead to a server in this network, whose answer would be
            # sent to the registry as a token.
            with self._client.stream("GET", url, headers=headers, follow_redirects=False) as answer:
                self._check(answer, name)
                data = _read(answer, MAX_TOKEN, name)
        except NETWORK_FAILURES as error:
            raise network_failure(error, str(url), name) from error
        try:
            said = _token_decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = _Answer()
        token = said.token or said.access_token or ""
        if not _TOKEN.fullmatch(token):
            raise DownloadError(f"{url.host} issued no valid token for {what}")
        self.headers["Authorization"] = f"Bearer {token}"

    def _token_url(self, challenge: dict[str, str]) -> httpx2.URL:
        realm = challenge.get("realm", "")
        try:
            url = httpx2.URL(realm)
            url.host.encode("idna")
        except (httpx2.InvalidURL, UnicodeError):
            url = httpx2.URL("")
        # A token server without TLS is only accepted for a registry without TLS, on this machine.
        if not url.host or url.scheme not in {"https", self._root.scheme}:
            raise DownloadError(
                f"{self._host} names no https address of a token server: {realm[:200]!a}"
            )
        asked = {"scope": challenge.get("scope") or self._scope}
        if service := challenge.get("service"):
            asked["service"] = service
        return url.copy_merge_params(asked)


def _bearer_challenge(headers: list[str]) -> dict[str, str]:
    """Returns the parameters of the first challenge that asks for a bearer token; empty if there is
    none, or if it is malformed."""
    for header in headers:
        scheme, _, rest = header.partition(" ")
        if scheme.lower() == "bearer":
            try:
                found = parse_keqv_list(parse_http_list(rest))
            except (ValueError, IndexError):
                continue
            return {name.lower(): value for name, value in found.items()}
    return {}


def _read(response: httpx2.Response, limit: int, what: str) -> bytes:
    data = bytearray()
    for chunk in response.iter_raw():
        data += chunk
        if len(data) > limit:
            raise DownloadError(f"{response.url.host} sends more than {limit} bytes as {what}")
    return bytes(data)
