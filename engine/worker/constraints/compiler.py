"""Compiles grammars and JSON schemas to constraints, with llguidance.

GBNF grammars and JSON schemas are handled in the same way. llama.cpp's own grammar sampler was
tried and can't be made safe: it has no limits, so `s ::= "a" s "b" | "a" s "c" | "a"` doubles its
work with every character; other grammars make it loop, overflow the stack or end the process; and
it can't be interrupted. It also reads the whole vocabulary on the critical path.

The source of a constraint (a grammar, a JSON schema, or the rules of an answer) is first tried in a
process with limits of work and memory (`trial`), and compiled here only if the trial succeeds.
There are several lanes, so a costly source delays only other costly ones. Masks are computed in a
small thread pool while the model decodes.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from specllama.engine import system
from specllama.engine.grammars.compiling import (
    WHAT,
    ConstraintError,
    GrammarSource,
    Kind,
    begin,
    can_be_lenient,
)
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.helpers.trial.trial_jobs import TrialRefused
from specllama.engine.params import TOOL_CALLS, AnswerRules, GenerationParams, GrammarTrigger
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints import trial as lanes
from specllama.engine.worker.constraints.constraint import Compiled, Constraint, Masks
from specllama.engine.worker.constraints.lazy import Guide, LazyConstraint, TriggerSearch, Waiting
from specllama.engine.worker.constraints.thinking import hidden_markers, thinking_limit
from specllama.engine.worker.constraints.trial import (
    AbandonedError,
    Lane,
    TooCostlyError,
    TrialLanes,
)
from specllama.engine.worker.constraints.vocabulary import Vocabularies, Vocabulary

# ---- A cache bounded by bytes.


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteLRU(Generic[K, V]):
    """A cache of values with sizes; the least recently used ones are dropped first."""

    def __init__(self, n_bytes: int) -> None:
        self._limit = n_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._used = 0

    @property
    def n_bytes(self) -> int:
        """The size of all values."""
        return self._used

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        if (found := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, n_bytes: int) -> None:
        """Keep `value`, unless it alone exceeds the limit."""
        if (old := self._entries.pop(key, None)) is not None:
            self._used -= old[1]
        if n_bytes > self._limit:
            return
        self._entries[key] = value, n_bytes
        self._used += n_bytes
        while self._used > self._limit:
            _, (_, freed) = self._entries.popitem(last=False)
            self._used -= freed


# ---- Background work that delays no request.


CHECK_SECONDS = 0.05
QUIET_CHECKS = 10
"""Number of consecutive checks without a request after which the server counts as quiet."""


class IdleTime:
    """Waits for moments without requests. `is_busy()` is true while there are requests; it may be
    called from any thread."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._urgent = system.Event()
        self._quiet = False

    def wait(self) -> None:
        """Return in a quiet moment, or as soon as `hurry` is called. To be called between short
        pieces of work, always from the same thread."""
        if self._quiet and not self._is_busy():
            return
        rest = QUIET_CHECKS
        while rest > 0 and not self._urgent.wait(CHECK_SECONDS):
            rest = QUIET_CHECKS if self._is_busy() else rest - 1
        self._quiet = True

    def hurry(self) -> None:
        """End the wait: a request needs the work now."""
        self._urgent.set()


CACHE_BYTES = 256 << 20  # limit of the cache of compiled grammars


class Guided(NamedTuple):
    """The constraint of a text (None: any text is allowed), and the keywords of its JSON schemas
    that are not enforced, such as `#/properties/x/not`. The name of a tool precedes the keywords of
    its schema."""

    guide: Guide | None
    relaxed: tuple[str, ...] = ()


class CompileOrder:
    """A request's order for its constraint, compiled by `work` (None: no constraint)."""

    def __init__(
        self,
        params: GenerationParams,
        work: "_Work | None",
        vocabulary: system.Future[Vocabulary] | None,
    ) -> None:
        self.params = params
        self.work = work
        self.vocabulary = vocabulary  # set if thinking is limited
        self.is_dropped = False

    @property
    def is_ready(self) -> bool:
        """True if `Compiler.guide` won't wait."""
        return all(each.done() for each in self._awaited())

    def when_ready(self, then: Callable[[], None]) -> None:
        """Call `then` when the order is ready, in this or another thread."""
        for each in self._awaited():
            if not each.done():
                each.add_done_callback(lambda _: self.when_ready(then))
                return
        then()

    def _awaited(self) -> list[system.Future[Any]]:
        compiled = self.work.compiled if self.work is not None else None
        return [each for each in (compiled, self.vocabulary) if each is not None]


class _Work:
    """A source that is being compiled, for `n_orders` orders."""

    def __init__(self, key: bytes, source: GrammarSource, compiler: "Compiler") -> None:
        self.key = key
        self.source = source
        self.compiled: system.Future[Compiled] = system.Future()
        self.n_orders = 1
        self.vocabulary: Vocabulary | None = None  # set in the first lane
        self._compiler = compiler

    def attempt(self, lane: Lane, *, is_last: bool) -> None:
        """Try and compile the source in `lane`. Raises GrammarError, TooCostlyError, and OSError if
        a trial is impossible."""
        self._compiler.attempt(self, lane, is_last=is_last)

    def fail(self, error: Exception) -> None:
        if isinstance(error, TooCostlyError):
            what = WHAT[self.source.kind]
            error = GrammarError(f"Failed to parse {what}: it takes too much work")
        self._compiler.end(self, error)


class Compiler:
    """Compiles and caches constraints for one model.

    Raises GrammarError for an invalid source. Safe to use from any thread.
    """

    def __init__(self, model: Model, *, seconds: Sequence[float] = lanes.SECONDS) -> None:
        """`seconds` are the CPU time limits of a trial in each lane."""
        self._model = model
        self._cache: ByteLRU[bytes, Compiled] = ByteLRU(CACHE_BYTES)
        self._under_way: dict[bytes, _Work] = {}
        self._lock = system.Lock()
        self._closed = system.Event()
        self._vocabularies = Vocabularies(model, self._closed)
        self._lanes = TrialLanes(seconds)
        self._idle: IdleTime | None = None  # while the vocabulary is read ahead
        self._masks = Masks(model)

    def prepare(self, is_busy: Callable[[], bool]) -> None:
        """Read the vocabulary in the background, so that the first constraint needn't wait for it:
        in moments when `is_busy()` is False, or at once when a constraint needs it."""
        idle = self._idle = IdleTime(is_busy)
        self._lanes.submit(lambda: self._vocabularies.get(pause=idle.wait))

    def _hurry(self) -> None:
        """A request waits for the first lane, so reading the vocabulary must not pause any more."""
        if self._idle is not None:
            self._idle.hurry()

    def guided(self, params: GenerationParams) -> Guided:
        """`order`, then `guide`."""
        return self.guide(self.order(params))

    def order(self, params: GenerationParams) -> CompileOrder:
        """Begin to compile the grammar or the schema of `params`, whose `preserved_tokens` are
        ids; never waits. Raises GrammarError."""
        source = self._source(params)
        work = self._work(source) if source is not None else None
        vocabulary = None
        if (rules := params.thinking) and (rules.budget >= 0 or rules.control):
            shown = _shown(params) | hidden_markers(self._model, rules.thoughts)
            vocabulary = self._lanes.submit(lambda: self._vocabularies.get(shown))
            self._hurry()
        return CompileOrder(params, work, vocabulary)

    def _work(self, source: GrammarSource) -> _Work:
        key = source.key
        with self._lock:
            if (work := self._under_way.get(key)) is not None:
                work.n_orders += 1
                return work
            work = _Work(key, source, self)
            if (found := self._cache.get(key)) is not None:
                work.compiled.set_result(found)
                return work
            self._under_way[key] = work
        self._lanes.enter(work)
        self._hurry()
        return work

    @property
    def n_bytes(self) -> int:
        """The size of the cached constraints in bytes."""
        return self._cache.n_bytes

    def drop(self, order: CompileOrder) -> None:
        """Withdraws `order`. Its source is not compiled, unless another order needs it. A second
        call has no effect."""
        work = order.work
        if work is None:
            return
        with self._lock:
            if order.is_dropped:
                return
            order.is_dropped = True
            work.n_orders -= 1
            if work.n_orders > 0 or work.compiled.done():
                return
            if self._under_way.get(work.key) is work:
                del self._under_way[work.key]
        if self._lanes.withdraw(work):
            self.end(work, _unwanted())

    def guide(self, order: CompileOrder) -> Guided:
        """The constraint from the grammar or the schema, and from the limit of thinking; waits
        until `order` is ready. Raises GrammarError."""
        params = order.params
        constraint, relaxed = self._constraint(params, order.work)
        if params.answer is not None:
            relaxed = (*params.answer.relaxed, *relaxed)
        if order.vocabulary is None or params.thinking is None:
            return Guided(constraint, relaxed)
        texts = order.vocabulary.result().texts
        return Guided(thinking_limit(constraint, params.thinking, self._model, texts), relaxed)

    def _constraint(self, params: GenerationParams, work: _Work | None) -> Guided:
        if work is None:
            return Guided(None)
        try:
            compiled = work.compiled.result()
        except GrammarError as error:
            raise GrammarError(str(error)) from None  # a separate exception for each caller
        if compiled.waiting is None:
            constraint = Constraint(compiled, self._masks)
            _begin_behind_prompt(constraint, params, work.source.kind)
            return Guided(constraint, compiled.relaxed)
        thoughts = params.answer.thoughts if params.answer else None
        search = TriggerSearch(work.source.triggers, thoughts)
        texts = compiled.vocabulary.texts
        lazy = LazyConstraint(
            lambda: Constraint(compiled, self._masks), compiled.waiting, texts, search
        )
        return Guided(lazy, compiled.relaxed)

    def _source(self, params: GenerationParams) -> GrammarSource | None:
        """The source of the constraint of `params`; None without one. Raises GrammarError."""
        answer = params.answer or AnswerRules()
        kind: Kind
        if answer.lark:
            kind, text = "answer", answer.lark
        elif params.grammar:
            kind, text = "grammar", params.grammar
        elif params.json_schema:
            kind, text = "json_schema", params.json_schema
        else:
            return None
        shown, grammars = _shown(params), answer.grammars
        space = params.json_whitespace if kind != "grammar" else "flexible"
        if not params.grammar_lazy:
            shows = sorted(shown)
            return GrammarSource(
                kind, text, answer.schemas, shows, grammars=grammars, whitespace=space
            )
        triggers = params.grammar_triggers
        if not triggers:
            raise GrammarError("a lazy grammar needs grammar_triggers")
        for trigger in triggers:
            self._check_trigger(trigger, shown)
        # A grammar matches texts, so a trigger token needs a text.
        tokens = {t.token for t in triggers if not t.text and self._model.is_hidden(t.token)}
        control = sorted(shown | tokens)
        return GrammarSource(kind, text, answer.schemas, control, triggers, grammars, space)

    def _check_trigger(self, trigger: GrammarTrigger, shown: frozenset[int]) -> None:
        model = self._model
        if not trigger.text:
            if not 0 <= trigger.token < model.n_vocab:
                raise GrammarError(f"grammar_triggers: there is no token {trigger.token}")
            if trigger.token in model.eog:
                raise GrammarError(f"grammar_triggers: the token {trigger.token} ends the text")
            return
        ids = model.tokenize(trigger.text.encode(), add_special=False, parse_special=True)
        if len(ids) == 1 and model.is_hidden(int(ids[0])) and int(ids[0]) not in shown:
            raise GrammarError(
                f"grammar_triggers: {trigger.text!r} is a control token, which shows in the "
                "text only if it is one of preserved_tokens"
            )

    def close(self) -> None:
        """Wait for the threads, which use the model."""
        self._closed.set()
        if self._idle is not None:
            self._idle.hurry()
        self._lanes.close()
        self._masks.close()

    # ---- in the threads of the lanes -----------------------------------------------------

    def attempt(self, work: _Work, lane: Lane, *, is_last: bool) -> None:
        """Try and compile `work`. In the last lane, try again without the costly parts of schemas.
        Raises as `_Work.attempt` does."""
        if work.vocabulary is None:
            work.vocabulary = self._vocabularies.get(frozenset(work.source.shown))
        try:
            self._compile(work, work.vocabulary, lane)
        except TooCostlyError:
            if not (is_last and can_be_lenient(work.source)):
                raise
            self._compile(work, work.vocabulary, lane, leniently=True)

    def end(self, work: _Work, outcome: Compiled | Exception, n_bytes: int = 0) -> None:
        """Set the result of `work`, for all orders that wait for it."""
        with self._lock:
            if self._under_way.get(work.key) is work:
                del self._under_way[work.key]
            if isinstance(outcome, Compiled):
                self._cache.put(work.key, outcome, n_bytes)
        if isinstance(outcome, Compiled):
            work.compiled.set_result(outcome)
        else:
            work.compiled.set_exception(outcome)

    def _compile(
        self, work: _Work, vocabulary: Vocabulary, lane: Lane, *, leniently: bool = False
    ) -> None:
        """Try the source in `lane`, then compile it. Raises GrammarError, TooCostlyError, and
        OSError if a trial is impossible."""
        source = work.source
        try:
            if not work.n_orders:
                raise AbandonedError
            tried = lane.run(work, source, vocabulary, self._token_id, leniently=leniently)
        except AbandonedError:
            raise _unwanted() from None
        if isinstance(tried, TrialRefused):
            raise GrammarError(tried.message)
        try:
            matcher = begin(vocabulary.tokenizer, tried.grammar)
            first = self._masks.next(matcher, None)
            waiting = Waiting(matcher, vocabulary, source.triggers) if source.triggers else None
        except (GrammarError, ConstraintError) as error:
            raise GrammarError(f"Failed to parse {WHAT[source.kind]}: {error}") from None
        compiled = Compiled(matcher, first, vocabulary, waiting, tried.relaxed)
        self.end(work, compiled, tried.n_bytes + first.allowed.ids.nbytes)

    def _token_id(self, written: str) -> int | None:
        """The id of the token `<text>`, or the id `<number>` itself; None if there is no such
        token."""
        if written.isdecimal():
            id = int(written)
            return id if id < self._model.n_vocab else None
        ids = self._model.tokenize(written.encode(), add_special=False, parse_special=True)
        return int(ids[0]) if len(ids) == 1 else None


def _unwanted() -> GrammarError:
    return GrammarError("the request was cancelled")


def _shown(params: GenerationParams) -> frozenset[int]:
    return frozenset(token for token in params.preserved_tokens if isinstance(token, int))


def _begin_behind_prompt(constraint: Constraint, params: GenerationParams, kind: Kind) -> None:
    """Advance past the part of the text that is already in the prompt. Raises GrammarError."""
    if kind == "json_schema" and params.answer and params.answer.given:
        refusal = "the last message begins an answer that doesn't follow the JSON schema"
        constraint.begin_behind(params.answer.given, refusal)
    spelled = kind == "json_schema" or (kind == "grammar" and params.grammar_type == TOOL_CALLS)
    if spelled and (given := params.generation_prompt):
        constraint.begin_behind(given, f"no text begins with the generation_prompt {given!r}")
