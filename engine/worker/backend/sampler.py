"""Sampler chains: from logits to a token."""

import ctypes
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from specllama.engine.params import GenerationParams
from specllama.engine.worker.backend.candidates import CandidateRows, Candidates
from specllama.engine.worker.backend.context import Context
from specllama.engine.worker.backend.model import Model
from specllama.engine.worker.backend.row_scan import Top, top
from specllama.engine.worker.backend.sampler_chain import (
    ARGMAX,
    SamplerSpec,
    Shortlist,
    effective,
    n_sufficient,
    plan,
    shortlist,
    window,
)
from specllama.engine.worker.tokens import TokenArray, TokenBuffer, TokenSet

Floats = npt.NDArray[np.float32]


def largest(values: Floats, n: int) -> npt.NDArray[np.integer]:
    """The indices of the `n` (at least 1) largest `values`, the largest first; equal ones in their
    order."""
    if n == 1:
        return np.array([values.argmax()])
    found = top(values, n)
    return np.argsort(-values, kind="stable")[:n] if found is None else found.largest(n)


FEW = 8192
"""Up to so many tokens, the chain itself is as fast as making a shortlist."""
SPARE, MORE = 2, 16
"""Where some tokens may be forbidden, biased or penalized, shortlists have `SPARE` times the needed
tokens, and `MORE`."""
_NO_ID = np.iinfo(np.int32).max
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
        specs, n_used = effective(plan(params, n_ctx)), window(params, n_ctx)
        self.n_sufficient = n_sufficient(specs, n_used)
        """The number of the likeliest tokens of any row that are sufficient for a choice; None if
        no number is known."""
        self.is_offloaded = False
        """True if the model's device finds these tokens, so that the host has no rows."""
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
        self._n_vocab = model.n_vocab
        self._remembers = any(spec.name in _WITH_MEMORY for spec in specs)
        # The tokens whose logits samplers may change, without duplicates: biased or already used
        # ones.
        self._known = set(self._biased.tolist())
        self._changed = TokenBuffer(np.array([*self._known], np.int32))
        if n_used:
            for token in history[-n_used:].tolist():
                self._accept(token)

    def _accept(self, token: int) -> None:
        if self._remembers:
            C.llama_sampler_accept(self._chain, token)
            self._note(token)

    def _note(self, token: int) -> None:
        if self._edits and token not in self._known:
            self._known.add(token)
            self._changed.append(token)

    def wanted(self, *, is_limited: bool) -> float | None:
        """The tokens of a row that are usually sufficient for the next choice, as an argument of
        `engine.worker.backend.row_scan.RowScan.tops`; None if there is no such number.
        `is_limited`: not every token is allowed."""
        short = self._short
        if short is None or self._n_vocab <= FEW or self.is_offloaded:
            return None
        if short.n:
            if is_limited or len(self._changed):
                return SPARE * short.n + MORE
            return 1 if self._is_argmax else max(2, short.n)
        return None if is_limited or len(self._changed) else float(np.log(short.min_p))

    @property
    def _is_argmax(self) -> bool:
        return self._short == ARGMAX and not len(self._biased)

    @property
    def is_simple(self) -> bool:
        """True if `choose_together` can use it: a shortlist is sufficient, and no sampler changes
        the logits of single tokens."""
        short = self._short
        return short is not None and self._n_vocab > FEW and self._keeps_logits

    @property
    def _keeps_logits(self) -> bool:
        """True if no sampler changes the logits of single tokens."""
        return self._edits is None and not len(self._biased)

    def sample(
        self,
        context: Context,
        index: int,
        allowed: TokenSet | None = None,
        found: Top | None = None,
    ) -> int:
        """Choose a token from the logits of batch position `index` (an output of the last decode,
        or a kept one), and record it for the penalties.

        With `allowed` (at least one token), the chain gets only these tokens; raises
        `NoTokenError` if the samplers remove all of them. `found` are the likeliest tokens of this
        row, as many as `wanted` or more; by default, they are searched if needed.
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
        self,
        context: Context,
        index: int,
        allowed: TokenSet | None = None,
        found: Top | None = None,
    ) -> tuple[int, npt.NDArray[np.int32], Floats]:
        """As `sample`. Also returns copies of the ids and the probabilities of the candidates that
        the chain has left, unordered."""
        candidates = context.candidates
        token = self._choose(context.logits(index), candidates, allowed, found)
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
        allowed: TokenSet | None,
        found: Top | None = None,
    ) -> int:
        """The chosen token. Afterwards, `candidates` has the tokens that the chain has left."""
        if not self._apply_short(row, candidates, allowed, found):
            ids = None if allowed is None else allowed.ids
            self._among(ids, row if ids is None else row.take(ids), candidates)
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

    def _choose_soon(self, context: Context, index: int, found: Top | None) -> int | None:
        """A token chosen from a shortlist; None if that isn't possible."""
        if context.model.n_vocab <= FEW or self._short is None:
            return None
        if self._is_argmax and found is not None:
            return found.likeliest
        row = context.logits(index)
        if self._is_argmax:
            token = int(row.argmax())
            return token if row[token] == row[token] else None  # None for NaN
        candidates = context.candidates
        return candidates.chosen[0] if self._apply_short(row, candidates, None, found) else None

    def _apply_short(
        self, row: Floats, candidates: Candidates, allowed: TokenSet | None, found: Top | None
    ) -> bool:
        """Apply the chain to the tokens that it can choose at all. Returns False if these aren't
        known."""
        short = self._short
        if short is None or (len(row) if allowed is None else len(allowed)) <= FEW:
            return False
        for ids, logits, least in self._shortlists(row, allowed, found):
            values = candidates.fill(ids, logits)
            self._edit(values, candidates, ids)
            if not short.n or _are_the_largest(values, short, least):
                C.llama_sampler_apply(self._rest, candidates.pointer)
                return True
        return False

    def _shortlists(
        self, row: Floats, allowed: TokenSet | None, found: Top | None
    ) -> Iterator[Top]:
        """Shortlists to try, the cheapest first. Each has all allowed tokens with logits of at
        least `Top.least`, and all changed ones."""
        changed = self._changed.view()
        n_most = max(2, self._short.n + len(changed)) if self._short is not None else 0
        wanted = self.wanted(is_limited=allowed is not None)
        if wanted is None:
            return
        if allowed is None or allowed.has_many:
            found = top(row, wanted) if found is None else found
            if found is not None:
                yield _adjusted(found, row, changed, allowed)
        if allowed is not None:
            found = top(row.take(allowed.ids), n_most)
            if found is not None:
                found = found._replace(ids=allowed.ids[found.ids])
                yield _adjusted(found, row, changed, allowed) if len(changed) else found
        elif n_most > wanted:
            found = top(row, n_most)
            if found is not None:
                yield _adjusted(found, row, changed, allowed)

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


def choose_together(samplers: Sequence[Sampler], rows: Sequence[Top]) -> list[int | None]:
    """The choice of each of the `samplers`, for which `is_simple` must be true, as by
    `Sampler.sample` with the found tokens `rows`; None where that needs more than these. One call
    for all takes a fraction of the time of one for each."""
    chosen: list[int | None] = [None] * len(rows)
    several: list[int] = []
    n_wanted: list[int] = []
    for at, (sampler, row) in enumerate(zip(samplers, rows, strict=True)):
        if sampler._is_argmax:
            chosen[at] = row.likeliest if len(row.ids) else None
        else:
            several.append(at)
            n_wanted.append(sampler._short.n if sampler._short is not None else 0)
    if not several:
        return chosen
    enough = have_unique_order([rows[at].logits for at in several], n_wanted)
    several = [at for at, is_enough in zip(several, enough, strict=True) if is_enough]
    if several:
        ids = np.concatenate([rows[at].ids for at in several])
        logits = np.concatenate([rows[at].logits for at in several])
        candidates = CandidateRows(ids, logits, [len(rows[at].ids) for at in several])
        _apply(samplers, several, candidates, chosen)
    return chosen


def choose_found(
    samplers: Sequence[Sampler], ids: TokenArray, logits: Floats, candidates: Candidates
) -> list[int | None]:
    """The choice of each of the `samplers` from a row of `ids` and `logits` (len(samplers), n),
    which are at least `n_sufficient` of its likeliest tokens, in any order. The token is the same
    as by `Sampler.sample` unless logits are equal. None where the largest isn't finite."""
    chosen: list[int | None] = [None] * len(samplers)
    highest = logits.max(axis=1)
    are_numbers = (highest > -np.inf).tolist()  # not for NaN
    likeliest: list[int] = []
    if any(sampler._is_argmax for sampler in samplers):
        # Of equal ones, the first.
        likeliest = np.where(logits == highest[:, None], ids, _NO_ID).min(axis=1).tolist()
    together: list[int] = []
    for at, (sampler, is_number) in enumerate(zip(samplers, are_numbers, strict=True)):
        if not is_number:
            continue
        if sampler._is_argmax:
            chosen[at] = likeliest[at]
        elif sampler._keeps_logits:
            together.append(at)
        else:
            order = ids[at].argsort()
            sampler._among(ids[at][order], logits[at][order], candidates)
            chosen[at] = sampler._finish(candidates, is_limited=False)
    if together:
        counts = [ids.shape[1]] * len(together)
        rows = CandidateRows(ids[together].ravel(), logits[together].ravel(), counts)
        _apply(samplers, together, rows, chosen)
    return chosen


def _apply(
    samplers: Sequence[Sampler],
    places: Sequence[int],
    rows: CandidateRows,
    chosen: list[int | None],
) -> None:
    """Put the choice of the samplers at these `places`, which change no single logits, from `rows`
    into `chosen`, and record it."""
    tokens = rows.apply([samplers[at]._rest for at in places])
    for at, token in zip(places, tokens, strict=True):
        samplers[at]._accept(token)
        chosen[at] = token


def have_unique_order(rows: Sequence[Floats], numbers: Sequence[int]) -> list[bool]:
    """For each of `rows`, True if it has at least its number of logits, and that many of them are
    the largest ones, in a unique order; for the number 0, if it has any. llama.cpp selects no token
    from an empty row."""
    counts = np.array([len(row) for row in rows])
    padded = np.full((len(rows), counts.max() + 1), -np.inf, np.float32)
    padded[np.arange(padded.shape[1]) < counts[:, None]] = np.concatenate(rows)
    padded.sort(axis=1)
    are_equal = padded[:, 1:] == padded[:, :-1]
    wanted = np.array(numbers)
    counts_from = are_equal.shape[1] - np.arange(are_equal.shape[1])  # the rank of the larger one
    matters = counts_from <= wanted[:, None]
    has_enough = counts >= np.maximum(wanted, 1)
    found: list[bool] = (has_enough & ~(are_equal & matters).any(axis=1)).tolist()
    return found


def _are_among(ids: TokenArray, sorted_ids: TokenArray) -> npt.NDArray[np.bool_]:
    """For each of `ids`, True if it is in `sorted_ids`, which must not be empty."""
    at = np.minimum(sorted_ids.searchsorted(ids), len(sorted_ids) - 1)
    among: npt.NDArray[np.bool_] = sorted_ids[at] == ids
    return among


def _adjusted(found: Top, row: Floats, changed: TokenArray, allowed: TokenSet | None) -> Top:
    """`found` with the tokens `changed`, and without tokens that aren't `allowed`."""
    ids, logits, least = found
    if len(changed):
        values = row[changed]
        more = ~(values >= least)  # the others are in `found`
        ids = np.concatenate((ids, changed[more]))
        order = ids.argsort()
        ids, logits = ids[order], np.concatenate((logits, values[more]))[order]
    adjusted = Top(ids, logits, least)
    return adjusted if allowed is None else adjusted.among(allowed)


def _are_the_largest(values: Floats, short: Shortlist, least: float) -> bool:
    """True if the `short.n` largest of `values` are also the largest together with any values below
    `least`. Unless `short.by_order`, they must also have a unique order."""
    n = short.n
    if len(values) < n:
        return False
    ordered = np.sort(values)[-n - 1 :]
    if not ordered[-n] >= least:  # also for NaN
        return False
    return short.by_order or bool((ordered[1:] > ordered[:-1]).all())


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
