"""Agents with tools as MCP servers list them, coding agents of Messages and Responses."""

from typing import Any

from contract_tests.peer.request import Request, both_ways, post

_PARAMETERS: dict[str, Any] = {
    "propertyNames": {"type": "object", "properties": {"a": {"type": "object", "propertyNames": {"pattern": "^x"}}}},
    "uniqueItems": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}, "uniqueItems": True}}},
    "not": {"type": "object", "properties": {"a": {"not": {"type": "null"}}}},
    "if": {"type": "object", "properties": {"a": {"type": "string"}}, "if": {"required": ["a"]}, "then": {"required": ["b"]}},
    "dependentRequired": {"type": "object", "properties": {"a": {"type": "string"}}, "dependentRequired": {"a": ["b"]}},
    "contains": {"type": "object", "properties": {"a": {"type": "array", "contains": {"type": "string"}}}},
    "unevaluated": {"type": "object", "properties": {"a": {"type": "string"}}, "unevaluatedProperties": False},
    "tuple": {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}, {"type": "integer"}]}}},
    "prefixItems": {"type": "object", "properties": {"a": {"type": "array", "prefixItems": [{"type": "string"}]}}},
    "look-around": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^(?!x)a+$"}}},
    "back-reference": {"type": "object", "properties": {"a": {"type": "string", "pattern": "(a)\\1"}}},
    "word boundary": {"type": "object", "properties": {"a": {"type": "string", "pattern": "\\bword\\b"}}},
    "free pattern": {"type": "object", "properties": {"a": {"type": "string", "pattern": "[a-z]+"}}},
    "huge bound": {"type": "object", "properties": {"a": {"type": "integer", "minimum": -(2**63), "maximum": 2**64}}},
    "safe integers": {"type": "object", "properties": {"a": {"type": "integer", "minimum": -9007199254740991, "maximum": 9007199254740991}}},
    "oneOf": {"type": "object", "properties": {"a": {"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 4}]}}},
    "minProperties": {"type": "object", "properties": {"a": {"type": "string"}}, "minProperties": 1},
    "no type, items": {"type": "object", "properties": {"a": {"items": {"type": "string"}}}},
    "no type, properties": {"properties": {"a": {"type": "string"}}},
    "empty": {},
    "any object": {"type": "object"},
    "additional": {"type": "object", "additionalProperties": {"type": "string"}},
    "formats": {"type": "object", "properties": {"a": {"type": "string", "format": "uri"}, "b": {"type": "string", "format": "date-time"}, "c": {"type": "string", "format": "mystery"}}},
    "types": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
    "default and examples": {"type": "object", "properties": {"a": {"type": "string", "default": "x", "examples": ["y"], "deprecated": True}}},
    "reference": {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"type": "string"}}},
    "recursion": {"type": "object", "properties": {"a": {"$ref": "#"}}},
    "lost reference": {"type": "object", "properties": {"a": {"$ref": "#/$defs/Lost"}}},
    "true": {"type": "object", "properties": {"a": True}},
    "allOf": {"type": "object", "allOf": [{"properties": {"a": {"type": "string"}}}]},
    "multipleOf": {"type": "object", "properties": {"a": {"type": "integer", "multipleOf": 5}}},
}  # fmt: skip
CHAT = {
    "model": "llama",
    "messages": [{"role": "user", "content": "Go on."}],
    "max_tokens": 8,
    "temperature": 0,
}


def _tool(name: str, parameters: Any, **rest: Any) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {"name": name, "description": name, "parameters": parameters, **rest},
    }


def _each(name: str, parameters: Any) -> list[Request]:
    tool = _tool("mcp__server__act", parameters, strict=True)
    schema = {
        "type": "json_schema",
        "json_schema": {"name": "a", "schema": parameters, "strict": True},
    }
    return [
        post(f"MCP tool, {name}", "/v1/chat/completions", {**CHAT, "tools": [tool]}),
        post(
            f"schema, {name}",
            "/v1/chat/completions",
            {**CHAT, "max_tokens": 24, "response_format": schema},
        ),
    ]


CODE_TOOLS = [
    {"name": "Bash", "description": "Runs a command.", "input_schema": {"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}, "run_in_background": {"type": "boolean"}}, "required": ["command"], "additionalProperties": False}},
    {"name": "TodoWrite", "description": "Keeps a list.", "input_schema": {"type": "object", "properties": {"todos": {"type": "array", "items": {"type": "object", "properties": {"content": {"type": "string", "minLength": 1}, "status": {"type": "string", "enum": ["pending", "completed"]}}, "required": ["content", "status"], "additionalProperties": False}}}, "required": ["todos"]}},
]  # fmt: skip
REQUESTS = [
    *(each for name, parameters in _PARAMETERS.items() for each in _each(name, parameters)),
    *both_ways("many tools", "/v1/chat/completions", {**CHAT, "tools": [_tool(f"mcp__{i}", p) for i, p in enumerate(_PARAMETERS.values()) if i < 6]}),
    *both_ways("coding agent of Messages", "/v1/messages", {
        "model": "claude", "max_tokens": 8, "temperature": 0, "metadata": {"user_id": "user_1"},
        "system": [{"type": "text", "text": "You are a coding agent.", "cache_control": {"type": "ephemeral"}}],
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]}],
        "tools": CODE_TOOLS, "thinking": {"type": "disabled"}}),
    *both_ways("coding agent of Responses", "/v1/responses", {
        "model": "gpt-5", "instructions": "You are a coding agent.", "max_output_tokens": 16, "temperature": 0,
        "input": [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be careful."}]}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]}],
        "tools": [{"type": "function", "name": "shell", "description": "Runs", "strict": False, "parameters": {"type": "object", "properties": {"command": {"type": "array", "items": {"type": "string"}}}, "required": ["command"], "additionalProperties": False}}, {"type": "custom", "name": "apply_patch", "description": "Patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: \"a\""}}, {"type": "web_search"}],
        "tool_choice": "auto", "parallel_tool_calls": False, "reasoning": {"effort": "medium", "summary": "auto"}, "store": False, "include": ["reasoning.encrypted_content"], "prompt_cache_key": "a"}),
]  # fmt: skip
