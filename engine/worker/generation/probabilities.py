"""Probabilities of generated and prompt tokens, for requests with `n_probs`.

The model's own probabilities are the softmax of its logits, before any bias, constraint or sampler.
"Post sampling" probabilities are the result of the sampler chain.
"""

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from specllama.engine.wire.replies import TokenProbs
from specllama.engine.worker.backend import Context, Sampler
from specllama.engine.worker.backend.row_scan import Top, log_sum_exp, top
from specllama.engine.worker.backend.sampler import Floats, largest
from specllama.engine.worker.tokens import TokenArray, TokenSet

Ids = npt.NDArray[np.integer]

LOWEST = float(np.finfo(np.float32).min)
"""Stands in for the logarithm of 0, which JSON can't write."""


class ProbabilityLog:
    """Samples the tokens of one request, and keeps their probabilities until their text is sent.

    For each token, the `n_top` most probable ones are recorded as rivals (fewer if there are
    fewer); `piece` returns a token's bytes.
    """

    def __init__(self, n_top: int, post_sampling: bool, piece: Callable[[int], bytes]) -> None:
        self.n_top = n_top
        self.post_sampling = post_sampling
        self._piece = piece
        self._kept: deque[tuple[int, TokenProbs]] = deque()  # with the start of the token's text
        self._n_shown = 0  # characters
        self._n_decoded = 0  # characters, including held-back ones

    def sample(
        self,
        sampler: Sampler,
        context: Context,
        index: int,
        allowed: TokenSet | None = None,
        found: Top | None = None,
        total: float | None = None,
        chosen: int | None = None,
    ) -> int:
        """Choose and record the next token from the logits at batch position `index`. `allowed`,
        `found` and the errors are as in `Sampler.sample`; `total` is the `log_sum_exp` of the
        logits, if it is known. `chosen` is the token, if it is chosen already."""
        if self.post_sampling:
            token, ids, probs = sampler.sample_among(context, index, allowed, found)
            np.nan_to_num(probs, copy=False)  # NaN if every token is forbidden
            rivals = largest(probs, min(self.n_top, len(probs)))
            rivals = rivals[probs[rivals] > 0]
            self._note(token, float(probs[ids == token][0]), ids[rivals], probs[rivals])
        else:
            # Before sampling, which may overwrite the logits of forbidden tokens.
            logits = context.logits(index)
            total = log_sum_exp(logits) if total is None else total
            n = min(self.n_top, len(logits))
            wanted = sampler.wanted(is_limited=allowed is not None)
            if found is None and wanted is not None and wanted > 0:
                found = top(logits, max(wanted, n))  # for both
            rivals = largest(logits, n) if found is None else found.largest(n)
            values = logits[rivals].astype(np.float64) - total
            if chosen is None:
                chosen = sampler.sample(context, index, allowed, found)
            token = chosen
            self._note(token, float(logits[token]) - total, rivals, values)
        return token

    def _note(self, token: int, value: float, ids: Ids, values: npt.NDArray[np.floating]) -> None:
        rivals = [
            (id, self._piece(id), max(LOWEST, rival))  # `LOWEST` for NaN, too
            for id, rival in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        entry = TokenProbs(token, self._piece(token), max(LOWEST, value), rivals)
        self._kept.append((self._n_decoded, entry))

    def shown(self, n_new: int, n_held: int) -> None:
        """Record that the last token has shown `n_new` characters, and that `n_held` are held back
        now."""
        self._n_shown += n_new
        self._n_decoded = self._n_shown + n_held

    def take(self, *, all: bool = False) -> list[TokenProbs]:
        """Returns and removes the entries of tokens whose text has begun to be shown; or all
        entries."""
        taken = []
        while self._kept and (all or self._kept[0][0] < self._n_shown):
            taken.append(self._kept.popleft()[1])
        return taken


class PromptProbabilities:
    """The model's own probability of each token of one prompt, given the tokens before it, with
    `n_top` rivals. `piece` returns a token's bytes. A step computes the logits of at most
    `n_outputs` tokens."""

    def __init__(
        self, tokens: TokenArray, n_top: int, piece: Callable[[int], bytes], n_outputs: int
    ) -> None:
        self.n_outputs = n_outputs
        self._tokens = tokens.tolist()
        self._n_top = n_top
        self._piece = piece
        self._entries = [TokenProbs(id, piece(id), 0.0, []) for id in self._tokens]
        self._is_taken = False

    def note(self, context: Context, start: int, indices: Iterable[int]) -> None:
        """Record the probabilities after the prompt's tokens from `start` on, from the logits at
        `indices` of the batch."""
        for place, index in enumerate(indices, start + 1):
            if place < len(self._tokens):
                self._entries[place] = self._entry(self._tokens[place], context.logits(index))

    def take(self) -> list[TokenProbs]:
        """Returns the entries of all tokens, the first time only."""
        if self._is_taken:
            return []
        self._is_taken, taken, self._entries = True, self._entries, []
        return taken

    def _entry(self, token: int, logits: Floats) -> TokenProbs:
        total = log_sum_exp(logits)
        ids = largest(logits, min(self._n_top, len(logits)))
        values = logits[ids].astype(np.float64) - total
        rivals = [
            (id, self._piece(id), max(LOWEST, value))
            for id, value in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        return TokenProbs(
            token, self._piece(token), max(LOWEST, float(logits[token]) - total), rivals
        )
