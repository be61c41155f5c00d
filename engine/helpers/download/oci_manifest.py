"""Manifests of registries: which of their layers are a model's files.

Those of Docker have a media type for GGUF, and leave the files' names out; those of ModelPack
(https://github.com/modelpack/model-spec) name each file in an annotation. Whoever wrote one may
be hostile.
"""

from typing import Any, Final, NamedTuple

import msgspec

from specllama.engine.catalog.hub_choice import parts_of
from specllama.engine.formats.gguf_names import Part, is_gguf, is_model
from specllama.engine.formats.oci_names import sha256
from specllama.engine.helpers.download.http_errors import DownloadError
from specllama.engine.helpers.download.hub_layout import is_inside

_MAX_FILE_NAME: Final = 180  # bytes of UTF-8
_MAX_SIZE: Final = 1 << 53  # bytes

_TITLES: Final = ("org.cncf.model.filepath", "org.opencontainers.image.title")
_RAW: Final = "application/vnd.cncf.model.weight.v1.raw"
_ADAPTER: Final = ".lora"  # what ends the media type of one, in Docker's manifests


class Descriptor(msgspec.Struct, frozen=True):
    """Points to a layer, or to a manifest of an index."""

    mediaType: str = ""  # noqa: N815
    digest: str = ""
    size: int = 0
    annotations: dict[str, Any] | None = None


class Manifest(msgspec.Struct, frozen=True):
    """A manifest, or an index of several."""

    layers: list[Descriptor] | None = None
    manifests: list[Descriptor] | None = None


class File(NamedTuple):
    """A file of the model, under the name that it has on this machine."""

    name: str
    digest: str  # SHA-256 in hexadecimal
    size: int  # bytes


_decoder = msgspec.json.Decoder(Manifest)


def read_manifest(data: bytes, what: str) -> Manifest:
    """Raises DownloadError, in which `what` is the name of what `data` should describe."""
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise DownloadError(f"the registry sends no valid manifest of {what}") from None


def digest_of(descriptor: Descriptor, what: str) -> str:
    """Raises DownloadError."""
    try:
        return sha256(descriptor.digest)
    except ValueError as error:
        raise DownloadError(f"the manifest of {what} is not valid: {error}") from None


def model_files(manifest: Manifest, what: str) -> list[File]:
    """The files of the model, the first part first; none if no layer has one. Raises
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
    names = Part("model", 1, len(layers)).file_names()
    return [_file(name, layer, what) for name, layer in zip(names, layers, strict=True)]


def _is_model(layer: Descriptor) -> bool:
    kind, title = layer.mediaType, _title(layer)
    if kind != _RAW and ("gguf" not in kind or kind.endswith(_ADAPTER)):
        return False
    return is_model(title) or (kind != _RAW and not is_gguf(title))


def _title(layer: Descriptor) -> str:
    """The file's name; "" if the layer has none."""
    annotations = layer.annotations or {}
    titles = (annotations.get(title) for title in _TITLES)
    return next((title for title in titles if isinstance(title, str) and title), "")


def _file(name: str, layer: Descriptor, what: str) -> File:
    if not is_inside(name) or any(
        len(component.encode("utf-8", "replace")) > _MAX_FILE_NAME for component in name.split("/")
    ):
        raise DownloadError(f"the manifest of {what} has an unsafe file name: {_legible(name)}")
    if not 0 < layer.size < _MAX_SIZE:
        raise DownloadError(f"the manifest of {what} is not valid: a layer has {layer.size} bytes")
    return File(name, digest_of(layer, what), layer.size)


def _legible(text: str) -> str:
    return ascii(text[:100])
