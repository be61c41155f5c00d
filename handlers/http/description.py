"""Makes one document of a description that is spread over many files.

What is referred to in another file moves to the root's `components`, under the last part of
its pointer as the name, and the reference follows it; path items, which have no place there,
are put where they are referred to. References inside the root file stay as they are.

The responses of an operation are ordered by their status: a merge key in the YAML puts what it
merges first. The description of a field or parameter with `x-default` ends with its default.
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

# The place of a reference decides what it refers to: the container's key and the section of it.
_SECTIONS = {
    "parameters": "parameters",
    "responses": "responses",
    "headers": "headers",
    "examples": "examples",
    "links": "links",
    "callbacks": "callbacks",
    "schemas": "schemas",
}

# What Connexion reads of a description beyond OpenAPI.
_PRIVATE = frozenset(
    {"x-openapi-router-controller", "x-body-name", "x-scopeValidateFunc"}
    | {"x-tokenInfoFunc", "x-tokenInfoUrl"}
    | {f"x-{scheme}InfoFunc" for scheme in ("apikey", "basic", "bearer")}
)


def bundle(root: Path) -> Node:
    """The description at `root` as a document without references to other files.

    Raises OSError for a file and KeyError for a pointer that doesn't exist, and ValueError if
    two things of one kind want the same name.
    """
    document = _Bundler(root.resolve()).run()
    _describe_defaults(document)
    return document


def public(document: Node) -> Node:
    """A copy of a bundled description without what only Connexion reads: which module handles
    an operation, and which function checks a credential."""
    copy: Node = _without_private(document)
    return copy


def with_body_examples(document: Node) -> Node:
    """`document`, whose schemas of JSON bodies get the first example of the body as their own.

    Swagger UI makes a body up from the schema as long as none of several examples has been
    chosen, and takes the schema's example for it. A schema of several bodies has that of the first.
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
    """What `node` refers to, or `node` itself."""
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
        """A copy of `node` with its references adapted. `kind` is the section that a reference
        in this place belongs to, `key` the name under which `node` stands."""
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
            members[name] = {}  # for references to itself while it is being copied
            members[name] = self._walk(self._find(path, pointer), path, kind, name)
        return {"$ref": f"#/components/{kind}/{name}"}

    def _find(self, path: Path, pointer: str) -> Any:
        node = self._load(path)
        for part in pointer.split("/")[1:]:
            node = node[part.replace("~1", "/").replace("~0", "~")]
        return node


def _kind(kind: str, parent: str, key: str) -> str:
    """The kind of what stands under `key` in a node of `kind` that stands under `parent`."""
    if kind == "schemas" or key == "schema" or key.startswith("x-"):
        return "schemas"
    if key == "requestBody":
        return "requestBodies"
    return _SECTIONS.get(key, kind if parent in _SECTIONS else "document")


# ---- Sentences about defaults


def _describe_defaults(node: Any) -> None:
    """Adds a sentence about `x-default` to the description beside it. A schema without description
    is that of a parameter, whose description gets the sentence."""
    if isinstance(node, list):
        for child in node:
            _describe_defaults(child)
    if not isinstance(node, dict):
        return
    schema = node.get("schema")
    described = schema if isinstance(schema, dict) and "description" not in schema else node
    text = node.get("description")
    if "x-default" in described and isinstance(text, str):
        node["description"] = f"{text.rstrip()}\n{default_sentence(described['x-default'])}"
    for name, child in node.items():
        if name not in ("example", "examples", "x-default"):
            _describe_defaults(child)


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


# ---- Remembers the bundled description between starts.
#
# Reading some forty YAML files, and checking them, takes longer than all else that the server does
# with its description before it serves. What comes out is kept in the user's cache, under the hash
# of all that it is made of. A copy that is missing or damaged is made anew; where none can be
# written, that happens at every start.


KEPT = 8
"""Copies, the newest: several versions may be in use, and the older ones are of no use."""


def bundled(
    root: Path,
    environ: Mapping[str, str] = os.environ,
    check: Callable[[Node], None] = lambda document: None,
) -> Node:
    """`bundle(root)`, remembered; each caller has its own objects. `check` sees a description
    that is not known yet, and raises what it likes if that is not valid."""
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
    """The file of the copy: its name is a digest of its sources and of this module."""
    key = hashlib.sha256()
    for file in (Path(__file__), *sorted(root.parent.rglob("*.yaml"))):
        content = file.read_bytes()
        key.update(f"{file.name} {len(content)} ".encode())
        key.update(content)
    key.update(str(root.name).encode())
    try:
        return user_cache(environ) / "descriptions" / f"{key.hexdigest()}.json"
    except RuntimeError:  # the user has no home
        return None


def _read(place: Path) -> Node | None:
    """The bundle at `place`, if it is whole."""
    try:
        checksum, _, content = place.read_bytes().partition(b"\n")
        if checksum == _checksum(content):
            document: Node = msgspec.json.decode(content)
            return document
        log.warning("%s is damaged, and is made anew", place)
    except FileNotFoundError:
        pass
    except (OSError, msgspec.DecodeError) as error:
        log.debug("%s can't be read: %s", place, error)
    return None


def _write(place: Path, document: Node) -> None:
    """All at once, so that who reads it meanwhile sees the old file or the new one."""
    content = msgspec.json.encode(document)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_whole(place, _checksum(content) + b"\n" + content)
        _forget_old(place.parent)
    except OSError as error:
        log.debug("the description can't be remembered: %s", error)


def _checksum(content: bytes) -> bytes:
    return hashlib.sha256(content).hexdigest().encode()


def _forget_old(directory: Path) -> None:
    files = sorted(directory.glob("*.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[KEPT:]:
        with suppress(FileNotFoundError):  # another process was quicker
            file.unlink()
