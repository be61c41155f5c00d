"""Texts are decoded while the device computes the next step, and steps follow each other without a
pause. The texts equal those without overlap, and rows that were evaluated after an unexpected end
are taken back.

On the CPU, `Context.decode` returns when everything is computed, so only the order changes.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Delta, Event, Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import (
    BackendError,
    Context,
    Model,
    OutOfCellsError,
    OutOfMemoryError,
    RowScan,
    initialize,
)
from specllama.engine.worker.generation.answering import Answering
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.launch import Decoding, StepBatch
from specllama.engine.worker.generation.sampling import Sampling
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, engine, play, stepped
from tools.models.build import ensure

pytestmark = pytest.mark.slow

PREFIX = "import os\nimport sys\n\n\ndef first(a, b):\n    return a + b\n\n\n"
APART = ["def first(self):", "import os\n", "x = value", "    return", "class Reader:"]
PROMPTS = [f"{PREFIX}def function_{i}(self, value):" for i in range(5)]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """Makes engines of either order."""

    def made(model: Model, *, overlap: bool, **options: Any) -> Engine:
        with monkeypatch.context() as patched:
            patched.setattr(Context, "is_asynchronous", overlap)
            return engine(model, **options)

    return made


def submit(e: Engine, id: int, prompt: str, **params: Any) -> list[Event]:
    return e.submit(
        e.preparation.prepare(
            Submit(id, [prompt], GenerationParams(**{**GREEDY, "seed": 1, **params}))
        )
    )


def run(e: Engine, *, goes_on: bool = False) -> list[Event]:
    events: list[Event] = []
    while e.has_work:
        e.step(events.extend, lambda: goes_on)
    return events


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of rows of the steps that were launched without a pause."""
    rows: list[int] = []
    launch = Decoding.launch_planned

    def noted(self: Decoding, batch: StepBatch, tokens: Sequence[int]) -> Exception | None:
        rows.append(len(tokens))
        return launch(self, batch, tokens)

    monkeypatch.setattr(Decoding, "launch_planned", noted)
    return rows


def said(events: list[Event]) -> dict[int, list[Event]]:
    """What a client sees of each request, without times."""
    seen: dict[int, list[Event]] = {}
    for event in events:
        if isinstance(event, Delta | Finished):
            timings = replace(event.timings, prompt_ms=0.0, predicted_ms=0.0)
            event = replace(event, timings=timings)
        if isinstance(event, Delta) and event.progress is not None:
            event = replace(event, progress=replace(event.progress, time_ms=0.0))
        seen.setdefault(event.id, []).append(event)
    return seen


def held(e: Engine) -> list[tuple[list[int], int]]:
    """The finished texts, each with what llama.cpp has of it."""
    assert not e.scheduler.active
    entries = e.scheduler.cache.entries
    texts = [(entry.tokens.tolist(), e.context._end(id)) for id, entry in entries.items()]
    assert all(len(tokens) == n for tokens, n in texts), "a row is left behind a text"
    return sorted(texts)


REQUESTS: dict[str, dict[str, Any]] = {
    "stop": {"stop": ["value", "self.", "\n\n"], "n_predict": 40},
    "stop at once": {"stop": [" ", "\n", "e", "a"], "n_predict": 40},
    "stop at the limit": {"stop": ["return"], "n_predict": 3},
    "indent": {"n_indent": 4, "n_predict": 60},
    "out of time": {"t_max_predict_ms": 1, "n_predict": 60},
    "limit": {"n_predict": 7},
    "nothing": {"n_predict": 0},
    "one": {"n_predict": 1},
    "end": {"ignore_eos": False, "temperature": 1.2, "seed": 3, "n_predict": 60},
    "probs": {"n_probs": 3, "stop": ["self"], "n_predict": 30},
    "grammar": {"grammar": 'root ::= ("a" | "b" | " ")+ "end"', "n_predict": 30},
    "grammar, stop": {"grammar": 'root ::= ("a" | "b" | " ")+', "stop": ["b"], "n_predict": 30},
    "progress": {"return_progress": True, "stop": ["val"], "n_predict": 20},
    "penalties": {"repeat_penalty": 1.4, "seed": 4, "temperature": 0.8, "n_predict": 30},
    "device": {"backend_sampling": True, "seed": 4, "temperature": 0.8, "n_predict": 30},
    "device, stop": {"backend_sampling": True, "stop": ["self", "\n\n"], "n_predict": 30},
}


@pytest.mark.parametrize("stream", [False, True], ids=["", "stream"])
@pytest.mark.parametrize("unified", [True, False], ids=["unified", "separate"])
@pytest.mark.parametrize("name", REQUESTS)
def test_every_event_is_the_same(
    model: Model,
    make: Callable[..., Engine],
    followed: list[int],
    name: str,
    unified: bool,
    stream: bool,
) -> None:
    seen, caches, counts = [], [], []
    for overlap, goes_on in ((False, False), (True, False), (True, True)):
        # Without a target for steps, which measures them, both plan the same.
        options = {"kv_unified": unified, "backend_sampling": name.startswith("device")}
        e = make(model, overlap=overlap, parallel=5, target_itl_ms=0, **options)
        events: list[Event] = []
        for id, prompt in enumerate(APART, start=1):
            events += submit(e, id, prompt, stream=stream, **REQUESTS[name])
        assert not followed
        events += run(e, goes_on=goes_on)
        seen.append(said(events))
        caches.append(held(e))
        stats = e.stats()
        # Rows behind a late end are wasted; a mask from another thread may be a step later.
        varies = REQUESTS[name].keys() & {"stop", "n_indent", "grammar"}
        n_decode = 0 if varies else stats.n_decode
        counts.append((stats.n_predicted, stats.n_tokens_max, stats.n_cells_used, n_decode))
    if name not in ("nothing", "one", "grammar", "grammar, stop", "stop at once"):
        assert followed
    if name == "out of time":  # which depends on a clock
        return
    for others in seen[1:]:
        for id in range(1, 1 + len(APART)):
            for mine, other in zip(seen[0][id], others[id], strict=True):
                assert mine == other
    assert caches[0] == caches[1] == caches[2]
    assert counts[0] == counts[1] == counts[2]


def test_a_row_behind_the_end_is_taken_back(model: Model, make: Callable[..., Engine]) -> None:
    """The text that a stop string has ended has no part of it, nor has who shares the text."""
    plain, e = (make(model, overlap=overlap, parallel=2) for overlap in (False, True))
    whole = play(plain, PROMPTS[:1], n_predict=40, **GREEDY)[PROMPTS[0]]
    stop = whole.text[17:20]
    ended = play(e, PROMPTS[:1], n_predict=40, stop=[stop], **GREEDY)[PROMPTS[0]]
    assert ended.stopping_word == stop
    n = ended.n_prompt + ended.n_decoded - 1
    assert [(len(tokens), rows) for tokens, rows in held(e)] == [(n, n)]
    assert e.stats().n_tokens_max == n
    assert e.stats().n_cells_used == n
    assert e.stats().n_decode == ended.n_decoded + 1, "one row was wasted"
    longer = PROMPTS[0] + ended.text
    for prompt in (longer, longer + " x", PROMPTS[0]):
        wanted = play(plain, [prompt], n_predict=20, cache_prompt=False, **GREEDY)[prompt]
        assert play(e, [prompt], n_predict=20, **GREEDY)[prompt].tokens == wanted.tokens


@pytest.mark.parametrize("overlap", [False, True])
def test_texts_are_made_while_the_device_computes(
    model: Model, make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch, overlap: bool
) -> None:
    order: list[str] = []
    sent: list[Event] = []
    monkeypatch.setattr("specllama.engine.worker.generation.engine.TOGETHER", 1)
    e = make(model, overlap=overlap)

    def note(owner: type, name: str) -> None:
        call = getattr(owner, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            order.append(name)
            return call(*args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    def send(events: list[Event]) -> None:
        order.append("send")
        sent.extend(events)

    note(Context, "decode")
    note(Context, "synchronize")
    note(Answering, "accept")
    submit(e, 1, "import os", n_predict=6, stream=True)
    while e.has_work:
        e.step(send)
    assert [type(event) for event in sent[-2:]] == [Delta, Finished]
    text = " ".join(order)
    if overlap:
        assert text.count("decode accept send synchronize") == 5
        assert text.count("synchronize accept") == 1, "the last one, which ends the text"
    else:
        assert text.count("decode synchronize accept send") == 6


@pytest.mark.parametrize("params", [{}, {"stop": ["self"]}], ids=str)
@pytest.mark.parametrize("leaves", ["cancel", "pause", "preempt"])
def test_who_leaves_before_its_text_is_made(
    model: Model, make: Callable[..., Engine], leaves: str, params: dict[str, Any]
) -> None:
    given = {"n_predict": 30, "stream": True, **params}
    plain = make(model, overlap=False, parallel=2)
    wanted = play(plain, PROMPTS[:2], **{**GREEDY, **given})
    for n_steps in range(1, 12):
        e = make(model, overlap=True, parallel=2)
        for id in (1, 2):
            submit(e, id, PROMPTS[id - 1], **given)
        events: list[Event] = []
        for _ in range(n_steps):
            events += stepped(e)
        if leaves == "cancel":
            e.cancel(1)
            later = run(e)
            assert all(event.id == 2 for event in later), "its events are dropped"
        elif leaves == "pause":
            e.pause(1)
            events += run(e)
            e.resume(1)
            later = run(e)
        else:
            e.scheduler._preempt_youngest()
            later = run(e)
        events += later
        for id in (2,) if leaves == "cancel" else (1, 2):
            own = [event for event in events if event.id == id]
            (end,) = [event for event in own if isinstance(event, Finished)]
            assert own[-1] is end
            tokens = [
                t for event in own if isinstance(event, Delta | Finished) for t in event.tokens
            ]
            assert len(tokens) == wanted[PROMPTS[id - 1]].n_decoded
            assert end.stop_type == wanted[PROMPTS[id - 1]].stop_type
        held(e)
        e.close()


def test_a_failure_behind_the_end(
    model: Model, make: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failing step would have evaluated a token after the end of a text. The text is complete,
    but its cells from the failed step aren't used."""
    plain = make(model, overlap=False, parallel=2)
    whole = play(plain, PROMPTS[:1], n_predict=5, **GREEDY)[PROMPTS[0]]
    e = make(model, overlap=True, parallel=2)
    stop = whole.text[-2:]
    submit(e, 1, PROMPTS[0], n_predict=40, stop=[stop], stream=True)
    submit(e, 2, "class Other:", n_predict=40)
    events: list[Event] = []

    def fail(context: Context) -> None:
        raise BackendError("the device is gone")

    for _ in range(whole.n_decoded + 20):
        events += stepped(e)
        tokens = e._requests.running[1].sequence.tokens.view(whole.n_prompt).tolist()
        if stop in e.model.detokenize(tokens).decode():
            break
    assert not any(isinstance(event, Finished) for event in events)
    with monkeypatch.context() as patched:
        patched.setattr(Context, "decode", fail)
        events += run(e)
    ends = {event.id: event for event in events if isinstance(event, Finished | Failed)}
    assert isinstance(ends[1], Finished)
    assert ends[1].stopping_word == stop
    assert isinstance(ends[2], Failed)
    assert not e.scheduler.cache.entries
    assert not e.has_work


@pytest.mark.parametrize("kind", ["tiny-mamba", "tiny-window"])
def test_memory_that_cannot_be_cut_evaluates_nothing_in_vain(
    make: Callable[..., Engine], kind: str
) -> None:
    initialize()
    model = Model(str(ensure(kind)), engine_options())
    options = {"parallel": 1, "ctx_size": 512, "warmup": False}
    whole = play(make(model, overlap=False, **options), PROMPTS[:1], n_predict=30, **GREEDY)
    stop = whole[PROMPTS[0]].text[5:7]
    plain, e = (make(model, overlap=overlap, **options) for overlap in (False, True))
    for each in (plain, e):
        ended = play(each, PROMPTS[:1], n_predict=30, stop=[stop], **GREEDY)[PROMPTS[0]]
        assert ended.stopping_word == stop
        assert len(held(each)) == 1
    assert held(e) == held(plain)
    assert e.stats().n_decode == plain.stats().n_decode
    plain.close()
    e.close()
    model.close()


@pytest.mark.parametrize("options", [{}, {"ctx_size": 384}, {"kv_unified": False}], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_random_histories(
    model: Model, make: Callable[..., Engine], seed: int, options: dict[str, Any]
) -> None:
    """Requests that come, go, give way and come back, all on the same prefix."""
    rng = random.Random(seed)
    e = make(model, overlap=True, **{"parallel": 3, "kv_unified": True, **options})
    plain = make(model, overlap=False, parallel=1, kv_unified=True)
    wanted: dict[int, Finished] = {}
    paused: set[int] = set()
    texts: dict[int, str] = {}
    tokens: dict[int, list[int]] = {}

    def take(events: list[Event]) -> None:
        for event in events:
            assert not isinstance(event, Failed), event
            if not isinstance(event, Delta | Finished):
                continue
            texts[event.id] = texts.get(event.id, "") + event.text
            tokens[event.id] = tokens.get(event.id, []) + event.tokens
            if isinstance(event, Finished):
                one = wanted.pop(event.id)
                assert texts[event.id] == one.text
                assert tokens[event.id] == one.tokens
                assert (event.stop_type, event.stopping_word, event.n_decoded) == (
                    one.stop_type,
                    one.stopping_word,
                    one.n_decoded,
                )

    def may_go_on() -> bool:
        return rng.random() < 0.8

    for id in range(1, 30):
        prompt = rng.choice(PROMPTS) if rng.random() < 0.7 else PREFIX[: rng.randrange(5, 40)]
        params = {
            "n_predict": rng.choice([1, 5, 30]),
            "stop": rng.choice([[], ["self"], ["e", "o"], ["\n\n", "return"], ["value"]]),
            **GREEDY,
        }
        wanted[id] = play(plain, [prompt], **params)[prompt]
        submit(e, id, prompt, stream=rng.random() < 0.5, **params)
        for _ in range(rng.choice([0, 1, 2, 7])):
            e.step(take, may_go_on)
            if paused and rng.random() < 0.3:
                e.resume(paused.pop())
            if wanted and rng.random() < 0.2:
                some = rng.choice([*wanted])
                if rng.random() < 0.4:
                    e.cancel(some)
                    del wanted[some]
                else:
                    e.pause(some)
                    paused.add(some)
    while wanted:
        e.step(take, may_go_on)
        while paused:
            e.resume(paused.pop())
    assert not e.has_work
    held(e)


MANNERS: list[dict[str, Any]] = [
    {"temperature": 0.8, "top_k": 20},
    {"temperature": 0.0},
    {"temperature": 0.8, "top_k": 20, "repeat_penalty": 1.3, "logit_bias": [(70, 4.0)]},
    {"temperature": 0.8, "top_k": 20, "grammar": "root ::= [a-z ]+"},
    {"temperature": 0.8, "top_k": 20, "n_probs": 2},
    {"temperature": 0.8, "top_k": 0, "min_p": 0.1},
]
FREE = [manner for manner in MANNERS if "grammar" not in manner]


@pytest.mark.parametrize("manners", [MANNERS, 2 * FREE, FREE[:1], FREE[1:2], FREE[4:]], ids=len)
def test_rows_that_are_looked_through_together_give_the_same_texts(
    make: Callable[..., Engine],
    model: Model,
    followed: list[int],
    monkeypatch: pytest.MonkeyPatch,
    manners: list[dict[str, Any]],
) -> None:
    """Of requests whose samplers want other things of the logits, in one batch."""
    monkeypatch.setattr("specllama.engine.worker.backend.sampler.FEW", 0)
    texts, n_found = [], 0
    tops = RowScan.tops

    def counted(*args: Any) -> Any:
        nonlocal n_found
        n_found += 1
        return tops(*args)

    monkeypatch.setattr(RowScan, "tops", counted)
    for is_together, goes_on in ((True, False), (True, True), (False, True), (False, False)):
        if not is_together:
            monkeypatch.setattr(Sampling, "_look_through", lambda _: None)
        e = make(model, overlap=True, parallel=len(manners), ctx_size=4096)
        try:
            for id, manner in enumerate(manners):
                submit(e, id + 1, PROMPTS[id % len(PROMPTS)], n_predict=24, **manner)
            texts.append(said(run(e, goes_on=goes_on)))
        finally:
            e.close()
        assert len(manners) == 1 or n_found > 0
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert bool(followed) == (manners is not MANNERS)


@pytest.mark.parametrize("error", [BackendError("gone"), OutOfCellsError(), OutOfMemoryError()])
def test_a_step_without_a_pause_is_refused(
    model: Model,
    make: Callable[..., Engine],
    followed: list[int],
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
) -> None:
    """The tokens before it are kept, and the texts go on unless the device is broken."""
    plain = play(make(model, overlap=False, parallel=2), PROMPTS[:2], n_predict=20, **GREEDY)
    e = make(model, overlap=True, parallel=2)
    for id in (1, 2):
        submit(e, id, PROMPTS[id - 1], n_predict=20, stream=True)
    decode, refused = Context.decode, set[int]()

    def refuse(context: Context) -> None:
        if (n := len(followed)) in (3, 4, 9) and n not in refused:
            refused.add(n)
            raise error
        decode(context)

    monkeypatch.setattr(Context, "decode", refuse)
    seen = said(run(e, goes_on=True))
    assert refused
    ends = {id: events[-1] for id, events in seen.items()}
    if isinstance(error, OutOfCellsError):
        assert all(isinstance(end, Finished) for end in ends.values())
    elif isinstance(error, OutOfMemoryError):
        assert isinstance(ends[2], Failed), "of equal ones, the one in the highest slot"
    else:
        assert all(isinstance(end, Failed) for end in ends.values())
    for id, events in seen.items():
        tokens = [t for each in events if isinstance(each, Delta | Finished) for t in each.tokens]
        wanted = plain[PROMPTS[id - 1]].tokens
        assert len(tokens) >= (len(wanted) if isinstance(ends[id], Finished) else 3)
        assert tokens == wanted[: len(tokens)]
    assert not e.has_work
    held(e)


@pytest.mark.parametrize("manner", [{"temperature": 0.0}, {"top_k": 0, "top_p": 0.9}], ids=str)
def test_numbers_that_are_not_finite_end_a_run_of_steps(
    model: Model,
    make: Callable[..., Engine],
    followed: list[int],
    monkeypatch: pytest.MonkeyPatch,
    manner: dict[str, Any],
) -> None:
    """Also where several threads have chosen tokens from them."""
    monkeypatch.setattr("specllama.engine.worker.backend.sampler.FEW", 0)
    monkeypatch.setattr(Sampling, "_look_through", lambda _: None)
    e = make(model, overlap=True, parallel=2)
    for id in (1, 2):
        submit(e, id, APART[id - 1], **{"n_predict": 50, "temperature": 0.8, **manner})
    logits = Context.logits

    def broken(context: Context, index: int) -> Any:
        row = logits(context, index)
        return row if len(followed) < 3 else row + float("nan")

    monkeypatch.setattr(Context, "logits", broken)
    events = run(e, goes_on=True)
    assert len(followed) == 3
    ends = [event for event in events if isinstance(event, Failed)]
    assert len(ends) == 2
    assert all("not finite" in end.error.message for end in ends)


def test_messages_and_deadlines_end_a_run_of_steps(
    model: Model, make: Callable[..., Engine], followed: list[int]
) -> None:
    e = make(model, overlap=True, parallel=2)
    for id in (1, 2):
        submit(e, id, APART[id - 1], n_predict=100)
    stepped(e)
    answers = iter([True] * 5 + [False])
    e.step(lambda events: None, lambda: next(answers))
    assert followed == [2] * 5, "until a message arrives"
    e._requests.next_deadline = 0.0
    e.step(lambda events: None, lambda: True)
    assert e._requests.next_deadline > 0.0
    submit(e, 3, PROMPTS[2], n_predict=5)
    followed.clear()
    e.step(lambda events: None, lambda: True)
    assert not followed, "a request waits for a slot"
