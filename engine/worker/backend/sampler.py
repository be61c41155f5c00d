"""Sampler chains: from logits to a token."""

import ctypes
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.params import GenerationParams
from specllama.engine.worker.backend.candidates import Candidates
from specllama.engine.worker.backend.context import Context
from specllama.engine.worker.backend.model import Model
from specllama.engine.worker.backend.sampler_chain import (
    ARGMAX,
    SamplerSpec,
    effective,
    plan,
    shortlist,
    window,
)
from specllama.engine.worker.tokens import TokenArray, TokenBuffer

# ---- The largest of many values, without sorting them.


Floats = npt.NDArray[np.float32]

MIN_GROUPS = 1024


def floor(values: Floats, n: int) -> float:
    """A value that at least `n` of `values` (1 <= n <= their number) reach, and few more than
    that: no larger than the n-th largest, and -inf where only all of them are enough.

    It is the n-th largest of the maxima of disjoint groups. Finding these and looking for what
    reaches it takes a tenth of the time of a partition of all values.
    """
    n_groups = max(4 * n, MIN_GROUPS)
    rows = len(values) // n_groups
    if rows > 1:
        values = values[: rows * n_groups].reshape(rows, n_groups).max(axis=0)
    return float(np.partition(values, -n)[-n]) if n < len(values) else -np.inf


def largest(values: Floats, n: int) -> npt.NDArray[np.intp]:
    """The indices of the `n` (at least 1) largest of `values`, the largest first; of equal ones,
    the first comes first."""
    if n == 1:
        return np.array([values.argmax()])
    least = floor(values, n)
    # A comparison would lose those that are not numbers.
    where = np.flatnonzero(values >= least) if least > -np.inf else np.arange(len(values))
    return where[np.argsort(-values[where], kind="stable")[:n]]


FEW = 8192
"""Among so many tokens the chain chooses as fast as a shortlist is made."""
SPARE = 4
"""Looks for this many times the tokens that are needed: some may not be allowed, and the next
token's logits may be lower."""
MIN_P_SLACK = 1e-3
"""Relative to the logits: far more than their rounding."""
_NO_LOGIT = np.zeros(1, np.float32)
INFILL_AMONG = 256
"""The infill sampler compares the text of every candidate with that of every other one."""


class NoTokenError(Exception):
    """The samplers leave no token that is allowed."""


class Sampler:
    """A sampler chain for one request, on the CPU.

    `history` are the prompt's tokens, which the penalties look at. Several that are `slow` may
    `sample` at the same time.

    llama.cpp's samplers copy and sort the whole vocabulary, which takes as long as a small
    model's evaluation. Most chains look at a few dozen tokens in the end, and one pass over the
    logits finds these: the chain then sees no others, and does with them exactly what it would
    have done (`engine.worker.backend.sampler_chain.Shortlist`). Where that is not certain, it sees
    all.
    """

    def __init__(
        self, model: Model, params: GenerationParams, n_ctx: int, history: TokenArray
    ) -> None:
        specs = effective(plan(params, n_ctx))
        self._chain = make_chain(model, [])  # which owns the others
        biases: Sequence[tuple[int, float]] = ()
        if specs[0].name == "logit_bias":
            biases = specs[0].args[0]
            C.llama_sampler_chain_add(self._chain, _make_sampler(model, *specs.pop(0)))
        self._biased = np.array([token for token, _ in biases], np.int32)
        self._biases = np.array([bias for _, bias in biases], np.float32)
        self._short = shortlist(specs)
        n_edits = self._short.n_edits if self._short is not None else 0
        self._edits = make_chain(model, specs[:n_edits]) if n_edits else None
        if self._edits:
            C.llama_sampler_chain_add(self._chain, self._edits)
        self._rest = make_chain(model, specs[n_edits:])
        C.llama_sampler_chain_add(self._chain, self._rest)
        self.slow = self._short is None and model.n_vocab > FEW
        self._least = np.inf  # the logit from which on the last shortlist was taken
        self._remembers = any(spec.name in _WITH_MEMORY for spec in specs)
        # The tokens whose logits samplers may change: with a bias, or said before; each once.
        self._known = set(self._biased.tolist())
        self._changed = TokenBuffer(np.array([*self._known], np.int32))
        if size := window(params, n_ctx):
            for token in history[-size:].tolist():
                self._accept(token)

    def _accept(self, token: int) -> None:
        if self._remembers:
            C.llama_sampler_accept(self._chain, token)
            self._note(token)

    def _note(self, token: int) -> None:
        if self._edits and token not in self._known:
            self._known.add(token)
            self._changed.append(token)

    @property
    def bound(self) -> float | None:
        """The logit from which on the next choice looks at tokens: infinity if the likeliest token
        is chosen, None if that isn't known before."""
        if self._short is None:
            return None
        if self._is_argmax:
            return np.inf
        return self._least if self._short.n and self._least < np.inf else None

    @property
    def _is_argmax(self) -> bool:
        return self._short == ARGMAX and not len(self._biased)

    def sample(
        self,
        context: Context,
        index: int,
        allowed: TokenArray | None = None,
        found: TokenArray | None = None,
    ) -> int:
        """Choose a token from the logits of batch position `index`, an output of the last decode
        or what the context has kept, and remember it for the penalties.

        Of `allowed` tokens (ids in ascending order, at least one) the chain sees no others;
        raises `NoTokenError` if the samplers remove all of them. `found` are the tokens whose
        logits reach `bound`, if `engine.worker.backend.row_scan` has searched this row.
        """
        if allowed is None and index < context.n_batch:
            token = self._choose_soon(context, index, found)
            if token is not None:
                self._accept(token)
                return token
            token = int(C.llama_sampler_sample(self._chain, context._ctx, index))  # accepts, too
            self._note(token)
            return token
        return self._choose(context.logits(index), context.candidates, allowed, found)

    def sample_among(
        self, context: Context, index: int, allowed: TokenArray | None = None
    ) -> tuple[int, npt.NDArray[np.int32], Floats]:
        """The same as `sample`, with the candidates that the chain left, in no order: their
        ids and their probabilities, copied."""
        candidates = context.candidates
        token = self._choose(context.logits(index), candidates, allowed)
        left = candidates.left
        return token, left["id"].copy(), left["p"].copy()

    def take(self, token: int) -> None:
        """Go on as `sample` does where `token` is the only one allowed: what a sampler learns and
        draws then depends on no logit. Raises NoTokenError as `sample` does."""
        self._among(np.array([token], np.int32), _NO_LOGIT, self._single)
        self._finish(self._single, is_limited=True)

    @cached_property
    def _single(self) -> Candidates:
        return Candidates(1)

    def _choose(
        self,
        row: Floats,
        candidates: Candidates,
        allowed: TokenArray | None,
        found: TokenArray | None = None,
    ) -> int:
        """The chosen token; `candidates` are what the chain leaves, then."""
        if not self._apply_short(row, candidates, allowed, found):
            self._among(allowed, row if allowed is None else row.take(allowed), candidates)
        return self._finish(candidates, is_limited=allowed is not None)

    def _among(self, ids: TokenArray | None, logits: Floats, candidates: Candidates) -> None:
        """Apply the chain to the tokens `ids`, or all there are, with their logits."""
        values = candidates.fill(ids, logits)
        self._edit(values, candidates, ids)
        C.llama_sampler_apply(self._rest, candidates.pointer)

    def _finish(self, candidates: Candidates, *, is_limited: bool) -> int:
        """The token that the chain has chosen, remembered."""
        if is_limited and not (candidates.has_chosen and candidates.chosen[1] > -np.inf):
            raise NoTokenError("logit_bias forbids every token that may come next")
        token, _ = candidates.chosen
        self._accept(token)
        return token

    def _choose_soon(self, context: Context, index: int, found: TokenArray | None) -> int | None:
        """A token from among few candidates, if that can be done."""
        if context.model.n_vocab <= FEW or self._short is None:
            return None
        row = context.logits(index)
        if self._is_argmax:
            token = int(row.argmax() if found is None else found[0])
            return token if row[token] == row[token] else None  # not a number
        candidates = context.candidates
        if not self._apply_short(row, candidates, None, found):
            return None
        return candidates.chosen[0]

    def _apply_short(
        self,
        row: Floats,
        candidates: Candidates,
        allowed: TokenArray | None,
        found: TokenArray | None,
    ) -> bool:
        """Let the chain choose among those of the candidates that it can choose at all. False
        if that is not known."""
        short, changed = self._short, self._changed.view()
        n_all = len(row) if allowed is None else len(allowed)
        if short is None or n_all <= FEW:
            return False
        limit = n_all // 8
        if short.n:
            n = short.n + len(changed)
            n = n if allowed is None else SPARE * n
            if SPARE * n > limit:
                return False
            # Mostly what was good for the last token is good again, and saves looking for it.
            least = self._least
            if found is None or self._is_argmax:
                ids = candidates.reaching(row, least, limit // 2, changed)
            else:
                ids = np.union1d(found, changed) if len(changed) else found
                ids = ids if len(ids) <= limit // 2 else ids[:0]
            if len(ids) < n:
                least = self._least = floor(row, SPARE * n)
                ids = candidates.reaching(row, least, limit, changed)
        elif allowed is None and not len(changed):
            highest = float(row.max())
            least = highest + np.log(short.min_p) - MIN_P_SLACK * (1 + abs(highest))
            ids = candidates.reaching(row, least, limit, changed)
        else:
            return False
        if len(ids) < max(1, short.n):
            return False
        if allowed is not None:
            ids = ids[_are_among(ids, allowed)]
            if len(ids) < short.n:
                return False
        values = candidates.fill(ids, row[ids])
        self._edit(values, candidates, ids)
        if short.n and not _are_the_largest(values, short.n, least, distinct=not short.by_order):
            return False
        C.llama_sampler_apply(self._rest, candidates.pointer)
        return True

    def _edit(self, values: Floats, candidates: Candidates, ids: TokenArray | None) -> None:
        """Apply biases and penalties to the candidates, which are `ids` with logits `values`."""
        if len(self._biased):
            # llama.cpp looks for tokens out of their places, and finds each only once.
            if ids is None:
                np.add.at(values, self._biased, self._biases)
            else:
                there = _are_among(self._biased, ids)
                at = ids.searchsorted(self._biased[there])
                np.add.at(values, at, self._biases[there])
        if self._edits:
            C.llama_sampler_apply(self._edits, candidates.pointer)

    def close(self) -> None:
        if self._chain:
            C.llama_sampler_free(self._chain)
            self._chain = self._edits = self._rest = None


def _are_among(ids: TokenArray, sorted_ids: TokenArray) -> npt.NDArray[np.bool_]:
    """True for those of `ids` that are among the others, of which there is at least one."""
    at = np.minimum(sorted_ids.searchsorted(ids), len(sorted_ids) - 1)
    among: npt.NDArray[np.bool_] = sorted_ids[at] == ids
    return among


def _are_the_largest(values: Floats, n: int, least: float, *, distinct: bool) -> bool:
    """True if the `n` largest of `values` are so beside any number of others below `least`. With
    `distinct`, and whether sorting them has only one result."""
    ordered = np.sort(values)[-n - 1 :]
    if not ordered[-n] >= least:  # or it is not a number
        return False
    return not distinct or bool((ordered[1:] > ordered[:-1]).all())


_WITH_MEMORY = ("penalties", "dry", "adaptive_p")


def make_chain(model: Model, specs: Sequence[SamplerSpec]) -> Any:
    """A `llama_sampler` that applies `specs` one after the other; the caller frees it."""
    params = C.llama_sampler_chain_default_params()
    params.no_perf = True
    chain = C.llama_sampler_chain_init(params)
    for name, args in specs:
        C.llama_sampler_chain_add(chain, _make_sampler(model, name, args))
    return chain


def _make_sampler(model: Model, name: str, args: tuple[Any, ...]) -> Any:
    match name:
        case "penalties":
            return C.llama_sampler_init_penalties(model.n_vocab, *args)
        case "dry":
            *shape, breakers = args
            texts = [text.encode() for text in breakers]
            array = (ctypes.c_char_p * len(texts))(*texts)
            return C.llama_sampler_init_dry(model._vocab, *shape, array, len(texts))
        case "logit_bias":
            (biases,) = args
            array = (C.llama_logit_bias * len(biases))(*biases)
            return C.llama_sampler_init_logit_bias(model.n_vocab, len(biases), array)
        case "mirostat":
            return C.llama_sampler_init_mirostat(model.n_vocab, *args)
        case "infill":
            few = make_chain(model, [SamplerSpec("top_k", (INFILL_AMONG,))])
            C.llama_sampler_chain_add(few, C.llama_sampler_init_infill(model._vocab))
            return few
        case _:
            return getattr(C, f"llama_sampler_init_{name}")(*args)
