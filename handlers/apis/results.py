"""The settings, the timings and the progress of a result, as JSON for formats."""

import json
from collections.abc import Mapping
from ctypes import c_float
from typing import Any, NotRequired, TypedDict, cast

import msgspec

from specllama.engine.chat.request import ReasoningFormat
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Deadline, Finished, PromptProgress, Timings
from specllama.engine.wire.stats import MissReason
from specllama.handlers.apis.parameters import triggers_json
from specllama.handlers.http import schemas
from specllama.handlers.http.json_answer import lazy

DEADLINES: Mapping[Deadline, schemas.Deadline] = {
    "prompt": "t_max_prompt_ms",
    "total": "timeout_ms",
}
"""The names of the time limits that can end a text."""


class EndedByDeadline(TypedDict):
    deadline: NotRequired[schemas.Deadline]


def deadline_json(finished: Finished) -> EndedByDeadline:
    """Returns the member `deadline` of an answer, if a time limit has ended the text."""
    return {"deadline": DEADLINES[finished.deadline]} if finished.deadline else {}


def float32(value: float) -> float:
    """Returns `value` rounded to single precision, as samplers use it."""
    return c_float(value).value


def settings_json(
    params: GenerationParams, n_ctx: int, model: str, reasoning_format: ReasoningFormat
) -> schemas.GenerationSettings:
    """Returns the `generation_settings` of a result: every parameter as it was applied, the size of
    the slot's context in tokens, the model's name, and the reasoning format of chats.

    Numbers are in single precision. A bias of minus infinity becomes null, since JSON has no
    infinity.
    """
    settings = {
        name: float32(value) if isinstance(value, float) else value
        for name, value in msgspec.structs.asdict(params).items()
        if name not in NOT_SHOWN
    }
    settings["max_tokens"] = params.n_predict
    settings["json_schema"] = json.loads(params.json_schema) if params.json_schema else None
    settings["logit_bias"] = lazy(_bias_json, params.logit_bias, 3)
    settings["grammar_triggers"] = triggers_json(params.grammar_triggers)
    settings["lora"] = [{"id": id, "scale": float32(scale)} for id, scale in params.lora]
    # "auto" means "deepseek".
    shown = "deepseek" if reasoning_format == "auto" else reasoning_format
    rest = {"n_ctx": n_ctx, "model": model, "reasoning_format": shown}
    for name, value in msgspec.structs.asdict(params.speculative).items():
        rest[f"speculative.{name}"] = float32(value) if isinstance(value, float) else value
    # A test compares the fields with the description.
    return cast(schemas.GenerationSettings, settings | rest | _FIXED_SETTINGS)


NOT_SHOWN = ("answer", "thinking", "grammar_type", "speculative", "unset")
"""Parameters that answers don't repeat, or repeat in another form."""

# Settings of features that this server doesn't have, for clients that read them.
_FIXED_SETTINGS: dict[str, Any] = {
    "chat_format": "Content-only",
    "reasoning_in_content": False,
    "thinking_forced_open": False,
}


def _bias_json(entry: tuple[int | str, float]) -> dict[str, Any]:
    token, bias = entry
    return {"token": token, "bias": float32(bias)}


def timings_json(timings: Timings) -> schemas.Timings:
    """Returns the `timings` object: counts, milliseconds, and tokens per second.

    The step that evaluates the prompt also gives the first predicted token, so n tokens take n - 1
    further steps.
    """
    steps = max(timings.predicted_n - 1, 0)
    made: schemas.Timings = {
        "cache_n": timings.cache_n,
        "prompt_n": timings.prompt_n,
        "prompt_ms": timings.prompt_ms,
        "prompt_per_token_ms": _ratio(timings.prompt_ms, timings.prompt_n),
        "prompt_per_second": _ratio(1000 * timings.prompt_n, timings.prompt_ms),
        "predicted_n": timings.predicted_n,
        "predicted_ms": timings.predicted_ms,
        "predicted_per_token_ms": _ratio(timings.predicted_ms, steps),
        "predicted_per_second": _ratio(1000 * steps, timings.predicted_ms),
        "cache_kv_n": timings.cache_n - timings.cache_ram_n - timings.cache_disk_n,
        "cache_ram_n": timings.cache_ram_n,
        "cache_disk_n": timings.cache_disk_n,
        "cache_miss_reason": timings.cache_miss_reason,
        "cache_miss_at": miss_at(timings.cache_n, timings.cache_miss_reason),
    }
    if timings.draft_n:
        made["draft_n"], made["draft_n_accepted"] = timings.draft_n, timings.draft_n_accepted
    return made


def miss_at(n_cached: int, reason: MissReason | None) -> int | None:
    """Returns the index of the first prompt token that wasn't cached: the cached ones are the first
    ones. None if there is no reason: only the tokens that are always computed weren't cached."""
    return None if reason is None else n_cached


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0


def progress_json(progress: PromptProgress | None) -> schemas.PromptProgress | None:
    if progress is None:
        return None
    return {
        "total": progress.total,
        "cache": progress.cache,
        "processed": progress.processed,
        "time_ms": progress.time_ms,
    }
