"""Several texts for one prompt: `n_cmpl`, OpenAI's `n`, and `best_of`."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from specllama.engine.errors import invalid_request
from specllama.engine.params import RANDOM_SEED, GenerationParams
from specllama.engine.wire.replies import Finished


def mean_log_probability(result: Finished) -> float:
    """Returns the mean log-probability of the tokens of `result`, before or after sampling (its
    `post_sampling_probs`); 0 without probabilities."""
    values = [entry.value for entry in result.probs]
    if result.params.post_sampling_probs:
        values = [math.log(value) if value > 0 else -math.inf for value in values]
    return sum(values) / len(values) if values else 0.0


MAX_TEXTS = 4096  # of one request


def texts_per_prompt(body: Mapping[str, Any], n_prompts: int = 1) -> int:
    """Returns the number of texts per prompt that `body` requests; `n_cmpl` wins over `n`.

    Raises EngineError (invalid_request_error) if all prompts together have too many texts.
    """
    n = next((int(body[name]) for name in ("n_cmpl", "n") if body.get(name) is not None), 1)
    check_total(n, n_prompts, "n_cmpl")
    return n


def check_total(n: int, n_prompts: int, name: str) -> None:
    if n * n_prompts > MAX_TEXTS:
        raise invalid_request(
            f"{name}: {n} texts for each of {n_prompts} prompts are more than {MAX_TEXTS}"
        )


def variants(params: GenerationParams, n: int) -> list[GenerationParams]:
    """Returns the parameters of `n` texts for one prompt. Each has its own seed, counted up from
    that of `params`, unless that seed is random. Only the first has the `id_slot` of `params`."""
    made = [params]
    for i in range(1, n):
        drawn = params.seed == RANDOM_SEED
        seed = RANDOM_SEED if drawn else (params.seed + i) % RANDOM_SEED
        made.append(msgspec.structs.replace(params, seed=seed, id_slot=-1))
    return made


def candidates(
    body: Mapping[str, Any], n: int, n_prompts: int, params: GenerationParams
) -> tuple[int, GenerationParams]:
    """Returns the number of texts to generate per prompt, `best_of` or else `n`, of which the best
    `n` are returned; and `params`, with the probabilities for that choice.

    Raises EngineError (invalid_request_error).
    """
    best_of = int(body.get("best_of") or n)
    if best_of < n:
        raise invalid_request(f"best_of: {best_of} texts are too few to return {n} of them")
    if best_of == n:
        return n, params
    if params.stream:
        raise invalid_request(
            "best_of: the best text is known only at the end; set stream to false"
        )
    check_total(best_of, n_prompts, "best_of")
    return best_of, msgspec.structs.replace(params, n_probs=max(params.n_probs, 1))


def best(results: Sequence[Finished], n: int, best_of: int) -> list[Finished]:
    """Returns the `n` likeliest of every `best_of` results, by the mean log-probability of their
    tokens, the likeliest first."""
    if best_of == n:
        return list(results)
    chosen: list[Finished] = []
    for start in range(0, len(results), best_of):
        group = results[start : start + best_of]
        chosen += sorted(group, key=mean_log_probability, reverse=True)[:n]
    return chosen
