"""The engine on the shipped model, in this process."""

from pathlib import Path
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams, SamplerName
from specllama.engine.wire.replies import Begun, Delta, Event, Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Context, Model, initialize
from specllama.engine.worker.generation.answering import progress
from specllama.engine.worker.generation.engine import TOGETHER, Engine
from specllama.engine.worker.generation.request import Request
from tests.support.model_files import damaged
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play, stepped

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders"), pytest.mark.covering(1)]


def test_the_same_text_alone_and_in_company(model: Model) -> None:
    prompts = [f"def function_{i}(self, value):" for i in range(6)]
    together = play(engine(model), prompts, n_predict=40, seed=11, ignore_eos=True)
    for prompt in prompts:
        alone = play(engine(model), [prompt], n_predict=40, seed=11, ignore_eos=True)
        assert together[prompt].text == alone[prompt].text


@pytest.mark.parametrize("params", [{"top_k": 0}, {"mirostat": 2}, {"top_k": 0, "n_probs": 2}])
def test_slow_samplers_choose_the_same_side_by_side(
    model: Model, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the vocabulary were large.
    prompts = [f"def function_{i}(self, value):" for i in range(6)]
    plain = play(engine(model, parallel=6), prompts, n_predict=30, seed=11, **params)
    monkeypatch.setattr("specllama.engine.worker.backend.sampler.FEW", 0)
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    pooled = play(engine(model, parallel=6), prompts, n_predict=30, seed=11, **params)
    assert {p: r.tokens for p, r in pooled.items()} == {p: r.tokens for p, r in plain.items()}


@pytest.mark.parametrize("unified", [True, False])
def test_a_shared_prefix_changes_nothing(model: Model, unified: bool) -> None:
    prefix = "import os\nimport sys\n\n\ndef first(a, b):\n    return a + b\n\n\n"
    prompts = [f"{prefix}def function_{i}(self, value):" for i in range(6)]
    shared = engine(model, parallel=6, kv_unified=unified)
    together = play(shared, prompts, n_predict=30, **GREEDY)
    again = play(shared, prompts, n_predict=30, **GREEDY)
    n_prefix = len(model.tokenize(prefix.encode(), add_special=True, parse_special=True))
    for prompt in prompts:
        alone = play(engine(model), [prompt], n_predict=30, **GREEDY)
        assert together[prompt].tokens == again[prompt].tokens == alone[prompt].tokens
        assert again[prompt].timings.prompt_n == 1
    cached = [together[prompt].timings.cache_n for prompt in prompts]
    assert sum(n >= n_prefix - 1 for n in cached) == 5, "computed once"


def test_a_prompt_is_cut_while_others_generate(model: Model) -> None:
    # The target can't be met: a step gets the fewest tokens, and nothing else changes.
    bounded = engine(model, target_itl_ms=1, parallel=2)
    prompts = ["x", "for item in items: yield item\n" * 20]
    together = play(bounded, prompts, n_predict=60, **GREEDY)
    for prompt in prompts:
        alone = play(engine(model), [prompt], n_predict=60, **GREEDY)
        assert together[prompt].tokens == alone[prompt].tokens


def sent_by(engine: Engine, params: GenerationParams, *, other_at: int = -1) -> list[list[Event]]:
    """Returns the messages that a streamed request gets at once; after `other_at` messages another
    request arrives."""
    sent: list[list[Event]] = []
    engine.submit(engine.preparation.prepare(Submit(1, ["import os"], params)))
    while engine.has_work:
        engine.step(sent.append)
        if len(sent) > other_at >= 0:
            engine.step(sent.append)
            engine.submit(engine.preparation.prepare(Submit(2, ["def f(a, b):"], params)))
            other_at = -1
    return sent


def deltas(sent: list[list[Event]]) -> list[int]:
    return [sum(isinstance(event, Delta) for event in events) for events in sent]


def test_tokens_of_fast_steps_leave_together(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "specllama.engine.worker.generation.engine"
    params = GenerationParams(n_predict=11, stream=True, **GREEDY)
    monkeypatch.setattr(f"{path}.TOGETHER_SECONDS", 0.0)
    apart = sent_by(engine(model), params)
    assert set(deltas(apart)) <= {0, 1}
    monkeypatch.setattr(f"{path}.TOGETHER_SECONDS", 3600.0)
    together = sent_by(engine(model), params)
    assert max(deltas(together)) == TOGETHER
    assert len(together) < len(apart)
    texts = [
        "".join(event.text for events in sent for event in events if isinstance(event, Delta))
        for sent in (together, apart)
    ]
    assert texts[0] == texts[1] != ""


def test_tokens_do_not_wait_for_the_prompt_of_another(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.engine.worker.generation.engine.TOGETHER_SECONDS", 3600.0)
    params = GenerationParams(n_predict=30, stream=True, **GREEDY)
    e = engine(model, parallel=2)
    sent = sent_by(e, params, other_at=2)
    [begun] = [n for n, events in enumerate(sent) if Begun(2) in events]
    n_before = 2 if e.context.is_asynchronous else 1  # texts are made a step later there
    assert deltas(sent)[begun] == n_before


def test_preemption_changes_no_text(model: Model) -> None:
    # 256 cells for four sequences that want 200 each: some have to give way and start again.
    prompts = [f"import module_{i}" for i in range(4)]
    crowded = engine(model, ctx_size=256, parallel=4, kv_unified=True)
    together = play(crowded, prompts, n_predict=190, **GREEDY)
    for prompt in prompts:
        alone = play(engine(model), [prompt], n_predict=190, **GREEDY)
        assert together[prompt].n_decoded == 190
        assert together[prompt].tokens == alone[prompt].tokens


@pytest.mark.parametrize("crowded", [False, True])
def test_a_pause_changes_no_text(model: Model, crowded: bool) -> None:
    """Returns whether its cells stayed or had to make room."""
    prompt, other = "import module_1", "class Other:"
    wanted = play(engine(model), [prompt], n_predict=60, **GREEDY)[prompt].tokens
    e = engine(model, parallel=1, ctx_size=256)
    e.submit(e.preparation.prepare(Submit(1, [prompt], GenerationParams(n_predict=60, **GREEDY))))
    finished: dict[int, Finished] = {}
    for id in range(2, 8):
        for _ in range(id):
            stepped(e)
        e.pause(1)
        assert e.stats().n_deferred == 1
        assert not e.has_work
        n_predict = 200 if crowded else 3
        e.submit(
            e.preparation.prepare(
                Submit(id, [other], GenerationParams(n_predict=n_predict, **GREEDY))
            )
        )
        while e.has_work:
            finished |= {event.id: event for event in stepped(e) if isinstance(event, Finished)}
        assert id in finished, "the other one has had the slot"
        e.resume(1)
    while e.has_work:
        finished |= {event.id: event for event in stepped(e) if isinstance(event, Finished)}
    assert finished[1].tokens == wanted


@pytest.mark.parametrize(
    "options",
    [{"batch_size": 1}, {"batch_size": 2, "ubatch_size": 1}, {"ctx_size": 1, "batch_size": 1}],
    ids=str,
)
@pytest.mark.parametrize("unified", [True, False])
def test_sizes_that_are_too_small_are_as_small_as_they_can_be(
    model: Model, options: dict[str, Any], unified: bool
) -> None:
    prompts = [f"a = {i}" for i in range(8)]
    small = play(
        engine(model, parallel=8, kv_unified=unified, **options), prompts, n_predict=5, **GREEDY
    )
    usual = play(engine(model), prompts, n_predict=5, **GREEDY)
    assert {p: r.tokens for p, r in small.items()} == {p: r.tokens for p, r in usual.items()}


@pytest.mark.parametrize("params", [{}, GREEDY, {"n_probs": 3}, {"mirostat": 2}], ids=str)
def test_a_model_that_computes_no_numbers_fails(tmp_path: Path, params: dict[str, Any]) -> None:
    initialize()
    broken = Model(str(damaged(Path(random_model()), tmp_path / "nan.gguf")), engine_options())
    e = engine(broken)
    for event in e.submit(
        e.preparation.prepare(Submit(1, ["a"], GenerationParams(n_predict=4, **params)))
    ):
        assert not isinstance(event, Failed)
    events: list[Event] = []
    while e.has_work:
        events += stepped(e)
    assert [event.error.type for event in events if isinstance(event, Failed)] == ["server_error"]
    assert not any(isinstance(event, Delta | Finished) for event in events)
    broken.close()


def test_chunked_prompts_give_the_same_text(model: Model) -> None:
    prompt = "for item in items: yield item\n" * 20
    whole = play(engine(model), [prompt], n_predict=30, **GREEDY)[prompt]
    chunked = play(engine(model, batch_size=16, ubatch_size=16), [prompt], n_predict=30, **GREEDY)
    assert chunked[prompt].text == whole.text


def test_reuse_is_counted_and_changes_nothing(model: Model) -> None:
    e = engine(model)
    prompt = "class Reader:\n    def read(self):"
    first = play(e, [prompt], n_predict=20, **GREEDY)[prompt]
    second = play(e, [prompt], n_predict=20, **GREEDY)[prompt]
    fresh = play(e, [prompt], n_predict=20, cache_prompt=False, **GREEDY)[prompt]
    assert first.timings.cache_n == fresh.timings.cache_n == 0
    assert (second.timings.cache_n, second.timings.prompt_n) == (second.n_prompt - 1, 1)
    assert first.text == second.text == fresh.text


def test_the_end_of_the_context_is_a_limit_and_truncates(model: Model) -> None:
    e = engine(model, ctx_size=256, parallel=1)
    result = play(e, ["a b c"], ignore_eos=True)["a b c"]
    assert (result.stop_type, result.truncated) == ("limit", True)
    assert result.n_prompt + result.n_decoded == 256


def test_no_tokens_are_wanted(model: Model) -> None:
    e = engine(model)
    result = play(e, ["x = 1"], n_predict=0)["x = 1"]
    assert (result.n_decoded, result.text, result.stop_type) == (0, "", "limit")
    again = play(e, ["x = 1"], n_predict=1)["x = 1"]
    assert again.timings.cache_n == again.n_prompt - 1


def test_an_empty_prompt_is_answered_with_nothing(model: Model) -> None:
    result = play(engine(model), [""])[""]
    assert (result.n_prompt, result.n_decoded, result.stop_type) == (0, 0, "none")


@pytest.mark.parametrize("token", [-1, 4096, 2**31 - 1, 2**40])
def test_tokens_out_of_the_vocabulary_are_refused(model: Model, token: int) -> None:
    with pytest.raises(EngineError, match=f"token {token} is not in the vocabulary"):
        engine(model).preparation.prepare(Submit(1, ["a", token], GenerationParams()))


def test_the_error_of_too_long_a_prompt_has_the_excess(model: Model) -> None:
    with pytest.raises(EngineError) as caught:
        engine(model, ctx_size=256, parallel=1).preparation.prepare(
            Submit(1, list(range(300)), GenerationParams())
        )
    info = caught.value.info
    assert (info.type, info.n_prompt_tokens, info.n_ctx) == ("exceed_context_size_error", 300, 256)


def test_separate_caches_divide_the_context(model: Model) -> None:
    e = engine(model, ctx_size=1024, parallel=4)
    assert (e.info.n_ctx, e.info.n_slots) == (256, 4)
    prompts = [f"item {i}" for i in range(8)]
    results = play(e, prompts, n_predict=-1, ignore_eos=True)
    assert all(r.n_prompt + r.n_decoded == 256 for r in results.values())


def test_forbidden_and_forced_tokens(model: Model) -> None:
    e = engine(model)
    (word,) = model.tokenize(b" return", add_special=False, parse_special=False).tolist()
    forced = play(e, ["a"], n_predict=5, logit_bias=[(" return", 1e6)])["a"]
    assert forced.tokens == [word] * 5
    greedy = play(e, ["a"], n_predict=1, **GREEDY)["a"]
    banned = [(greedy.tokens[0], float("-inf"))]
    other = play(e, ["a"], n_predict=1, logit_bias=banned, **GREEDY)["a"]
    assert other.tokens != greedy.tokens
    outside = play(e, ["a"], n_predict=1, logit_bias=[(10**6, 5.0)])["a"]
    assert outside.params.logit_bias == []


def test_more_biases_than_tokens_are_added_up(model: Model) -> None:
    """Many texts have millions, all of which would be kept and answered."""
    e = engine(model)
    text, n_vocab = [(" return", 0.25)], model.n_vocab
    few = play(e, ["a"], n_predict=1, logit_bias=text * 3)["a"].params.logit_bias
    assert len(few) % 3 == 0
    many = play(e, ["a"], n_predict=1, logit_bias=text * 3 * n_vocab)["a"].params.logit_bias
    assert dict(many) == {token: 0.25 * 3 * n_vocab for token, _ in few}
    assert len(many) == len({token for token, _ in few})


EXTREMES: list[dict[str, object]] = [
    {"temperature": 1e-30},
    {"temperature": 1e6},
    {"temperature": -1.0},
    {"dynatemp_range": 5.0, "dynatemp_exponent": 0.0},
    {"top_k": 0, "top_p": 0.0, "min_p": 1.0},
    {"top_k": 2**31 - 1, "typical_p": 0.0},
    {"typical_p": 0.2, "min_keep": 100_000},
    {"repeat_penalty": 1e-6, "repeat_last_n": -1},
    {"repeat_penalty": 1e6, "frequency_penalty": 1e6, "presence_penalty": -1e6},
    {"mirostat": 1, "mirostat_tau": 0.0, "mirostat_eta": 50.0},
    {"mirostat": 2, "mirostat_tau": 50.0, "temperature": 0.0},
    {"dry_multiplier": 1e6, "dry_base": 1e6, "dry_allowed_length": 0},
    {"dry_multiplier": 0.5, "dry_sequence_breakers": ["", "x" * 5000, "\n"]},
    {"xtc_probability": 1.0, "xtc_threshold": 0.0},
    {"top_n_sigma": 1e-6},
    {"samplers": []},
    {"samplers": ["top_k", "top_k", "temperature", "temperature"]},
    {"logit_bias": [(id, float("-inf")) for id in range(4096)]},
    {"logit_bias": [(id, 1e9 * (-1) ** id) for id in range(4096)]},
    {"samplers": ["adaptive_p"], "adaptive_target": 1.0, "adaptive_decay": 0.99},
    {"samplers": ["adaptive_p"], "adaptive_target": 0.0, "adaptive_decay": 0.0},
    {"samplers": ["adaptive_p"], "logit_bias": [(id, float("-inf")) for id in range(4096)]},
    {
        "samplers": ["adaptive_p"],
        "adaptive_target": 0.5,
        "logit_bias": [(id, float("-inf")) for id in range(4096)],
    },
    {"seed": 0},
    {"stop": ["a" * 1000, "b"]},
]


@pytest.mark.parametrize("params", EXTREMES, ids=lambda params: ",".join(params))
def test_extreme_parameters_generate_something(model: Model, params: dict[str, object]) -> None:
    text = "value = value + value\n" * 3
    result = play(engine(model), [text], **{"n_predict": 8, "ignore_eos": True, **params})[text]
    assert result.n_decoded == 8 or result.stop_type == "word"


def events_of(model: Model, prompt: str, **params: Any) -> list[Event]:
    served = engine(model, parallel=1)
    request = served.preparation.prepare(
        Submit(1, [prompt], GenerationParams(stream=True, **params))
    )
    events = served.submit(request)
    while served.has_work:
        events += stepped(served)
    return events


@pytest.mark.parametrize("stop", [[], ["r"], ["e", "in"]])
def test_a_stream_begins_and_ends_without_text(model: Model, stop: list[str]) -> None:
    params: dict[str, Any] = {"n_predict": 30, "seed": 5, "stop": stop, "ignore_eos": True}
    first, *most, last = events_of(model, "def first(a):", **params)
    assert isinstance(first, Begun)
    assert isinstance(last, Finished)
    assert (last.text, last.tokens, last.probs) == ("", [], [])
    deltas = [event for event in most if isinstance(event, Delta)]
    assert deltas == most
    tokens = [token for delta in deltas for token in delta.tokens]
    assert len(tokens) == last.n_decoded
    assert deltas[-1].tokens == tokens[-1:], "the last token comes by itself"
    assert all(word not in "".join(delta.text for delta in deltas) for word in stop)


def test_an_empty_prompt_begins_and_ends_at_once(model: Model) -> None:
    begun, finished = events_of(model, "")
    assert isinstance(begun, Begun)
    assert isinstance(finished, Finished)
    assert finished.stop_type == "none"


def test_the_infill_sampler_is_left_out_under_a_grammar(model: Model) -> None:
    samplers: list[SamplerName] = ["top_k", "infill"]
    served = engine(model, parallel=1)
    for constraint in (
        GenerationParams(samplers=samplers, grammar='root ::= "a"'),
        GenerationParams(samplers=samplers, json_schema="{}"),
    ):
        assert served.preparation.prepare(Submit(1, ["x"], constraint)).params.samplers == ["top_k"]
    free = GenerationParams(samplers=samplers)
    assert served.preparation.prepare(Submit(1, ["x"], free)).params.samplers == samplers


@pytest.mark.parametrize("id_slot", [-1, 2, 2**31 - 1])
def test_a_slot_that_does_not_exist_is_any(model: Model, id_slot: int) -> None:
    served = engine(model, parallel=2)
    request = served.preparation.prepare(Submit(1, ["x"], GenerationParams(id_slot=id_slot)))
    assert request.params.id_slot == request.sequence.id_slot == -1


def test_progress_is_that_of_a_device_that_has_finished(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, busy = engine(model), list[bool]()
    seen: list[bool] = []
    decode, synchronize = Context.decode, Context.synchronize

    def begin(context: Context) -> None:
        decode(context)
        busy.append(True)

    def end(context: Context) -> None:
        synchronize(context)
        busy.clear()

    def look(request: Request) -> Delta:
        seen.append(bool(busy))
        return progress(request)

    monkeypatch.setattr(Context, "decode", begin)
    monkeypatch.setattr(Context, "synchronize", end)
    for module in ("engine", "choosing"):
        monkeypatch.setattr(f"specllama.engine.worker.generation.{module}.progress", look)
    play(one, ["import os"], n_predict=2, stream=True, return_progress=True)
    assert len(seen) > 1
    assert not any(seen)


@pytest.mark.parametrize(
    ("options", "n_ctx"),
    [
        ({"parallel": 1}, 8192),
        ({"parallel": 2, "kv_unified": True}, 8192),
        ({"parallel": 4}, 5120),
        ({"parallel": 1, "rope_scaling": "yarn"}, 20480),
        ({"parallel": 1, "rope_freq_scale": 0.25}, 20480),
        ({"parallel": 1, "rope_freq_base": 20000.0}, 8192),
    ],
)
def test_a_slot_has_no_more_than_the_model_was_trained_with(
    model: Model, options: dict[str, Any], n_ctx: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless it is asked for by name. The model of the tests was trained with 8,192."""
    e = engine(model, ctx_size=20480, **options)
    try:
        assert (model.n_ctx_train, e.info.n_ctx) == (8192, n_ctx)
        assert ("trained with no more" in caplog.text) is (n_ctx == 8192)
    finally:
        e.close()
