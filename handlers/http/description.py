"""Bundles the files of an OpenAPI description into one document.

The target of a reference to another file moves to the root's `components`, with the last part of
the pointer as its name, and the reference is adapted. Path items have no section in `components`,
so they replace the references to them. References inside the root file stay unchanged.

The responses of an operation are sorted by their status, because a merge key in the YAML puts the
merged responses first. The description of a field or parameter with `x-default` ends with its
default.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import yaml

from specllama.engine.host import user_cache, write_whole

log = logging.getLogger(__name__)

Node = dict[str, Any]

# The section of `components` for the target of a reference, by the key of the object that holds it.
_SECTIONS = {
    "parameters": "parameters",
    "responses": "responses",
    "headers": "headers",
    "examples": "examples",
    "links": "links",
    "callbacks": "callbacks",
    "schemas": "schemas",
}

# The extensions that only Connexion reads.
_PRIVATE = frozenset(
    {"x-openapi-router-controller", "x-body-name", "x-scopeValidateFunc"}
    | {"x-tokenInfoFunc", "x-tokenInfoUrl"}
    | {f"x-{scheme}InfoFunc" for scheme in ("apikey", "basic", "bearer")}
)


def bundle(root: Path) -> Node:
    """Returns the description at `root` as one document without references to other files.

    Raises OSError for a missing file, KeyError for a pointer without a target, and ValueError if
    two components of one section have the same name.
    """
    document = _Bundler(root.resolve()).run()
    _describe_defaults(document, document)
    return document


def public(document: Node) -> Node:
    """Returns a copy of a bundled description without the extensions that only Connexion reads: the
    modules of the handlers, and the functions that check credentials."""
    copy: Node = _without_private(document)
    return copy


def with_body_examples(document: Node) -> Node:
    """Copies the first example of each JSON body to its schema, and returns `document`.

    Until the user chooses one of several examples, Swagger UI generates a body from the schema, and
    uses the schema's example for it. A schema of several bodies gets the example of the first.
    """
    for item in document["paths"].values():
        for operation in (each for each in item.values() if isinstance(each, dict)):
            body = _target(document, operation.get("requestBody", {}))
            for media in body.get("content", {}).values():
                schema = _target(document, media["schema"])
                if (first := _first_example(document, media)) is not None:
                    schema.setdefault("example", first)
    return document


def _first_example(document: Node, media: Node) -> Any:
    if "example" in media:
        return media["example"]
    first: Node = next(iter(media.get("examples", {}).values()), {})
    return _target(document, first).get("value")


def _target(document: Node, node: Node) -> Node:
    """Returns the target of the reference `node`, or `node` itself if it is no reference."""
    while "$ref" in node:
        reference = node["$ref"]
        node = document
        for part in reference.split("/")[1:]:
            node = node[part.replace("~1", "/").replace("~0", "~")]
    return node


def _without_private(node: Any) -> Any:
    if isinstance(node, list):
        return [_without_private(child) for child in node]
    if not isinstance(node, dict):
        return node
    return {key: _without_private(child) for key, child in node.items() if key not in _PRIVATE}


class _Bundler:
    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[Path, Any] = {}
        self._components: dict[str, Node] = {}
        self._origins: dict[tuple[str, str], tuple[Path, str]] = {}

    def run(self) -> Node:
        document: Node = self._walk(self._load(self._root), self._root, "document", "")
        components = document.setdefault("components", {})
        for section, members in self._components.items():
            components.setdefault(section, {}).update(sorted(members.items()))
        return document

    def _load(self, path: Path) -> Any:
        if path not in self._files:
            loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
            self._files[path] = yaml.load(path.read_bytes(), loader)
        return self._files[path]

    def _walk(self, node: Any, file: Path, kind: str, key: str) -> Any:
        """Returns a copy of `node` with adapted references. `kind` is the section of `components`
        for a reference at this place, `key` the key of `node` in its parent."""
        if isinstance(node, list):
            return [self._walk(child, file, kind, key) for child in node]
        if not isinstance(node, dict):
            return node
        reference = node.get("$ref")
        if isinstance(reference, str):
            return self._refer(reference, file, kind)
        copy = {
            str(name): self._walk(child, file, _kind(kind, key, str(name)), str(name))
            for name, child in node.items()
        }
        return dict(sorted(copy.items())) if kind == key == "responses" else copy

    def _refer(self, reference: str, file: Path, kind: str) -> Any:
        target, _, pointer = reference.partition("#")
        path = (file.parent / target).resolve() if target else file
        if path == self._root:
            return {"$ref": f"#{pointer}"}
        if kind == "document":
            return self._walk(self._find(path, pointer), path, kind, "")
        name = pointer.rsplit("/", 1)[-1] or path.stem
        origin = (path, pointer)
        known = self._origins.setdefault((kind, name), origin)
        if known != origin:
            raise ValueError(f"{kind}: {name} is both in {known[0].name} and in {path.name}")
        members = self._components.setdefault(kind, {})
        if name not in members:
            members[name] = {}  # a placeholder for references to the component inside itself
            members[name] = self._walk(self._find(path, pointer), path, kind, name)
        return {"$ref": f"#/components/{kind}/{name}"}

    def _find(self, path: Path, pointer: str) -> Any:
        node = self._load(path)
        for part in pointer.split("/")[1:]:
            node = node[part.replace("~1", "/").replace("~0", "~")]
        return node


def _kind(kind: str, parent: str, key: str) -> str:
    """Returns the section for a reference under `key` in a node of the section `kind`, which itself
    has the key `parent`."""
    if kind == "schemas" or key == "schema" or key.startswith("x-"):
        return "schemas"
    if key == "requestBody":
        return "requestBodies"
    return _SECTIONS.get(key, kind if parent in _SECTIONS else "document")


# ---- Sentences about defaults


def _describe_defaults(document: Node, node: Any) -> None:
    """Adds a sentence to the description of each schema in `node` with `x-default`, and of each
    parameter whose schema has it."""
    if isinstance(node, list):
        for child in node:
            _describe_defaults(document, child)
    if not isinstance(node, dict):
        return
    schema = _target(document, node["schema"]) if "in" in node and "schema" in node else node
    text = node.get("description")
    if "x-default" in schema and isinstance(text, str):
        node["description"] = f"{text.rstrip()}\n{default_sentence(schema['x-default'])}"
    for name, child in node.items():
        if name not in ("example", "examples", "x-default"):
            _describe_defaults(document, child)


def default_sentence(value: Any) -> str:
    """Returns the sentence for a description, in Markdown."""
    if value is None:
        return "Default: none."
    if value in ("", [], {}):
        return "Default: empty."
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"Default: `{text}`."


# ---- The cache of bundled descriptions.
#
# Reading and checking the YAML files takes longer than all other work that the server does
# with its description before it serves. So the user's cache keeps the bundled document, with a hash
# of its sources in the name. The server bundles the files again if that document is missing or
# damaged, and at every start if it can't write to the cache.


KEPT = 8
"""The number of cached documents; the oldest ones are deleted. Several versions of the package may
be in use at once."""


def bundled(
    root: Path,
    environ: Mapping[str, str] = os.environ,
    check: Callable[[Node], None] = lambda document: None,
) -> Node:
    """Returns `bundle(root)` from the cache if possible; each caller gets its own objects. `check`
    validates a description that is not in the cache yet; its exceptions are passed on."""
    place = _place(root, environ)
    document = place and _read(place)
    if document:
        return document
    document = bundle(root)
    check(document)
    if place is not None:
        _write(place, document)
    return document


def _place(root: Path, environ: Mapping[str, str]) -> Path | None:
    """Returns the file for the cached document, or None if the user has no home directory. The name
    is a digest of the sources and of this module."""
    key = hashlib.sha256()
    for file in (Path(__file__), *sorted(root.parent.rglob("*.yaml"))):
        content = file.read_bytes()
        key.update(f"{file.name} {len(content)} ".encode())
        key.update(content)
    key.update(str(root.name).encode())
    try:
        return user_cache(environ) / "descriptions" / f"{key.hexdigest()}.json"
    except RuntimeError:  # no home
        return None


def _read(place: Path) -> Node | None:
    """Returns the document at `place`, or None if the file is missing or damaged."""
    try:
        checksum, _, content = place.read_bytes().partition(b"\n")
        if checksum == _checksum(content):
            document: Node = msgspec.json.decode(content)
            return document
        log.warning("%s is damaged, so it will be written again", place)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError) as error:
        log.debug("%s can't be read: %s", place, error)
    return None


def _write(place: Path, document: Node) -> None:
    """Replaces the file atomically, so that concurrent readers get the old or the new document."""
    content = msgspec.json.encode(document)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, _checksum(content) + b"\n" + content)
        _forget_old(place.parent)
    except OSError as error:
        log.debug("the bundled description can't be cached: %s", error)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _forget_old(directory: Path) -> None:
    files = sorted(directory.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[KEPT:]:
        with suppress(FileNotFoundError):  # another process has deleted it
            file.unlink()
