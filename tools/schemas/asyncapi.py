"""The AsyncAPI 3 document of the server's WebSockets, made from the description: each operation
with `x-websocket` is a channel, with the same schemas.

https://www.asyncapi.com/docs/reference/specification/v3.0.0
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from specllama.commands.spec import in_version
from specllama.handlers.description import as_yaml
from specllama.handlers.http.description import bundle

ROOT = Path(__file__).parents[2]
PATH = ROOT / "openapi" / "asyncapi.yaml"
HEADER = (
    "# Made of the schemas in openapi/ by `python -m tools.schemas`. Don't change it by hand.\n"
)
PREFIX = "#/components/schemas/"

Node = dict[str, Any]


def text() -> str:
    """Returns the text of the document."""
    return HEADER + as_yaml(document()).decode()


def document() -> Node:
    """Returns the document. Messages and schemas have the names of their schemas in OpenAPI."""
    described = in_version(bundle(ROOT / "openapi" / "server.yaml"), "3.1")
    schemas = described["components"]["schemas"]
    channels: Node = {}
    operations: Node = {}
    messages: Node = {}
    for path, item in described["paths"].items():
        operation = item.get("get", {})
        if "x-websocket" not in operation or operation.get("deprecated"):
            continue
        name = operation["operationId"]
        ways = {"receive": "request", "send": "event"}
        sides = {
            way: _branches(operation["x-websocket"][key], schemas) for way, key in ways.items()
        }
        every = {each: None for side in sides.values() for each in side}
        channels[name] = {
            "address": path,
            "summary": operation["summary"],
            "description": operation["description"],
            "messages": {each: {"$ref": f"#/components/messages/{each}"} for each in every},
            "bindings": {"ws": {"method": "GET"}},
        }
        for way, side in sides.items():
            operations[f"{way}_{name}"] = {
                "action": way,
                "channel": {"$ref": f"#/channels/{name}"},
                "messages": [{"$ref": f"#/channels/{name}/messages/{each}"} for each in side],
            }
        messages |= {each: _message(each, schemas[each]) for each in every}
    needed = dict.fromkeys(messages)
    for name in (todo := list(needed)):
        found = [each for each in _references(schemas[name]) if each not in needed]
        needed |= dict.fromkeys(found)
        todo += dict.fromkeys(found)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": f"{described['info']['title']}: WebSockets",
            "version": described["info"]["version"],
            "description": "Messages of the server's WebSockets. OpenAPI describes the rest.",
            "license": described["info"]["license"],
        },
        "defaultContentType": "application/json",
        "servers": {
            "local": {
                "host": "localhost:8080",
                "protocol": "ws",
                "description": "A server with default options.",
                "security": [{"$ref": "#/components/securitySchemes/bearer"}],
            }
        },
        "channels": channels,
        "operations": operations,
        "components": {
            "messages": messages,
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "API key of a server with --api-key or --keys-file.",
                }
            },
            "schemas": {name: schemas[name] for name in sorted(needed)},
        },
    }


def _branches(schema: Node, schemas: Node) -> list[str]:
    """Returns the names of the schemas of a union."""
    union = schemas[schema["$ref"].removeprefix(PREFIX)]
    return [each["$ref"].removeprefix(PREFIX) for each in union["anyOf"]]


def _message(name: str, schema: Node) -> Node:
    return {
        "name": name,
        "summary": schema["description"].partition(". ")[0].strip().replace("\n", " "),
        "payload": {"$ref": PREFIX + name},
    }


def _references(node: Any) -> Iterator[str]:
    """Yields the names of all schemas that `node` refers to."""
    if isinstance(node, list):
        for child in node:
            yield from _references(child)
    elif isinstance(node, dict):
        reference = node.get("$ref")
        if isinstance(reference, str):
            yield reference.removeprefix(PREFIX)
        for child in node.values():
            yield from _references(child)
