"""Decodes JSON texts of requests, and compiles OpenAPI 3.0 schemas to validators."""

import gc
import re
from typing import Any

import jsonschema_rs
import msgspec

_decoder = msgspec.json.Decoder()

_MARK = b"\xef\xbb\xbf"
"""The byte order mark of UTF-8, which some editors write at the beginning."""
_HIGH, _LOW = rb"[dD][89abAB][0-9a-fA-F]{2}", rb"[dD][c-fC-F][0-9a-fA-F]{2}"
_LONE = re.compile(rb"\\u(?<!\\\\u)(?:%b(?!\\u%b)|(?<!\\u%b\\u)%b)" % (_HIGH, _LOW, _HIGH, _LOW))
"""Half of a surrogate pair, written by programs that cut a text within an emoji. The pattern begins
with bytes instead of a condition, which is ten times as fast. So it doesn't match directly after a
backslash, where it may be text."""


class UndecodableError(ValueError):
    """The bytes are not a JSON text. The message contains the reason."""


def decoded(raw: bytes | bytearray) -> Any:
    """Returns the value of a JSON text. Raises UndecodableError.

    A byte order mark is skipped, and a lone surrogate becomes U+FFFD.

    Garbage collection is disabled meanwhile: JSON has no reference cycles, and the creation of many
    objects would start the collection of all of them again and again.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return _decoded(raw[len(_MARK) :] if raw.startswith(_MARK) else raw)
    except UnicodeDecodeError as error:
        raise UndecodableError(f"the body is not valid UTF-8: {error.reason}") from None
    except msgspec.DecodeError as error:
        what = str(error).removeprefix("JSON is malformed: ")
        if "truncated" in what:
            what = "a value or an escape sequence is incomplete"
        raise UndecodableError(f"the body is not valid JSON: {what}") from None
    except RecursionError:
        raise UndecodableError("the body is nested too deeply") from None
    finally:
        if collects:
            gc.enable()


def _decoded(raw: bytes | bytearray) -> Any:
    try:
        return _decoder.decode(raw)
    except msgspec.DecodeError:
        whole = _LONE.sub(rb"\\ufffd", raw)
        if whole == raw:
            raise
        return _decoder.decode(whole)


Schema = dict[str, Any]

_ANNOTATIONS = frozenset(
    {"components", "default", "deprecated", "description", "discriminator", "example", "examples"}
    | {"externalDocs", "nullable", "readOnly", "title", "writeOnly", "xml"}
)


def compile_schema(schema: Schema) -> jsonschema_rs.Draft202012Validator:
    """Returns the validator of a schema whose references have been resolved.

    It uses draft 2020-12, not the older draft that OpenAPI 3.0 is based on, because there 1.0 is an
    integer, as in every JSON library with one number type.
    """
    return jsonschema_rs.Draft202012Validator(to_2020_12(schema))


def to_2020_12(schema: Schema) -> Schema:
    """Returns the same constraints as a JSON Schema, without annotations.

    The differences are described at https://spec.openapis.org/oas/v3.0.3#schema-object.
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
                pass  # booleans, handled with the bound below
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
