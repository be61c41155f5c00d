"""Sampler chains that run on the model's device, as a part of its graph (`--backend-sampling`).

llama.cpp has several assertions here: a chain may be prepared for the device only once, the graph
must not request more candidates than are left, and logits that were never copied from the device
can't be sampled. So chains that aren't known to be safe use
`engine.worker.backend.sampler.Sampler`.
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
    # A range of temperatures needs more operations of the device.
    "temp_ext": [SamplerSpec("temp_ext", (0.8, 0.2, 1.0)), _DRAW],
}
"""A test chain for each sampler that may run on a device. llama.cpp doesn't report whether it does,
but an incomplete chain chooses no token."""


class Offload:
    """The sampling on the device of one context, with the sequences that use it.

    Tests the samplers at first, for which the context must be empty. Belongs to the thread that
    decodes, except for `sampler`.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._attached: dict[int, OffloadedSampler] = {}
        self.supported = frozenset(kind for kind in _PROBES if self._works(_PROBES[kind]))
        if missing := sorted(_PROBES.keys() - self.supported):
            log.warning("backend sampling: this device doesn't support %s", ", ".join(missing))

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
        """A chain for a request that needs no logits on the host; None if it can't run on the
        device completely. `history` is as in `Sampler`."""
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
        """Attach the wanted sampler, or none, to each of these sequences, whose logits the next
        decode computes. Raises BackendError."""
        for sequence, sampler in wanted.items():
            present = self._attached.get(sequence)
            if present is sampler:
                continue
            if present is not None:
                self.detach(sequence)
            if sampler is not None:
                # A preempted request comes back with another sequence id.
                if sampler.sequence is not None:
                    self.detach(sampler.sequence)
                sampler.prepare()
                if not self._context.set_sampler(sequence, sampler.chain):
                    raise failure("the device doesn't accept a sampler")
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
    """The chain of one request, which the device applies during the decode.

    Probabilities and random numbers are the same as in `Sampler`. But unless `top_p` sorts the
    candidates, their order differs, so the same random number may choose another token.
    """

    def __init__(self, offload: Offload, chain: Any) -> None:
        self._offload = offload
        self.chain = chain
        self.sequence: int | None = None  # attached to
        self._prepared = False

    def prepare(self) -> None:
        """To be called before each attachment: llama.cpp accepts a chain only once."""
        if self._prepared:
            used, self.chain = self.chain, C.llama_sampler_clone(self.chain)
            C.llama_sampler_free(used)
        self._prepared = True

    def sample(self, index: int) -> int:
        """The token that the device has chosen at batch position `index`; recorded for the
        penalties. Raises BackendError if there is none."""
        token = self._offload.sampled(index)
        C.llama_sampler_accept(self.chain, token)
        return token

    def close(self) -> None:
        if self.sequence is not None:
            self._offload.detach(self.sequence)  # otherwise the next graph would use freed memory
        if self.chain:
            C.llama_sampler_free(self.chain)
            self.chain = None
