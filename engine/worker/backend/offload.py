"""Finding the likeliest tokens on the model's device, as a part of its graph
(`--backend-sampling`).

Most sampler chains choose among a few dozen of the likeliest tokens
(`engine.worker.backend.sampler_chain`). A device that finds these copies only them to the host, not
the whole row of logits. The chain then runs on the host as usual, so the tokens and the random
numbers are the same. llama.cpp copies all rows of a step if one of them has no sampler on the
device.

llama.cpp runs whole chains on a device as well. But it plans its graphs again for each chain that
starts or ends, and a device orders the candidates in another way, so the same seed gives other
tokens. The sampler here is the same for all requests, so a sequence keeps it.
"""

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as C

from specllama.engine.errors import BackendError
from specllama.engine.worker.backend.context import Context
from specllama.engine.worker.backend.library import failure, view
from specllama.engine.worker.backend.sampler import Floats, Sampler, make_chain
from specllama.engine.worker.backend.sampler_chain import SamplerSpec
from specllama.engine.worker.tokens import TokenArray

log = logging.getLogger(__name__)

N_FOUND = 128
"""The tokens that the device finds in each row. The default chain needs 40, and 64 more if
penalties are set."""
_ID, _LOGIT = np.dtype(np.int32), np.dtype(np.float32)


class Offload:
    """The search of one context's device, with the sequences that use it.

    Tests the device at first, for which the context must be empty. Belongs to the thread that
    decodes, except for `suits`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._chains: dict[int, Any] = {}  # of each sequence whose tokens the device finds
        self.n_found = min(N_FOUND, context.model.n_vocab)
        self.works = self._is_supported()
        if not self.works:
            log.warning(
                "--backend-sampling has no effect: this device can't find the likeliest tokens"
            )

    def _is_supported(self) -> bool:
        # llama.cpp doesn't report whether a device supports a sampler, but an unsupported one
        # leaves no candidates.
        try:
            self.arrange({0: True})
            self._context.evaluate([1])
            return bool(self.n_found == self._count(0))
        except BackendError:
            return False
        finally:
            self.close()

    def suits(self, sampler: Sampler) -> bool:
        """Returns whether the tokens that the device finds are always sufficient for `sampler`."""
        n = sampler.n_sufficient
        return self.works and n is not None and n <= self.n_found

    def arrange(self, wanted: Mapping[int, bool]) -> None:
        """Determine for each of these sequences whether the next decode finds its tokens on the
        device. The device can find them for at most one output of a sequence. Raises
        BackendError."""
        for sequence, is_wanted in wanted.items():
            if is_wanted and sequence not in self._chains:
                chain = make_chain(self._context.model, [SamplerSpec("top_k", (self.n_found,))])
                if not self._context.set_sampler(sequence, chain):
                    C.llama_sampler_free(chain)
                    raise failure("the device doesn't accept a sampler")
                self._chains[sequence] = chain
            elif not is_wanted and sequence in self._chains:
                self._detach(sequence)

    def _detach(self, sequence: int) -> None:
        self._context.set_sampler(sequence, None)  # otherwise the next graph uses freed memory
        C.llama_sampler_free(self._chains.pop(sequence))

    def found(self, rows: Mapping[int, int]) -> tuple[TokenArray, Floats] | None:
        """The ids and the logits (len(rows), n_found) of the likeliest tokens, unordered, of some
        outputs of the last decode, whose sequences are arranged for it. `rows` has the row of each
        in the results by batch position, see `TokenBatch.rows`. None if the device has found
        none."""
        if self._count(min(rows)) != self.n_found:
            return None
        ids, logits = self._candidates(rows)
        return (ids, logits) if self._are_tokens(ids) else None

    def _are_tokens(self, ids: TokenArray) -> bool:
        return bool(ids.min() >= 0 and ids.max() < self._context.model.n_vocab)

    def _candidates(self, rows: Mapping[int, int]) -> tuple[TokenArray, Floats]:
        # One address is enough for each: every call waits for the device.
        context, first = self._context._ctx, min(rows)
        places = np.array([*rows.values()]) - rows[first]
        shape = (int(places.max()) + 1, self._context.model.n_vocab)  # of both buffers from there
        ids = view(C.llama_get_sampled_candidates_ith(context, first), math.prod(shape), _ID)
        logits = view(C.llama_get_sampled_logits_ith(context, first), math.prod(shape), _LOGIT)
        among = (places, slice(self.n_found))
        return ids.reshape(shape)[among], logits.reshape(shape)[among]

    def _count(self, index: int) -> int:
        return int(C.llama_get_sampled_candidates_count_ith(self._context._ctx, index))

    def close(self) -> None:
        for sequence in [*self._chains]:
            self._detach(sequence)
