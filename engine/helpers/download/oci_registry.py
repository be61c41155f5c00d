"""Asks a registry for manifests, as the OCI's distribution specification has it.

Nobody is logged in: whatever is public can be had. A registry that wants a token says where one
is given, and gets it; it never sees one of another registry, and other servers see none.
"""

import re
from typing import Final
from urllib.request import parse_http_list, parse_keqv_list

import httpx2
import msgspec

from specllama.engine.formats.oci_names import Reference
from specllama.engine.helpers.download.http_errors import (
    NETWORK_FAILURES,
    DownloadError,
    TransientError,
    check_status,
    network_failure,
)

MAX_MANIFEST: Final = 4 << 20  # bytes: what the specification wants to be possible
MAX_TOKEN: Final = 64 << 10  # bytes of the answer that holds one

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
    """What a token server says; the two names mean the same."""

    token: str | None = None
    access_token: str | None = None


_decoder = msgspec.json.Decoder(_Answer)


class Registry:
    """One repository of a registry. `headers` are those of requests to it, and change with
    its token."""

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
        """The manifest of a tag or a digest, which `what` is the name of; with `may_renew`, the
        registry may ask for a token before. Raises DownloadError."""
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
        """Raise the DownloadError that an answer's status means. Tokens are good for minutes:
        when one has expired, the next attempt has a new one."""
        if self._is_challenge(response):
            self._renew(response, what)
            raise TransientError(f"{self._host} refuses the token that it gave for {what}")
        self._check(response, what)

    def _check(self, response: httpx2.Response, what: str) -> None:
        if response.status_code in (401, 403):
            raise DownloadError(
                f"{response.url.host} refuses {what} (status {response.status_code}): check the "
                "name; what needs an account can't be had"
            )
        check_status(response, what)

    def _is_challenge(self, response: httpx2.Response) -> bool:
        return response.status_code == 401 and response.url.origin == self._root.origin

    def _renew(self, response: httpx2.Response, what: str) -> None:
        """Get a token where the answer says. Raises DownloadError."""
        challenge = _bearer_challenge(response.headers.get_list("WWW-Authenticate"))
        if not challenge:
            self._check(response, what)
        url = self._token_url(challenge)
        self.headers.pop("Authorization", None)
        name = f"the token for {what}"
        try:
            headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
            # Without redirects: what a server of this network says must not become a token.
            with self._client.stream("GET", url, headers=headers, follow_redirects=False) as answer:
                self._check(answer, name)
                data = _read(answer, MAX_TOKEN, name)
        except NETWORK_FAILURES as error:
            raise network_failure(error, str(url), name) from error
        try:
            said = _decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = _Answer()
        token = said.token or said.access_token or ""
        if not _TOKEN.fullmatch(token):
            raise DownloadError(f"{url.host} gives no valid token for {what}")
        self.headers["Authorization"] = f"Bearer {token}"

    def _token_url(self, challenge: dict[str, str]) -> httpx2.URL:
        realm = challenge.get("realm", "")
        try:
            url = httpx2.URL(realm)
            url.host.encode("idna")
        except (httpx2.InvalidURL, UnicodeError):
            url = httpx2.URL("")
        # A server on this machine is asked only for a registry that is on this machine, too.
        if not url.host or url.scheme not in {"https", self._root.scheme}:
            raise DownloadError(
                f"{self._host} names no https address where a token is given: {realm[:200]!a}"
            )
        asked = {"scope": challenge.get("scope") or self._scope}
        if service := challenge.get("service"):
            asked["service"] = service
        return url.copy_merge_params(asked)


def _bearer_challenge(headers: list[str]) -> dict[str, str]:
    """The parameters of the first challenge that asks for a bearer token; none if there is none,
    or if it can't be read."""
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
