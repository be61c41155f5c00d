"""A meter receives what each text has used: exactly once, however the text ends."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError, ErrorInfo
from specllama.engine.models.client import EngineClient
from specllama.engine.models.generation import Generation
from specllama.engine.params import GenerationParams
from specllama.engine.wire.framing import sender
from specllama.engine.wire.replies import (
    Accepted,
    Begun,
    Delta,
    Ended,
    Failed,
    Queued,
    Step,
    Timings,
    Vectors,
)
from specllama.engine.wire.requests import Embed, Terms
from tests.engine.models.test_client import Sink
from tests.support.factories import finished, model_info

STREAM = GenerationParams(stream=True)
GONE = ErrorInfo("server_error", "it is gone")


def used(n: int) -> Timings:
    return Timings(0, n, 1.0, 0, 0.0)


class PaperMeter:
    """Records the calls."""

    def __init__(self) -> None:
        self.accepts: list[int] = []
        self.ends: list[Timings | None] = []

    def accepted(self, n_tokens: int) -> None:
        self.accepts.append(n_tokens)

    def ended(self, timings: Timings | None) -> None:
        self.ends.append(timings)


class Death:
    """The engine process ends, and another one takes its place, or not."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client

    def with_successor(self) -> EngineClient:
        self.client.detach(GONE)
        successor = EngineClient(sender(Sink()), model_info())
        successor.adopt_from(self.client)
        return successor


class Text:
    """What a text of a history has done, in the engine."""

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.has_begun = self.is_over = self.is_cancelled = False
        self.n_known: int | None = None
        self.expected: list[int | None] = []


MOVES = ["accept", "queue", "begin", "delta", "finish", "fail", "cancel", "again", "die", "move"]


@given(
    n_texts=st.integers(1, 4),
    moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 3)), max_size=40),
)
def test_each_text_ends_once_in_any_order(n_texts: int, moves: list[tuple[str, int]]) -> None:
    async def run() -> None:
        client = EngineClient(sender(Sink()), model_info())
        meters = [PaperMeter() for _ in range(n_texts)]
        texts = [Text(client.generate_all(["a"], [STREAM], meter=meter)[0]) for meter in meters]
        is_dead = False
        for number, (move, which) in enumerate(moves):
            text = texts[which % n_texts]
            id = text.generation.request.id
            if move in ("die", "move") and not is_dead:
                for each in texts:
                    is_lost = each.has_begun or each.is_cancelled or each.generation.has_moved
                    if not each.is_over and (is_lost or move == "die"):
                        each.is_over = True
                        each.expected.append(each.n_known)
                if move == "die":
                    is_dead = True
                    client.close(GONE)
                else:
                    client = Death(client).with_successor()
            elif move in ("cancel", "again"):
                text.generation.cancel()
                text.is_cancelled = True
            elif is_dead or text.is_over:
                continue
            elif move == "accept" and not text.has_begun:
                client.dispatch(Step([Accepted(id, 7)]))
            elif move == "queue" and not text.has_begun:
                client.dispatch(Step([Queued(id, 3, 20.0)]))
            elif move == "begin" and not text.has_begun:
                text.has_begun = True
                client.dispatch(Step([Begun(id)]))
            elif move == "delta" and text.has_begun:
                client.dispatch(Step([Delta(id, "a", [1], 0, used(number))]))
                text.n_known = text.n_known if text.is_cancelled else number
            elif move in ("finish", "fail"):
                text.is_over = True
                text.expected.append(number)
                if text.is_cancelled:
                    client.dispatch(Step([Ended(id, used(number))]))
                elif move == "finish":
                    client.dispatch(Step([finished(id=id, timings=used(number))]))
                else:
                    client.dispatch(Failed(id, GONE, used(number)))
        client.close(GONE)
        for text, meter in zip(texts, meters, strict=True):
            if not text.is_over:
                text.expected.append(text.n_known)
            ends = [None if each is None else each.prompt_n for each in meter.ends]
            assert ends == text.expected
            assert len(meter.accepts) <= 1
        assert client.n_running == 0
        assert not client._leaving

    asyncio.run(run())


def test_the_place_in_the_queue_is_no_event_for_the_reader() -> None:
    async def run() -> None:
        client = EngineClient(sender(Sink()), model_info())
        meter = PaperMeter()
        [generation] = client.generate_all(["a"], [STREAM], meter=meter)
        client.dispatch(Step([Accepted(1, 9), Queued(1, 2, 30.0), Queued(1, 1, 10.0)]))
        assert generation.queue == Queued(1, 1, 10.0)
        assert not generation.ready
        client.dispatch(Step([Begun(1)]))
        await generation.begun()
        assert generation.queue is None
        assert meter.accepts == [9]

    asyncio.run(run())


def test_a_confirmed_and_metered_request_is_accepted_once() -> None:
    async def run() -> None:
        old, new = (EngineClient(sender(Sink()), model_info()) for _ in range(2))
        meter = PaperMeter()
        [generation] = old.generate_all(["a"], [STREAM], confirm=True, meter=meter)
        old.dispatch(Step([Accepted(1, 9)]))
        await generation.accepted()
        old.detach(GONE)
        new.adopt_from(old)
        assert generation.request.terms.is_accepted
        new.dispatch(Step([Accepted(1, 11), Begun(1)]))
        await generation.begun()
        assert meter.accepts == [9]

    asyncio.run(run())


def test_deadlines_go_on_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("specllama.engine.models.generation.system.now", lambda: now)

    async def run() -> None:
        nonlocal now
        old, new = (EngineClient(sender(Sink()), model_info()) for _ in range(2))
        terms = Terms(prompt_ms=5_000, timeout_ms=2_000)
        [generation] = old.generate_all(["a"], [STREAM], terms=terms)
        now = 3.0
        old.detach(GONE)
        new.adopt_from(old)
        moved = generation.request.terms
        assert (moved.prompt_ms, moved.timeout_ms) == (2_000, 1)

    asyncio.run(run())


@given(
    n_inputs=st.integers(1, 400),
    n_read=st.integers(0, 7),
    end=st.sampled_from(["read", "close", "fail", "die"]),
    random=st.randoms(use_true_random=False),
)
def test_the_slices_of_a_call_end_once(
    n_inputs: int, n_read: int, end: str, random: random.Random
) -> None:
    """Every slice uses as many tokens as it has inputs; a cancelled or failed one uses 1."""

    async def run() -> None:
        client = EngineClient(sender(Sink()), model_info(pooling="mean"))
        meter = PaperMeter()
        terms = Terms(allowance=10_000)
        work = client.embed([["a"]] * n_inputs, normalize=2, terms=terms, meter=meter)
        n_done, n_failed = 0, 0
        for n_slices in range(n_read + 1):
            step = asyncio.ensure_future(anext(work, None))
            await asyncio.sleep(0)
            if not client._asked:
                assert await step is None
                break
            id = min(client._asked)
            message = client._asked[id].message
            assert isinstance(message, Embed)
            assert message.terms.allowance <= 10_000 - sum(meter.accepts[:-1])
            n = min(64, n_inputs - 64 * n_slices)
            if end == "fail" and n_slices == n_read:
                client.dispatch(Step([Failed(id, GONE, used(1))]))
                n_failed = 1
                with pytest.raises(EngineError):
                    await step
                break
            client.dispatch(Step([Accepted(id, n)]))
            client.dispatch(Step([Vectors(id, b"", [1] * n, n, 2.0)]))
            n_done += n
            assert await step is not None
        open_ = [*client._asked, *client._leaving]
        if end == "die":
            client.close(GONE)
        await work.aclose()
        n_left = 0
        if end != "die":
            for id in random.sample(open_, len(open_)):
                assert not meter.ends
                client.dispatch(Step([Ended(id, used(1))]))
                n_left += 1
        assert [each and each.prompt_n for each in meter.ends] == [n_done + n_failed + n_left]
        assert not client._leaving

    asyncio.run(run())
