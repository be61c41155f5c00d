"""Acceptance that is made up, for measuring: as much as was asked for, whatever the model says."""

from typing import Any

import pytest

from specllama.engine.options import OptionError
from specllama.engine.params import GenerationParams, Speculative
from specllama.engine.wire.replies import Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import BackendError, Model
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.verifying import Exact, Speculation
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, stepped
from tests.support.speculating import Oracle, speculating

pytestmark = pytest.mark.slow

PROMPTS = [f"def function_{i}(self, value):" for i in range(3)]
N, N_EACH = 40, 6
SAMPLED = {"seed": 5, "ignore_eos": True}


def made_up(*rates: float, **options: Any) -> dict[str, Any]:
    """Options, for a source that proposes as many tokens."""
    n_max = {"model_draft": "oracle", "spec_draft_n_max": len(rates)}
    return {"parallel": 3, "spec_synth_rates": rates, **n_max, **options}


def run(e: Engine, **params: Any) -> list[Finished]:
    given = {"n_predict": N, "speculative": Speculative("oracle", n_max=64), **params}
    for id, prompt in enumerate(PROMPTS):
        e.submit(e.preparation.prepare(Submit(id, [prompt], GenerationParams(**given))))
    found: dict[int, Finished] = {}
    while e.has_work:
        for event in stepped(e):
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                found[event.id] = event
    return [found[id] for id in range(len(PROMPTS))]


def drafts(results: list[Finished]) -> list[tuple[int, int]]:
    return [(each.timings.draft_n, each.timings.draft_n_accepted) for each in results]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_all_is_accepted_though_it_is_wrong(
    model: Model, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    e = speculating(monkeypatch, model, Oracle("random", model.n_vocab), **made_up(*[1.0] * N_EACH))
    results = run(e, **{**params, "ignore_eos": True})
    assert all(each.n_decoded == N for each in results)
    # Except for ends of texts, which chance may propose as well.
    assert all(0.8 * n <= n_accepted <= n for n, n_accepted in drafts(results))
    assert e.stats().n_decode < N / 3
    plain = speculating(monkeypatch, model, None, parallel=3)
    assert [each.text for each in results] != [
        each.text for each in run(plain, **{**params, "ignore_eos": True})
    ]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_nothing_is_accepted_though_it_is_right(
    model: Model, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any]
) -> None:
    """So the texts are those of the model."""
    wanted = run(speculating(monkeypatch, model, None, parallel=3), **params)
    oracle = Oracle("right", model.n_vocab)
    for prompt, each in zip(PROMPTS, wanted, strict=True):
        begin = model.tokenize(prompt.encode(), add_special=True, parse_special=True)
        oracle.texts.append([*begin.tolist(), *each.tokens])
    e = speculating(monkeypatch, model, oracle, **made_up(*[0.0] * N_EACH))
    found = run(e, **params)
    assert [each.tokens for each in found] == [each.tokens for each in wanted]
    assert all(n > N and not n_accepted for n, n_accepted in drafts(found))


def test_the_same_seed_gets_the_same(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for _ in range(2):
        oracle = Oracle("random", model.n_vocab)
        e = speculating(monkeypatch, model, oracle, **made_up(0.7, 0.5, 0.3, 0.2, 0.1, 0.05))
        results = run(e, **SAMPLED)
        found.append(([each.tokens for each in results], drafts(results)))
    assert found[0] == found[1]
    n, n_accepted = (sum(numbers) for numbers in zip(*found[0][1], strict=True))
    assert 0 < n_accepted < n / 2


@pytest.mark.parametrize(
    "params",
    [
        {"grammar": 'root ::= "a"{5,5}', "n_predict": 6},
        {"grammar": 'root ::= ("a" | "b" | " ")+'},
        {"json_schema": '{"type":"object","properties":{"first":{"type":"integer"}}}'},
        {"json_schema": '{"enum":["red","green"]}', "json_whitespace": "compact"},
        {"n_probs": 3},
        {"n_probs": 3, "post_sampling_probs": True},
        {"mirostat": 2},
        {"stop": ["a", "e"]},
    ],
    ids=str,
)
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_requests_of_any_kind_end(
    model: Model, monkeypatch: pytest.MonkeyPatch, params: dict[str, Any], rate: float
) -> None:
    """Constraints apply to the model's tokens, not to made-up ones."""
    rates = [rate**n for n in range(1, N_EACH + 1)]
    e = speculating(monkeypatch, model, Oracle("random", model.n_vocab), **made_up(*rates))
    for each in run(e, **SAMPLED, **params):
        assert 0 < each.n_decoded <= N
    assert not e.scheduler.active
    assert not e.context._kept


def test_it_is_said_at_the_start(model: Model, caplog: pytest.LogCaptureFixture) -> None:
    Engine(model, engine_options(spec_type=("ngram-simple",), spec_synth_len=3.0)).close()
    [warning] = [each.getMessage() for each in caplog.records if "at random" in each.getMessage()]
    assert "texts are not the model's own (3 tokens" in warning
    caplog.clear()
    Engine(model, engine_options(spec_type=("ngram-simple",))).close()
    assert "accepted at random" not in caplog.text


def test_nothing_can_be_measured(model: Model) -> None:
    with pytest.raises(OptionError, match="it needs --spec-type"):
        Engine(model, engine_options(spec_synth_len=3.0))
    options = {"spec_type": ("ngram-simple",), "spec_synth_len": 3.0}
    with pytest.raises(BackendError, match=r"--spec-synth-\* is impossible with --backend"):
        Engine(model, engine_options(**options, backend_sampling=True))


def test_a_mutant_that_compares_is_caught(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    init = Speculation.__init__

    def exact(
        self: Speculation, proposing: Any, pace: Any, verifier: Any, *args: Any, **kwargs: Any
    ) -> None:
        init(self, proposing, pace, Exact(), *args, **kwargs)

    monkeypatch.setattr(Speculation, "__init__", exact)
    with pytest.raises(AssertionError):
        test_all_is_accepted_though_it_is_wrong(model, monkeypatch, GREEDY)
