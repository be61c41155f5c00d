"""Small valid requests by operation, which the tests vary."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from contract_tests.kit import contract, lint

PROMPT = "Once upon a time"
MODEL = "any"
"""The model name in requests that must have one. A server with one model accepts any name."""
MESSAGES: list[Any] = [{"role": "user", "content": "Tell me about llamas."}]

_COMPLETION = {"prompt": PROMPT, "n_predict": 4, "seed": 7}
_EMBEDDING = {"input": ["A llama carries wool.", "The bus leaves at nine."]}
_RERANK = {"query": "What carries wool?", "documents": ["A llama.", "The bus at nine."]}
NO_THOUGHT = {"chat_template_kwargs": {"enable_thinking": False}}
"""Turns reasoning off, so that the answer is text from its first token on."""
_CHAT = {"messages": MESSAGES, "max_tokens": 4, "seed": 7, **NO_THOUGHT}
CONTENTS: list[Any] = [{"role": "user", "parts": [{"text": "Tell me about llamas."}]}]
_CONTENT = {
    "contents": CONTENTS,
    "generationConfig": {"maxOutputTokens": 4, "seed": 7, "thinkingConfig": {"thinkingBudget": 0}},
}
_ITEM = {"type": "message", "role": "user", "content": "My name is Ann."}
_RESPONSE = {"input": "Tell me about llamas.", "max_output_tokens": 4, "seed": 7, **NO_THOUGHT}

_COMPACTION: dict[str, Any] = {
    "model": "specllama-tiny",
    "input": [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada!"},
    ],
}
BODIES: dict[str, Any] = {
    "create_completion": _COMPLETION,
    "create_completion_alias": _COMPLETION,
    "create_openai_completion": _COMPLETION,
    "create_chat_completion": _CHAT,
    "create_chat_completion_alias": _CHAT,
    "count_chat_tokens": _CHAT,
    "count_chat_tokens_alias": _CHAT,
    "create_response": _RESPONSE,
    "create_response_alias": _RESPONSE,
    "count_response_tokens": _RESPONSE,
    "count_response_tokens_alias": _RESPONSE,
    "create_ollama_chat": _CHAT,
    "create_ollama_generation": {
        "prompt": PROMPT,
        "options": {"num_predict": 4, "seed": 7},
        "think": False,
        "stream": False,
    },
    "embed_ollama_inputs": _EMBEDDING,
    "embed_ollama_prompt": {"prompt": "A llama carries wool."},
    "show_ollama_model": {"model": "any"},
    "pull_ollama_model": {"model": "any", "stream": False},
    "create_infill": {
        "input_prefix": "def add(a, b):\n    ",
        "input_suffix": "\n    return total\n",
        "n_predict": 4,
        "seed": 7,
    },
    "create_message": _CHAT,
    "count_message_tokens": {"messages": MESSAGES},
    "generate_gemini_content": _CONTENT,
    "generate_gemini_content_alias": _CONTENT,
    "stream_gemini_content": _CONTENT,
    "stream_gemini_content_alias": _CONTENT,
    "count_gemini_tokens": {"contents": CONTENTS},
    "count_gemini_tokens_alias": {"contents": CONTENTS},
    "compact_response": _COMPACTION,
    "compact_response_alias": _COMPACTION,
    "apply_template": {"messages": MESSAGES},
    "create_embedding": {"content": "A llama carries wool."},
    "create_embedding_alias": {"content": "A llama carries wool."},
    "create_openai_embeddings": _EMBEDDING,
    "create_rerank": _RERANK,
    "create_reranking": _RERANK,
    "create_versioned_rerank": _RERANK,
    "create_versioned_reranking": _RERANK,
    "tokenize": {"content": "Hello world"},
    "detokenize": {"tokens": [5, 6, 7]},
    "act_on_slot": {"filename": "contract-tests.bin"},
    "set_props": {},
    "predict": {"instances": [{"@requestFormat": "chatCompletions", **_CHAT}]},
    "control_chat_completion": {"id": "chatcmpl-0", "action": "reasoning_end"},
    "lookup_streams": {"conversation_ids": ["contract-tests"]},
    "create_conversation": {"metadata": {"topic": "llamas"}, "items": [_ITEM]},
    "update_conversation": {"metadata": {"topic": "alpacas"}},
    "create_conversation_items": {"items": [_ITEM]},
    "set_lora_adapters": [],
    "run_server_tool": {"tool": "read_file", "params": {"path": "nothing-of-the-contract-tests"}},
    "load_model": {"model": "specllama-tiny"},
    "unload_model": {"model": "specllama-tiny"},
    "download_model": {"model": "contract/tests-GGUF:Q8_0"},
}
"""A valid body for each operation that has a body."""


def _parameters(operation: lint.Operation) -> list[str]:
    return [each["name"] for each in operation.definition.get("parameters", ())]


def _fields(operation: lint.Operation) -> set[str]:
    """The fields of a JSON body."""
    content = operation.definition.get("requestBody", {}).get("content", {})
    return properties(content.get("application/json", {}).get("schema", {}))


def properties(schema: Any) -> set[str]:
    parts = [each for key in ("allOf", "anyOf") for each in schema.get(key, ())]
    return set(schema.get("properties", ())).union(*map(properties, parts))


ENDLESS = [each.definition["operationId"] for each in contract.endless()]
"""Operations whose answer never ends. Tests that read whole answers leave them out."""
STREAMING = [
    name for each in contract.streaming() if "tool" not in (name := each.definition["operationId"])
]
"""The operations that generate, in the formats of all APIs."""
RESPONSES = [name for name in STREAMING if "response" in name]
"""The operations of OpenAI's Responses API; test_responses.py reads their answers."""
ANTHROPIC = ["create_message", "count_message_tokens"]
"""The operations in Anthropic's format, errors included; see test_messages.py."""
GEMINI = [name for name in BODIES if "gemini" in name]
"""The operations in Google's format, errors included. Model and streaming are given by the path,
not the body; see test_gemini.py."""
GENERATING_GEMINI = [name for name in GEMINI if "content" in name]
"""The operations in Google's format that generate."""
GENERATING = [name for name in STREAMING if name not in (*RESPONSES, *ANTHROPIC)]
"""The operations in the native format, or with choices."""
COUNTING = [
    name for name in BODIES if name.startswith("count_") and name not in (*ANTHROPIC, *GEMINI)
]
KEPT = ["get_stream", "delete_stream"]
"""The operations on a stream that continues without its client."""
STORED = ["get_response", "delete_response", "list_response_input_items", "cancel_response"]
"""The operations on a stored response."""
CONVERSATIONS = [
    name
    for name, each in contract.operations().items()
    if "conversations" in each.definition["tags"] and name != "create_conversation"
]
"""The operations on a stored conversation."""
EMBEDDING = [name for name in BODIES if "embedding" in name]
"""The operations of a server started with --embeddings."""
OLLAMA_EMBEDDING = [name for name in BODIES if name.startswith("embed_ollama_")]
"""The embedding operations in Ollama's format, which accepts more inputs; see
test_ollama_paths.py."""
OLLAMA = [name for name in BODIES if "ollama" in name and name != "create_ollama_chat"]
"""The operations that only Ollama's API has."""
RERANKING = [name for name in BODIES if "rerank" in name]
"""The operations of a server started with --reranking."""
ADMIN = ["act_on_slot", "set_props", "set_lora_adapters", "predict", "run_server_tool"]
"""Operations that are off, or have nothing to work on, without certain options; see
test_admin.py, test_vertex.py and test_server_tools.py."""
TOOLS = ["list_server_tools", "run_server_tool"]
"""The operations of a server with tools. Without any, they answer 403."""
NAMING = [
    name
    for name, each in contract.operations().items()
    if name not in BODIES
    and each.method.upper() == "GET"
    and any(parameter["name"] == "model" for parameter in each.definition.get("parameters", ()))
]
"""The operations on the model that their query names."""
ROUTING = ["load_model", "unload_model", "download_model"]
"""The operations of a router that have a body, so without `remove_model`."""
REFUSED = [name for name, each in contract.operations().items() if "x-refused" in each.definition]
"""The operations that always answer that they are not supported."""
ALIASES = {
    name: name.removesuffix("_alias")
    for name, each in contract.operations().items()
    if name.endswith("_alias")
    and all(
        each.definition.get(part)
        == contract.operations()[name.removesuffix("_alias")].definition.get(part)
        for part in ("parameters", "requestBody", "responses", "security")
    )
}
"""Operations with the description of another operation at another path, and the `operationId` of
that operation."""
STEERING = ["control_chat_completion", "lookup_streams"]
"""The operations on running generations, whatever the model."""
NAMED = [
    name
    for name, each in contract.operations().items()
    if name not in (*ROUTING, *REFUSED, *STEERING, "remove_model", "set_props")
    and "model" in (*_parameters(each), *_fields(each))
]
"""The operations whose requests can name a model."""
FORMS = [name for name, each in contract.operations().items() if contract.is_form(each)]
"""The operations that accept a form with a file; see provocations_of_media.py."""
POSTS = [
    name
    for name, each in contract.operations().items()
    if "requestBody" in each.definition
    and name
    not in (*FORMS, *EMBEDDING, *OLLAMA_EMBEDDING, *RERANKING, *ADMIN, *ROUTING, *CONVERSATIONS)
]
"""The operations of any server that generates."""


IN_PATH = {
    "asset": "swagger-ui.css",
    "file": "app.js",
    "id_slot": "0?action=save",
    "response_id": "resp_0",
    "model_id": "specllama-tiny",
    "conversation_id": "conv_0",
    "item_id": "msg_0",
}


IN_QUERY = {
    **dict.fromkeys(KEPT, "?conv_id=contract-tests"),
    "remove_model": "?model=contract/tests-GGUF:Q8_0",
}


def use_models(names: Sequence[str]) -> None:
    """Sets the model name in all requests that need one to the first of `names`, a server's
    models."""
    global MODEL
    if not names:
        return
    MODEL = IN_PATH["model_id"] = names[0]
    for each in ("load_model", "unload_model", "show_ollama_model", "pull_ollama_model"):
        BODIES[each]["model"] = MODEL
    if len(names) > 1:
        for each in NAMED:
            if isinstance(BODIES.get(each), dict):
                BODIES[each]["model"] = MODEL


def path(operation_id: str) -> str:
    """Returns a path that reaches the operation."""
    where = contract.operations()[operation_id].path
    for parameter, value in IN_PATH.items():
        where = where.replace(f"{{{parameter}}}", value)
    return where + IN_QUERY.get(operation_id, "")


def with_query(operation_id: str, **query: str) -> str:
    """Returns `path(operation_id)` with more parameters in its query."""
    where = path(operation_id)
    return where + ("&" if "?" in where else "?") + urlencode(query)


def body(operation_id: str, **changes: Any) -> Any:
    original = BODIES[operation_id]
    return {**original, **changes} if isinstance(original, dict) else original


def with_text(operation_id: str, text: Any, **changes: Any) -> Any:
    """Returns the operation's body with `text` as its input text."""
    if operation_id == "set_lora_adapters":
        return [{"id": 0, "scale": 0, "note": text}]
    if "messages" in BODIES[operation_id]:
        changes["messages"] = [{"role": "user", "content": text}]
    elif operation_id in GEMINI:
        changes["contents"] = [{"role": "user", "parts": [{"text": text}]}]
    elif "response" in operation_id:
        changes["input"] = text
    elif "conversation" in operation_id:
        changes["items"] = [{"role": "user", "content": text}]
    elif operation_id == "tokenize":
        changes["content"] = text
    elif operation_id == "create_infill":
        changes["prompt"] = text  # prefix and suffix would be cut, the begun middle is not
    elif operation_id in EMBEDDING or operation_id == "embed_ollama_inputs":
        changes["input"] = [text]
    elif operation_id in RERANKING:
        changes["documents"] = [text]
    else:
        changes["prompt"] = text
    return body(operation_id, **changes)
