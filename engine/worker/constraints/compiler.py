"""Grammars and JSON schemas as masks over the vocabulary, with llguidance.

GBNF goes the same way as JSON schemas. llama.cpp's own grammar sampler was tried and can't be
made safe: it has no limits, so that `s ::= "a" s "b" | "a" s "c" | "a"` doubles its work with
every character, and it loops, overflows the stack or ends the process on others; nothing of it
can be interrupted. It also walks the whole vocabulary on the critical path.

Compiling happens in a thread with a stack of its own, because llguidance's recursion is as deep
as the schema's references; masks are computed in a small pool while the model decodes.
"""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits

from engine.params import TOOL_CALLS, AnswerRules, GenerationParams, GrammarTrigger, NamedSchema
from engine.worker.backend import Model
from engine.worker.constraints.deep_thread import DeepThread
from engine.worker.constraints.gbnf import GrammarError
from engine.worker.constraints.idle import IdleTime
from engine.worker.constraints.json_schema import Prepared, more_lenient, prepare
from engine.worker.constraints.lazy import Guide, LazyConstraint, Waiting
from engine.worker.constraints.source import (
    WHAT,
    Kind,
    SchemaError,
    Source,
    alone,
    named_schemas,
    prepared,
    translated,
)
from engine.worker.constraints.thinking import hidden_markers, thinking_limit
from engine.worker.constraints.triggers import TriggerSearch
from engine.worker.constraints.vocabulary import Vocabularies, Vocabulary
from engine.worker.tokens import TokenArray

T = TypeVar("T")

CACHED = 64  # compiled grammars that are kept
MASK_THREADS = 2
INLINE_SECONDS = 2e-4
"""After a mask that took less, the next one is computed at once: mostly it takes a few
microseconds, and handing it to another thread would take longer."""
# What a hostile grammar may use. The fuel is spent in tens of milliseconds.
_LIMITS = LLParserLimits(
    max_items_in_row=4000,
    initial_lexer_fuel=2_000_000,
    step_lexer_fuel=400_000,
    step_max_items=800_000,
    max_lexer_states=50_000,
    max_grammar_size=500_000,
    verbose_errors=False,
)


class ConstraintError(Exception):
    """The generation can't go on under its constraint."""


@dataclass(frozen=True)
class _Mask:
    """The tokens that may come next, in ascending order; all of them end the text if `ended`."""

    bits: bytes
    allowed: TokenArray
    ended: bool
    seconds: float  # that it took


@dataclass(frozen=True)
class _Compiled:
    """A grammar before its first token; never advanced itself. `waiting` is of lazy ones,
    `relaxed` as in `Guided`."""

    matcher: LLMatcher
    mask: _Mask
    vocabulary: Vocabulary
    waiting: Waiting | None
    relaxed: tuple[str, ...]


class Guided(NamedTuple):
    """What lets a text be (None: anything), and the keywords of its JSON schemas that are not in
    force, as `#/properties/x/not`, or behind the name of a tool."""

    guide: Guide | None
    relaxed: tuple[str, ...] = ()


class Constraint:
    """The constraint of one generation. Belongs to the thread that steps."""

    def __init__(self, compiled: _Compiled, compiler: "Compiler") -> None:
        self._matcher = compiled.matcher.deep_copy()
        self._vocabulary = compiled.vocabulary
        self._compiler = compiler
        self._mask = compiled.mask
        self._pending: Future[_Mask] | None = None

    def _current(self) -> _Mask:
        if self._pending is not None:
            self._mask = self._pending.result()
            self._pending = None
        return self._mask

    @property
    def allowed(self) -> TokenArray:
        """The ids of the tokens that may come next, never empty; waits for them if they are
        still being computed. Raises ConstraintError if the grammar has become too complex."""
        return self._current().allowed

    @property
    def ended(self) -> bool:
        """True if nothing but the end of the text may come next. Waits and raises as `allowed`
        does."""
        return self._current().ended

    def advance(self, token: int) -> bool:
        """Go on behind `token`, which was one of the allowed ones and ends no text, and begin
        to compute what may follow it. True if it is certain already that nothing does.

        Raises ConstraintError.
        """
        return self._consume([token])

    def spell(self, text: bytes) -> bool:
        """Go on behind `text`, as `advance` does behind a token. Raises ConstraintError."""
        return self._consume(self._vocabulary.spelled(text))

    def begin_behind(self, text: str) -> None:
        """Let `text` be the beginning, as `spell` does. Raises GrammarError."""
        if not text:
            return
        try:
            if self.spell(text.encode()):
                self._mask = replace(self._mask, ended=True)
        except ConstraintError:
            raise GrammarError(f"no text begins with the generation_prompt {text!r}") from None

    def _consume(self, tokens: list[int]) -> bool:
        mask = self._current()
        if not self._matcher.consume_tokens(tokens):
            raise ConstraintError(_reason(self._matcher))
        if self._matcher.is_stopped():
            return True
        if mask.seconds < INLINE_SECONDS:
            self._mask = self._compiler._next(self._matcher, mask)
        else:
            self._pending = self._compiler._masks.submit(self._compiler._next, self._matcher, mask)
        return False


class Compiler:
    """Turns texts into constraints for one model, and remembers them.

    Raises GrammarError for what is wrong with a text. Safe to use from any thread.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._eog = np.array(sorted(model.eog), np.int32)
        self._cache: OrderedDict[bytes, _Compiled | GrammarError] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._vocabularies = Vocabularies(model, self._closed)
        self._thread = DeepThread()
        self._idle: IdleTime | None = None  # while the vocabulary is read ahead
        self._masks = ThreadPoolExecutor(MASK_THREADS, thread_name_prefix="mask")

    def prepare(self, is_busy: Callable[[], bool]) -> None:
        """Read the vocabulary in the background, so that the first constraint needn't wait for
        it: while `is_busy` says that there is nothing to do, or when a constraint comes."""
        idle = self._idle = IdleTime(is_busy)
        self._thread.submit(lambda: self._vocabularies.get(pause=idle.wait))

    def _soon(self, work: Callable[[], T]) -> Future[T]:
        """`work` in the compiler's thread, behind what it does already."""
        if self._idle is not None:
            self._idle.hurry()
        return self._thread.submit(work)

    def guided(self, params: GenerationParams) -> Guided:
        """What the grammar or the schema of `params`, and its limit of thinking, let a text be.
        `params.preserved_tokens` are ids.

        The first use of a text compiles it, which may take a second. Raises GrammarError.
        """
        constraint, relaxed = self._constraint(params)
        if params.answer is not None:
            relaxed = (*params.answer.relaxed, *relaxed)
        rules = params.thinking
        if rules is None or (rules.budget < 0 and not rules.control):
            return Guided(constraint, relaxed)
        shown = _shown(params) | hidden_markers(self._model, rules.thoughts)
        vocabulary = self._soon(lambda: self._vocabularies.get(shown)).result()
        return Guided(thinking_limit(constraint, rules, self._model, vocabulary.texts), relaxed)

    def _constraint(self, params: GenerationParams) -> Guided:
        source = self._source(params)
        if source is None:
            return Guided(None)
        key = source.key
        found = self._cached(key)
        if found is None:
            found = self._soon(lambda: self._compile_once(key, source)).result()
        if isinstance(found, GrammarError):
            raise GrammarError(str(found))
        if found.waiting is None:
            constraint = Constraint(found, self)
            if params.grammar_type == TOOL_CALLS or source.kind == "json_schema":
                constraint.begin_behind(params.generation_prompt)
            return Guided(constraint, found.relaxed)
        compiled = found
        thoughts = params.answer.thoughts if params.answer else None
        search = TriggerSearch(source.triggers, thoughts)
        texts = compiled.vocabulary.texts
        lazy = LazyConstraint(lambda: Constraint(compiled, self), found.waiting, texts, search)
        return Guided(lazy, found.relaxed)

    def _source(self, params: GenerationParams) -> Source | None:
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
        shown = _shown(params)
        if not params.grammar_lazy:
            return Source(kind, text, answer.schemas, sorted(shown))
        triggers = params.grammar_triggers
        if not triggers:
            raise GrammarError("a lazy grammar needs grammar_triggers")
        for trigger in triggers:
            self._check_trigger(trigger, shown)
        # A grammar describes texts: a token that starts it has to be one.
        tokens = {t.token for t in triggers if not t.text and self._model.is_hidden(t.token)}
        return Source(kind, text, answer.schemas, sorted(shown | tokens), triggers)

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
        self._thread.close()
        self._masks.shutdown(cancel_futures=True)

    # ---- in the compiler's thread --------------------------------------------------------

    def _compile_once(self, key: bytes, source: Source) -> _Compiled | GrammarError:
        found = self._cached(key)
        if found is None:
            try:
                found = self._compile(source)
            except GrammarError as error:
                found = GrammarError(f"Failed to parse {WHAT[source.kind]}: {error}")
            except SchemaError as error:
                found = GrammarError(str(error))
            with self._lock:
                self._cache[key] = found
                if len(self._cache) > CACHED:
                    self._cache.popitem(last=False)
        return found

    def _cached(self, key: bytes) -> _Compiled | GrammarError | None:
        with self._lock:
            if (found := self._cache.get(key)) is not None:
                self._cache.move_to_end(key)
            return found

    def _compile(self, source: Source) -> _Compiled:
        vocabulary = self._vocabularies.get(frozenset(source.shown))
        schemas = prepared(source)
        try:
            matcher, mask = self._begin(vocabulary, translated(source, schemas, self._token_id))
        except GrammarError as error:
            schemas = self._relaxed(vocabulary, source, schemas, error)
            matcher, mask = self._begin(vocabulary, translated(source, schemas, self._token_id))
        waiting = Waiting(matcher, vocabulary, source.triggers) if source.triggers else None
        relaxed = (where for schema in schemas.values() for where in schema.relaxed)
        return _Compiled(matcher, mask, vocabulary, waiting, tuple(dict.fromkeys(relaxed)))

    def _begin(self, vocabulary: Vocabulary, grammar: str) -> tuple[LLMatcher, _Mask]:
        matcher = LLMatcher(vocabulary.tokenizer, grammar, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise GrammarError(_reason(matcher))
        try:
            return matcher, self._next(matcher, None)
        except ConstraintError as error:
            raise GrammarError(str(error)) from None

    def _relaxed(
        self,
        vocabulary: Vocabulary,
        source: Source,
        schemas: Mapping[str, Prepared],
        error: GrammarError,
    ) -> dict[str, Prepared]:
        """`schemas`, of which those that don't compile have less in them. Raises SchemaError if
        one is at fault by itself, `error` if none is."""
        relaxed = dict(schemas)
        for name, named in named_schemas(source).items():
            try:
                relaxed[name] = self._compilable(vocabulary, named, schemas[name])
            except GrammarError as fault:
                raise SchemaError(f"Failed to parse {named.name}: {fault}") from None
        if relaxed == schemas:
            raise error
        return relaxed

    def _compilable(self, vocabulary: Vocabulary, named: NamedSchema, schema: Prepared) -> Prepared:
        """`schema`, with as little left out of it as lets it compile. Raises GrammarError."""
        try:
            self._begin(vocabulary, alone(schema))
        except GrammarError as error:
            for leniency in more_lenient(named.schema, error):
                with suppress(GrammarError):
                    lenient = prepare(named.schema, named.at, leniency)
                    self._begin(vocabulary, alone(lenient))
                    return lenient
            raise
        return schema

    def _token_id(self, written: str) -> int | None:
        """The token of `<text>`, or the id itself if it is in the vocabulary."""
        if written.isdecimal():
            id = int(written)
            return id if id < self._model.n_vocab else None
        ids = self._model.tokenize(written.encode(), add_special=False, parse_special=True)
        return int(ids[0]) if len(ids) == 1 else None

    # ---- in the threads for masks --------------------------------------------------------

    def _next(self, matcher: LLMatcher, last: _Mask | None) -> _Mask:
        """The tokens that `matcher` allows next; `last` itself if they haven't changed."""
        begun = time.perf_counter()
        bits = matcher.compute_bitmask()
        if matcher.is_error():
            raise ConstraintError(_reason(matcher))
        seconds = time.perf_counter() - begun
        if last is not None and bits == last.bits:
            return replace(last, seconds=seconds)
        flags: npt.NDArray[np.uint8] = np.unpackbits(
            np.frombuffer(bits, np.uint8), count=self._model.n_vocab, bitorder="little"
        )
        allowed = np.flatnonzero(flags.view(np.bool_)).astype(np.int32)
        if not len(allowed):
            raise ConstraintError("no token can come next")
        ended = len(allowed) <= len(self._eog) and bool(np.isin(allowed, self._eog).all())
        return _Mask(bits, allowed, ended, seconds)


def _shown(params: GenerationParams) -> frozenset[int]:
    return frozenset(token for token in params.preserved_tokens if isinstance(token, int))


def _reason(matcher: LLMatcher) -> str:
    """llguidance's error without the state of its parser."""
    message = matcher.get_error().split("\n<")[0].strip()
    for marker, meaning in _MEANINGS.items():
        if marker in message:
            return meaning
    return message or "no text can match"


_COMPLEX = "the constraint is too complex, or forces a text without end"
_MEANINGS = {
    "panic": "it is too large",
    "NoExtensionBias": "no text can match",
    "oo many": _COMPLEX,
    "TooComplex": _COMPLEX,
    "fuel": _COMPLEX,
    "max is": _COMPLEX,
}
