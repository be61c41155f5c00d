"""The samplers of a request, in their order, as plain data.

`engine.worker.backend.Sampler` turns a plan into a llama.cpp sampler chain. The order and the
arguments are the same as in llama-server, so that the same seed gives the same text.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from specllama.engine.params import GenerationParams

MIROSTAT_M = 100  # tokens that Mirostat 1 considers; llama.cpp's value
MIN_TEMPERATURE = 1e-6  # below this, divided logits exceed the range of float32


class SamplerSpec(NamedTuple):
    """One sampler: the suffix of its `llama_sampler_init_*` function, and the arguments after the
    backend's own ones (the vocabulary, or its size)."""

    name: str
    args: tuple[Any, ...]


def plan(params: GenerationParams, n_ctx: int) -> list[SamplerSpec]:
    """The chain for `params`, whose `logit_bias` tokens must all be ids.

    `n_ctx` (tokens) replaces the value -1 of the two penalty windows.
    """
    specs = []
    if params.logit_bias:
        specs.append(SamplerSpec("logit_bias", (params.logit_bias,)))
    if params.mirostat == 1:
        specs.append(SamplerSpec("temp", (_temperature(params),)))
        mirostat = (params.seed, params.mirostat_tau, params.mirostat_eta, MIROSTAT_M)
        return [*specs, SamplerSpec("mirostat", mirostat)]
    if params.mirostat == 2:
        specs.append(SamplerSpec("temp", (_temperature(params),)))
        mirostat_v2 = (params.seed, params.mirostat_tau, params.mirostat_eta)
        return [*specs, SamplerSpec("mirostat_v2", mirostat_v2)]
    if is_greedy(params):
        return [*specs, SamplerSpec("greedy", ())]
    # Adaptive-p draws the token itself: wherever it is named, it replaces the final draw.
    specs.extend(_spec(name, params, n_ctx) for name in params.samplers if name != "adaptive_p")
    if "adaptive_p" in params.samplers:
        adaptive = (params.adaptive_target, params.adaptive_decay, params.seed)
        return [*specs, SamplerSpec("adaptive_p", adaptive)]
    return [*specs, SamplerSpec("dist", (params.seed,))]


class Shortlist(NamedTuple):
    """The candidates that are sufficient for a chain.

    Either the `n` tokens with the largest logits after the first `n_edits` samplers, which only
    change the logits of single tokens (biased or already used ones); or, with `n` 0, all tokens at
    least `min_p` times as likely as the likeliest one. `by_order`: True if tokens with equal logits
    only have to stay in their order, False if there must be no equal ones.
    """

    n: int
    min_p: float = 0.0
    n_edits: int = 0
    by_order: bool = False


ARGMAX = Shortlist(1, by_order=True)


def effective(specs: Sequence[SamplerSpec]) -> list[SamplerSpec]:
    """The samplers that have an effect; llama.cpp replaces each of the others by an empty one."""
    return [spec for spec in specs if not _is_off(spec)]


def shortlist(specs: Sequence[SamplerSpec]) -> Shortlist | None:
    """The candidates that are sufficient for a chain of `effective` samplers without its bias; None
    if it needs all of them."""
    n_edits = 0
    while specs[n_edits].name in ("penalties", "dry"):
        n_edits += 1
    name, args = specs[n_edits]
    if name == "greedy":
        return Shortlist(1, n_edits=n_edits, by_order=True) if n_edits else ARGMAX
    if name == "top_k":
        return Shortlist(args[0], n_edits=n_edits)
    if name == "min_p" and not n_edits:
        p, min_keep = args
        return Shortlist(0, min_p=p, by_order=True) if p <= 1 and min_keep <= 1 else None
    return None


def n_sufficient(specs: Sequence[SamplerSpec], n_used: int) -> int | None:
    """The number of the likeliest tokens of any row that are sufficient for a chain of `effective`
    samplers, whose penalties concern at most `n_used` tokens. None if no number is known."""
    n_biased = len(specs[0].args[0]) if specs[0].name == "logit_bias" else 0
    biases, rest = (specs[:1], specs[1:]) if n_biased else ([], specs)
    short = shortlist(rest)
    if short is None or not short.n:
        return None
    # Each edit can remove one of the likeliest tokens, but none may add one.
    if not all(_only_lowers(spec) for spec in [*biases, *rest[: short.n_edits]]):
        return None
    return short.n + n_biased + (n_used if short.n_edits else 0)


def _only_lowers(spec: SamplerSpec) -> bool:
    """True if a sampler that changes the logits of single tokens never raises one."""
    match spec.name, spec.args:
        case "logit_bias", (biases,):
            return all(bias <= 0 for _, bias in biases)
        case "penalties", (_, repeat, frequency, presence):
            return bool(repeat >= 1 and frequency >= 0 and presence >= 0)
        case "dry", (multiplier, *_):
            return bool(multiplier >= 0)
        case _:
            return False


def _is_off(spec: SamplerSpec) -> bool:
    """True if the sampler has no effect; computed in float32, as in llama.cpp."""
    name, args = spec
    values = [np.float32(arg) if isinstance(arg, float) else arg for arg in args]
    match name:
        case "penalties":
            return bool(not values[0] or values[1:] == [1, 0, 0])
        case "dry":
            return bool(values[0] == 0 or values[1] < 1 or not values[3])
        case "top_n_sigma" | "top_k" | "min_p":
            return bool(values[0] <= 0)
        case "typical" | "top_p":
            return bool(values[0] >= 1)
        case "xtc":
            return bool(values[0] <= 0 or values[1] > 0.5)
        case _:
            return False


def is_greedy(params: GenerationParams) -> bool:
    """True if the most probable token is always chosen, so that no other sampler matters.

    That is so at temperature 0 (or below) without any sampler that changes the maximum, unless the
    probabilities after the samplers are requested.
    """
    return (
        params.mirostat == 0
        and not (params.post_sampling_probs and params.n_probs)
        and _temperature(params) == 0
        and params.dynatemp_range <= 0
        and "temperature" in params.samplers
        and "infill" not in params.samplers
        and not window(params, n_ctx=1)
        and not (params.xtc_probability > 0 and "xtc" in params.samplers)
        and not (params.typical_p < 1 and "typ_p" in params.samplers)
    )


def window(params: GenerationParams, n_ctx: int) -> int:
    """The number of tokens before the first generated one that the penalty samplers use."""
    if params.mirostat:
        return 0
    size = 0
    penalizes = (
        params.repeat_penalty != 1 or params.presence_penalty != 0 or params.frequency_penalty != 0
    )
    if penalizes and "penalties" in params.samplers:
        size = max(size, _window(params.repeat_last_n, n_ctx))
    if params.dry_multiplier != 0 and params.dry_base >= 1 and "dry" in params.samplers:
        size = max(size, _window(params.dry_penalty_last_n, n_ctx))
    return size


def _temperature(params: GenerationParams) -> float:
    return params.temperature if params.temperature >= MIN_TEMPERATURE else 0.0


def _window(last_n: int, n_ctx: int) -> int:
    return n_ctx if last_n == -1 else min(last_n, n_ctx)


def _spec(name: str, params: GenerationParams, n_ctx: int) -> SamplerSpec:
    p = params
    match name:
        case "penalties":
            last_n = _window(p.repeat_last_n, n_ctx)
            rates = (p.repeat_penalty, p.frequency_penalty, p.presence_penalty)
            return SamplerSpec("penalties", (last_n, *rates))
        case "dry":
            last_n = _window(p.dry_penalty_last_n, n_ctx)
            shape = (p.dry_multiplier, p.dry_base, p.dry_allowed_length)
            return SamplerSpec("dry", (*shape, last_n, p.dry_sequence_breakers))
        case "top_n_sigma":
            return SamplerSpec("top_n_sigma", (p.top_n_sigma,))
        case "top_k":
            return SamplerSpec("top_k", (p.top_k,))
        case "typ_p":
            return SamplerSpec("typical", (p.typical_p, p.min_keep))
        case "top_p":
            return SamplerSpec("top_p", (p.top_p, p.min_keep))
        case "min_p":
            return SamplerSpec("min_p", (p.min_p, p.min_keep))
        case "xtc":
            return SamplerSpec("xtc", (p.xtc_probability, p.xtc_threshold, p.min_keep, p.seed))
        case "temperature":
            dynamic = (p.dynatemp_range, p.dynatemp_exponent)
            return SamplerSpec("temp_ext", (_temperature(p), *dynamic))
        case "infill":
            return SamplerSpec("infill", ())
        case _:
            raise ValueError(f"unknown sampler {name!r}")
