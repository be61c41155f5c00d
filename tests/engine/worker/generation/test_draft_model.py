"""Texts with a draft model are those without, for any of them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from specllama.engine.params import Speculative
from specllama.engine.wire.replies import Finished
from specllama.engine.worker.backend import Model
from specllama.engine.worker.generation import verifying as speculation
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.speculation import draft_model
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, play
from tests.support.speculating import Eager
from tests.support.vocabulary_files import with_vocabulary
from tools.models.build import ensure

pytestmark = pytest.mark.usefixtures("orders")

SHIPPED = str(random_model())
PROMPTS = [
    "def add(a, b):\n    return",
    "def add(a, b):\n    return a + b\n\n\ndef sub(a, b):\n",
    "The quick brown fox",
    "import os\nimport sys\n" * 12,
]
SAMPLED = {"temperature": 0.8, "seed": 7, "top_k": 40}
DRAFTING: dict[str, Any] = {"speculative": Speculative(types="draft-simple", n_max=8)}


def reproducible(**options: Any) -> Any:
    return engine_options(parallel=4, ctx_size=4096, reproducible="on", warmup=False, **options)


def tokens_of(results: Mapping[str, Finished]) -> dict[str, list[int]]:
    return {prompt: finished.tokens for prompt, finished in results.items()}


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["itself", "another", "translated"])
def test_texts_are_those_without(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, params: Any, kind: str
) -> None:
    plain = Engine(model, reproducible())
    wanted = tokens_of(play(plain, PROMPTS, n_predict=40, **params))
    plain.close()
    chosen: dict[str, Any] = {"model_draft": SHIPPED}
    if kind == "another":  # with other special tokens, which are not compared, and more of them
        path = with_vocabulary(
            random_model(),
            tmp_path / "draft.gguf",
            lambda t: [*(f"[{i}]" for i in range(5)), *t[5:], "[more]"],
            {},
        )
        chosen = {"model_draft": str(path)}
    elif kind == "translated":
        chosen = {"model_draft": str(ensure("tiny-spm")), "spec_replace": (("<|x|>", "[X]"),)}
    monkeypatch.setattr(speculation, "Pace", Eager)
    engine = Engine(model, reproducible(**chosen))
    results = play(engine, PROMPTS, n_predict=40, **params, **DRAFTING)
    assert tokens_of(results) == wanted
    # Once more, each alone, with the cache as it is now.
    for prompt in PROMPTS:
        [again] = play(engine, [prompt], n_predict=40, **params, **DRAFTING).values()
        assert again.tokens == wanted[prompt]
    drafted = sum(finished.timings.draft_n for finished in results.values())
    accepted = sum(finished.timings.draft_n_accepted for finished in results.values())
    assert 0 <= accepted <= drafted
    if kind != "translated":
        assert drafted > 0
        assert accepted > 0
    engine.close()


def test_a_draft_model_that_fails_is_not_missed(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Engine(model, reproducible())
    wanted = tokens_of(play(plain, PROMPTS, n_predict=20, **SAMPLED))
    plain.close()
    monkeypatch.setattr(speculation, "Pace", Eager)
    n_calls = 0
    likeliest = draft_model.likeliest

    def sometimes(logits: Any, p_min: float) -> int | None:
        nonlocal n_calls
        n_calls += 1
        if n_calls > 20:
            raise ValueError("no numbers")
        return likeliest(np.asarray(logits), p_min)

    monkeypatch.setattr(draft_model, "likeliest", sometimes)
    engine = Engine(model, reproducible(model_draft=SHIPPED))
    assert tokens_of(play(engine, PROMPTS, n_predict=20, **SAMPLED, **DRAFTING)) == wanted
    assert n_calls == 21
    engine.close()


def test_a_draft_model_is_not_loaded_in_vain(caplog: pytest.LogCaptureFixture) -> None:
    recurrent = Model(str(ensure("tiny-mamba")), engine_options())
    engine = Engine(recurrent, reproducible(model_draft="there is none"))
    assert "--model-draft have no effect with a memory that can't take tokens back" in caplog.text
    engine.close()
    recurrent.close()
