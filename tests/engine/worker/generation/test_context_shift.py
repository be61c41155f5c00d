"""Context shift and the reuse of moved chunks, with real cells.

The model has one layer, so a token's cells depend only on the token and its position. Moved cells
therefore equal those of a fresh evaluation of the remaining tokens, and the texts have to be equal.
With more layers they are only nearly equal.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llama_cpp import llama_cpp

from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Begun, Delta, Finished
from specllama.engine.wire.requests import Infill, PromptParts, Submit
from specllama.engine.worker.backend import BackendError, Context, Model, initialize
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.scheduling.placement import context_shift
from tests.support.options_support import engine_options
from tests.support.playing import EXACT, stepped
from tools.models.gguf_file import write_model
from tools.models.recipes import RECIPES, Recipe

pytestmark = pytest.mark.usefixtures("orders")

N_CTX = 256
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path: Path = tmp_path_factory.mktemp("models") / "one-layer.gguf"
    recipe = RECIPES["random"]
    assert isinstance(recipe, Recipe)
    decoder = dataclasses.replace(recipe.decoder, n_layer=1)
    write_model(dataclasses.replace(recipe, decoder=decoder), path)
    initialize()
    model = Model(str(path), engine_options())
    yield model
    model.close()


def engine(model: Model, **options: Any) -> Engine:
    # One thread, because other tests may use the machine's other processors.
    arguments: dict[str, Any] = {
        "ctx_size": N_CTX,
        "parallel": 1,
        "context_shift": True,
        "threads": 1,
        **EXACT,
        **options,
    }
    return Engine(model, engine_options(**arguments))


def run(
    engine: Engine, prompt: PromptParts | Infill, **params: Any
) -> tuple[list[Delta], Finished]:
    request = engine.preparation.prepare(
        Submit(1, prompt, GenerationParams(**{**GREEDY, **params}))
    )
    assert not engine.submit(request)
    deltas = []
    while engine.has_work:
        for event in stepped(engine):
            if isinstance(event, Delta):
                deltas.append(event)
            elif isinstance(event, Finished):
                return deltas, event
            else:
                assert isinstance(event, Begun), event
    raise AssertionError("no end")


def some_tokens(model: Model, n: int, seed: int = 0) -> PromptParts:
    return list(np.random.default_rng(seed).integers(256, 4000, n).tolist())


def expected(
    model: Model, prompt: PromptParts, n_predict: int, n_keep: int, n_discard: int
) -> list[int]:
    """The text that is generated if it is cut by hand and evaluated again after each cut."""
    wide = engine(model, ctx_size=4 * N_CTX, context_shift=False)
    text, generated = list(prompt), list[int]()
    while len(generated) < n_predict:
        n = min(N_CTX - len(text), n_predict - len(generated))
        _, part = run(wide, text, n_predict=n, cache_prompt=False)
        text += part.tokens
        generated += part.tokens
        if len(text) >= N_CTX:
            kept, dropped = context_shift(N_CTX - 1, N_CTX, n_keep, n_discard)
            text = text[:kept] + text[kept + dropped :]
    return generated


@pytest.mark.parametrize(
    ("n_keep", "n_discard"), [(0, 0), (10, 0), (-1, 0), (5, 30), (0, 9999), (9999, 0)]
)
def test_the_text_is_that_of_the_tokens_that_stay(
    model: Model, n_keep: int, n_discard: int
) -> None:
    prompt, n = some_tokens(model, 60), 450
    keep = len(prompt) if n_keep < 0 else n_keep
    want = expected(model, prompt, min(n, 260), keep, n_discard)
    params = {"n_predict": n, "n_keep": n_keep, "n_discard": n_discard}
    _, plain = run(engine(model), prompt, **params)
    assert plain.tokens[: len(want)] == want
    assert (plain.n_decoded, len(plain.tokens), plain.truncated) == (n, n, True)
    assert (plain.n_prompt, plain.timings.prompt_n, plain.stop_type) == (60, 60, "limit")

    deltas, end = run(engine(model), prompt, stream=True, **params)
    assert [t for delta in deltas for t in delta.tokens] + end.tokens == plain.tokens
    assert "".join(delta.text for delta in deltas) + end.text == plain.text


def test_without_it_the_end_of_the_context_is_the_end(model: Model) -> None:
    _, end = run(engine(model, context_shift=False), some_tokens(model, 60))
    assert (end.n_decoded, end.truncated, end.stop_type) == (N_CTX - 60, True, "limit")


def test_a_text_that_just_fits_is_not_truncated(model: Model) -> None:
    _, end = run(engine(model), some_tokens(model, 60), n_predict=N_CTX - 60)
    assert (end.n_decoded, end.truncated) == (N_CTX - 60, False)


def test_the_slot_shows_the_rest_of_the_prompt(model: Model) -> None:
    e = engine(model)
    prompt = [token for token in some_tokens(model, 60) if isinstance(token, int)]
    run(e, list(prompt), n_predict=200, n_keep=10, n_discard=20)
    [slot] = e.slots()
    assert slot.prompt == model.detokenize(prompt[:10] + prompt[30:]).decode("utf-8", "replace")
    assert (slot.n_prompt_tokens, slot.n_prompt_tokens_processed) == (60 + 200 - 20 - 1, 60)


def test_a_shifted_text_leaves_only_exact_cells(model: Model) -> None:
    e = engine(model)
    prompt = some_tokens(model, 60)
    run(e, prompt, n_predict=300, n_keep=10)
    _, again = run(e, prompt, n_predict=1)
    assert again.timings.cache_n == 10


def test_several_shift_side_by_side(model: Model) -> None:
    e = engine(model, parallel=3, kv_unified=False, ctx_size=3 * N_CTX)
    prompts = [some_tokens(model, 50 + 20 * i, seed=i) for i in range(3)]
    for id, prompt in enumerate(prompts):
        params = GenerationParams(n_predict=350, n_keep=7, **GREEDY)
        e.submit(e.preparation.prepare(Submit(id, list(prompt), params)))
    ends: dict[int, Finished] = {}
    while e.has_work:
        ends |= {event.id: event for event in stepped(e) if isinstance(event, Finished)}
    for id, prompt in enumerate(prompts):
        _, alone = run(engine(model), list(prompt), n_predict=350, n_keep=7)
        assert ends[id].tokens == alone.tokens


@pytest.mark.parametrize("n_reuse", [1, 16])
def test_moved_chunks_give_the_same_text(model: Model, n_reuse: int) -> None:
    a, b, c, d = (some_tokens(model, 30, seed=i) for i in range(4))
    e = engine(model)
    run(e, a + b + c + d, n_predict=1)
    params = {"n_predict": 40, "id_slot": 0}
    _, moved = run(e, a + c + d[10:], n_cache_reuse=n_reuse, **params)
    assert moved.timings.cache_n == len(a + c + d[10:]) - 1
    _, fresh = run(engine(model), a + c + d[10:], **params)
    assert fresh.timings.cache_n == 0
    assert moved.tokens == fresh.tokens
    _, later = run(e, a + c + d[10:], **params)
    assert later.timings.cache_n == len(a), "without n_cache_reuse nothing approximate is taken"


def test_no_chunk_is_moved_that_is_too_short(model: Model) -> None:
    a, b, c = (some_tokens(model, 30, seed=i) for i in range(3))
    e = engine(model)
    run(e, a + b + c, n_predict=1)
    _, end = run(e, a + c, n_predict=1, n_cache_reuse=31)
    assert end.timings.cache_n == len(a)


@pytest.mark.parametrize("option", [{"context_shift": True}, {"cache_reuse": 8}])
def test_memory_that_cannot_shift_is_refused_at_the_start(
    model: Model, option: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama_cpp, "llama_memory_can_shift", lambda memory: False)
    name = "--" + next(iter(option)).replace("_", "-")
    with pytest.raises(BackendError, match=f"^{name}: the memory of this model can't be shifted"):
        engine(model, **{"context_shift": False, **option})
    e = engine(model, context_shift=False)
    a, b, c = (some_tokens(model, 30, seed=i) for i in range(3))
    run(e, a + b + c, n_predict=1)
    _, end = run(e, a + c, n_predict=1, n_cache_reuse=8)
    assert end.timings.cache_n == len(a)


def test_a_recurrent_model_cannot_shift(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "llama_model_is_recurrent", lambda model: True)
    context = Context(model, engine_options(ctx_size=N_CTX), 1, False)
    assert not context.can_shift
    assert not context.cut_out(0, 1, 2)
    context.close()


# ---- infill, as the engine makes it --------------------------------------------------------


def test_a_gap_becomes_a_prompt(model: Model) -> None:
    _, end = run(engine(model), Infill(prefix=["a ="], suffix=[300, "b"]), n_predict=3)
    assert end.n_decoded == 3
    with pytest.raises(EngineError, match="token 99999 is not in the vocabulary"):
        run(engine(model), Infill(prefix=[99999], suffix=[]))


@pytest.mark.parametrize(
    ("options", "n_predict", "expected"),
    [
        ({"max_predict": 300}, -1, 300),
        ({"max_predict": 300}, 301, 301),  # who says a number means it
        ({"max_predict": -1}, 1100, 1100),
        ({}, -1, 4 * N_CTX),
        ({"context_shift": False, "max_predict": 300}, -1, N_CTX - 1),
    ],
    ids=str,
)
def test_a_text_without_a_limit_has_one(
    model: Model, options: dict[str, Any], n_predict: int, expected: int
) -> None:
    _, end = run(engine(model, **options), ["a"], n_predict=n_predict, **GREEDY)
    assert (end.n_decoded, end.stop_type) == (expected, "limit")
