"""A trial process: does one job after the other until its stdin ends.

    python -m specllama.engine.helpers.trial.trial_main BYTES SECONDS       (started by
    engine.worker.constraints.trial)

Requests contain grammars and schemas. Even for small ones, the cost of analysing and compiling
can't be predicted. If it is too high, only this process ends, without harm to the engine. BYTES is
the limit of the address space, and each job has a limit of CPU time, if the platform supports
these. The engine ends a process that takes more than SECONDS for a job.

If the platform supports it, a forked copy of the process does the job. A costly job only ends the
copy. Starting another process, and reading a large vocabulary again, would take ten times as long
as a job of the first lane may take.
"""

import os
import random
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeVar

from llguidance import LLMatcher, LLTokenizer
from llguidance._tokenizer import TokenizerWrapper

import specllama.engine.wire.startup as startup
from specllama.engine import system
from specllama.engine.grammars.compiling import (
    TOO_COMPLEX,
    WHAT,
    ConstraintError,
    DeepThread,
    SchemaError,
    begin,
    consume,
    mask,
)
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.grammars.relaxing import compilable
from specllama.engine.helpers.trial.trial_jobs import (
    Answer,
    Costly,
    TrialJob,
    TrialRefused,
    TrialTokens,
    Tried,
    Unknown,
    job_decoder,
)
from specllama.engine.wire.framing import Started, frame
from specllama.engine.wire.link import Link, do_jobs, take_over
from specllama.engine.wire.startup import FORKS, forked, resident

WALKS: Final = 2  # texts that are begun with each grammar
STEPS: Final = 16  # tokens of each text
STEP_SECONDS: Final = 0.1
"""Maximum CPU time of one step. In the engine, all parts of a step except the mask hold the GIL."""
MAX_KEPT: Final = 256 << 20  # bytes of memory for a compiled grammar

T = TypeVar("T")


class _Vocabulary:
    def __init__(self, tokens: TrialTokens) -> None:
        self.eog = frozenset(tokens.eog)
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(_Tokens(tokens.texts, tokens.eog[0])), eos_token=tokens.eog
        )


class _Tokens:
    """The tokenizer interface of llguidance. It tokenizes by bytes, as the tokens of forced text
    needn't be those of the model."""

    bos_token_id = None

    def __init__(self, texts: list[bytes], eos: int) -> None:
        self.eos_token_id = eos
        self.tokens = texts
        self._bytes = {text[0]: id for id, text in enumerate(texts) if len(text) == 1}

    def __call__(self, text: bytes) -> list[int]:
        return [self._bytes[byte] for byte in text]


class Trials:
    """Answers jobs, and keeps the vocabularies."""

    def __init__(self) -> None:
        self._vocabularies: dict[int, _Vocabulary] = {}

    def reply(self, job: TrialJob) -> bytes:
        """Returns the answer to `job` as a frame."""
        if job.tokens is not None:
            self._vocabularies[job.vocabulary] = _Vocabulary(job.tokens)
        answer = forked(partial(self._reply, job)) if FORKS else self._reply(job)
        return frame(Costly()) if answer is None else answer

    def _reply(self, job: TrialJob) -> bytes:
        thread = DeepThread()  # llguidance's recursion is as deep as a schema's references
        try:
            with _limited(job.seconds):
                return frame(thread.submit(lambda: self._answer(job)).result())
        finally:
            thread.close()

    def _answer(self, job: TrialJob) -> Answer:
        vocabulary = self._vocabularies[job.vocabulary]
        unknown: dict[str, None] = {}

        def token_id(name: str) -> int | None:
            if name not in job.ids:
                unknown[name] = None
                return 0
            return job.ids[name]

        def check(grammar: str) -> None:
            if not unknown:
                _try(vocabulary, grammar)

        try:
            before = resident()
            grammar, relaxed = compilable(job.source, check, token_id, leniently=job.leniently)
            if unknown:
                return Unknown([*unknown])
            matcher = begin(vocabulary.tokenizer, grammar)
            n_bytes = max(len(grammar), resident() - before)
            del matcher
        except GrammarError as error:
            return TrialRefused(f"Failed to parse {WHAT[job.source.kind]}: {error}")
        except SchemaError as error:
            return TrialRefused(str(error))
        except (MemoryError, RecursionError):
            return Costly()
        return Tried(grammar, relaxed, n_bytes)


def _try(vocabulary: _Vocabulary, grammar: str) -> None:
    """Compiles `grammar`, and begins texts with it. Raises GrammarError."""
    before = resident()
    matcher = begin(vocabulary.tokenizer, grammar)
    if resident() - before > MAX_KEPT:
        raise GrammarError("it is too large")
    try:
        first = mask(matcher)
    except ConstraintError as error:
        raise GrammarError(str(error)) from None
    if not any(first):
        raise GrammarError("no token can come next")
    failures: list[str] = []
    for seed in range(WALKS):
        copy = _quick(matcher.deep_copy)
        try:
            _walk(copy, first, vocabulary.eog, random.Random(seed))
        except ConstraintError as error:
            failures.append(str(error))
    if len(failures) == WALKS:
        raise GrammarError(failures[0])


def _walk(matcher: LLMatcher, bits: bytes, eog: frozenset[int], chance: random.Random) -> None:
    """Begins a random text. Raises ConstraintError if the matcher fails, GrammarError if it is
    slow."""
    for _ in range(STEPS):
        token = _any_of(bits, chance)
        if token in eog:
            return
        _quick(partial(consume, matcher, [token]))
        if matcher.is_stopped():
            return
        bits = _quick(partial(mask, matcher))
        if not any(bits):
            raise ConstraintError("no token can come next")


def _any_of(bits: bytes, chance: random.Random) -> int:
    """Returns the number of a set bit, chosen randomly from the first group of eight with one."""
    start = chance.randrange(len(bits))
    rest = bits[start:].lstrip(b"\0") or bits.lstrip(b"\0")
    return 8 * (len(bits) - len(rest)) + chance.choice([i for i in range(8) if rest[0] >> i & 1])


def _quick(work: Callable[[], T]) -> T:
    """Returns the result of a part of a step. Raises GrammarError if it takes too long."""
    begun = system.processor_seconds()
    result = work()
    if system.processor_seconds() - begun > STEP_SECONDS:
        raise GrammarError(TOO_COMPLEX)
    return result


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Ends this process when it has used `seconds` of CPU time."""
    if not hasattr(signal, "ITIMER_PROF"):  # Windows: the engine checks the elapsed time
        yield
        return
    signal.setitimer(signal.ITIMER_PROF, seconds)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)


def main() -> None:
    link: Link[TrialJob, Started] = take_over(job_decoder)
    if hasattr(os, "nice"):
        os.nice(5)  # generation has priority
    startup.resume_gc()
    do_jobs(link, Trials().reply, memory=int(sys.argv[1]), seconds=float(sys.argv[2]))


if __name__ == "__main__":
    main()
    system.leave()
