"""The grammar or JSON schema of a request, and what triggers it: many spellings become one."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from specllama.engine.errors import invalid_request
from specllama.engine.params import GrammarTrigger
from specllama.handlers.apis.unsupported import remark

_ANY_OBJECT = {"type": "object"}
_TOKEN, _WORD = 0, 1  # types of triggers; 2 and 3 are regular expressions


def constraint(body: Mapping[str, Any]) -> dict[str, str | None]:
    """The fields `grammar` and `json_schema` of `GenerationParams` if `body` sets one of them;
    the other one is off then. Nothing if it leaves both to the server's defaults.

    Raises EngineError (invalid_request_error) if it asks for several at once.
    """
    wanted: dict[str, str | None] = {}
    if grammar := body.get("grammar"):
        wanted["grammar"] = grammar  # wins over a schema beside it, as in llama-server
    elif (schema := body.get("json_schema")) is not None:
        wanted["json_schema"] = _text(schema)
    if (schema := _of_response_format(body.get("response_format"))) is not None:
        if "json_schema" in wanted and schema != _ANY_OBJECT:
            raise invalid_request("json_schema and response_format can't be used together")
        wanted.setdefault("json_schema", _text(schema))
    if len(wanted) > 1:
        raise invalid_request("a grammar and a JSON schema can't be used together")
    return {"grammar": "", "json_schema": None, **wanted} if wanted else {}


def _of_response_format(form: Mapping[str, Any] | None) -> Any:
    """The schema of a `response_format`; None if it lets the answer be any text."""
    if form is None or form["type"] == "text":
        return None
    if form["type"] == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema")
        if schema is None and (schema := form.get("schema")) is None:
            remark("response_format: there is no schema; any JSON object will do")
        return schema or _ANY_OBJECT
    return form.get("schema") or _ANY_OBJECT


def _text(schema: Any) -> str:
    try:
        return json.dumps(schema or _ANY_OBJECT, ensure_ascii=False)
    except RecursionError:
        raise invalid_request("Failed to parse JSON schema: it is nested too deep") from None


def parse_triggers(value: Iterable[Mapping[str, Any]]) -> list[GrammarTrigger]:
    """Raises EngineError (invalid_request_error) for triggers that can't be looked for."""
    return [_trigger(entry, f"grammar_triggers[{i}]") for i, entry in enumerate(value)]


def _trigger(entry: Mapping[str, Any], where: str) -> GrammarTrigger:
    if entry["type"] == _TOKEN:
        if (token := entry.get("token")) is None:
            raise invalid_request(f"{where}: a trigger of type {_TOKEN} needs a token")
        return GrammarTrigger(token=int(token))
    if entry["type"] != _WORD:
        raise invalid_request(
            f"{where}: patterns can't be looked for exactly and are not supported; "
            f"use a word (type {_WORD}) or a token (type {_TOKEN})"
        )
    if not entry.get("value"):
        raise invalid_request(f"{where}: a trigger of type {_WORD} needs a value")
    return GrammarTrigger(text=entry["value"])


def triggers_json(triggers: Iterable[GrammarTrigger]) -> list[dict[str, Any]]:
    """Triggers in the form that `parse_triggers` takes."""
    return [
        {"type": _WORD, "value": trigger.text}
        if trigger.text
        else {"type": _TOKEN, "value": "", "token": trigger.token}
        for trigger in triggers
    ]
