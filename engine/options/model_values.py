"""Sampling parameters in a model's file: `general.sampling.*` of GGUF. They apply if neither a
request nor an option of the server sets them.

The keys are those of `enum llama_model_meta_key` in llama.cpp's llama.h.
"""

import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

from specllama.engine.options.declaration import fields
from specllama.engine.options.tables.sampling import SamplingOptions
from specllama.engine.options.values import OptionError
from specllama.engine.params import SAMPLER_LETTERS, SamplerName, sampler_name

log = logging.getLogger(__name__)

PREFIX = "general.sampling."


class ModelValue(NamedTuple):
    """The `key` after `PREFIX`, and the field `param` of `GenerationParams`."""

    key: str
    param: str


MODEL_VALUES: Mapping[str, ModelValue] = {
    "samplers": ModelValue("sequence", "samplers"),
    "top_k": ModelValue("top_k", "top_k"),
    "top_p": ModelValue("top_p", "top_p"),
    "min_p": ModelValue("min_p", "min_p"),
    "xtc_probability": ModelValue("xtc_probability", "xtc_probability"),
    "xtc_threshold": ModelValue("xtc_threshold", "xtc_threshold"),
    "temp": ModelValue("temp", "temperature"),
    "repeat_last_n": ModelValue("penalty_last_n", "repeat_last_n"),
    "repeat_penalty": ModelValue("penalty_repeat", "repeat_penalty"),
    "mirostat": ModelValue("mirostat", "mirostat"),
    "mirostat_ent": ModelValue("mirostat_tau", "mirostat_tau"),
    "mirostat_lr": ModelValue("mirostat_eta", "mirostat_eta"),
}
"""The key and the parameter, by the name of the option."""


def metadata_params(metadata: Mapping[str, str]) -> dict[str, Any]:
    """Returns the fields of `GenerationParams` that `metadata` sets; `metadata` are a model's
    scalar values as text. Values that the option would reject are left out, and so are unknown
    samplers."""
    found, _ = _found(metadata)
    return found


def log_left_out(metadata: Mapping[str, str]) -> None:
    """Logs the values of `metadata` that are left out, and why."""
    _, errors = _found(metadata)
    for key, error in errors.items():
        log.warning("%s%s of the model is ignored: %s", PREFIX, key, error)


def _found(metadata: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, OptionError]]:
    """Returns the values by parameter, and the errors of the others by key."""
    found: dict[str, Any] = {}
    errors: dict[str, OptionError] = {}
    for option, (key, param) in MODEL_VALUES.items():
        if not (text := metadata.get(PREFIX + key)):
            continue
        try:
            found[param] = _applied(param, _read(option, text))
        except OptionError as error:
            errors[key] = error
    return found, errors


def option_params(options: SamplingOptions) -> dict[str, Any]:
    """Returns the fields of `GenerationParams` that a model's file may set, as far as `options` set
    them."""
    chosen = {
        param: _applied(param, value)
        for option, (_, param) in MODEL_VALUES.items()
        if (value := getattr(options, option)) is not None
    }
    if options.sampler_seq:
        chosen["samplers"] = [SAMPLER_LETTERS[letter] for letter in options.sampler_seq]
    return chosen


def _read(option: str, text: str) -> Any:
    """Raises OptionError."""
    return _samplers(text) if option == "samplers" else fields(SamplingOptions)[option].read(text)


def _samplers(text: str) -> list[SamplerName]:
    """Raises OptionError if there is no known sampler."""
    known = [name for each in text.split(";") if (name := sampler_name(each)) is not None]
    if not known:
        raise OptionError("it names no sampler")
    return known


def _applied(param: str, value: Any) -> Any:
    """Returns an option's value as a parameter: a negative temperature or top_k becomes 0."""
    if param == "samplers":
        return list(value)
    return max(value, 0) if param in ("temperature", "top_k") else value
