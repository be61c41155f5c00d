"""Sampler chains: from logits to a token."""

import ctypes
from typing import Any

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from engine.backend.context import CANDIDATE, Context, view
from engine.backend.model import Model
from engine.params import GenerationParams
from engine.sampling import plan, window
from engine.tokens import TokenArray


class NoTokenError(Exception):
    """The samplers leave no token that is allowed."""


class Sampler:
    """A sampler chain for one request, on the CPU.

    `history` are the prompt's tokens, which the penalties look at.
    """

    def __init__(
        self, model: Model, params: GenerationParams, n_ctx: int, history: TokenArray
    ) -> None:
        chain_params = C.llama_sampler_chain_default_params()
        chain_params.no_perf = True
        self._chain = C.llama_sampler_chain_init(chain_params)
        for name, args in plan(params, n_ctx):
            sampler = _make_sampler(model, name, args)
            C.llama_sampler_chain_add(self._chain, sampler)
        size = window(params, n_ctx)
        if size:
            for token in history[-size:].tolist():
                C.llama_sampler_accept(self._chain, token)

    def sample(self, context: Context, index: int, allowed: TokenArray | None = None) -> int:
        """Choose a token from the logits of batch position `index`, which must have been an
        output of the last decode, and remember it for the penalties.

        Of `allowed` tokens (ids in ascending order, at least one) the chain sees no others;
        raises `NoTokenError` if it leaves none of them possible.
        """
        if allowed is None:
            return int(C.llama_sampler_sample(self._chain, context._ctx, index))
        return self._choose(context, index, allowed)[0]

    def sample_among(
        self, context: Context, index: int, allowed: TokenArray | None = None
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The same as `sample`, with the candidates that the chain left, in no order: their
        ids and their probabilities, copied."""
        token, array = self._choose(context, index, allowed)
        # A sampler may have put an array of its own in the place of ours.
        left = view(array.data, array.size, CANDIDATE)
        return token, left["id"].copy(), left["p"].copy()

    def _choose(self, context: Context, index: int, allowed: TokenArray | None) -> tuple[int, Any]:
        """The chosen token, and the `llama_token_data_array` that the chain left."""
        logits, candidates = context.logits(index), context.candidates
        size = len(logits) if allowed is None else len(allowed)
        candidates["id"][:size] = np.arange(size) if allowed is None else allowed
        candidates["logit"][:size] = logits if allowed is None else logits[allowed]
        candidates["p"][:size] = 0
        array = C.llama_token_data_array(
            data=candidates.ctypes.data_as(ctypes.POINTER(C.llama_token_data)),
            size=size,
            selected=-1,
            sorted=False,
        )
        C.llama_sampler_apply(self._chain, ctypes.byref(array))
        if allowed is not None and not (
            0 <= array.selected < array.size and array.data[array.selected].logit > -np.inf
        ):
            raise NoTokenError("logit_bias forbids every token that may come next")
        token = int(array.data[array.selected].id)
        C.llama_sampler_accept(self._chain, token)
        return token, array

    def close(self) -> None:
        if self._chain:
            C.llama_sampler_free(self._chain)
            self._chain = None


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
        case _:
            return getattr(C, f"llama_sampler_init_{name}")(*args)
