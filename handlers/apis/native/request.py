"""Prompts and parameters from a request body, for all operations that generate.

All functions here are pure. Bodies have passed validation against the description, so types
are known; what remains to be said is what a schema can't say.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast, get_args, get_type_hints

import msgspec

from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.errors import invalid_request
from specllama.engine.options import Options
from specllama.engine.params import (
    SAMPLER_LETTERS,
    GenerationParams,
    SamplerName,
    Speculative,
    ThinkingRules,
    Thoughts,
    sampler_name,
)
from specllama.engine.wire.requests import Infill
from specllama.handlers.apis.generate import GenerationRequest, Prompts
from specllama.handlers.apis.native.constraints import constraint, parse_triggers
from specllama.handlers.apis.native.numbers import (
    BIAS,
    INT32_MAX,
    LORA_ID,
    LORA_SCALE,
    clamp,
    real,
    seed,
    whole,
)
from specllama.handlers.apis.native.probabilities import text_probabilities
from specllama.handlers.apis.native.prompt_media import at_markers, at_numbers
from specllama.handlers.http import schemas
from specllama.handlers.http.streams import COMMENT, Ping
from specllama.handlers.running.choices import texts_per_prompt
from specllama.handlers.running.media import UnresolvedParts

log = logging.getLogger(__name__)

MAX_TOKEN_ID = INT32_MAX  # llama_token is a signed 32-bit integer; the vocabulary is smaller

_N_PREDICT_NAMES = ("n_predict", "max_completion_tokens", "max_tokens")

# ---- What is asked.


@dataclass(frozen=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """`reasoning_format` is what the answer's settings show; with `response_fields`, it has only
    those fields."""

    reasoning_format: ReasoningFormat
    response_fields: Sequence[str] = ()


def read_completion(body: schemas.CompletionRequest, options: Options) -> CompletionRequest:
    """A completion of texts. Raises EngineError (invalid_request_error)."""
    prompts = Prompts(texts=parse_prompts(body["prompt"], images=body.get("image_data")))
    return _asked(body, options, prompts)


def read_infill(body: schemas.InfillRequest, options: Options) -> CompletionRequest:
    """A completion of what is between two texts. Raises EngineError (invalid_request_error)."""
    gap = Infill(
        prefix=parse_part(body["input_prefix"], "input_prefix"),
        suffix=parse_part(body["input_suffix"], "input_suffix"),
        middle=body.get("prompt") or "",
        extra=[
            (snippet.get("filename") or "tmp", snippet["text"])
            for snippet in body.get("input_extra") or ()
        ],
    )
    return _asked(body, options, Prompts(gap=gap))


def _asked(
    body: schemas.CompletionRequest | schemas.InfillRequest, options: Options, prompts: Prompts
) -> CompletionRequest:
    params = generation_params(body, options.engine.generation_defaults())
    n = texts_per_prompt(body, len(prompts.texts) or 1)
    params, probabilities = text_probabilities(body, params)
    return CompletionRequest(
        params=params,
        what=prompts,
        n=n,
        probabilities=probabilities,
        ping=ping_of(body, options),
        shows_prompt=True,
        reasoning_format=_reasoning_format(body, options),
        response_fields=body.get("response_fields") or (),
    )


def _reasoning_format(body: Mapping[str, Any], options: Options) -> ReasoningFormat:
    """These operations don't parse their answers, so that any value does."""
    for known in get_args(ReasoningFormat):
        if body.get("reasoning_format") == known:
            return cast(ReasoningFormat, known)
    return options.chat.reasoning_format


# ---- The limit of thinking of a request that names the markers of thoughts itself.


def thinking_rules(body: schemas.GenerationOptions) -> ThinkingRules | None:
    """None without markers for both ends. Thoughts have begun if `generation_prompt`, with which
    the prompt ends, says so."""
    begin = body.get("reasoning_budget_start_tag") or ""
    ends = body.get("reasoning_budget_end_tags")
    if ends is None:
        ends = [body.get("reasoning_budget_end_tag") or ""]
    ends = [end for end in ends if end.strip()]
    if not (begin.strip() and ends):
        return None
    prompt = body.get("generation_prompt") or ""
    last_end = max(prompt.rfind(end.strip()) for end in ends)
    first, *others = ends
    budget = body.get("reasoning_budget_tokens")
    return ThinkingRules(
        Thoughts(begin, first, prompt.rfind(begin.strip()) > last_end, others),
        budget=-1 if budget is None else int(budget),
        message=body.get("reasoning_budget_message") or "",
        control=bool(body.get("reasoning_control")),
        anywhere=True,
    )


# ---- samplers ----------------------------------------------------------------------------


def parse_samplers(value: str | Sequence[str]) -> list[SamplerName]:
    """The sampler chain from a list of names, or from a string with a letter for each. What
    names no sampler is passed over."""
    find = SAMPLER_LETTERS.get if isinstance(value, str) else sampler_name
    found = [(written, find(written)) for written in value]
    if unknown := [written for written, name in found if name is None]:
        log.info("samplers: passed over, for there is no %s", ", ".join(map(ascii, unknown)))
    return [name for _, name in found if name is not None]


# ---- logit bias --------------------------------------------------------------------------

_NUMERAL = re.compile(r"[+-]?[0-9]{1,19}")


def parse_logit_bias(value: Any) -> list[tuple[int | str, float]]:
    """(token id or text, bias in logits) of every entry; `false` is minus infinity.

    The forms: `[[id | text, number | false], ...]`, `[{"token": ..., "bias": ...}, ...]`
    and `{"id or text": number | false, ...}`, where a key that is a numeral is an id. Entries
    that say something else are left out.
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
        if bias is not None and (isinstance(token, str) or _is_token_id(token)):
            result.append((token if isinstance(token, str) else int(token), bias))
    if len(result) < len(value):
        log.info("logit_bias: %d entries left out", len(value) - len(result))
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


def _is_token_id(value: Any) -> bool:
    # JSON has one kind of number: 12.0 is the integer 12.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= value <= MAX_TOKEN_ID and value == value // 1


def _token_id(value: Any, where: str) -> int:
    if not _is_token_id(value):
        raise invalid_request(f"{where}: there is no token {value!r}")
    return int(value)


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
    """(id, scale) of LoRA adapters, from objects with both; -1 is no adapter's id."""
    return [
        (
            int(clamp(-1 if (id := entry.get("id")) is None else id, LORA_ID)),
            float(clamp(entry.get("scale") or 0.0, LORA_SCALE)),
        )
        for entry in value
    ]


_CONVERTERS = _converters()


def generation_params(body: Mapping[str, Any], defaults: GenerationParams) -> GenerationParams:
    """The parameters that `body` asks for; what it doesn't name, or gives as null, is as in
    `defaults`. Fields that are no parameter are left alone.

    Raises EngineError (invalid_request_error) for a value that no schema can rule out.
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
        # None at all after the empty ones are gone: the server's own.
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
    """More than the server's own number is not proposed, and nothing where it has no sources."""
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


def ping_of(body: Mapping[str, Any], options: Options, data: bytes = COMMENT) -> Ping | None:
    """What is sent in the silences of the stream that `body` asks for; None for nothing."""
    given = body.get("sse_ping_interval")
    seconds = options.operations.sse_ping_interval if given is None else int(given)
    return Ping(seconds, data) if seconds > 0 else None


# ---- prompts -----------------------------------------------------------------------------


def parse_prompts(
    prompt: Any, where: str = "prompt", images: Sequence[Mapping[str, Any]] | None = None
) -> list[UnresolvedParts]:
    """The prompts of a request, each a list of token ids, texts and media. `where` is the field's
    name, `images` are those of `image_data`.

    A list with a number in it is one prompt; any other list holds a prompt per element, which
    may be text, a list of ids and texts, or an object with `prompt_string`.

    Raises EngineError (invalid_request_error) for other shapes, for empty lists, and for media and
    places that don't belong together.
    """
    if not isinstance(prompt, list) or any(type(e) in (int, float) for e in prompt):
        found = [_parse_prompt(prompt, where)]
    elif not prompt:
        raise invalid_request(f"{where}: the list is empty")
    else:
        found = [_parse_prompt(element, f"{where}[{i}]") for i, element in enumerate(prompt)]
    return at_numbers(found, images) if images else found


def parse_part(part: str | list[Any], where: str) -> list[int | str]:
    """A text, or a list of token ids and texts, which may be empty.

    Raises EngineError (invalid_request_error) for what can't be a token.
    """
    return _tokens_and_texts(part, where) if part else []


def _parse_prompt(prompt: Any, where: str) -> UnresolvedParts:
    if isinstance(prompt, Mapping) and "prompt_string" in prompt:
        parts = _tokens_and_texts(prompt["prompt_string"], f"{where}.prompt_string")
        if data := prompt.get("multimodal_data"):
            return at_markers(parts, data, f"{where}.multimodal_data")
        return [*parts]
    return [*_tokens_and_texts(prompt, where)]


def _tokens_and_texts(prompt: Any, where: str) -> list[int | str]:
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list):
        raise invalid_request(f"{where}: neither text nor a list of tokens and texts")
    if not prompt:
        raise invalid_request(f"{where}: the list is empty")
    if set(map(type, prompt)) == {int} and min(prompt) >= 0 and max(prompt) <= MAX_TOKEN_ID:
        return list(prompt)  # a long list of ids costs no Python loop
    return [e if isinstance(e, str) else _token_id(e, where) for e in prompt]
