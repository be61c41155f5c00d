"""Grammars and JSON schemas as masks over the vocabulary, with llguidance.

GBNF goes the same way as JSON schemas. llama.cpp's own grammar sampler was tried and can't be
made safe: it has no limits, so that `s ::= "a" s "b" | "a" s "c" | "a"` doubles its work with
every character, and it loops, overflows the stack or ends the process on others; nothing of it
can be interrupted. It also walks the whole vocabulary on the critical path.

A source is tried in a process first (`trial`), which has limits of work and memory, and is
compiled here only if that went well. There are several lanes, so that a costly one delays only
others of its kind. Masks are computed in a small pool while the model decodes.
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
    """Values of which each has a size; the ones not used for longest go first."""

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
        """Keep `value`, unless it is larger than all that is kept may be."""
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
"""Checks in a row without a request after which none is expected at once."""


class IdleTime:
    """Waits for moments without requests. `is_busy()` is true while there are some, and may be
    called from any thread."""

    def __init__(self, is_busy: Callable[[], bool]) -> None:
        self._is_busy = is_busy
        self._urgent = system.Event()
        self._quiet = False

    def wait(self) -> None:
        """Return in a quiet moment, or once it is urgent. Call it between short pieces of work,
        always from the same thread."""
        if self._quiet and not self._is_busy():
            return
        rest = QUIET_CHECKS
        while rest > 0 and not self._urgent.wait(CHECK_SECONDS):
            rest = QUIET_CHECKS if self._is_busy() else rest - 1
        self._quiet = True

    def hurry(self) -> None:
        """End the wait: a request needs the work now."""
        self._urgent.set()


CACHE_BYTES = 256 << 20  # of compiled grammars that are kept


class Guided(NamedTuple):
    """What lets a text be (None: anything), and the keywords of its JSON schemas that are not in
    force, as `#/properties/x/not`, or behind the name of a tool."""

    guide: Guide | None
    relaxed: tuple[str, ...] = ()


class CompileOrder:
    """A request's order for the constraint of `source` (None: no constraint)."""

    def __init__(
        self,
        params: GenerationParams,
        work: "_Work | None",
        vocabulary: system.Future[Vocabulary] | None,
    ) -> None:
        self.params = params
        self.work = work
        self.vocabulary = vocabulary  # if there is a limit of thinking
        self.is_dropped = False

    @property
    def is_ready(self) -> bool:
        """True if `Compiler.guide` doesn't wait."""
        return all(each.done() for each in self._awaited())

    def when_ready(self, then: Callable[[], None]) -> None:
        """Call `then` when the order is ready, in this thread or another one."""
        for each in self._awaited():
            if not each.done():
                each.add_done_callback(lambda _: self.when_ready(then))
                return
        then()

    def _awaited(self) -> list[system.Future[Any]]:
        compiled = self.work.compiled if self.work is not None else None
        return [each for each in (compiled, self.vocabulary) if each is not None]


class _Work:
    """A source on its way to be compiled, for `n_orders`."""

    def __init__(self, key: bytes, source: GrammarSource, compiler: "Compiler") -> None:
        self.key = key
        self.source = source
        self.compiled: system.Future[Compiled] = system.Future()
        self.n_orders = 1
        self.vocabulary: Vocabulary | None = None  # once it has had its turn in the first lane
        self._compiler = compiler

    def attempt(self, lane: Lane, *, is_last: bool) -> None:
        """Raises GrammarError, TooCostlyError, and OSError if there can be no trial."""
        self._compiler.attempt(self, lane, is_last=is_last)

    def fail(self, error: Exception) -> None:
        if isinstance(error, TooCostlyError):
            what = WHAT[self.source.kind]
            error = GrammarError(f"Failed to parse {what}: it takes too much work")
        self._compiler.end(self, error)


class Compiler:
    """Turns texts into constraints for one model, and remembers them.

    Raises GrammarError for what is wrong with a text. Safe to use from any thread.
    """

    def __init__(self, model: Model, *, seconds: Sequence[float] = lanes.SECONDS) -> None:
        """The seconds are those of the processor for a trial in each lane."""
        self._model = model
        self._memory: ByteLRU[bytes, Compiled] = ByteLRU(CACHE_BYTES)
        self._under_way: dict[bytes, _Work] = {}
        self._lock = system.Lock()
        self._closed = system.Event()
        self._vocabularies = Vocabularies(model, self._closed)
        self._lanes = TrialLanes(seconds)
        self._idle: IdleTime | None = None  # while the vocabulary is read ahead
        self._masks = Masks(model)

    def prepare(self, is_busy: Callable[[], bool]) -> None:
        """Read the vocabulary in the background, so that the first constraint needn't wait for
        it: while `is_busy` says that there is nothing to do, or when a constraint comes."""
        idle = self._idle = IdleTime(is_busy)
        self._lanes.submit(lambda: self._vocabularies.get(pause=idle.wait))

    def _hurry(self) -> None:
        """Somebody waits for the first lane."""
        if self._idle is not None:
            self._idle.hurry()

    def guided(self, params: GenerationParams) -> Guided:
        """`guide` of `order`."""
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
            if (found := self._memory.get(key)) is not None:
                work.compiled.set_result(found)
                return work
            self._under_way[key] = work
        self._lanes.enter(work)
        self._hurry()
        return work

    @property
    def n_bytes(self) -> int:
        """The size of what is remembered."""
        return self._memory.n_bytes

    def drop(self, order: CompileOrder) -> None:
        """Withdraws `order`. Its source is not compiled, unless another order has the same one. Has
        no effect the second time."""
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
        if self._lanes.leave(work):
            self.end(work, _unwanted())

    def guide(self, order: CompileOrder) -> Guided:
        """What the grammar or the schema, and the limit of thinking, let a text be; waits for
        the `order`. Raises GrammarError."""
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
            raise GrammarError(str(error)) from None  # one for each who asks
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
        """Raises GrammarError."""
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
        # A grammar describes texts: a token that starts it has to be one.
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
        """Wait for the threads: what they use is the model's."""
        self._closed.set()
        if self._idle is not None:
            self._idle.hurry()
        self._lanes.close()
        self._masks.close()

    # ---- in the threads of the lanes -----------------------------------------------------

    def attempt(self, work: _Work, lane: Lane, *, is_last: bool) -> None:
        """Try and compile what there is to do. In the last lane, try again without what may be
        costly in schemas. Raises as `_Work.attempt` does."""
        if work.vocabulary is None:
            work.vocabulary = self._vocabularies.get(frozenset(work.source.shown))
        try:
            self._compile(work, work.vocabulary, lane)
        except TooCostlyError:
            if not (is_last and can_be_lenient(work.source)):
                raise
            self._compile(work, work.vocabulary, lane, leniently=True)

    def end(self, work: _Work, outcome: Compiled | Exception, n_bytes: int = 0) -> None:
        """Tell all who wait for `work` what came of it."""
        with self._lock:
            if self._under_way.get(work.key) is work:
                del self._under_way[work.key]
            if isinstance(outcome, Compiled):
                self._memory.put(work.key, outcome, n_bytes)
        if isinstance(outcome, Compiled):
            work.compiled.set_result(outcome)
        else:
            work.compiled.set_exception(outcome)

    def _compile(
        self, work: _Work, vocabulary: Vocabulary, lane: Lane, *, leniently: bool = False
    ) -> None:
        """Raises GrammarError, TooCostlyError, and OSError if there can be no trial."""
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
        self.end(work, compiled, tried.n_bytes + first.allowed.nbytes)

    def _token_id(self, written: str) -> int | None:
        """The token of `<text>`, or the id itself if it is in the vocabulary."""
        if written.isdecimal():
            id = int(written)
            return id if id < self._model.n_vocab else None
        ids = self._model.tokenize(written.encode(), add_special=False, parse_special=True)
        return int(ids[0]) if len(ids) == 1 else None


def _unwanted() -> GrammarError:
    return GrammarError("nobody waits for it any more")


def _shown(params: GenerationParams) -> frozenset[int]:
    return frozenset(token for token in params.preserved_tokens if isinstance(token, int))


def _begin_behind_prompt(constraint: Constraint, params: GenerationParams, kind: Kind) -> None:
    """Go on behind the beginning of the text that stands in the prompt. Raises GrammarError."""
    if kind == "json_schema" and params.answer and params.answer.given:
        refusal = "the last message begins an answer that doesn't follow the JSON schema"
        constraint.begin_behind(params.answer.given, refusal)
    spelled = kind == "json_schema" or (kind == "grammar" and params.grammar_type == TOOL_CALLS)
    if spelled and (given := params.generation_prompt):
        constraint.begin_behind(given, f"no text begins with the generation_prompt {given!r}")
