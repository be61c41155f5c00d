"""Rules for a good description, beyond those for a valid OpenAPI document.

`load` resolves the description into one document without references. Each rule is a function from
that document to the problems in it, one sentence each; `RULES` has all rules.
"""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from connexion.spec import Specification
from jsonschema import validators
from openapi_schema_validator import OAS30Validator

from contract_tests.kit import plain_words

_HERE = Path(__file__).parent
_INSTALLED = _HERE / "openapi"
DESCRIPTION = (_INSTALLED if _INSTALLED.exists() else _HERE.parents[1] / "openapi") / "server.yaml"
METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")
EVENT_STREAM = "text/event-stream"
LINES = "application/x-ndjson"
ONLY_WITH = {"SelectedFields": "response_fields", "BackgroundResponse": "background"}
"""The field of a request without which the schema of this title describes no answer."""

Document = Mapping[str, Any]
Rule = Callable[[Document], Iterator[str]]


class Operation(NamedTuple):
    """One operation. Messages refer to it by its `name`."""

    path: str
    method: str
    definition: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.method.upper()} {self.path}"


class Media(NamedTuple):
    """One media type object, of a request body or a response body."""

    where: str
    content_type: str
    definition: Mapping[str, Any]
    status: str | None  # None: a request body


class Node(NamedTuple):
    """One schema inside another; `where` is the path to it."""

    where: str
    schema: Mapping[str, Any]


def load(path: Path = DESCRIPTION) -> Document:
    """Returns the resolved description."""
    resolved: Document = Specification.load(path).spec
    return resolved


def operations(document: Document) -> Iterator[Operation]:
    for path, item in document["paths"].items():
        for method in METHODS:
            if method in item:
                yield Operation(path, method, item[method])


def media(operation: Operation) -> Iterator[Media]:
    body = operation.definition.get("requestBody", {})
    for content_type, definition in body.get("content", {}).items():
        yield Media(f"{operation.name} request", content_type, definition, None)
    for status, response in operation.definition["responses"].items():
        for content_type, definition in response.get("content", {}).items():
            yield Media(f"{operation.name} {status}", content_type, definition, status)


def all_media(document: Document) -> Iterator[Media]:
    for operation in operations(document):
        yield from media(operation)


def walk(schema: Mapping[str, Any], where: str) -> Iterator[Node]:
    """Yields `schema` and all schemas in it, outer schemas first."""
    yield Node(where, schema)
    for name, value in schema.get("properties", {}).items():
        yield from walk(value, f"{where}.{name}")
    for combination in ("anyOf", "allOf", "oneOf"):
        for branch in schema.get(combination, ()):
            yield from walk(branch, where)
    if "items" in schema:
        yield from walk(schema["items"], f"{where}[]")
    if isinstance(schema.get("additionalProperties"), Mapping):
        yield from walk(schema["additionalProperties"], f"{where}.*")


def request_nodes(document: Document) -> Iterator[Node]:
    """Yields all schemas that validate a client's input."""
    for operation in operations(document):
        for parameter in operation.definition.get("parameters", ()):
            yield from walk(parameter["schema"], f"{operation.name} {parameter['name']}")
        for body in media(operation):
            if body.status is None:
                yield from walk(body.definition["schema"], body.where)


def schema_nodes(document: Document) -> Iterator[Node]:
    """Yields all schemas of requests, responses and stream events."""
    yield from request_nodes(document)
    for each in all_media(document):
        if each.status is not None:
            yield from walk(each.definition["schema"], each.where)
        if "x-event-data-schema" in each.definition:
            yield from walk(each.definition["x-event-data-schema"], f"{each.where} event")
        if "x-line-schema" in each.definition:
            yield from walk(each.definition["x-line-schema"], f"{each.where} line")


def errors(schema: Mapping[str, Any], instance: Any, request: Any = None) -> Iterator[str]:
    """Yields the places where `instance`, the answer to a body `request`, does not match the
    OpenAPI 3.0 `schema`, with the reasons. The alternatives in `ONLY_WITH` count only if the
    request has that field."""
    asked = {name for name, value in request.items() if value} if isinstance(request, dict) else ()
    for error in _validator(frozenset(asked))(schema).iter_errors(instance):
        yield f"{error.json_path}: {error.message[:300]}"


@cache
def _validator(asked: frozenset[str]) -> Any:
    def any_of(validator: Any, branches: Any, value: Any, schema: Any) -> Iterator[Any]:
        possible = [b for b in branches if ONLY_WITH.get(b.get("title")) in (None, *asked)]
        yield from OAS30Validator.VALIDATORS["anyOf"](validator, possible, value, schema)

    return validators.extend(OAS30Validator, {"anyOf": any_of})


def event_errors(definition: Mapping[str, Any], data: str, request: Any = None) -> Iterator[str]:
    """Yields the errors in the `data` of an event, by the media type object of its stream. The
    stream answers a body `request`."""
    if data == definition.get("x-event-end"):
        return
    yield from _json_errors(definition["x-event-data-schema"], data, request)


def line_errors(definition: Mapping[str, Any], line: str) -> Iterator[str]:
    """Yields the errors in a line, by the media type object of its stream."""
    yield from _json_errors(definition["x-line-schema"], line)


def _json_errors(schema: Mapping[str, Any], text: str, request: Any = None) -> Iterator[str]:
    try:
        document = json.loads(text)
    except ValueError as e:
        yield f"$: {e}"
        return
    yield from errors(schema, document, request)


def examples(definition: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields (name, value) for the examples of a media type or parameter object."""
    if "example" in definition:
        yield "example", definition["example"]
    for name, example in definition.get("examples", {}).items():
        yield name, example["value"]


# ---- rules -------------------------------------------------------------------------------


def operations_are_described(document: Document) -> Iterator[str]:
    """Operations have a summary, a description, one declared tag, and either a successful response
    (101 with x-websocket, otherwise 200 or 204) or x-refused."""
    tags = {tag["name"] for tag in document["tags"]}
    for operation in operations(document):
        definition = operation.definition
        for key in ("summary", "description"):
            if not definition.get(key, "").strip():
                yield f"{operation.name} has no {key}"
        if len(definition.get("tags", ())) != 1 or definition["tags"][0] not in tags:
            yield f"{operation.name} doesn't have exactly one of the declared tags"
        good = {"101"} if "x-websocket" in definition else {"200", "204"}
        if bool(good & definition["responses"].keys()) == definition.get("x-refused", False):
            expected = " or ".join(sorted(good))
            yield f"{operation.name} has no response {expected}, or has one and is x-refused"
        for parameter in definition.get("parameters", ()):
            if not parameter.get("description"):
                yield f"{operation.name} {parameter['name']} has no description"


def properties_are_described(document: Document) -> Iterator[str]:
    """Every property has a description, of its own or from the schema that it refers to."""
    for node in schema_nodes(document):
        for name, schema in node.schema.get("properties", {}).items():
            if not _is_described(schema):
                yield f"{node.where}.{name} has no description"


def _is_described(schema: Mapping[str, Any]) -> bool:
    own = str(schema.get("description", "")).strip()
    return bool(own) or any(map(_is_described, schema.get("allOf", ())))


def operation_ids_are_good_names(document: Document) -> Iterator[str]:
    """operationIds are snake_case, and unique: connexion silently uses the last of two equal
    ones."""
    seen: dict[str, str] = {}
    for operation in operations(document):
        name = operation.definition.get("operationId", "")
        if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
            yield f"{operation.name}: operationId {name!r} is not snake_case"
        if name in seen:
            yield f"{operation.name} and {seen[name]} share the operationId {name}"
        seen[name] = operation.name


def aliases_are_the_same(document: Document) -> Iterator[str]:
    """An operation whose summary is "Alias of ..." is that operation at another path."""
    own = {"operationId", "summary", "description", "externalDocs", "deprecated"}
    known = {operation.name: operation.definition for operation in operations(document)}
    for name, definition in known.items():
        _, alias, original = definition.get("summary", "").rpartition("Alias of ")
        if not alias:
            continue
        if original not in known:
            yield f"{name} is an alias of {original}, which doesn't exist"
            continue
        for key in sorted((definition.keys() | known[original].keys()) - own):
            if definition.get(key) != known[original].get(key):
                yield f"{name} is an alias of {original}, but has another {key}"


def request_bodies_have_examples(document: Document) -> Iterator[str]:
    for each in all_media(document):
        if each.status is None and not list(examples(each.definition)):
            yield f"{each.where} has no example"


def examples_match_their_schemas(document: Document) -> Iterator[str]:
    for each in all_media(document):
        for name, value in examples(each.definition):
            for error in errors(each.definition["schema"], value):
                yield f"{each.where}, {name}: {error}"
    for operation in operations(document):
        for parameter in operation.definition.get("parameters", ()):
            for name, value in examples(parameter):
                for error in errors(parameter["schema"], value):
                    yield f"{operation.name} {parameter['name']}, {name}: {error}"
    for each in all_media(document):
        if each.content_type == EVENT_STREAM:
            for name, event in examples(each.definition):
                for error in event_errors(each.definition, event["data"]):
                    yield f"{each.where}, {name}: {error}"
        if each.content_type == LINES:
            for name, text in examples(each.definition):
                for line in text.splitlines():
                    for error in line_errors(each.definition, line):
                        yield f"{each.where}, {name}: {error}"
    for node in schema_nodes(document):
        if "example" in node.schema:
            for error in errors(node.schema, node.schema["example"]):
                yield f"{node.where}, example: {error}"


def defaults_match_their_schemas(document: Document) -> Iterator[str]:
    for node in schema_nodes(document):
        if "x-default" in node.schema:
            for error in errors(node.schema, node.schema["x-default"]):
                yield f"{node.where}, x-default: {error}"


def supported_values_match_their_schemas(document: Document) -> Iterator[str]:
    """x-supported-values lists values of its field, the default included."""
    for node in schema_nodes(document):
        values = node.schema.get("x-supported-values")
        if values is None:
            continue
        for value in values:
            for error in errors(node.schema, value):
                yield f"{node.where}, x-supported-values: {error}"
        if "x-default" in node.schema and node.schema["x-default"] not in values:
            yield f"{node.where}: the default is not among the x-supported-values"


def clamped_ranges_make_sense(document: Document) -> Iterator[str]:
    """x-clamped is a range of numbers that contains the default; only numbers have x-whole."""
    for node in schema_nodes(document):
        if not {"x-clamped", "x-whole"} & node.schema.keys():
            continue
        low, high = node.schema.get("x-clamped", (-math.inf, math.inf))
        if node.schema.get("type") != "number":
            yield f"{node.where}: x-clamped or x-whole without the type number"
        elif not low < high or not low <= node.schema.get("x-default", low) <= high:
            yield f"{node.where}: odd range {low} to {high}"


def requests_are_bounded(document: Document) -> Iterator[str]:
    """Numbers and arrays of requests are bounded or clamped; integers stay within 64 bits. A seed
    has no bounds: the server uses the lowest 32 bits of any number."""
    for node in request_nodes(document):
        schema = node.schema
        is_number = schema.get("type") in ("integer", "number")
        if is_number and "enum" not in schema and not node.where.endswith(".seed"):
            clamped = schema.get("x-clamped", (None, None))
            low = schema.get("minimum", clamped[0])
            high = schema.get("maximum", clamped[1])
            if low is None or high is None:
                yield f"{node.where}: a {schema['type']} without minimum or maximum"
            elif not -(2**63) <= low <= high < 2**63:
                yield f"{node.where}: odd bounds {low} and {high}"
        if schema.get("type") == "array" and "maxItems" not in schema:
            yield f"{node.where}: an array without maxItems"


def optional_request_fields_are_nullable(document: Document) -> Iterator[str]:
    """Optional fields accept null, because clients send it for "not set"."""
    for each in all_media(document):
        if each.status is not None:
            continue
        required, properties = _fields(each.definition["schema"])
        for name in sorted(properties.keys() - required):
            if any(errors(properties[name], None)):
                yield f"{each.where}.{name} is optional, but refuses null"


def _fields(schema: Mapping[str, Any]) -> tuple[set[str], dict[str, Any]]:
    required, properties = set(schema.get("required", ())), dict(schema.get("properties", {}))
    for part in schema.get("allOf", ()):
        inner_required, inner_properties = _fields(part)
        required |= inner_required
        properties |= inner_properties
    return required, properties


def requests_take_unknown_fields(document: Document) -> Iterator[str]:
    for node in request_nodes(document):
        if node.schema.get("additionalProperties") is False:
            yield f"{node.where} refuses unknown fields"


def schemas_keep_to_what_works(document: Document) -> Iterator[str]:
    """Schemas use anyOf instead of oneOf, nullable only next to a type, no keyword of OpenAPI 3.1,
    and no required field without a schema."""
    newer = {"const", "$defs", "if", "then", "else", "prefixItems", "examples", "contains"}
    for node in schema_nodes(document):
        if "oneOf" in node.schema:
            yield f"{node.where}: oneOf"
        if node.schema.get("nullable") and "type" not in node.schema:
            yield f"{node.where}: nullable without a type"
        if isinstance(node.schema.get("type"), list):
            yield f"{node.where}: a list of types"
        for keyword in sorted(newer & node.schema.keys()):
            yield f"{node.where}: {keyword}"
        required, properties = _fields(node.schema)
        if properties:
            for name in sorted(required - properties.keys()):
                yield f"{node.where}: required {name} is not described"


def errors_have_the_envelope(document: Document) -> Iterator[str]:
    """Every error response is JSON, and its `code` is the status. A path with `x-error-envelope`
    has that API's error format; `either` stands for the usual format or Ollama's."""
    for operation in operations(document):
        form = document["paths"][operation.path].get("x-error-envelope")
        for status, response in operation.definition["responses"].items():
            if status.startswith("2") or status in ("101", "304"):
                continue
            where = f"{operation.name} {status}"
            if list(response.get("content", ())) != ["application/json"]:
                yield f"{where} is not just application/json"
                continue
            schema = response["content"]["application/json"]["schema"]
            branches = schema.get("anyOf", [schema])
            if operation.path.startswith("/api/") and not operation.path.startswith("/api/v0/"):
                *branches, ollama = branches
                if ollama.get("properties", {}).get("error", {}).get("type") != "string":
                    yield f"{where} has no error as text for Ollama's clients"
            for branch in branches:
                if form in (None, "either"):
                    yield from _envelope(where, int(status), branch)
                else:
                    yield from _foreign_envelope(where, form, branch)


def _envelope(where: str, status: int, schema: Mapping[str, Any]) -> Iterator[str]:
    error = schema.get("properties", {}).get("error", {})
    if schema.get("required") != ["error"] or not {"code", "message", "type"} <= set(
        error.get("required", ())
    ):
        yield f"{where} doesn't demand error.code, error.message and error.type"
    elif error["properties"]["code"].get("enum") != [status]:
        yield f"{where}: error.code is not {status}"
    elif len(error["properties"]["type"].get("enum", ())) != 1:
        yield f"{where}: error.type is not one fixed type"


def _foreign_envelope(where: str, form: str, schema: Mapping[str, Any]) -> Iterator[str]:
    required, inner, kind = _ENVELOPES.get(form, ([], [], ""))
    error = schema.get("properties", {}).get("error", {})
    if not required:
        yield f"{where}: there is no error envelope {form!r}"
    elif schema.get("required") != required or error.get("required") != inner:
        yield f"{where} is not an error in the form of {form}"
    elif len(error["properties"][kind].get("enum", ())) != 1:
        yield f"{where}: error.{kind} is not one fixed kind"


_ENVELOPES = {
    "anthropic": (["type", "error", "request_id"], ["type", "message", "code"], "type"),
    "gemini": (["error"], ["code", "message", "status"], "status"),
}
"""The required fields of an error in another API's format: those of the document, those of its
`error`, and the one of these that contains the kind of the error."""


def security_is_consistent(document: Document) -> Iterator[str]:
    """An operation that uses API keys documents the status 401, and a public operation doesn't."""
    for operation in operations(document):
        public = operation.definition.get("security", document["security"]) == []
        if public == ("401" in operation.definition["responses"]):
            yield f"{operation.name} is {'public' if public else 'protected'}, unlike its 401"


GROUPS = {"generate", "embed", "read", "admin", "public"}


def operations_have_a_group(document: Document) -> Iterator[str]:
    """An operation has one `x-access`. It is `public` exactly if a request needs no API key;
    otherwise the operation documents the status 403, for keys without that group. It is `admin` if
    the operation changes the server, which pages of foreign origins may not do. Such pages may not
    open WebSockets either, whatever their group."""
    for operation in operations(document):
        definition = operation.definition
        access, security = definition.get("x-access"), definition.get("security", None)
        if access not in GROUPS:
            yield f"{operation.name}: x-access is {access}, not one of {', '.join(sorted(GROUPS))}"
        elif (access == "public") != (security is not None and ({} in security or not security)):
            yield f"{operation.name} is {access}, unlike its security"
        elif access != "public" and "403" not in definition["responses"]:
            yield f"{operation.name} needs {access}, but has no 403"
        elif definition.get("x-refuses-foreign-origins") and not (
            access == "admin" or "x-websocket" in definition
        ):
            yield f"{operation.name} changes the server, but needs {access}, not admin"


def streams_name_their_events(document: Document) -> Iterator[str]:
    """A stream's schema is one event, an object with `data`. The data has a schema, too."""
    for each in all_media(document):
        if each.content_type != EVENT_STREAM:
            continue
        schema = each.definition["schema"]
        if schema.get("type") != "object" or "data" not in schema.get("required", ()):
            yield f"{each.where}: the event is not an object that requires data"
        if not isinstance(each.definition.get("x-event-data-schema"), Mapping):
            yield f"{each.where} has no x-event-data-schema"


def lines_have_a_schema(document: Document) -> Iterator[str]:
    """A stream of lines is text as a whole, and each line has a schema."""
    for each in all_media(document):
        if each.content_type != LINES:
            continue
        if each.definition["schema"].get("type") != "string":
            yield f"{each.where}: lines are not described as text"
        if not isinstance(each.definition.get("x-line-schema"), Mapping):
            yield f"{each.where} has no x-line-schema"


def links_lead_somewhere(document: Document) -> Iterator[str]:
    """A link refers to an existing operation and its parameters. The values that it reads from the
    answer are in the answer's example."""
    targets = {each.definition["operationId"]: each for each in operations(document)}
    for operation in operations(document):
        for status, response in operation.definition["responses"].items():
            for name, link in response.get("links", {}).items():
                where = f"{operation.name} {status}, link {name}"
                target = targets.get(link.get("operationId"))
                if target is None:
                    yield f"{where}: there is no operation {link.get('operationId')}"
                    continue
                given = link.get("parameters", {})
                known = {each["name"] for each in target.definition.get("parameters", ())}
                for unknown in sorted(given.keys() - known):
                    yield f"{where}: {target.name} has no parameter {unknown}"
                if "requestBody" in link:  # openapi-generator accepts only a text for it
                    yield f"{where}: a requestBody"
                for value in given.values():
                    if not _is_found(value, response):
                        yield f"{where}: {value} is not in the example"


def _is_found(expression: Any, response: Mapping[str, Any]) -> bool:
    """True if the first example of the answer contains what a link's runtime expression reads."""
    if not str(expression).startswith("$response.body#/"):
        return not str(expression).startswith("$")
    [(_, value), *_] = examples(response["content"]["application/json"])
    try:
        for part in expression.partition("#/")[2].split("/"):
            value = value[int(part)] if isinstance(value, list) else value[part]
    except LookupError:
        return False
    return True


def descriptions_use_plain_words(document: Document) -> Iterator[str]:
    """No description or summary contains a phrase that `plain_words` bans."""
    for where, text in _prose(document, "", set()):
        for hit in plain_words.search(text):
            yield f"{where}: {hit}"


def _prose(node: Any, where: str, seen: set[int]) -> Iterator[tuple[str, str]]:
    """Yields the descriptions and summaries below `node` with their places. `seen` holds the ids
    of the nodes that are done, because the resolved document shares its nodes."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, Mapping):
        for key, value in node.items():
            if key in ("description", "summary") and isinstance(value, str):
                yield f"{where} {key}", value
            elif key not in ("example", "value"):
                yield from _prose(value, f"{where}.{key}", seen)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            yield from _prose(value, f"{where}[{number}]", seen)


RULES: tuple[Rule, ...] = (
    operations_are_described,
    properties_are_described,
    operation_ids_are_good_names,
    aliases_are_the_same,
    request_bodies_have_examples,
    examples_match_their_schemas,
    defaults_match_their_schemas,
    supported_values_match_their_schemas,
    clamped_ranges_make_sense,
    requests_are_bounded,
    optional_request_fields_are_nullable,
    requests_take_unknown_fields,
    schemas_keep_to_what_works,
    errors_have_the_envelope,
    security_is_consistent,
    operations_have_a_group,
    streams_name_their_events,
    lines_have_a_schema,
    links_lead_somewhere,
    descriptions_use_plain_words,
)


# ---- rules over the files ----------------------------------------------------------------


def schema_names_are_unique(root: Path = DESCRIPTION) -> Iterator[str]:
    """Each name occurs once, so that a bundler can use a schema's key as the name of its
    component."""
    seen: dict[str, str] = {}
    for path in sorted((root.parent / "schemas").rglob("*.yaml")):
        for name in yaml.safe_load(path.read_text(encoding="utf-8")):
            if name in seen:
                yield f"{name} is both in {seen[name]} and in {path.name}"
            seen[name] = path.name


GENERATED = "asyncapi.yaml"
"""The file that is made from the description."""


def _files(root: Path) -> Iterator[Path]:
    """Yields the files of the description."""
    yield from (each for each in sorted(root.parent.rglob("*.yaml")) if each.name != GENERATED)


def references_resolve_as_written(root: Path = DESCRIPTION) -> Iterator[str]:
    """connexion resolves a local reference of any file in the root document first, and drops the
    siblings of a reference."""
    root_keys = set(yaml.safe_load(root.read_text(encoding="utf-8")))
    for path in _files(root):
        for reference, siblings in _references(yaml.safe_load(path.read_text(encoding="utf-8"))):
            if siblings:
                yield f"{path.name}: {reference} has siblings {sorted(siblings)}"
            if reference.startswith("#/") and reference[2:].split("/")[0] in root_keys:
                yield f"{path.name}: {reference} begins with a key of the root document"


def keys_are_unique(root: Path = DESCRIPTION) -> Iterator[str]:
    """Keys don't repeat. Some YAML parsers silently use the last of two equal keys, others fail."""
    for path in _files(root):
        for key in _repeated_keys(yaml.compose(path.read_text(encoding="utf-8"))):
            yield f"{path.name}, line {key.start_mark.line + 1}: {key.value} is repeated"


def _repeated_keys(node: yaml.Node | None) -> Iterator[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if key.value in seen:
                yield key
            seen.add(key.value)
            yield from _repeated_keys(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _repeated_keys(value)


def _references(node: Any) -> Iterator[tuple[str, set[str]]]:
    if isinstance(node, Mapping):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"], set(node) - {"$ref"}
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


FILE_RULES: tuple[Callable[[], Iterator[str]], ...] = (
    schema_names_are_unique,
    references_resolve_as_written,
    keys_are_unique,
)
