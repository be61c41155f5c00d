"""`specllama spec`: writes the server's OpenAPI description, whole or in part, in several versions
of OpenAPI."""

import argparse
import copy
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal, get_args

from specllama.handlers.description import (
    as_json,
    as_yaml,
    description_path,
    served_description,
)

# ---- Conversion of the description, which is OpenAPI 3.0, to later versions.
#
# From 3.1 on, schemas are JSON Schema 2020-12: `null` is a type, and exclusive bounds are numbers
# (https://learn.openapis.org/upgrading/v3.0-to-v3.1). From 3.2 on, the items of a stream have a
# schema (https://spec.openapis.org/oas/v3.2.0#media-type-object).


Node = dict[str, Any]
Version = Literal["3.0", "3.1", "3.2"]

VERSIONS: tuple[Version, ...] = get_args(Version)

_FULL = {"3.1": "3.1.1", "3.2": "3.2.0"}
_EVENTS = "text/event-stream"
_SCHEMAS = frozenset({"schema", "x-event-data-schema", "x-line-schema"})
_EXAMPLES = frozenset({"example", "examples"})


def in_version(document: Node, version: Version) -> Node:
    """Returns `document`, a bundled description in 3.0, in another version, without changing the
    original."""
    if version == "3.0":
        return document
    converted: Node = _converted(copy.deepcopy(document), version)
    schemas = converted["components"]["schemas"]
    converted["components"]["schemas"] = {name: _schema(each) for name, each in schemas.items()}
    return {**converted, "openapi": _FULL[version]}


def _converted(node: Any, version: Version) -> Any:
    """Returns a node that isn't a schema, with the schemas in it converted to JSON Schema."""
    if isinstance(node, list):
        return [_converted(child, version) for child in node]
    if not isinstance(node, dict):
        return node
    result: Node = {}
    for key, child in node.items():
        if key in _SCHEMAS:
            result[key] = _schema(child)
        elif key == "content" and version == "3.2":
            result[key] = {
                kind: _with_items(kind, _converted(media, version)) for kind, media in child.items()
            }
        elif key in _EXAMPLES or key == "schemas":
            result[key] = child
        else:
            result[key] = _converted(child, version)
    return result


# ---- 3.1 ---------------------------------------------------------------------------------


def _schema(schema: Node) -> Node:
    """Returns a schema of OpenAPI 3.0 as a JSON Schema, annotations included."""
    result: Node = {}
    for keyword, value in schema.items():
        match keyword:
            case "nullable":
                pass  # handled below, with the type
            case "properties":
                result[keyword] = {name: _schema(child) for name, child in value.items()}
            case "allOf" | "anyOf" | "oneOf":
                result[keyword] = [_schema(child) for child in value]
            case "items" | "not" | "additionalProperties":
                result[keyword] = _schema(value) if isinstance(value, dict) else value
            case "example":
                result["examples"] = [value]
            case "minimum" | "maximum" if schema.get(_exclusive(keyword)) is True:
                result[_exclusive(keyword)] = value
            case "exclusiveMinimum" | "exclusiveMaximum":
                pass  # booleans; handled above, with the bound
            case _:
                result[keyword] = value
    if schema.get("nullable") and "type" in result:  # without a type it has no effect in 3.0
        result["type"] = [result["type"], "null"]
        if "enum" in result and None not in result["enum"]:
            result["enum"] = [*result["enum"], None]
    return result


def _exclusive(bound: str) -> str:
    return f"exclusive{bound.capitalize()}"


# ---- 3.2 ---------------------------------------------------------------------------------


def _with_items(kind: str, media: Node) -> Node:
    """Returns the media type object of a stream, with the schema of its items. In 3.0, which has
    schemas only for the whole text, extensions have these schemas."""
    if "x-event-data-schema" in media:
        return _of_events(media)
    if "x-line-schema" in media:
        return _of_lines(media)
    if kind == _EVENTS:
        return _with_item_examples({"itemSchema": media["schema"]}, media)
    return media


def _of_events(media: Node) -> Node:
    data: Node = {
        "type": "string",
        "contentMediaType": "application/json",
        "contentSchema": media["x-event-data-schema"],
    }
    if (end := media.get("x-event-end")) is not None:
        data = {"anyOf": [data, {"const": end, "description": "The end of the stream."}]}
    properties = {"type": "object", "properties": {"data": data}}
    return _with_item_examples({"itemSchema": {"allOf": [media["schema"], properties]}}, media)


def _with_item_examples(result: Node, media: Node) -> Node:
    """Adds the examples, which are single events in 3.0, as streams of one event."""
    return result | _examples(media, lambda value: {"dataValue": [value]})


def _of_lines(media: Node) -> Node:
    result = {"itemSchema": media["x-line-schema"]}
    return result | _examples(media, lambda value: {"serializedValue": value})


def _examples(media: Node, shown: Any) -> Node:
    given = dict(media.get("examples", {}))
    if "example" in media:
        given["example"] = {"value": media["example"]}
    examples = {
        name: {k: v for k, v in each.items() if k != "value"} | shown(each["value"])
        for name, each in given.items()
    }
    rest = {key: value for key, value in media.items() if key == "x-event-end"}
    return rest | ({"examples": examples} if examples else {})


# ---- A part of the description: the operations with some tags, and the components they use.


_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


class UnknownTagError(ValueError):
    """No operation has this tag."""


def of_tags(document: Node, tags: Collection[str]) -> Node:
    """Returns a bundled description with only the operations that have one of `tags`, and the
    components that they use. Raises UnknownTagError."""
    known = [tag["name"] for tag in document["tags"]]
    for tag in tags:
        if tag not in known:
            raise UnknownTagError(f"there is no tag {tag}; the tags are {', '.join(known)}")
    paths = {path: _of_tags(item, tags) for path, item in document["paths"].items()}
    paths = {path: item for path, item in paths.items() if any(m in item for m in _METHODS)}
    ids = {item[m]["operationId"] for item in paths.values() for m in _METHODS if m in item}
    selected = {
        **document,
        "tags": [tag for tag in document["tags"] if tag["name"] in tags],
        "paths": _without_links(paths, ids),
    }
    return selected | {"components": _referred_to(selected)}


def _of_tags(item: Node, tags: Collection[str]) -> Node:
    return {
        key: value
        for key, value in item.items()
        if key not in _METHODS or not set(tags).isdisjoint(value["tags"])
    }


def _without_links(node: Any, ids: Collection[str]) -> Any:
    """Returns `node` without links to operations that are left out."""
    if isinstance(node, list):
        return [_without_links(child, ids) for child in node]
    if not isinstance(node, dict):
        return node
    result = {}
    for key, value in node.items():
        if key == "links" and isinstance(value, dict):
            value = {name: link for name, link in value.items() if _leads(link, ids)}
            if not value:
                continue
        result[key] = _without_links(value, ids)
    return result


def _leads(link: Any, ids: Collection[str]) -> bool:
    return not isinstance(link, dict) or link.get("operationId") in {None, *ids}


def _referred_to(document: Node) -> Node:
    """Returns the components to which the rest of `document` refers, directly or indirectly."""
    components: Node = document["components"]
    pending = [node for key, node in document.items() if key != "components"]
    found: set[tuple[str, str]] = set()
    while pending:
        for reference in _references(pending.pop()):
            _, _, section, name = reference.split("/")
            if (section, name) not in found:
                found.add((section, name))
                pending.append(components[section][name])
    kept = {
        section: {
            name: member
            for name, member in members.items()
            if section == "securitySchemes" or (section, name) in found
        }
        for section, members in components.items()
    }
    return {section: members for section, members in kept.items() if members}


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for child in node:
            yield from _references(child)
    elif isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str) and reference.startswith("#/components/"):
            yield reference  # a `$ref` of any other form is part of an example
        for child in node.values():
            yield from _references(child)


def main(argv: Sequence[str]) -> int:
    """Prints the description. Returns 0, or 1 after one line about an unknown tag."""
    parser = argparse.ArgumentParser(
        prog="specllama spec",
        description="Writes the OpenAPI description of the server, as one document.",
    )
    parser.add_argument(
        "--openapi",
        choices=VERSIONS,
        default="3.0",
        help="version of OpenAPI (default: 3.0, as in GET /openapi.json)",
    )
    parser.add_argument("--format", choices=("yaml", "json"), default="yaml", help="default: yaml")
    parser.add_argument(
        "--tag",
        action="append",
        metavar="TAG",
        help="only the operations with this tag, and the components that they use; can be repeated",
    )
    parser.add_argument(
        "--path",
        action="store_true",
        help="print the path of server.yaml instead, for `connexion run`",
    )
    given = parser.parse_args(argv)
    if given.path:
        print(description_path())
        return 0
    document = served_description()
    if given.tag:
        try:
            document = of_tags(document, given.tag)
        except UnknownTagError as error:
            print(f"specllama spec: error: {error}", file=sys.stderr)
            return 1
    write = as_json if given.format == "json" else as_yaml
    sys.stdout.write(write(in_version(document, given.openapi)).decode().rstrip("\n") + "\n")
    return 0
