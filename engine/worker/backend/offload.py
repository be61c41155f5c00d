"""Sampler chains that run where the model runs, as a part of its graph (`--backend-sampling`).

llama.cpp asserts, rather than refuses, in several places here: a chain may be prepared for the
device once only, the graph must not ask for more candidates than are left, and logits that were
never copied from the device can't be sampled from. What is not known to be safe therefore stays
with `engine.worker.backend.sampler.Sampler`.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from llama_cpp import llama_cpp as C

from specllama.engine.errors import BackendError
from specllama.engine.params import GenerationParams
from specllama.engine.worker.backend.context import Context
from specllama.engine.worker.backend.library import failure
from specllama.engine.worker.backend.sampler import make_chain
from specllama.engine.worker.backend.sampler_chain import (
    SamplerSpec,
    effective,
    is_plain,
    plan,
    window,
)
from specllama.engine.worker.tokens import TokenArray

log = logging.getLogger(__name__)

NO_TOKEN = -1  # LLAMA_TOKEN_NULL
_DRAW = SamplerSpec("dist", (1,))
_PROBES: Mapping[str, Sequence[SamplerSpec]] = {
    "greedy": [SamplerSpec("greedy", ())],
    "dist": [_DRAW],
    "logit_bias": [SamplerSpec("logit_bias", ([(0, 1.0)],)), _DRAW],
    "penalties": [SamplerSpec("penalties", (4, 1.1, 0.1, 0.1)), _DRAW],
    "top_k": [SamplerSpec("top_k", (2,)), _DRAW],
    "top_p": [SamplerSpec("top_p", (0.9, 0)), _DRAW],
    "min_p": [SamplerSpec("min_p", (0.1, 0)), _DRAW],
    # With a range of temperatures it needs more of the device than without.
    "temp_ext": [SamplerSpec("temp_ext", (0.8, 0.2, 1.0)), _DRAW],
}
"""A chain for each of the samplers that may run on a device. llama.cpp says of none of them
whether it does, but a chain that is not there as a whole leaves no token."""


class Offload:
    """The sampling that the device of one context does, and the sequences that it does it for.

    Tries the samplers out, for which the context must be empty. Belongs to the thread that
    decodes, but for `sampler`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._attached: dict[int, OffloadedSampler] = {}
        self.supported = frozenset(kind for kind in _PROBES if self._works(_PROBES[kind]))
        if missing := sorted(_PROBES.keys() - self.supported):
            log.warning("backend sampling: not on this device: %s", ", ".join(missing))

    def _works(self, specs: Sequence[SamplerSpec]) -> bool:
        sampler = OffloadedSampler(self, make_chain(self._context.model, specs))
        try:
            self.arrange({0: sampler})
            self._context.evaluate_any()
            return self._context.sampled(0) != NO_TOKEN
        except BackendError:
            return False
        finally:
            sampler.close()

    def sampler(
        self, params: GenerationParams, n_ctx: int, history: TokenArray
    ) -> "OffloadedSampler | None":
        """A chain for a request that needs no logits here; None if not all of it can run on the
        device. `history` as for `Sampler`."""
        model = self._context.model
        specs = effective(plan(params, n_ctx))
        if not self.supported.issuperset(spec.name for spec in specs):
            return None
        if not is_plain(specs, model.n_vocab):
            return None
        chain = make_chain(model, specs)
        if size := window(params, n_ctx):
            for token in history[-size:].tolist():
                C.llama_sampler_accept(chain, token)
        return OffloadedSampler(self, chain)

    def arrange(self, wanted: Mapping[int, "OffloadedSampler | None"]) -> None:
        """Let each of these sequences, whose logits the next decode computes, have its sampler,
        or none. Raises BackendError."""
        for sequence, sampler in wanted.items():
            present = self._attached.get(sequence)
            if present is sampler:
                continue
            if present is not None:
                self.detach(sequence)
            if sampler is not None:
                # A request that had to give way comes back with another sequence.
                if sampler.sequence is not None:
                    self.detach(sampler.sequence)
                sampler.prepare()
                if not self._context.set_sampler(sequence, sampler.chain):
                    raise failure("the device takes no sampler")
                self._attached[sequence], sampler.sequence = sampler, sequence

    def detach(self, sequence: int) -> None:
        self._context.set_sampler(sequence, None)
        self._attached.pop(sequence).sequence = None

    def sampled(self, index: int) -> int:
        """The token chosen from batch position `index` of the last decode. Raises
        BackendError."""
        token = self._context.sampled(index)
        if token == NO_TOKEN:
            raise BackendError("the device has chosen no token")
        return token


class OffloadedSampler:
    """The chain of one request, which the device applies in the decode itself.

    The probabilities and the random numbers are those of `Sampler`, but unless `top_p` puts the
    candidates in order, they stand in another one, and a random number means another of them.
    """

    def __init__(self, offload: Offload, chain: Any) -> None:
        self._offload = offload
        self.chain = chain
        self.sequence: int | None = None  # that it is attached to
        self._prepared = False

    def prepare(self) -> None:
        """To be called before each attachment: llama.cpp takes a chain only once."""
        if self._prepared:
            used, self.chain = self.chain, C.llama_sampler_clone(self.chain)
            C.llama_sampler_free(used)
        self._prepared = True

    def sample(self, index: int) -> int:
        """The token that the device has chosen at batch position `index`, remembered for the
        penalties. Raises BackendError if there is none."""
        token = self._offload.sampled(index)
        C.llama_sampler_accept(self.chain, token)
        return token

    def close(self) -> None:
        if self.sequence is not None:
            self._offload.detach(self.sequence)  # or the next graph would use what is freed
        if self.chain:
            C.llama_sampler_free(self.chain)
            self.chain = None
