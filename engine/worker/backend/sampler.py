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
    """A threshold that at least `n` of `values` (1 <= n <= their number) reach, and few more: at
    most the n-th largest, and -inf if all values are needed.

    It is the n-th largest of the maxima of disjoint groups. Finding it, and then the values that
    reach it, takes a tenth of the time of partitioning all values.
    """
    n_groups = max(4 * n, MIN_GROUPS)
    rows = len(values) // n_groups
    if rows > 1:
        values = values[: rows * n_groups].reshape(rows, n_groups).max(axis=0)
    return float(np.partition(values, -n)[-n]) if n < len(values) else -np.inf


def largest(values: Floats, n: int) -> npt.NDArray[np.intp]:
    """The indices of the `n` (at least 1) largest `values`, the largest first; equal ones in their
    order."""
    if n == 1:
        return np.array([values.argmax()])
    least = floor(values, n)
    # With -inf, a comparison would lose NaN.
    where = np.flatnonzero(values >= least) if least > -np.inf else np.arange(len(values))
    return where[np.argsort(-values[where], kind="stable")[:n]]


FEW = 8192
"""Up to so many tokens, the chain itself is as fast as making a shortlist."""
SPARE = 4
"""Shortlists have this many times the needed tokens: some may not be allowed, and the next token's
logits may be lower."""
MIN_P_SLACK = 1e-3
"""Relative to the logits; far larger than their rounding errors."""
_NO_LOGIT = np.zeros(1, np.float32)
INFILL_AMONG = 256
"""Maximum candidates for the infill sampler, which compares the texts of all pairs."""


class NoTokenError(Exception):
    """The samplers have removed every allowed token."""


class Sampler:
    """A sampler chain for one request, on the CPU.

    `history` are the prompt's tokens, for the penalties. Several `slow` samplers may `sample` in
    parallel.

    llama.cpp's samplers copy and sort the whole vocabulary, which takes as long as evaluating a
    small model. Most chains finally choose among a few dozen tokens, which one pass over the logits
    can find. The chain then gets only these, with exactly the same result
    (`engine.worker.backend.sampler_chain.Shortlist`). Where that isn't certain, it gets all tokens.
    """

    def __init__(
        self, model: Model, params: GenerationParams, n_ctx: int, history: TokenArray
    ) -> None:
        specs = effective(plan(params, n_ctx))
        self._chain = make_chain(model, [])  # owns the other chains
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
        self._least = np.inf  # the threshold of the last shortlist
        self._remembers = any(spec.name in _WITH_MEMORY for spec in specs)
        # The tokens whose logits samplers may change, without duplicates: biased or already used
        # ones.
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
        """The lowest logit that the next choice considers: infinity if it always takes the
        likeliest token, None if the threshold isn't known in advance."""
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
        """Choose a token from the logits of batch position `index` (an output of the last decode,
        or a kept one), and record it for the penalties.

        With `allowed` (ids in ascending order, at least one), the chain gets only these tokens;
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
        """As `sample`. Also returns copies of the ids and the probabilities of the candidates that
        the chain has left, unordered."""
        candidates = context.candidates
        token = self._choose(context.logits(index), candidates, allowed)
        left = candidates.left
        return token, left["id"].copy(), left["p"].copy()

    def take(self, token: int) -> None:
        """Advance as `sample` does if `token` is the only allowed one: then no sampler's state or
        random number depends on logits. Raises NoTokenError as `sample` does."""
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
        """The chosen token. Afterwards, `candidates` has the tokens that the chain has left."""
        if not self._apply_short(row, candidates, allowed, found):
            self._among(allowed, row if allowed is None else row.take(allowed), candidates)
        return self._finish(candidates, is_limited=allowed is not None)

    def _among(self, ids: TokenArray | None, logits: Floats, candidates: Candidates) -> None:
        """Apply the chain to the tokens `ids` (None: all), with their logits."""
        values = candidates.fill(ids, logits)
        self._edit(values, candidates, ids)
        C.llama_sampler_apply(self._rest, candidates.pointer)

    def _finish(self, candidates: Candidates, *, is_limited: bool) -> int:
        """The token that the chain has chosen, recorded for the penalties."""
        if is_limited and not (candidates.has_chosen and candidates.chosen[1] > -np.inf):
            raise NoTokenError("logit_bias forbids every token that may come next")
        token, _ = candidates.chosen
        self._accept(token)
        return token

    def _choose_soon(self, context: Context, index: int, found: TokenArray | None) -> int | None:
        """A token chosen from a shortlist; None if that isn't possible."""
        if context.model.n_vocab <= FEW or self._short is None:
            return None
        row = context.logits(index)
        if self._is_argmax:
            token = int(row.argmax() if found is None else found[0])
            return token if row[token] == row[token] else None  # None for NaN
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
        """Apply the chain to the tokens that it can choose at all. Returns False if these aren't
        known."""
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
            # Usually the last threshold fits again, which saves the search for one.
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
        """Apply biases and penalties to the candidates `ids` with the logits `values`."""
        if len(self._biased):
            # llama.cpp's sampler would search for tokens that are not at their index, and apply
            # only one bias to each.
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
    """For each of `ids`, True if it is in `sorted_ids`, which must not be empty."""
    at = np.minimum(sorted_ids.searchsorted(ids), len(sorted_ids) - 1)
    among: npt.NDArray[np.bool_] = sorted_ids[at] == ids
    return among


def _are_the_largest(values: Floats, n: int, least: float, *, distinct: bool) -> bool:
    """True if the `n` largest of `values` are also the largest together with any values below
    `least`. With `distinct`, they must also have a unique order."""
    ordered = np.sort(values)[-n - 1 :]
    if not ordered[-n] >= least:  # also for NaN
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
