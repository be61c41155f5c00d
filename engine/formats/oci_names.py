"""Names in container registries, as Docker and the OCI write them:

    [HOST[:PORT]/]NAME[:TAG][@sha256:DIGEST]

Without a host, NAME is in Docker Hub, where models without a namespace are in `ai/`.
"""

import re
from typing import Final, NamedTuple

HUB: Final = "registry-1.docker.io"
"""The host of Docker Hub's registry."""

_HUB_NAMES: Final = ("docker.io", "index.docker.io", HUB)
_NAMESPACE: Final = "ai/"  # Docker Hub's namespace of models
_MAX_REPOSITORY: Final = 255  # characters

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = re.compile(rf"({_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?")
_COMPONENT = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")


class Reference(NamedTuple):
    """A parsed name. Its `digest` has priority over its `tag`."""

    host: str  # with the port, if given
    repository: str
    tag: str
    digest: str  # SHA-256 in hexadecimal; "" = use the tag

    @property
    def version(self) -> str:
        """The part of a registry's URLs after the repository."""
        return f"sha256:{self.digest}" if self.digest else self.tag


def sha256(digest: str) -> str:
    """Returns the hexadecimal digits of `sha256:...`, in lower case. Raises ValueError."""
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise ValueError("a digest is sha256: and 64 hexadecimal digits")
    return match[1].lower()


def reference(text: str) -> Reference:
    """Returns the parsed name. Raises ValueError with the reason if it is invalid."""
    rest, at, digest = text.partition("@")
    hexadecimal = sha256(digest) if at else ""
    host, rest = _split_host(rest)
    name, colon, tag = rest.partition(":")
    if colon and not _TAG.fullmatch(tag):
        raise ValueError("a tag has letters, digits, '_', '.' and '-', at most 128")
    if host == HUB and "/" not in name:
        name = _NAMESPACE + name
    if len(name) > _MAX_REPOSITORY or not _REPOSITORY.fullmatch(name):
        raise ValueError(
            "a name has lower-case letters and digits, with '.', '_', '-' and '/' between"
        )
    return Reference(host, name, tag or "latest", hexadecimal)


def spelled(named: Reference) -> str:
    """Returns the canonical spelling of a name."""
    host = "" if named.host == HUB else f"{named.host}/"
    version = f"@sha256:{named.digest}" if named.digest else f":{named.tag}"
    return f"{host}{named.repository}{version}"


def _split_host(text: str) -> tuple[str, str]:
    """Splits by Docker's rule: the first part is a host if it contains a dot or a colon, or is
    `localhost`."""
    first, slash, rest = text.partition("/")
    if not slash or not ("." in first or ":" in first or first == "localhost"):
        return HUB, text
    match = _HOST.fullmatch(first)
    if match is None or len(match[1]) > 253 or (match[2] and not 0 < int(match[2]) < 65536):
        raise ValueError("the part before the first slash is not HOST or HOST:PORT")
    host = first.lower()
    return (HUB if host in _HUB_NAMES else host), rest
