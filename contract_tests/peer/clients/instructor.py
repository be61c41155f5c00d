"""instructor: pydantic's schemas as tools, as JSON and as schemas."""

from contract_tests.peer.request import both_ways

SCHEMA = {
    "$defs": {"Address": {"properties": {"city": {"title": "City", "type": "string", "maxLength": 6}}, "required": ["city"], "title": "Address", "type": "object"}},
    "description": "Correctly extracted `User` with all the required parameters with correct types", "title": "User", "type": "object",
    "properties": {"name": {"title": "Name", "type": "string", "maxLength": 6}, "age": {"exclusiveMinimum": 0, "maximum": 130, "title": "Age", "type": "integer"}, "address": {"$ref": "#/$defs/Address"}},
    "required": ["address", "age", "name"],
}  # fmt: skip
CHAT = {
    "model": "llama",
    "max_tokens": 120,
    "temperature": 0,
    "messages": [{"role": "user", "content": "Extract: Jason is 25 years old."}],
}
REQUESTS = [
    *both_ways("tools", "/v1/chat/completions", {**CHAT, "tools": [{"type": "function", "function": {"name": "User", "description": SCHEMA["description"], "parameters": {k: v for k, v in SCHEMA.items() if k not in ("title", "description")}}}], "tool_choice": {"type": "function", "function": {"name": "User"}}}),
    *both_ways("JSON", "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object"}}),
    *both_ways("JSON schema beside", "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_object", "schema": SCHEMA}}),
    *both_ways("schema", "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "User", "schema": SCHEMA}}}),
    *both_ways("strict schema", "/v1/chat/completions", {**CHAT, "response_format": {"type": "json_schema", "json_schema": {"name": "User", "schema": {**SCHEMA, "additionalProperties": False}, "strict": True}}}),
]  # fmt: skip
