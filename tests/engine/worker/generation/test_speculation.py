"""Proposed tokens change no text: same seed, same tokens, whatever is proposed."""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest

from specllama.engine.params import GenerationParams, Speculative
from specllama.engine.wire.replies import Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model, OutOfCellsError
from specllama.engine.worker.generation.answering import Answering
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.verifying import Speculation
from specllama.engine.worker.scheduling.sequences import Sequence
from specllama.engine.worker.scheduling.sharing import Ahead
from tests.support.playing import GREEDY, stepped
from tests.support.speculating import (
    MODES,
    PROMPTS,
    REQUESTS,
    SCHEMA,
    Mode,
    N,
    Oracle,
    assert_same,
    run,
    run_all,
    speculating,
)

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders"), pytest.mark.covering(2)]


def teach(
    model: Model, oracle: Oracle, prompts: list[str], results: Mapping[str, Finished]
) -> None:
    for prompt in prompts:
        tokens = model.tokenize(prompt.encode(), add_special=True, parse_special=True).tolist()
        oracle.texts.append([*tokens, *results[prompt].tokens])


def compare(
    model: Model, plain: Engine, e: Engine, oracle: Oracle, params: dict[str, Any]
) -> dict[str, Finished]:
    """Both engines generate the same texts."""
    given = {"n_predict": N, "speculative": Speculative("oracle", n_max=64), **params}
    wanted = run(plain, PROMPTS, given)
    teach(model, oracle, PROMPTS, wanted)
    found = run(e, PROMPTS, given)
    for prompt, each in found.items():
        assert_same(each, wanted[prompt])
    assert not e.scheduler.active
    assert not e.context._kept
    assert not oracle.known, "who has ended is forgotten"
    return found


@pytest.mark.parametrize("options", [{"parallel": 3}, {"parallel": 1, "kv_unified": True}], ids=str)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", REQUESTS)
def test_proposals_never_change_the_text(
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
    if not REQUESTS[name].keys() & {"grammar", "json_schema"}:
        assert oracle.n_proposed == n_drafted, "of the last step of a text, too"
        assert oracle.n_accepted == n_accepted
    e.close()


def submit(e: Engine, id: int, prompt: str, **params: Any) -> None:
    given = GenerationParams(
        **{"n_predict": N, "speculative": Speculative("oracle", n_max=64), **params}
    )
    e.submit(e.preparation.prepare(Submit(id, [prompt], given)))


@pytest.mark.parametrize("at", [1, 14, 37])
@pytest.mark.parametrize("mode", MODES)
def test_a_stop_string_in_the_middle(
    model: Model, monkeypatch: pytest.MonkeyPatch, mode: Mode, at: int
) -> None:
    """The text ends within the proposed tokens, and continues after them."""
    plain = speculating(monkeypatch, model, None, parallel=1)
    whole = run(plain, PROMPTS, {"n_predict": N, **GREEDY})
    oracle = Oracle(mode, model.n_vocab)
    teach(model, oracle, PROMPTS, whole)
    e = speculating(monkeypatch, model, oracle, parallel=3)
    params = {**GREEDY, "stop": [each.text[at : at + 4] for each in whole.values()]}
    found = compare(model, plain, e, oracle, params)
    assert all(each.stopping_word for each in found.values())


@pytest.mark.parametrize("mode", MODES)
def test_a_context_shift_in_the_middle(
    model: Model, monkeypatch: pytest.MonkeyPatch, mode: Mode
) -> None:
    """When a text loses a part of itself, the tokens proposed after the old part are taken back."""
    options = {"parallel": 1, "ctx_size": 256, "context_shift": True}
    oracle = Oracle(mode, model.n_vocab)
    plain = speculating(monkeypatch, model, None, **options)
    e = speculating(monkeypatch, model, oracle, **options)
    found = compare(model, plain, e, oracle, {**GREEDY, "n_predict": 400})
    assert all(each.truncated for each in found.values())


@pytest.mark.parametrize("mode", MODES)
def test_the_end_of_a_context(model: Model, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    options = {"parallel": 1, "ctx_size": 256, "context_shift": False}
    oracle = Oracle(mode, model.n_vocab)
    plain = speculating(monkeypatch, model, None, **options)
    e = speculating(monkeypatch, model, oracle, **options)
    found = compare(model, plain, e, oracle, {**GREEDY, "n_predict": -1})
    assert {each.stop_type for each in found.values()} == {"limit"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("leaves", ["pause", "preempt", "cancel another"])
def test_who_leaves_its_slot(
    model: Model, monkeypatch: pytest.MonkeyPatch, mode: Mode, leaves: str
) -> None:
    prompt = PROMPTS[0]
    plain = speculating(monkeypatch, model, None, parallel=2)
    wanted = run(plain, PROMPTS, {"n_predict": N, **GREEDY})
    oracle = Oracle(mode, model.n_vocab)
    teach(model, oracle, PROMPTS, wanted)
    e = speculating(monkeypatch, model, oracle, parallel=2)
    submit(e, 2, PROMPTS[1], **GREEDY)
    submit(e, 1, prompt, **GREEDY)
    finished: dict[int, Finished] = {}
    for n in range(200):
        finished |= {event.id: event for event in stepped(e) if isinstance(event, Finished)}
        if n == 3 and leaves == "pause":
            e.pause(1)
        elif n == 3 and leaves == "preempt":
            e.scheduler._preempt_youngest()
        elif n == 3:
            e.cancel(2)
        if n == 5:
            e.resume(1)
        if not e.has_work:
            break
    assert finished[1].tokens == wanted[prompt].tokens
    if leaves != "cancel another":
        assert finished[2].tokens == wanted[PROMPTS[1]].tokens


@pytest.mark.parametrize("mode", MODES)
def test_texts_of_one_prompt(model: Model, monkeypatch: pytest.MonkeyPatch, mode: Mode) -> None:
    """Which share its cells."""
    oracle = Oracle(mode, model.n_vocab)
    found: list[dict[int, list[int]]] = []
    for source in (None, oracle):
        e = speculating(monkeypatch, model, source, parallel=3)
        for id in range(1, 4):
            submit(e, id, PROMPTS[0], seed=id, ignore_eos=True)
        results: dict[int, list[int]] = {}
        while e.has_work:
            results |= {
                event.id: event.tokens for event in stepped(e) if isinstance(event, Finished)
            }
        found.append(results)
        begin = model.tokenize(PROMPTS[0].encode(), add_special=True, parse_special=True).tolist()
        oracle.texts += [[*begin, *tokens] for tokens in results.values()]
    assert found[0] == found[1]


def test_forced_tokens_need_no_steps(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"seed": 8, "json_schema": SCHEMA, "n_predict": 120, "json_whitespace": "compact"}
    e = speculating(monkeypatch, model, None, parallel=1)
    forced = run(e, PROMPTS[:1], params)[PROMPTS[0]]
    off = speculating(monkeypatch, model, None, parallel=1)
    slow = run(off, PROMPTS[:1], {**params, "jump_forward": False})[PROMPTS[0]]
    assert forced.tokens == slow.tokens
    assert off.stats().n_decode == slow.n_decoded
    assert e.stats().n_decode < off.stats().n_decode


COMPACT: dict[str, Any] = {
    "seed": 8,
    "json_schema": SCHEMA,
    "n_predict": 120,
    "json_whitespace": "compact",
}


def test_forced_tokens_come_early_in_separate_caches(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts that have less of it, or none, don't keep others from it."""
    free = "def free(self):"
    submits = [
        *[Submit(id, [prompt], GenerationParams(**COMPACT)) for id, prompt in enumerate(PROMPTS)],
        Submit(9, [free], GenerationParams(**GREEDY, n_predict=N)),
    ]
    slow = [
        msgspec.structs.replace(
            each, params=msgspec.structs.replace(each.params, jump_forward=False)
        )
        for each in submits
    ]
    off = speculating(monkeypatch, model, None, parallel=1)
    wanted = run_all(off, slow)
    e = speculating(monkeypatch, model, None, parallel=4)
    early: list[int] = []
    observe = e._planner.clock.observe_rows

    def note(n: int, seconds: float) -> None:
        early.append(n)
        observe(n, seconds)

    monkeypatch.setattr(e._planner.clock, "observe_rows", note)
    found = run_all(e, submits)
    for id, each in found.items():
        assert_same(each, wanted[id])
    assert sum(early) > 20
    assert e.stats().n_decode < max(each.n_decoded for each in wanted.values())


@pytest.mark.parametrize("which", ["early", "late"])
def test_no_cells_for_early_tokens(
    model: Model, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Or for the rest of the step after it, which does not stay."""
    off = speculating(monkeypatch, model, None, parallel=1)
    wanted = run(off, PROMPTS, {**COMPACT, "jump_forward": False})
    e = speculating(monkeypatch, model, None, parallel=3)
    decode, kinds, n_failed = e.context.decode, ["late"], 0

    def full() -> None:
        nonlocal n_failed
        batch = e.context.batch
        kinds.append("late" if batch.outputs[: batch.n_tokens].any() else "early")
        is_behind = kinds[-2:] == ["early", "late"]
        fails = is_behind if which == "late" else kinds[-1] == "early"
        if fails and e.scheduler.n_generating and n_failed < 3:
            n_failed += 1
            raise OutOfCellsError
        decode()

    monkeypatch.setattr(e.context, "decode", full)
    found = run(e, PROMPTS, COMPACT)
    assert n_failed == 3
    for prompt, each in found.items():
        assert_same(each, wanted[prompt])


def test_no_cells_for_proposed_tokens(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp finds none, though there should be some: the step is done again without."""
    plain = speculating(monkeypatch, model, None, parallel=1)
    wanted = run(plain, PROMPTS[:1], {"n_predict": N, **GREEDY})
    oracle = Oracle("right", model.n_vocab)
    teach(model, oracle, PROMPTS[:1], wanted)
    e = speculating(monkeypatch, model, oracle, parallel=1)
    decode, n_tokens = e.context.decode, []

    def full() -> None:
        n_tokens.append(e.context.batch.n_tokens)
        if len(n_tokens) in (3, 6):
            raise OutOfCellsError
        decode()

    monkeypatch.setattr(e.context, "decode", full)
    submit(e, 1, PROMPTS[0], **GREEDY)
    tokens: list[int] = []
    while e.has_work:
        tokens += [t for event in stepped(e) if isinstance(event, Finished) for t in event.tokens]
    assert tokens == wanted[PROMPTS[0]].tokens
    assert n_tokens[2] > 1
    assert n_tokens[3] == 1


@pytest.mark.parametrize("ends", ["pause", "cancel"])
def test_a_sources_state_ends_with_the_slot(
    model: Model, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """A request that comes back is a new text for the source, and says the same."""
    plain = speculating(monkeypatch, model, None, parallel=1)
    wanted = run(plain, PROMPTS[:1], {"n_predict": N, **GREEDY})
    oracle = Oracle("right", model.n_vocab, n_each=2)
    teach(model, oracle, PROMPTS[:1], wanted)
    e = speculating(monkeypatch, model, oracle, parallel=1)
    submit(e, 1, PROMPTS[0], **GREEDY)
    while not oracle.n_accepted:
        stepped(e)
    [state] = oracle.known
    if ends == "cancel":
        e.cancel(1)
        assert not oracle.known
        return
    e.pause(1)
    assert not oracle.known
    e.resume(1)
    n_accepted = oracle.n_accepted
    while oracle.n_accepted == n_accepted:
        stepped(e)
    [again] = oracle.known
    assert again is not state
    tokens: list[int] = []
    while e.has_work:
        tokens += [t for event in stepped(e) if isinstance(event, Finished) for t in event.tokens]
    assert tokens == wanted[PROMPTS[0]].tokens
    assert not oracle.known


# ---- mutants -----------------------------------------------------------------------------


def accepts_a_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    def always(self: Speculation, request: Request, token: int) -> int:
        token = chosen(self, request, token)
        if (run := request.run) is not None and request.sequence.n_ahead:
            run.n_accepted += not run.is_right
            run.is_right = True
        return token

    chosen = Speculation.chosen
    monkeypatch.setattr(Speculation, "chosen", always)


def forgets_to_take_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: Ahead, sequence: Sequence) -> None:
        sequence.n_ahead = 0

    monkeypatch.setattr(Ahead, "take_back", forget)


def skips_a_stop_string(monkeypatch: pytest.MonkeyPatch) -> None:
    def deaf(self: Answering, request: Request, *args: Any, **kwargs: Any) -> Any:
        found = stop_type(self, request, *args, **kwargs)
        return "none" if found == "word" and request.sequence.n_ahead > 1 else found

    stop_type = Answering._stop_type
    monkeypatch.setattr(Answering, "_stop_type", deaf)


@pytest.mark.parametrize(
    ("mutant", "mode"),
    [
        (accepts_a_wrong_token, "half"),
        (forgets_to_take_back, "wrong"),
        (skips_a_stop_string, "right"),
    ],
)
def test_mutants_are_caught(
    model: Model,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
    mode: Mode,
) -> None:
    """The tests above fail if the step goes wrong."""
    whole = run(
        speculating(monkeypatch, model, None, parallel=1), PROMPTS, {"n_predict": N, **GREEDY}
    )
    stops = [[each.text[at : at + 4] for each in whole.values()] for at in (14, 21, 28, 35, 42)]
    if mutant is not skips_a_stop_string:
        stops = [[]]
    oracle = Oracle(mode, model.n_vocab)
    teach(model, oracle, PROMPTS, whole)
    mutant(monkeypatch)

    def compare_all() -> None:
        for stop in stops:  # the end of a step's last token proves nothing
            e = speculating(monkeypatch, model, oracle, parallel=3)
            plain = speculating(monkeypatch, model, None, parallel=1)
            compare(model, plain, e, oracle, {**GREEDY, "stop": stop})

    with pytest.raises((AssertionError, IndexError, KeyError)):
        compare_all()
