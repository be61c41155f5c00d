"""Generation, the same in every API: limits, seeds, samplers, constraints, probabilities.

What the engine is asked for is changed on its way, so that it does something else than the client
wants, and says so in all the right forms.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

import handlers.chat
import handlers.completion
from contract_tests.kit import checks
from contract_tests.kit.checks import generation
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.params import RANDOM_SEED, GenerationParams
from engine.pool.client import EngineClient
from engine.pool.generation import Generation
from engine.protocol.messages import Finished, Prompt, TokenProbs
from handlers.apis.native.probabilities import Probabilities
from handlers.http.encoding import Lazy
from handlers.running.batch import Batch

MUTANTS = Mutants("Generation, in every API")


def _change_params(
    replace: Replace, change: Callable[[GenerationParams], GenerationParams]
) -> None:
    original = EngineClient.generate_all

    def generate_all(
        self: EngineClient,
        prompt: Prompt,
        variants: Sequence[GenerationParams],
        *,
        echo_prompt: bool = False,
        confirm: bool = False,
        group: int = 0,
        owner: int = 0,
        private: bool = False,
        prompt_probs: bool = False,
    ) -> list[Generation]:
        return original(
            self,
            prompt,
            [change(params) for params in variants],
            echo_prompt=echo_prompt,
            confirm=confirm,
            group=group,
            owner=owner,
            private=private,
            prompt_probs=prompt_probs,
        )

    replace(EngineClient, "generate_all", generate_all)


def _set(replace: Replace, **values: Any) -> None:
    _change_params(replace, lambda params: msgspec.structs.replace(params, **values))


@MUTANTS.caught_by(generation.seeds_decide, "the same seed", lies=True)
def seeds_are_ignored(replace: Replace) -> None:
    """Each text has a seed of its own, whatever the request says."""
    _set(replace, seed=RANDOM_SEED)


@MUTANTS.caught_by(generation.seeds_decide, "all seeds give the same", lies=True)
def all_seeds_are_one(replace: Replace) -> None:
    """Each text has the same seed."""
    _set(replace, seed=1)


@MUTANTS.caught_by(checks.stop_texts_are_never_shown, "==", lies=True)
def stop_strings_are_ignored(replace: Replace) -> None:
    """Texts go on behind what should end them."""
    _set(replace, stop=[])


@MUTANTS.caught_by(generation.limits_of_tokens_hold, r"\b2\b.*\b1\b", lies=True)
def there_is_a_token_too_much(replace: Replace) -> None:
    """One token more than the limit."""

    def change(params: GenerationParams) -> GenerationParams:
        n = params.n_predict
        return msgspec.structs.replace(params, n_predict=n + 1 if n > 0 else n)

    _change_params(replace, change)


@MUTANTS.caught_by(generation.temperatures_of_zero_are_greedy, "logprob", lies=True)
def temperatures_are_ignored(replace: Replace) -> None:
    """A temperature of 0 is one of 5."""
    _set(replace, temperature=5.0, top_k=0, min_p=0.0, top_p=1.0)


@MUTANTS.caught_by(generation.biases_are_applied, "!=", lies=True)
def biases_are_ignored(replace: Replace) -> None:
    """`logit_bias` forbids nothing."""
    _set(replace, logit_bias=[])


@MUTANTS.caught_by(generation.schemas_are_followed, "is not JSON", lies=True)
def constraints_are_ignored(replace: Replace) -> None:
    """Neither grammars nor schemas are in force."""
    _set(replace, json_schema=None, grammar="", answer=None)


@MUTANTS.caught_by(generation.schemas_are_followed, "not by the schema", lies=True)
def schemas_are_nearly_followed(replace: Replace) -> None:
    """A boolean comes out as a text."""

    def change(params: GenerationParams) -> GenerationParams:
        text = '"string","maxLength":4'  # else it may go on for ever
        schema = params.json_schema and params.json_schema.replace('"boolean"', text)
        return msgspec.structs.replace(params, json_schema=schema)

    _change_params(replace, change)


@MUTANTS.caught_by(generation.cached_tokens_are_the_same_everywhere, "wants no cache", lies=True)
def the_cache_is_used_unasked(replace: Replace) -> None:
    """`cache_prompt` means nothing."""
    _set(replace, cache_prompt=True)


@MUTANTS.caught_by(generation.texts_are_as_many_as_asked_for, "==", lies=True)
def there_is_only_one_text(replace: Replace) -> None:
    """`n` is ignored."""

    def texts_per_prompt(body: Mapping[str, Any], prompts: Sequence[object]) -> int:
        return 1

    replace(handlers.completion, "texts_per_prompt", texts_per_prompt)
    replace(handlers.chat, "texts_per_prompt", texts_per_prompt)


@MUTANTS.caught_by(generation.texts_are_as_many_as_asked_for, "is one to", lies=True)
def prompts_are_answered_in_another_order(replace: Replace) -> None:
    """The answer to the first of several prompts comes last."""
    original = Batch.results

    async def results(self: Batch) -> list[Finished]:
        return (await original(self))[::-1]

    replace(Batch, "results", results)


# ---- probabilities ---------------------------------------------------------------------------


def _change_probabilities(
    replace: Replace, change: Callable[[Sequence[TokenProbs]], Sequence[TokenProbs]]
) -> None:
    content_of, later_of = Probabilities.content, Probabilities.later

    def content(self: Probabilities, probs: Sequence[TokenProbs]) -> list[dict[str, Any]]:
        return content_of(self, change(probs))

    def later(self: Probabilities, probs: Sequence[TokenProbs]) -> Lazy[TokenProbs]:
        return later_of(self, change(probs))

    replace(Probabilities, "content", content)
    replace(Probabilities, "later", later)


@MUTANTS.caught_by(generation.probabilities_belong_to_the_text, "==", lies=True)
def probabilities_are_those_of_another_token(replace: Replace) -> None:
    """They stand one place beside their tokens."""
    _change_probabilities(replace, lambda probs: [*probs[1:], *probs[:1]])


@MUTANTS.caught_by(generation.probabilities_belong_to_the_text, "not in order", lies=True)
def rivals_are_in_another_order(replace: Replace) -> None:
    """The likeliest of the rivals comes last."""

    def change(probs: Sequence[TokenProbs]) -> Sequence[TokenProbs]:
        return [msgspec.structs.replace(each, top=each.top[::-1]) for each in probs]

    _change_probabilities(replace, change)


@MUTANTS.caught_by(generation.probabilities_belong_to_the_text, r"\$: .*index")
def probabilities_are_no_logarithms(replace: Replace) -> None:
    """`logprob` is a probability."""

    def change(probs: Sequence[TokenProbs]) -> Sequence[TokenProbs]:
        return [
            msgspec.structs.replace(
                each,
                value=math.exp(each.value),
                top=[(id, piece, math.exp(value)) for id, piece, value in each.top],
            )
            for each in probs
        ]

    _change_probabilities(replace, change)


@MUTANTS.caught_by(generation.probabilities_belong_to_the_text, "in the place of")
def there_is_a_rival_too_few(replace: Replace) -> None:
    """`n_probs` is off by one."""

    def change(probs: Sequence[TokenProbs]) -> Sequence[TokenProbs]:
        return [msgspec.structs.replace(each, top=each.top[1:]) for each in probs]

    _change_probabilities(replace, change)
