"""OpenAPI 3.0 schemas as compiled JSON Schema validators."""

from typing import Any

import jsonschema_rs

Schema = dict[str, Any]

_ANNOTATIONS = frozenset(
    {"components", "default", "deprecated", "description", "discriminator", "example", "examples"}
    | {"externalDocs", "nullable", "readOnly", "title", "writeOnly", "xml"}
)


def compile_schema(schema: Schema) -> jsonschema_rs.Draft202012Validator:
    """The validator of a schema whose references have been resolved.

    Draft 2020-12 and not the older draft that OpenAPI 3.0 builds upon, because there 1.0 is
    an integer, as in every JSON library that has one type of numbers.
    """
    return jsonschema_rs.Draft202012Validator(to_2020_12(schema))


def to_2020_12(schema: Schema) -> Schema:
    """The same constraints in JSON Schema's words; nothing of the annotations.

    See https://spec.openapis.org/oas/v3.0.3#schema-object for where the two differ.
    """
    result: Schema = {}
    for keyword, value in schema.items():
        if keyword in _ANNOTATIONS or keyword.startswith("x-"):
            continue
        match keyword:
            case "properties":
                result[keyword] = {name: to_2020_12(child) for name, child in value.items()}
            case "allOf" | "anyOf" | "oneOf":
                result[keyword] = [to_2020_12(child) for child in value]
            case "items" | "not" | "additionalProperties":
                result[keyword] = to_2020_12(value) if isinstance(value, dict) else value
            case "exclusiveMinimum" | "exclusiveMaximum":
                pass  # booleans, about a bound that is dealt with below
            case "minimum":
                exclusive = schema.get("exclusiveMinimum") is True
                result["exclusiveMinimum" if exclusive else "minimum"] = value
            case "maximum":
                exclusive = schema.get("exclusiveMaximum") is True
                result["exclusiveMaximum" if exclusive else "maximum"] = value
            case _:
                result[keyword] = value
    if schema.get("nullable") and "type" in result:
        result["type"] = [result["type"], "null"]
        if "enum" in result and None not in result["enum"]:
            result["enum"] = [*result["enum"], None]
    return result
