"""Random histories of one engine, each from a seed: requests come, go, pause and go on, calls into
llama.cpp fail. Every text must be what its request gets alone."""

import random
from dataclasses import dataclass, field
from typing import Any, get_args

from specllama.engine.errors import EngineError
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Delta, Event, Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.generation.engine import Engine
from tests.simulation.library import Clock, Fault, LibraryStandIn, ModelShape, installed
from tests.simulation.memory import Kind
from tests.support.options_support import engine_options

FEWEST_REQUESTS = 8
MOST_REQUESTS = 48
FEWEST_STEPS = 200
MOST_STEPS = 5000
"""A history that takes more has a request that waits for ever."""
WORDS = ("river", "stone", "light", "engine", "paper", "window", "garden", "number")
FAILURES = (-2, -3, 2, 1, -1)
"""Of `llama_decode`: no memory, a failed or aborted computation, no cells, a bad batch."""
GENERATING = 40
ASKED = ("n_predict", "temperature", "seed", "stop", "ignore_eos")
"""The parameters that a text depends on."""
ALSO_TOLD = ("stream", "cache_prompt", "n_probs")
MOST_CHARACTERS = 600


def text_of(submit: Submit) -> str:
    """The prompt, which is one text."""
    assert isinstance(submit.prompt, list)
    (text,) = submit.prompt
    return str(text)


class HistoryError(AssertionError):
    """Something that must not happen has happened."""


@dataclass
class Expected:
    """A request of a history: the tokens that events have carried, and its last event."""

    submit: Submit
    tokens: list[int] = field(default_factory=list)
    end: Finished | Failed | None = None
    text: str = ""
    is_refused: bool = False
    is_cancelled: bool = False
    is_paused: bool = False


class History:
    """One engine and its requests; all that is random comes from `seed`."""

    def __init__(self, model: Model, seed: int) -> None:
        self.random = random.Random(seed)
        self.model = model
        self.shape = self._shape()
        self.options = self._options()
        clock = Clock(per_decode=self.random.choice([1e-3, 1e-2, 0.1]))
        self.library = LibraryStandIn(self.shape, clock, self.random.choice([True, False]))
        self.requests: dict[int, Expected] = {}
        self.n_steps = 0
        self.n_faults = 0
        self.has_faults = self.random.random() < 0.3
        where = "a device" if self.library.is_device else "the CPU"
        self.story: list[str] = [f"{self.shape} on {where}: {self.options}"]
        self._common = [self._words(self.random.choice([2, 20, 40, 90])) for _ in range(3)]
        self._alone: dict[tuple[str, str], tuple[list[int], str]] = {}

    # ---- what there is -------------------------------------------------------------------

    def _shape(self) -> ModelShape:
        kind: Kind = self.random.choice(get_args(Kind))
        window = self.random.choice([16, 48]) if kind == "window" else 0
        return ModelShape(kind, n_ctx_train=2048, window=window)

    def _options(self) -> dict[str, Any]:
        choose = self.random.choice
        n_slots = self.random.randint(1, 4)
        unified = choose([True, False])
        types = self.random.sample(["radix", "ngram-simple", "ngram-mod", "ngram-cache"], 2)
        return {
            "parallel": n_slots,
            "kv_unified": unified,
            "ctx_size": choose([256, 256, 1024]) if unified else 256 * n_slots,
            "batch_size": (batch := choose([16, 64, 256])),
            "ubatch_size": choose([16, batch]),
            "cache_ram": choose([0, 1, -1, -1]),
            "ctx_checkpoints": choose([0, 2, 8]),
            "spec_type": tuple(types) if choose([True, False]) else (),
            "warmup": choose([True, False]),
        }

    def _words(self, n: int) -> str:
        return " ".join(self.random.choices(WORDS, k=n))

    def _submit(self, id: int) -> Submit:
        choose = self.random.choice
        prompt = f"{choose(self._common)} {self._words(self.random.randint(1, 10))}"
        if self.requests and self.random.random() < 0.3:  # a conversation goes on
            before = text_of(choose([*self.requests.values()]).submit)
            prompt = f"{before} {self._words(self.random.randint(1, 5))}"[-MOST_CHARACTERS:]
        params = GenerationParams(
            n_predict=choose([0, 1, 2, 5, 10, GENERATING]),
            temperature=choose([0.0, 0.0, 0.8]),
            seed=self.random.randrange(3),
            stop=choose([[], [], ["e"], ["th", "in"]]),
            cache_prompt=self.random.random() < 0.9,
            ignore_eos=choose([True, False]),
            stream=choose([True, False]),
            n_probs=choose([0, 0, 2]),
        )
        return Submit(id, [prompt], params)

    # ---- running -------------------------------------------------------------------------

    def run(self) -> None:
        """Raises `HistoryError`."""
        with installed(self.library):
            engine = Engine(self.model, engine_options(**self.options))
            n_requests = self.random.randint(FEWEST_REQUESTS, MOST_REQUESTS)
            try:
                while self.n_steps < FEWEST_STEPS or len(self.requests) < n_requests:
                    self._act(engine, n_requests)
                    self._step(engine)
                self.library.contexts[0].faults.clear()
                for id, request in self.requests.items():
                    if request.is_paused:
                        engine.resume(id)
                while engine.has_work:
                    self._step(engine)
                    if self.n_steps > MOST_STEPS:
                        raise HistoryError("a request waits for ever")
                self._check_end(engine)
            finally:
                engine.close()
        for request in self.requests.values():
            self._check(request)

    def _act(self, engine: Engine, n_requests: int) -> None:
        """Mostly nothing."""
        chance = self.random.random()
        if chance < 0.08 or not engine.has_work:
            for _ in range(self.random.choice([1, 1, 2, 6])):  # some come together
                if len(self.requests) < n_requests or not self._running():
                    self._begin(engine)
        elif chance < 0.10 and (running := self._running()):
            id = self.random.choice(running)
            self.requests[id].is_cancelled = True
            self.story.append(f"{self.n_steps}: cancel {id}")
            engine.cancel(id)
        elif chance < 0.14 and (running := self._running()):
            id = self.random.choice(running)
            request = self.requests[id]
            request.is_paused = not request.is_paused
            self.story.append(f"{self.n_steps}: {'pause' if request.is_paused else 'resume'} {id}")
            (engine.pause if request.is_paused else engine.resume)(id)
        elif chance < 0.15 and self.has_faults:
            fault = Fault(self.random.choice(FAILURES), self.random.randrange(4))
            self.story.append(f"{self.n_steps}: {fault}")
            self.n_faults += 1
            self.library.contexts[0].faults.append(fault)

    def _begin(self, engine: Engine) -> None:
        submit = self._submit(len(self.requests) + 1)
        self.requests[submit.id] = Expected(submit)
        told = {name: getattr(submit.params, name) for name in (*ASKED, *ALSO_TOLD)}
        self.story.append(f"{self.n_steps}: submit {submit.id} {text_of(submit)!r} {told}")
        try:
            request = engine.prepare(submit)
        except EngineError as error:  # it doesn't fit the context
            self.story.append(f"{self.n_steps}: refused {submit.id}")
            self.requests[submit.id].end = Failed(submit.id, error.info)
            self.requests[submit.id].is_refused = True
            return
        self._note(engine.submit(request))

    def _running(self) -> list[int]:
        return [
            id
            for id, request in self.requests.items()
            if request.end is None and not request.is_cancelled
        ]

    def _step(self, engine: Engine) -> None:
        self.n_steps += 1
        if engine.has_work:
            self._note(engine.step())

    def _note(self, events: list[Event]) -> None:
        for event in events:
            request = self.requests[event.id]
            if request.is_cancelled:
                raise HistoryError(f"an event of request {event.id}, which is cancelled")
            if request.end is not None:
                raise HistoryError(f"an event of request {event.id} behind its end")
            match event:
                case Delta(tokens=tokens, text=text) | Finished(tokens=tokens, text=text):
                    request.tokens += tokens
                    request.text += text
            if isinstance(event, Finished | Failed):
                request.end = event
                self.story.append(f"{self.n_steps}: {type(event).__name__} {event.id}")

    # ---- checking ------------------------------------------------------------------------

    def _check_end(self, engine: Engine) -> None:
        stats = engine.stats()
        if stats.n_processing or stats.n_deferred:
            raise HistoryError("there are requests left")
        if any(slot.is_processing for slot in engine.slots()):
            raise HistoryError("a slot is left in use")

    def _check(self, request: Expected) -> None:
        id = request.submit.id
        if request.is_refused:
            return
        if request.end is None and not request.is_cancelled:
            raise HistoryError(f"request {id} has no end")
        if isinstance(request.end, Failed) and not self.n_faults:
            raise HistoryError(f"request {id} failed: {request.end.error}")
        truth, text = self.alone(request.submit)
        tokens = request.tokens
        if not text.startswith(request.text):
            raise HistoryError(f"request {id} has {request.text!r} in the place of {text!r}")
        if truth[: len(tokens)] != tokens:
            raise HistoryError(f"request {id} has {tokens} in the place of {truth}")
        if isinstance(request.end, Finished) and (tokens, request.text) != (truth, text):
            raise HistoryError(f"request {id} has {len(tokens)} tokens of {len(truth)}")

    def alone(self, submit: Submit) -> tuple[list[int], str]:
        """The tokens and the text that the request gets in an engine of its own, without cache."""
        params = submit.params
        asked = {name: getattr(params, name) for name in ASKED}
        key = (text_of(submit), repr(asked))
        if key not in self._alone:
            n_ctx = self.options["ctx_size"] if self.options["kv_unified"] else 256
            options = {"parallel": 1, "ctx_size": n_ctx, "cache_ram": 0, "warmup": False}
            fresh = Submit(1, submit.prompt, GenerationParams(**asked))
            outcome: tuple[list[int], str] = [], ""
            with installed(LibraryStandIn(self.shape, self.library.clock)):
                engine = Engine(self.model, engine_options(**options))
                events = engine.submit(engine.prepare(fresh))
                while engine.has_work:
                    events += engine.step()
                engine.close()
            for event in events:
                if isinstance(event, Finished):
                    outcome = event.tokens, event.text
            self._alone[key] = outcome
        return self._alone[key]
