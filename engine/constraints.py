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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from engine import gbnf, json_schema
from engine.backend import Model
from engine.gbnf import GrammarError
from engine.tokens import TokenArray

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

T = TypeVar("T")
Kind = Literal["grammar", "json_schema"]

CACHED = 64  # compiled grammars that are kept
MASK_THREADS = 2
INLINE_SECONDS = 2e-4
"""After a mask that took less, the next one is computed at once: mostly it takes a few
microseconds, and handing it to another thread would take longer."""
COMPILER_STACK = 256 << 20  # bytes of address space; only what is used becomes memory
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
_JSON_OPTIONS: "JsonCompileOptions" = {
    # As in llama.cpp: models that may go on with white space for ever sometimes do.
    "whitespace_pattern": r" |\n[ \t]{0,20}",
    "lenient": False,
    "coerce_one_of": False,
}
_WHAT: dict[Kind, str] = {"grammar": "grammar", "json_schema": "JSON schema"}


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
    """A grammar before its first token; never advanced itself."""

    matcher: LLMatcher
    mask: _Mask


class Constraint:
    """What one generation may still say. Belongs to the thread that steps."""

    def __init__(self, compiled: _Compiled, compiler: "Compiler") -> None:
        self._matcher = compiled.matcher.deep_copy()
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
        """Whether nothing but the end of the text may come next. Waits and raises as
        `allowed` does."""
        return self._current().ended

    def advance(self, token: int) -> bool:
        """Go on behind `token`, which was one of the allowed ones and ends no text, and begin
        to compute what may follow it. True if it is certain already that nothing does.

        Raises ConstraintError.
        """
        mask = self._current()
        if not self._matcher.consume_token(token):
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
        self._tokenizer: LLTokenizer | None = None
        self._eog = np.array(sorted(model.eog), np.int32)
        self._cache: OrderedDict[bytes, _Compiled | GrammarError] = OrderedDict()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = _DeepThread()
        self._masks = ThreadPoolExecutor(MASK_THREADS, thread_name_prefix="mask")

    def prepare(self) -> None:
        """Read the vocabulary in the background, so that the first request needn't wait."""
        self._thread.submit(self._read_vocabulary)

    def constraint(self, grammar: str, schema: str | None) -> Constraint | None:
        """The constraint of a grammar in GBNF or of a JSON schema; None without either.

        The first use of a text compiles it, which may take a second. Raises GrammarError.
        """
        if not grammar and not schema:
            return None
        kind: Kind = "grammar" if grammar else "json_schema"
        text = grammar or schema or ""
        key = kind.encode() + blake2b(text.encode("utf-8", "surrogatepass")).digest()
        found = self._cached(key)
        if found is None:
            found = self._thread.submit(lambda: self._compile_once(key, kind, text)).result()
        if isinstance(found, GrammarError):
            raise GrammarError(str(found))
        return Constraint(found, self)

    def close(self) -> None:
        """Wait for the threads: what they use is the model's."""
        self._closed.set()
        self._thread.close()
        self._masks.shutdown(cancel_futures=True)

    # ---- in the compiler's thread --------------------------------------------------------

    def _read_vocabulary(self) -> LLTokenizer:
        if self._tokenizer is None:
            model = self._model
            vocabulary, tokenize = model.tokenizer_addresses()
            self._tokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # no stub
                tokens=list(self._lexemes()),
                vocab_ptr=vocabulary,
                tokenize_fptr=tokenize,
                eos_token=self._eog.tolist(),
            )
        return self._tokenizer

    def _lexemes(self) -> Iterator[bytes]:
        """The bytes of every token. What doesn't show in a text can't follow a grammar either:
        such tokens begin with a byte that occurs in no text."""
        for token in range(self._model.n_vocab):
            if self._closed.is_set():
                raise GrammarError("the server is shutting down")
            hidden = not self._model.piece(token, special=False)
            piece = self._model.piece(token, special=True)
            yield b"\xff" + piece if hidden and piece else piece

    def _compile_once(self, key: bytes, kind: Kind, text: str) -> _Compiled | GrammarError:
        found = self._cached(key)
        if found is None:
            try:
                found = self._compile(kind, text)
            except GrammarError as error:
                found = GrammarError(f"Failed to parse {_WHAT[kind]}: {error}")
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

    def _compile(self, kind: Kind, text: str) -> _Compiled:
        if kind == "grammar":
            source = LLMatcher.grammar_from_lark(gbnf.to_lark(text, self._token_id))
        else:
            source = LLMatcher.grammar_from_json_schema(
                json_schema.prepare(text), overrides=_JSON_OPTIONS
            )
        matcher = LLMatcher(self._read_vocabulary(), source, log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise GrammarError(_reason(matcher))
        try:
            return _Compiled(matcher, self._next(matcher, None))
        except ConstraintError as error:
            raise GrammarError(str(error)) from None

    def _token_id(self, written: str) -> int | None:
        """The token of `<text>`, or the id itself if it is in the vocabulary."""
        if written.isdecimal():
            id = int(written)
            return id if id < self._model.n_vocab else None
        ids = self._model.tokenize(written.encode(), add_special=False, parse_special=True)
        return int(ids[0]) if len(ids) == 1 else None

    # ---- in the threads for masks --------------------------------------------------------

    def _next(self, matcher: LLMatcher, last: _Mask | None) -> _Mask:
        """What `matcher` allows next; `last` itself if that hasn't changed."""
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


class _DeepThread:
    """One thread with a large stack that does one thing after the other."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="compile")
                before = threading.stack_size(COMPILER_STACK)
                try:
                    # The executor starts its thread with the first piece of work.
                    return self._executor.submit(work)
                finally:
                    threading.stack_size(before)
            return self._executor.submit(work)

    def close(self) -> None:
        with self._lock:
            if self._executor is not None:
                self._executor.shutdown(cancel_futures=True)


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
