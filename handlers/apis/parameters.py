"""Parameters of a generation from the fields of a body, by their native names; for every API.

All functions here are pure. Like llama-server, they clamp most sampling values instead of refusing
them. The ranges are the same as `x-clamped` in the description; a test compares the two. They also
keep llama.cpp's arithmetic within its limits.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, cast, get_type_hints

import msgspec

from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.engine.params import (
    RANDOM_SEED,
    SAMPLER_LETTERS,
    GenerationParams,
    GrammarTrigger,
    SamplerName,
    Speculative,
    sampler_name,
)
from specllama.handlers.apis.thinking import thinking_rules
from specllama.handlers.http import schemas
from specllama.handlers.http.log_fields import warn_ignored
from specllama.handlers.http.streams import COMMENT, Ping

log = logging.getLogger(__name__)

_N_PREDICT_NAMES = ("n_predict", "max_completion_tokens", "max_tokens")

# ---- numbers -----------------------------------------------------------------------------

INT32_MAX = 0x7FFFFFFF
_MUCH = 1e6

CLAMPED: Mapping[str, tuple[float, float]] = {
    "temperature": (0, _MUCH),
    "dynatemp_range": (0, _MUCH),
    "dynatemp_exponent": (0, 1000),
    "top_k": (0, INT32_MAX),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (-1, _MUCH),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "min_keep": (0, INT32_MAX),
    "repeat_last_n": (-1, INT32_MAX),
    "repeat_penalty": (1e-6, _MUCH),
    "presence_penalty": (-_MUCH, _MUCH),
    "frequency_penalty": (-_MUCH, _MUCH),
    "dry_multiplier": (0, _MUCH),
    "dry_base": (0, _MUCH),
    "dry_allowed_length": (0, INT32_MAX),
    "dry_penalty_last_n": (-1, INT32_MAX),
    "mirostat": (0, 2),
    "mirostat_tau": (0, 50),
    "mirostat_eta": (0, 50),
    "adaptive_target": (-1, 1),
    "id_slot": (-1, INT32_MAX),
    "n_probs": (0, 1024),
    "t_max_predict_ms": (-1, INT32_MAX),
}
LORA_ID = (-1, INT32_MAX)
LORA_SCALE = (-_MUCH, _MUCH)
BIAS = (-1e9, 1e9)


def clamp(value: float, limits: tuple[float, float]) -> float:
    """Returns the number nearest to `value` within `limits`."""
    return min(max(value, limits[0]), limits[1])


def real(name: str, value: float) -> float:
    """Returns the value of the field `name` as a float."""
    return float(clamp(value, CLAMPED[name]) if name in CLAMPED else value)


def whole(name: str, value: float) -> int:
    """Returns the value of the field `name` without its fraction."""
    return int(clamp(value, CLAMPED[name]) if name in CLAMPED else value)


def seed(value: float) -> int:
    """Returns the lowest 32 bits of `value`; -1 becomes `RANDOM_SEED`."""
    return int(value) & RANDOM_SEED


def is_token_id(value: Any) -> bool:
    # JSON has one kind of number: 12.0 is the integer 12.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= INT32_MAX and value == value // 1


# ---- grammars and schemas ----------------------------------------------------------------

_ANY_OBJECT = {"type": "object"}
_TOKEN, _WORD = 0, 1  # types of triggers; 2 and 3 are regular expressions


def constraint(body: Mapping[str, Any]) -> dict[str, str | None]:
    """Returns the fields `grammar` and `json_schema` of `GenerationParams`. If `body` sets one of
    them, the other is off; if it sets neither, the result is empty, and the server's defaults
    apply.

    Raises EngineError (invalid_request_error) if `body` sets several constraints.
    """
    wanted: dict[str, str | None] = {}
    if grammar := body.get("grammar"):
        wanted["grammar"] = grammar  # wins over `json_schema`, as in llama-server
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
    """Returns the schema of a `response_format`; None if the answer may be any text."""
    if form is None or form["type"] == "text":
        return None
    if form["type"] == "json_schema":
        schema = (form.get("json_schema") or {}).get("schema")
        if schema is None and (schema := form.get("schema")) is None:
            warn_ignored("response_format: the schema is missing; any JSON object is allowed")
        return schema or _ANY_OBJECT
    return form.get("schema") or _ANY_OBJECT


def _text(schema: Any) -> str:
    try:
        return json.dumps(schema or _ANY_OBJECT, ensure_ascii=False)
    except RecursionError:
        raise invalid_request("Failed to parse JSON schema: it is nested too deep") from None


def parse_triggers(value: Iterable[Mapping[str, Any]]) -> list[GrammarTrigger]:
    """Returns the triggers of a lazy grammar. Raises EngineError (invalid_request_error) for
    unsupported types and missing values."""
    return [_trigger(entry, f"grammar_triggers[{i}]") for i, entry in enumerate(value)]


def _trigger(entry: Mapping[str, Any], where: str) -> GrammarTrigger:
    if entry["type"] == _TOKEN:
        if (token := entry.get("token")) is None:
            raise invalid_request(f"{where}: a trigger of type {_TOKEN} needs a token")
        return GrammarTrigger(token=int(token))
    if entry["type"] != _WORD:
        raise invalid_request(
            f"{where}: patterns are not supported, because they can't be matched exactly; "
            f"use a word (type {_WORD}) or a token (type {_TOKEN})"
        )
    if not entry.get("value"):
        raise invalid_request(f"{where}: a trigger of type {_WORD} needs a value")
    return GrammarTrigger(text=entry["value"])


def triggers_json(triggers: Iterable[GrammarTrigger]) -> list[dict[str, Any]]:
    """Returns triggers in the form that `parse_triggers` accepts."""
    return [
        {"type": _WORD, "value": trigger.text}
        if trigger.text
        else {"type": _TOKEN, "value": "", "token": trigger.token}
        for trigger in triggers
    ]


# ---- samplers ----------------------------------------------------------------------------


def parse_samplers(value: str | Sequence[str]) -> list[SamplerName]:
    """Returns the sampler chain from a list of names, or from a string with a letter for each.
    Unknown names and letters are skipped."""
    find = SAMPLER_LETTERS.get if isinstance(value, str) else sampler_name
    found = [(written, find(written)) for written in value]
    if unknown := [written for written, name in found if name is None]:
        log.info("samplers: unknown names are ignored: %s", ", ".join(map(ascii, unknown)))
    return [name for _, name in found if name is not None]


# ---- logit bias --------------------------------------------------------------------------

_NUMERAL = re.compile(r"[+-]?[0-9]{1,19}")


def parse_logit_bias(value: Any) -> list[tuple[int | str, float]]:
    """Returns (token id or text, bias in logits) of every entry; `false` is minus infinity.

    The forms: `[[id | text, number | false], ...]`, `[{"token": ..., "bias": ...}, ...]`
    and `{"id or text": number | false, ...}`, where a numeric key is an id. Entries in any other
    form are ignored.
    """
    if isinstance(value, Mapping):
        entries = [
            (int(key) if _NUMERAL.fullmatch(key) else key, bias) for key, bias in value.items()
        ]
    else:
        entries = [pair for entry in value if (pair := _pair(entry)) is not None]
    result: list[tuple[int | str, float]] = []
    for token, written in entries:
        bias = _bias(written)
        if bias is not None and (isinstance(token, str) or is_token_id(token)):
            result.append((token if isinstance(token, str) else int(token), bias))
    if len(result) < len(value):
        log.info("logit_bias: %d invalid entries are ignored", len(value) - len(result))
    return result


def _pair(entry: Any) -> tuple[Any, Any] | None:
    match entry:
        case {"token": token, "bias": bias} | [token, bias]:
            return token, bias
    return None


def _bias(bias: Any) -> float | None:
    if bias is False:
        return float("-inf")
    if isinstance(bias, bool) or not isinstance(bias, int | float):
        return None
    return float(clamp(bias, BIAS))


# ---- parameters --------------------------------------------------------------------------


def _strings(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _converters() -> dict[str, Callable[[Any], Any]]:
    found: dict[str, Callable[[Any], Any]] = {}
    for name, hint in get_type_hints(GenerationParams).items():
        if hint is int:
            found[name] = partial(whole, name)
        elif hint is float:
            found[name] = partial(real, name)
        elif hint is bool:
            found[name] = bool
    return found | {
        "seed": seed,
        "stop": _strings,
        "samplers": parse_samplers,
        "logit_bias": parse_logit_bias,
        "dry_sequence_breakers": _strings,
        "lora": parse_lora,
        "grammar_triggers": parse_triggers,
        "preserved_tokens": list,
        "generation_prompt": str,
        "grammar_type": str,
        "json_whitespace": str,
    }


def parse_lora(value: Iterable[schemas.LoraScale]) -> list[tuple[int, float]]:
    """Returns (id, scale) of LoRA adapters, from objects with both. A missing id becomes -1, which
    matches no adapter."""
    return [
        (
            int(clamp(-1 if (id := entry.get("id")) is None else id, LORA_ID)),
            float(clamp(entry.get("scale") or 0.0, LORA_SCALE)),
        )
        for entry in value
    ]


_CONVERTERS = _converters()


def generation_params(body: Mapping[str, Any], defaults: GenerationParams) -> GenerationParams:
    """Returns the parameters in `body`. Parameters that are missing or null have the values of
    `defaults`; fields that aren't parameters are skipped.

    Raises EngineError (invalid_request_error) for invalid values that a schema can't rule out.
    """
    changes: dict[str, Any] = {}
    for name in _CONVERTERS.keys() & body.keys():
        if (value := body[name]) is not None:
            changes[name] = _CONVERTERS[name](value)
    for name in _N_PREDICT_NAMES:
        if (value := body.get(name)) is not None:
            changes["n_predict"] = whole("n_predict", value)
            break
    if "stop" in changes:
        # Without a text that isn't empty, the server's own stop strings apply.
        changes["stop"] = [word for word in changes["stop"] if word] or defaults.stop
    if changes.get("dry_sequence_breakers") == []:
        raise invalid_request("dry_sequence_breakers: at least one string is needed")
    if changes.get("dry_base", 1.0) < 1.0:
        changes["dry_base"] = defaults.dry_base
    changes["speculative"] = _speculative(body, defaults.speculative)
    if (thinking := thinking_rules(cast(schemas.GenerationOptions, body))) is not None:
        changes["thinking"] = thinking
    changes["unset"] = [name for name in defaults.unset if name not in changes]
    return msgspec.structs.replace(defaults, **changes, **constraint(body))


def _speculative(body: Mapping[str, Any], defaults: Speculative) -> Speculative:
    """Returns the speculation settings of `body`. `n_max` is at most the server's; nothing changes
    if the server has no sources of proposals."""
    if defaults.types == "none":
        return defaults
    changes: dict[str, Any] = {}
    if (n_max := body.get("speculative.n_max")) is not None:
        changes["n_max"] = int(clamp(n_max, (0, defaults.n_max)))
    if (n_min := body.get("speculative.n_min")) is not None:
        changes["n_min"] = int(clamp(n_min, (0, INT32_MAX)))
    if (p_min := body.get("speculative.p_min")) is not None:
        changes["p_min"] = float(clamp(p_min, (0, 1)))
    return msgspec.structs.replace(defaults, **changes)


def shows_queue(body: Mapping[str, Any]) -> bool:
    """Whether the stream that `body` requests reports its place in the queue."""
    return bool(body.get("return_queue"))


def ping_of(body: Mapping[str, Any], options: Options, data: bytes = COMMENT) -> Ping | None:
    """Returns the keep-alive frame for the stream that `body` requests, with its interval; None if
    the interval is not positive, which disables these frames."""
    given = body.get("sse_ping_interval")
    seconds = options.operations.sse_ping_interval if given is None else int(given)
    return Ping(seconds, data) if seconds > 0 else None
