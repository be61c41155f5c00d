"""Proposed tokens change no text: same seed, same tokens, whatever is proposed."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from engine.params import GenerationParams, Speculative
from engine.protocol.messages import Delta, Failed, Finished, Submit
from engine.worker.backend import Model
from engine.worker.generation.engine import Engine
from tests.support.playing import GREEDY
from tests.support.speculating import MODES, Mode, Oracle, speculating

PROMPTS = [f"def function_{i}(self, value):" for i in range(3)]
N = 40

GRAMMAR = 'root ::= ("a" | "b" | " " | "return" | "\\n")+'
SCHEMA = (
    '{"type":"object","properties":{"first":{"type":"integer"},"second":{"type":"boolean"},'
    '"third":{"enum":["red","green"]}},"required":["first","second","third"],'
    '"additionalProperties":false}'
)

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": GREEDY,
    "sampled": {"seed": 5, "ignore_eos": True},
    "until the end": {"seed": 5},
    "hot": {"seed": 6, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "grammar": {"seed": 7, "grammar": GRAMMAR},
    "schema": {"seed": 8, "json_schema": SCHEMA, "n_predict": 120},
    "schema, probs": {"seed": 8, "json_schema": SCHEMA, "n_predict": 120, "n_probs": 2},
    "stop": {**GREEDY, "stop": ["value", "self."]},
    "probs": {**GREEDY, "n_probs": 3},
    "probs behind": {"seed": 3, "n_probs": 3, "post_sampling_probs": True},
    "penalties": {"seed": 4, "repeat_penalty": 1.4, "presence_penalty": 0.3},
    "mirostat 1": {"seed": 4, "mirostat": 1},
    "mirostat 2": {"seed": 4, "mirostat": 2},
    "dry": {**GREEDY, "dry_multiplier": 0.9},
    "adaptive": {"seed": 2, "samplers": ["top_k", "adaptive_p"], "adaptive_target": 0.3},
    "xtc": {"seed": 2, "xtc_probability": 0.6},
    "dynamic": {"seed": 2, "dynatemp_range": 0.5},
    "biased": {"seed": 2, "logit_bias": [(5, 3.0), (7, -4.0)]},
    "one": {**GREEDY, "n_predict": 1},
    "two": {**GREEDY, "n_predict": 2},
    "indent": {**GREEDY, "n_indent": 4},
    "streamed": {"seed": 9, "stream": True},
}


def teach(model: Model, oracle: Oracle, prompts: list[str], told: Mapping[str, Finished]) -> None:
    for prompt in prompts:
        tokens = model.tokenize(prompt.encode(), add_special=True, parse_special=True).tolist()
        oracle.texts.append([*tokens, *told[prompt].tokens])


def compare(
    model: Model, plain: Engine, e: Engine, oracle: Oracle, params: dict[str, Any]
) -> dict[str, Finished]:
    """Both engines say the same."""
    given = {"n_predict": N, "speculative": Speculative("oracle", n_max=64), **params}
    wanted = run(plain, PROMPTS, given)
    plain.close()
    teach(model, oracle, PROMPTS, wanted)
    found = run(e, PROMPTS, given)
    for prompt, each in found.items():
        expected = wanted[prompt]
        assert each.tokens == expected.tokens
        assert each.text == expected.text
        assert each.probs == expected.probs
        assert (each.stop_type, each.stopping_word) == (expected.stop_type, expected.stopping_word)
        assert each.n_decoded == expected.n_decoded
        assert each.timings.predicted_n == expected.timings.predicted_n
    assert not e.scheduler.active
    assert not e.context._kept
    assert not oracle.known, "who has ended is forgotten"
    return found


def run(e: Engine, prompts: list[str], params: dict[str, Any]) -> dict[str, Finished]:
    """Together; of streams, with all that their events had."""
    results: dict[str, Finished] = {}
    streamed: dict[int, tuple[str, list[int]]] = {}
    for id, prompt in enumerate(prompts, start=1):
        e.submit(e.prepare(Submit(id, [prompt], GenerationParams(**params))))
    while e.has_work:
        for event in e.step():
            assert not isinstance(event, Failed), event
            if isinstance(event, Delta):
                assert "�" not in event.text
                text, tokens = streamed.get(event.id, ("", []))
                streamed[event.id] = text + event.text, tokens + event.tokens
            if isinstance(event, Finished):
                text, tokens = streamed.get(event.id, ("", []))
                results[prompts[event.id - 1]] = msgspec.structs.replace(
                    event, text=text + event.text, tokens=tokens + event.tokens
                )
        assert not any(sequence.n_ahead for sequence in e.scheduler.active)
    return results


@pytest.mark.parametrize("options", [{"parallel": 3}, {"parallel": 1, "kv_unified": True}], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REQUESTS)
def test_the_same_text_whatever_is_proposed(
    model: Model, monkeypatch: pytest.MonkeyPatch, mode: Mode, name: str, options: dict[str, Any]
) -> None:
    oracle = Oracle(mode, model.n_vocab)
    plain = speculating(monkeypatch, model, None, parallel=1)
    e = speculating(monkeypatch, model, oracle, **options)
    found = compare(model, plain, e, oracle, REQUESTS[name])
    n_decoded = sum(each.n_decoded for each in found.values())
    if mode == "right" and n_decoded > 40:
        assert oracle.n_accepted > n_decoded / 3
        assert e.stats().n_decode < n_decoded / 2, "several tokens in a step"
    if mode == "wrong":
        assert not oracle.n_accepted
    timings, stats = [each.timings for each in found.values()], e.stats()
    n_drafted = sum(each.draft_n for each in timings)
    n_accepted = sum(each.draft_n_accepted for each in timings)
    assert (stats.n_drafted, stats.n_drafts_accepted) == (n_drafted, n_accepted)
    assert oracle.n_accepted <= n_accepted <= n_drafted
    e.close()
