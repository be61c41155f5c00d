"""Writes the types of the description's schemas, for the handlers, and the AsyncAPI document of the
WebSockets: `python -m tools.schemas`.

Each named schema is a `TypedDict` or an alias. The output is a stub: only type checkers read it,
and nothing is imported or converted at run time. A body that has passed validation has its type,
except that an integer may be written as 12.0, and is a float then.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

from datamodel_code_generator import GenerateConfig, generate
from datamodel_code_generator.enums import DataModelType, InputFileType, OpenAPIScope
from datamodel_code_generator.format import Formatter, PythonVersion

from specllama.handlers.http.description import bundle
from tools.schemas import asyncapi

ROOT = Path(__file__).parents[2]
STUB = ROOT / "handlers" / "http" / "schemas.pyi"
HEADER = '''"""The types of the description's schemas. Written by `python -m tools.schemas`."""
'''
TYPING = {"type", "required", "enum", "nullable", "$ref"}
"""The keywords that determine the type of a value, besides keywords that contain schemas."""

Schema = dict[str, Any]


def main() -> int:
    STUB.write_text(stub(), "utf-8")
    asyncapi.PATH.write_text(asyncapi.text(), "utf-8")
    return 0


def stub() -> str:
    """Returns the text of the stub."""
    schemas = bundle(ROOT / "openapi" / "server.yaml")["components"]["schemas"]
    document = {
        "openapi": "3.0.3",
        "info": {"title": "schemas", "version": "1"},
        "paths": {},
        "components": {"schemas": {name: _typing(each) for name, each in schemas.items()}},
    }
    config = GenerateConfig(
        input_file_type=InputFileType.OpenAPI,
        openapi_scopes=[OpenAPIScope.Schemas],
        output_model_type=DataModelType.TypingTypedDict,
        target_python_version=PythonVersion.PY_311,
        formatters=[Formatter.BUILTIN],
        strict_nullable=True,
        use_closed_typed_dict=False,
        special_field_name_prefix="",
        custom_file_header=HEADER,
    )
    made = generate(document, config=config)
    assert isinstance(made, str)
    command = (sys.executable, "-m", "ruff", "format", "--stdin-filename", str(STUB), "-")
    formatted = subprocess.run(command, input=made, capture_output=True, text=True, check=True)
    return formatted.stdout


def _typing(schema: Schema) -> Schema:
    """Returns the parts of `schema` that determine a type, without bounds, patterns and
    examples."""
    made = {name: each for name, each in schema.items() if name in TYPING}
    if schema.get("format") == "binary":
        made["format"] = "binary"
    if properties := schema.get("properties"):
        made["properties"] = {name: _typing(each) for name, each in properties.items()}
    elif schema.get("type") == "object" and "allOf" not in schema:
        values = schema.get("additionalProperties")
        made["additionalProperties"] = _typing(values) if isinstance(values, dict) else {}
    if (items := schema.get("items")) is not None:
        made["items"] = _typing(items)
    if schema.get("type", "object") != "object":
        return made  # further schemas only narrow an array
    for name in ("anyOf", "oneOf", "allOf"):
        branches = map(_typing, schema.get(name, ()))
        # Some only list required properties.
        if typed := [each for each in branches if each.keys() - {"required"}]:
            made[name] = typed
    return made


if __name__ == "__main__":
    sys.exit(main())
