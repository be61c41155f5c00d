"""A request's answer alone: in an engine with one slot, without cache, sharing or proposals."""

from contextlib import AbstractContextManager, ExitStack
from functools import cache
from typing import Any

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError
from specllama.engine.helpers.trial.trial_jobs import Answer, Costly, TrialJob
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Failed, Finished, Vectors
from specllama.engine.wire.requests import Embed, PromptParts, Submit
from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.constraints import trial
from specllama.engine.worker.constraints.trial import TrialProcess
from specllama.engine.worker.constraints.vocabulary import Vocabulary
from specllama.engine.worker.embedding.embedder import Embedder
from specllama.engine.worker.generation.engine import Engine
from tests.simulation.library import LibraryStandIn, installed, replaced
from tests.simulation.models import ADAPTERS, PROJECTOR, Choice, SimulatedProjector
from tests.support.models import random_model
from tests.support.options_support import engine_options, model_options
from tests.support.playing import stepped
from tools.models.build import ensure_adapter

SEEN = ("lora", "context_shift", "ubatch_size", "cache_type_k")
"""The options of a model that a text depends on."""
NORM = 2
"""The divisor of vectors."""
TRIAL_SECONDS = 60.0
"""The processor time that a trial may really use. A seed decides which sources count as costly."""


class SharedModel(Model):
    """A real model of which only the vocabulary is used. All simulated processes share it."""

    def close(self) -> None:
        """Does nothing, because other processes still use the model."""


@cache
def _loaded(name: str) -> SharedModel:
    initialize()
    paths = [(str(ensure_adapter(name)), 1.0) for name in ADAPTERS] if name == "adapters" else []
    return SharedModel(str(random_model()), engine_options(lora=tuple(paths)))


def shared_model(*, has_adapters: bool = False) -> SharedModel:
    """Returns the real model behind all models of histories."""
    return _loaded("adapters" if has_adapters else "plain")


def shared_draft() -> SharedModel:
    """Returns a second copy of the real model, for draft models, with a separate handle."""
    return _loaded("draft")


def load_shared() -> None:
    """Loads the shared models. Loading reads the clock, so call this before a history."""
    for name in ("plain", "adapters", "draft"):
        _loaded(name)


_answers: dict[bytes, Answer] = {}
_real = {name: getattr(system, name) for name in ("Lock", "call_later")}


def trial_answer(job: TrialJob, vocabulary: Vocabulary) -> Answer:
    """Returns the answer of a real trial process, which runs once per source. Its lock and timer
    are real, so a history doesn't depend on earlier ones."""
    key = msgspec.msgpack.encode((job.source, sorted(job.ids), job.leniently))
    if key not in _answers:
        with replaced(system, _real):
            process = TrialProcess(1 << 30, TRIAL_SECONDS)
            job = msgspec.structs.replace(job, seconds=TRIAL_SECONDS)
            _answers[key] = process.ask(job, vocabulary)
            process.kill()
            process.close()
    return _answers[key]


class PromptTrial:
    """Replaces `TrialProcess`, and answers at once."""

    is_lenient = False
    """If true, each schema is too costly until its costly keywords are left out."""

    pid = 0

    def __init__(self, memory: int, seconds: float) -> None:
        pass

    def takes(self, vocabulary: Vocabulary) -> bool:
        return True

    def ask(self, job: TrialJob, vocabulary: Vocabulary) -> Answer:
        answer = trial_answer(job, vocabulary)
        assert not isinstance(answer, Costly)
        return Costly() if self.is_lenient and not job.leniently else answer

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


class LenientTrial(PromptTrial):
    is_lenient = True


_texts: dict[str, tuple[list[int], str]] = {}
"""Computed answers, by model, prompt and parameters, because the histories of mutants repeat
them."""


class Alone:
    """An engine that has one request at a time. If it is `lenient`, costly keywords of schemas are
    not enforced."""

    def __init__(self, choice: Choice, *, lenient: bool = False) -> None:
        chosen = {name: choice.options[name] for name in SEEN}
        self._name = repr((choice.shape, choice.slot_context, choice.sees, chosen, lenient))
        self._trial = LenientTrial if lenient else PromptTrial
        options = model_options(
            parallel=1,
            ctx_size=choice.slot_context,
            cache_ram=0,
            ctx_checkpoints=0,
            warmup=False,
            threads=1,
            **chosen,
            embedding=choice.embeds,
            pooling="last" if choice.embeds else "",
        ).engine
        model = shared_model(has_adapters=choice.has_adapters)
        projector: Any = None
        if choice.sees:
            projector = SimulatedProjector(PROJECTOR, choice.shape, lambda: None)
        self._library = LibraryStandIn(choice.shape, adapters=model._adapters)
        self._vectors: dict[str, bytes] = {}
        self.n_steps = 0
        self._engine: Engine | Embedder
        with self._installed():
            if choice.embeds:
                self._engine = Embedder(model, options)
            else:
                self._engine = Engine(model, options, projector)

    def _installed(self) -> AbstractContextManager[Any]:
        with ExitStack() as stack:
            stack.enter_context(installed(lambda: self._library))
            stack.enter_context(replaced(trial, {"TrialProcess": self._trial}))
            return stack.pop_all()

    def answer(self, prompt: PromptParts, asked: dict[str, Any]) -> tuple[list[int], str]:
        """Returns the tokens and the text of an answer; both are empty if the request is
        refused."""
        key = f"{self._name} {(prompt, asked)!r}"
        if key not in _texts:
            with self._installed():
                _texts[key] = self._answer(prompt, asked)
        return _texts[key]

    def _answer(self, prompt: PromptParts, asked: dict[str, Any]) -> tuple[list[int], str]:
        engine = self._engine
        assert isinstance(engine, Engine)
        params = GenerationParams(**asked, cache_prompt=False)
        try:
            request = engine.preparation.prepare(Submit(1, prompt, params))
        except EngineError:
            return [], ""
        events = engine.submit(request)
        while engine.has_work:
            self.n_steps += 1
            events += stepped(engine)
        for event in events:
            if isinstance(event, Finished):
                return event.tokens, event.text
        return [], ""

    def vector(self, text: str) -> bytes:
        """Returns the vector of `text` as it is sent."""
        engine = self._engine
        assert isinstance(engine, Embedder)
        if text not in self._vectors:
            with self._installed():
                engine.submit(engine.prepare(Embed(1, [[text]], NORM)))
                events: list[Vectors | Failed] = []
                while engine.has_work:
                    self.n_steps += 1
                    events += stepped(engine)
                (event,) = events
                assert isinstance(event, Vectors)
                self._vectors[text] = event.values
        return self._vectors[text]

    def close(self) -> None:
        with self._installed():
            self._engine.close()
