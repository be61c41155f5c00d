"""Generation in every API: limits, seeds, samplers, constraints, probabilities.

The proxy changes the request, so that the answers have the right form but ignore what the client
asked for.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

from contract_tests.kit import checks
from contract_tests.kit.checks import generation
from contract_tests.kit.mutants.exchange import Mutation
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import at, bodies, documents, plain, without

MUTANTS = Mutants("Generation, in every API")

GENERATING = (
    "create_completion",
    "create_openai_completion",
    "create_infill",
    "create_chat_completion",
)
"""The operations in the native format, or with choices."""


def _change_requests(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Mutation:
    return bodies(change, *GENERATING)


def _set(**values: Any) -> Mutation:
    return _change_requests(lambda body: {**body, **values})


@MUTANTS.caught_by(generation.seeds_decide, "the same seed", as_described=True)
def seeds_are_ignored() -> Mutation:
    """Each text has a random seed, whatever the request says."""
    seeds = itertools.count(1000)
    return _change_requests(lambda body: {**body, "seed": next(seeds)})


@MUTANTS.caught_by(generation.seeds_decide, "all seeds give the same", as_described=True)
def all_seeds_are_one() -> Mutation:
    """Each text has the same seed."""
    return _set(seed=1)


@MUTANTS.caught_by(checks.stop_texts_are_never_shown, "==", as_described=True)
def stop_strings_are_ignored() -> Mutation:
    """Texts continue after a stop string."""
    return _change_requests(without("stop"))


@MUTANTS.caught_by(generation.limits_of_tokens_hold, r"\b2\b.*\b1\b", as_described=True)
def there_is_a_token_too_much() -> Mutation:
    """A text has one token more than the limit."""

    def change(body: dict[str, Any]) -> dict[str, Any]:
        for name in ("n_predict", "max_tokens", "max_completion_tokens"):
            body = at(name, lambda n: n + 1 if n > 0 else n)(body)
        return body

    return _change_requests(change)


@MUTANTS.caught_by(generation.temperatures_of_zero_are_greedy, "logprob", as_described=True)
def temperatures_are_ignored() -> Mutation:
    """A temperature of 0 becomes 5."""
    return _set(temperature=5.0, top_k=0, min_p=0.0, top_p=1.0)


@MUTANTS.caught_by(generation.biases_are_applied, "!=", as_described=True)
def biases_are_ignored() -> Mutation:
    """`logit_bias` is ignored."""
    return _change_requests(without("logit_bias"))


@MUTANTS.caught_by(generation.schemas_are_followed, "is not JSON", as_described=True)
def constraints_are_ignored() -> Mutation:
    """Grammars and schemas are ignored."""
    return _change_requests(without("json_schema", "grammar", "response_format"))


@MUTANTS.caught_by(generation.schemas_are_followed, "not by the schema", as_described=True)
def schemas_are_nearly_followed() -> Mutation:
    """A boolean of the schema becomes a text."""
    text = {"type": "string", "maxLength": 4}  # without a limit it might not end

    def change(schema: Any) -> Any:
        if isinstance(schema, list):
            return [change(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        changed = {name: change(value) for name, value in schema.items()}
        return {**changed, **text} if schema.get("type") == "boolean" else changed

    return _change_requests(
        lambda body: at("response_format", change)(at("json_schema", change)(body))
    )


@MUTANTS.caught_by(
    generation.cached_tokens_are_the_same_everywhere, "disables the cache", as_described=True
)
def the_cache_is_used_unasked() -> Mutation:
    """`cache_prompt` is ignored."""
    return _set(cache_prompt=True)


@MUTANTS.caught_by(generation.texts_are_as_many_as_asked_for, "==", as_described=True)
def there_is_only_one_text() -> Mutation:
    """`n` is ignored."""
    return _change_requests(without("n", "n_cmpl"))


@MUTANTS.caught_by(generation.texts_are_as_many_as_asked_for, "is one to", as_described=True)
def prompts_are_answered_in_another_order() -> Mutation:
    """The answer to the first of several prompts comes last."""

    def reversed_(answers: Any) -> Any:
        return [{**each, "index": i} for i, each in enumerate(answers[::-1])]

    def change(document: Any) -> Any:
        if isinstance(document, list):
            return reversed_(document)
        return at("choices", reversed_)(document)

    return plain(change, *GENERATING)


# ---- probabilities ---------------------------------------------------------------------------


def _change_probabilities(change: Callable[[list[Any]], list[Any]]) -> Mutation:
    """Changes the list of entries of a text or of a piece of it."""
    changes = [
        at(path, change) for path in ("completion_probabilities", "choices.*.logprobs.content")
    ]

    def changed(document: Any) -> Any:
        for each in changes:
            document = each(document)
        return document

    return documents(changed, *GENERATING)


def _change_rivals(change: Callable[[list[Any]], list[Any]]) -> Mutation:
    return _change_probabilities(at("*.top_logprobs", change))


@MUTANTS.caught_by(generation.probabilities_belong_to_the_text, "==", as_described=True)
def probabilities_are_those_of_another_token() -> Mutation:
    """Each token has the entry of the token before it."""
    return _change_probabilities(lambda entries: [*entries[1:], *entries[:1]])


@MUTANTS.caught_by(generation.probabilities_belong_to_the_text, "not in order", as_described=True)
def rivals_are_in_another_order() -> Mutation:
    """The likeliest of the rivals comes last."""
    return _change_rivals(lambda rivals: rivals[::-1])


@MUTANTS.caught_by(generation.probabilities_belong_to_the_text, r"\$: .*index")
def probabilities_are_no_logarithms() -> Mutation:
    """`logprob` is a probability."""

    def change(entry: Any) -> Any:
        return at("logprob", math.exp)(at("top_logprobs.*.logprob", math.exp)(entry))

    return _change_probabilities(at("*", change))


@MUTANTS.caught_by(generation.probabilities_belong_to_the_text, "in the place of")
def there_is_a_rival_too_few() -> Mutation:
    """`n_probs` is off by one."""
    return _change_rivals(lambda rivals: rivals[1:])
