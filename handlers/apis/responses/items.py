"""Converts the items in the input of OpenAI's Responses API to their stored form.

An item is a message, a call of a tool, its output, or the model's reasoning. Input and output have
the same form, so that a conversation is one list of items.
"""

import secrets
from collections.abc import Mapping, Sequence
from typing import TypeAlias, TypedDict, TypeGuard, cast

from specllama.engine.errors import invalid_request, not_supported
from specllama.handlers.apis.contents import tool_reference
from specllama.handlers.http import schemas
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.running.media import Kind, unshown
from specllama.handlers.running.sealing import MAX_BYTES, Seal

Item: TypeAlias = schemas.ResponseStoredItem
Reference: TypeAlias = schemas.ResponseItemReference
"""A reference to a stored item."""
Part: TypeAlias = schemas.ResponseStoredPart
Media: TypeAlias = schemas.ResponseInputMedia

REFERENCE = "item_reference"
_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "tool_search_call": "tsc",
    "tool_search_output": "tso",
    "additional_tools": "at",
    "reasoning": "rs",
    "compaction": "cmp",
}
"""The prefixes of new ids, by the item's type."""
_SOURCES = {"input_image": "image_url", "input_audio": "input_audio", "input_file": "file_data"}
"""The field with the data or URL of each kind of media."""
_KINDS: Mapping[str, Kind] = {
    "input_image": "image",
    "input_audio": "audio",
    "input_file": "document",
}

_Typed: TypeAlias = (
    schemas.ResponseInputFunctionCall
    | schemas.ResponseInputFunctionOutput
    | schemas.ResponseInputCustomCall
    | schemas.ResponseInputSearchCall
    | schemas.ResponseInputSearchOutput
    | schemas.ResponseAdditionalTools
    | schemas.ResponseInputReasoning
    | schemas.ResponseInputCompaction
    | schemas.ResponseItemReference
)
"""An item with a required `type`; that of a message is optional."""


def new_id(prefix: str) -> str:
    """Returns a new id, which can't be guessed: a client needs only the id to read the item."""
    return f"{prefix}_{secrets.token_hex(24)}"


def has_sealed(input: schemas.ResponseInput) -> bool:
    """True if an item of `input` has nothing but sealed reasoning."""
    return not isinstance(input, str) and any(
        item.get("type") == "reasoning"
        and item.get("encrypted_content")
        and not item.get("content")
        for item in input or ()
    )


def unlike(before: Sequence[Item], items: Sequence[Item]) -> list[Item]:
    """Returns `items` with new ids in the place of ids that `before` or earlier items have."""
    taken = {item["id"] for item in before}
    made: list[Item] = []
    for item in items:
        if item["id"] in taken:
            item = item.copy()
            item["id"] = new_id(_PREFIXES[item["type"]])
        taken.add(item["id"])
        made.append(item)
    return made


def input_items(input: schemas.ResponseInput, seal: Seal | None = None) -> list[Item | Reference]:
    """Returns the items of a request's `input`, each with an id, a type and a status; each
    content is a list of parts. References to stored items are not resolved. Items of OpenAI's own
    tools are left out. `seal` opens sealed reasoning, which is ignored without it.

    Media keep their data or URL, so that the conversation can be stored. Raises EngineError
    (not_supported_error) for unsupported parts.
    """
    if isinstance(input, str):
        input = [{"role": "user", "content": input}]
    opener = Opener(seal)
    read = (_item(item, f"input[{index}]", opener) for index, item in enumerate(input or ()))
    return [item for item in read if item is not None]


def _is_message(item: schemas.ResponseInputItem) -> TypeGuard[schemas.ResponseInputMessage]:
    return item.get("type") in (None, "message")


def _is_typed(item: schemas.ResponseInputItem) -> TypeGuard[_Typed]:
    """The description allows no `ResponseOtherItem` of these types."""
    return item.get("type") == REFERENCE or item.get("type") in _PREFIXES


def _item(item: schemas.ResponseInputItem, where: str, opener: "Opener") -> Item | Reference | None:
    if _is_message(item):
        return _message(item, where)
    if not _is_typed(item):
        _leave_out(item, where)
        return None
    match item["type"]:
        case "item_reference":
            return item
        case "function_call":
            return _function_call(item)
        case "custom_tool_call":
            return _custom_call(item)
        case "function_call_output" | "custom_tool_call_output":
            return _tool_output(item, where)
        case "tool_search_call":
            return _search_call(item, where)
        case "tool_search_output":
            return _search_output(item, where)
        case "additional_tools":
            return _tools(item)
        case "reasoning":
            return _reasoning(item, where, opener)
        case "compaction":
            return _compaction(item)


def _leave_out(item: schemas.ResponseInputItem, where: str) -> None:
    warn_ignored("%s: an item of the type %s is left out", where, item.get("type"))


def _id(item: schemas.ResponseInputMessage | _Typed) -> str:
    return item.get("id") or new_id(_PREFIXES[item.get("type") or "message"])


def _message(item: schemas.ResponseInputMessage, where: str) -> schemas.ResponseStoredMessage:
    role = item["role"]
    made: schemas.ResponseStoredMessage = {
        "id": _id(item),
        "type": "message",
        "status": "completed",
        "role": role,
        "content": _parts(item["content"], role, f"{where}.content"),
    }
    if phase := item.get("phase"):
        made["phase"] = phase
    return made


def _function_call(item: schemas.ResponseInputFunctionCall) -> schemas.ResponseFunctionCall:
    return {
        "id": _id(item),
        "type": "function_call",
        "status": "completed",
        "call_id": item["call_id"],
        "name": item["name"],
        "arguments": item["arguments"],
        **_namespace(item),
    }


def _custom_call(item: schemas.ResponseInputCustomCall) -> schemas.ResponseCustomCall:
    return {
        "id": _id(item),
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": item["call_id"],
        "name": item["name"],
        "input": item["input"],
        **_namespace(item),
    }


class _Namespace(TypedDict, total=False):
    namespace: str


def _namespace(
    item: schemas.ResponseInputFunctionCall | schemas.ResponseInputCustomCall,
) -> _Namespace:
    namespace = item.get("namespace")
    return {"namespace": namespace} if namespace else {}


def _tool_output(
    item: schemas.ResponseInputFunctionOutput, where: str
) -> schemas.ResponseStoredFunctionOutput:
    output = item["output"]
    return {
        "id": _id(item),
        "type": item["type"],
        "status": "completed",
        "call_id": item["call_id"],
        "output": output if isinstance(output, str) else _parts(output, "tool", f"{where}.output"),
    }


def _clients_call(
    item: schemas.ResponseInputSearchCall | schemas.ResponseInputSearchOutput, where: str
) -> str | None:
    """Returns the id of a search that the client runs. For any other search, logs a warning and
    returns None."""
    call_id = item.get("call_id")
    if item.get("execution") == "client" and call_id:
        return call_id
    _leave_out(item, where)
    return None


def _search_call(
    item: schemas.ResponseInputSearchCall, where: str
) -> schemas.ResponseSearchCall | None:
    """Returns None for a search that the client doesn't run."""
    if (call_id := _clients_call(item, where)) is None:
        return None
    return {
        "id": _id(item),
        "type": "tool_search_call",
        "status": "completed",
        "execution": "client",
        "call_id": call_id,
        "arguments": item.get("arguments"),
    }


def _search_output(
    item: schemas.ResponseInputSearchOutput, where: str
) -> schemas.ResponseStoredSearchOutput | None:
    """Returns None for a search that the client doesn't run."""
    if (call_id := _clients_call(item, where)) is None:
        return None
    return {
        "id": _id(item),
        "type": "tool_search_output",
        "status": "completed",
        "execution": "client",
        "call_id": call_id,
        "tools": item.get("tools") or [],
    }


def _tools(item: schemas.ResponseAdditionalTools) -> schemas.ResponseStoredTools:
    return {
        "id": _id(item),
        "type": "additional_tools",
        "status": "completed",
        "role": "developer",
        "tools": item.get("tools") or [],
    }


def _reasoning(
    item: schemas.ResponseInputReasoning, where: str, opener: "Opener"
) -> schemas.ResponseReasoning:
    content = item.get("content") or []
    if not content and (sealed := item.get("encrypted_content")):
        content = opener.open(sealed, where)
    return {
        "id": _id(item),
        "type": "reasoning",
        "status": "completed",
        "summary": item.get("summary") or [],
        "content": content,
    }


def _compaction(item: schemas.ResponseInputCompaction) -> schemas.ResponseCompaction:
    return {
        "id": _id(item),
        "type": "compaction",
        "status": "completed",
        "encrypted_content": item["encrypted_content"],
        "left_out": int(item.get("left_out") or 0),
    }


# ---- sealed reasoning ----------------------------------------------------------


REASONING = "reasoning"
"""The kind of sealed reasoning."""
MAX_OPENED = 64 << 20
"""The most bytes of sealed reasoning that are read for one request. Compressed text is small, and a
client may send the same one many times."""


def sealed_reasoning(seal: Seal, text: str) -> str | None:
    """Returns `text` for `encrypted_content`; None if it is too long."""
    payload = text.encode("utf-8", "surrogatepass")
    return seal.seal(REASONING, payload) if len(payload) <= MAX_BYTES else None


class Opener:
    """Opens the sealed reasoning of one request."""

    def __init__(self, seal: Seal | None) -> None:
        self._seal = seal
        self._left = MAX_OPENED

    def open(self, sealed: str, where: str) -> list[schemas.ResponseReasoningText]:
        """Returns the reasoning as the content of an item. It is empty, and a warning is logged, if
        this server hasn't sealed it, or if the request has too much of it."""
        opened = self._seal.open(REASONING, sealed, self._left) if self._seal else None
        if opened is None:
            warn_ignored("%s: encrypted_content can't be read by this server", where)
            return []
        self._left -= len(opened)
        return [{"type": "reasoning_text", "text": opened.decode("utf-8", "surrogatepass")}]


# ---- contents ------------------------------------------------------------------


def _parts(content: schemas.ResponseInputContent, role: str, where: str) -> list[Part]:
    if isinstance(content, str):
        content = [{"type": "input_text", "text": content}]
    read = (_part(part, role, f"{where}[{index}]") for index, part in enumerate(content or ()))
    return [part for part in read if part is not None]


def _is_medium(part: schemas.ResponseInputPart) -> TypeGuard[Media]:
    """The description allows no `ResponseOtherPart` of these types."""
    return part.get("type") in _KINDS


def _part(part: schemas.ResponseInputPart, role: str, where: str) -> Part | None:
    # A text or a refusal is read from a part of any type. Validation hasn't checked these fields if
    # the part's schema doesn't have them.
    said = cast(schemas.ResponseOtherPart, part)
    refusal, text = said.get("refusal"), said.get("text")
    if isinstance(refusal, str):
        return {"type": "refusal", "refusal": refusal}
    if _is_medium(part):
        return _medium(part, role, where)
    if role == "tool" and (name := tool_reference(part)) is not None:
        return {"type": "input_text", "text": name}
    if not isinstance(text, str):
        return _without_text(part, role, where)
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


def _without_text(part: schemas.ResponseInputPart, role: str, where: str) -> Part | None:
    type_ = part.get("type")
    if role == "tool":
        return _unshown(type_ or "content")
    if role != "assistant":
        raise not_supported(
            f"{where}: this server doesn't support {type_ or 'a part without a text'} yet"
        )
    warn_ignored("%s: a part of the type %s is left out", where, type_)
    return None


def _unshown(kind: str, name: str | None = None) -> schemas.ResponseStoredText:
    return {"type": "input_text", "text": unshown(kind, name)["text"]}


def _medium(part: Media, role: str, where: str) -> Part | None:
    type_ = part["type"]
    if role == "assistant":
        warn_ignored("%s: a part of the type %s is left out", where, type_)
        return None
    if (made := _with_source(part)) is not None:
        return made
    if not part.get("file_id"):
        raise invalid_request(f"{where}: {_SOURCES[type_]} is missing in this {type_}")
    if role == "tool":
        return _unshown(_KINDS[type_], part.get("filename"))
    raise not_supported(f"{where}: no file_id exists on this server; send the data of the {type_}")


def _with_source(part: Media) -> Media | None:
    """Returns the fields of `part` to store; None if it has neither data nor a URL."""
    match part["type"]:
        case "input_image":
            return _image(part)
        case "input_audio":
            audio = part.get("input_audio")
            return None if audio is None else {"type": "input_audio", "input_audio": audio}
        case "input_file":
            return _document(part)


def _image(part: Media) -> Media | None:
    if (url := part.get("image_url")) is None:
        return None
    made: Media = {"type": "input_image", "image_url": url}
    if (detail := part.get("detail")) is not None:
        made["detail"] = detail
    return made


def _document(part: Media) -> Media | None:
    made: Media = {"type": "input_file"}
    if (data := part.get("file_data")) is not None:
        made["file_data"] = data
    if (url := part.get("file_url")) is not None:
        made["file_url"] = url
    if data is None and url is None:
        return None
    if (name := part.get("filename")) is not None:
        made["filename"] = name
    return made
