"""A part of the description: the operations of some tags, and what they refer to."""

from collections.abc import Collection, Iterator
from typing import Any

Node = dict[str, Any]

_METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


class UnknownTagError(ValueError):
    """No operation has this tag."""


def of_tags(document: Node, tags: Collection[str]) -> Node:
    """A bundled description with the operations that have one of `tags` alone, and with those
    components that are referred to. Raises UnknownTagError."""
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
    """Without the links to operations that aren't there."""
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
    """The components that the rest of `document` refers to, and those that these refer to."""
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
            yield reference  # others are in examples
        for child in node.values():
            yield from _references(child)
