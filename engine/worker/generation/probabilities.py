"""Probabilities of tokens, for the requests that ask (`n_probs`): generated ones, and the prompt's.

The model's own probabilities are the softmax of its logits, before any bias, constraint or
sampler; those "post sampling" are what the sampler chain makes of them.
"""

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from specllama.engine.wire.replies import TokenProbs
from specllama.engine.worker.backend import Context, Sampler
from specllama.engine.worker.backend.sampler import Floats, largest
from specllama.engine.worker.tokens import TokenArray

Ids = npt.NDArray[np.int32] | npt.NDArray[np.intp]

LOWEST = float(np.finfo(np.float32).min)
"""Stands in for the logarithm of 0, which JSON can't write."""


def log_sum_exp(logits: Floats) -> float:
    """log(sum(exp(logits))), which turns logits into logarithms of probabilities by
    subtraction."""
    highest = logits.max()
    scaled = logits - highest
    np.exp(scaled, out=scaled)
    return float(highest) + float(np.log(scaled.sum()))


class ProbabilityLog:
    """Samples the tokens of one request, and keeps their probabilities until the text that
    they belong to is sent.

    `n_top` rivals (or all there are) are noted for each token; `piece` gives a token's bytes.
    """

    def __init__(self, n_top: int, post_sampling: bool, piece: Callable[[int], bytes]) -> None:
        self._n_top = n_top
        self._post_sampling = post_sampling
        self._piece = piece
        self._kept: deque[tuple[int, TokenProbs]] = deque()  # with where the token's text begins
        self._n_shown = 0  # characters
        self._n_decoded = 0  # characters, those that are held back included

    def sample(
        self, sampler: Sampler, context: Context, index: int, allowed: TokenArray | None = None
    ) -> int:
        """Choose the next token from the logits at batch position `index`, and note it;
        `allowed` and what is raised are as in `Sampler.sample`."""
        if self._post_sampling:
            token, ids, probs = sampler.sample_among(context, index, allowed)
            np.nan_to_num(probs, copy=False)  # where every token is forbidden
            top = largest(probs, min(self._n_top, len(probs)))
            top = top[probs[top] > 0]
            self._note(token, float(probs[ids == token][0]), ids[top], probs[top])
        else:
            # Before sampling, as the logits of tokens that are ruled out may be overwritten.
            logits = context.logits(index)
            total = log_sum_exp(logits)
            top = largest(logits, min(self._n_top, len(logits)))
            top_values = logits[top].astype(np.float64) - total
            token = sampler.sample(context, index, allowed)
            self._note(token, float(logits[token]) - total, top, top_values)
        return token

    def _note(self, token: int, value: float, ids: Ids, values: npt.NDArray[np.floating]) -> None:
        rivals = [
            (id, self._piece(id), max(LOWEST, rival))  # the lowest for NaN, too
            for id, rival in zip(ids.tolist(), values.tolist(), strict=True)
        ]
        entry = TokenProbs(token, self._piece(token), max(LOWEST, value), rivals)
        self._kept.append((self._n_decoded, entry))

    def shown(self, n_new: int, n_held: int) -> None:
        """The last token has shown `n_new` characters, and `n_held` are held back now."""
        self._n_shown += n_new
        self._n_decoded = self._n_shown + n_held

    def take(self, *, all: bool = False) -> list[TokenProbs]:
        """Those, once each, of the tokens whose text has begun to show; or all."""
        taken = []
        while self._kept and (all or self._kept[0][0] < self._n_shown):
            taken.append(self._kept.popleft()[1])
        return taken


class PromptProbabilities:
    """The model's own probabilities of the tokens of one prompt, each behind those before it, with
    `n_top` rivals. `piece` gives a token's bytes. A step has the logits of at most `n_outputs`
    tokens."""

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
        """Tokens of the prompt, from `start` on, have their logits at `indices` of the batch."""
        for place, index in enumerate(indices, start + 1):
            if place < len(self._tokens):
                self._entries[place] = self._entry(self._tokens[place], context.logits(index))

    def take(self) -> list[TokenProbs]:
        """Those of all tokens, once."""
        if self._is_taken:
            return []
        self._is_taken, taken, self._entries = True, self._entries, []
        return taken

    def _entry(self, token: int, logits: Floats) -> TokenProbs:
        total = log_sum_exp(logits)
        top = largest(logits, min(self._n_top, len(logits)))
        values = logits[top].astype(np.float64) - total
        rivals = [
            (id, self._piece(id), max(LOWEST, value))
            for id, value in zip(top.tolist(), values.tolist(), strict=True)
        ]
        return TokenProbs(
            token, self._piece(token), max(LOWEST, float(logits[token]) - total), rivals
        )
