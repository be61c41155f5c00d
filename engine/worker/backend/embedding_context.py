"""A context that computes vectors."""

import numpy as np
from llama_cpp import llama_cpp as C

from specllama.engine.options import EngineOptions, Pooling
from specllama.engine.worker.backend.context import Context, Vectors
from specllama.engine.worker.backend.context_setup import POOLING
from specllama.engine.worker.backend.library import failure
from specllama.engine.worker.backend.model import Model


class EmbeddingContext(Context):
    """A context that computes vectors instead of logits. `options.embedding.embeds()` must be true.

    All `n_seq` sequences share one cache: with separate ones, llama.cpp would split sequences of
    different lengths, which breaks pooling.
    """

    def __init__(self, model: Model, options: EngineOptions, n_seq: int) -> None:
        super().__init__(model, options, n_seq, unified=True)
        kinds = {number: name for name, number in POOLING.items() if name}
        self.pooling: Pooling = kinds[int(C.llama_pooling_type(self._ctx))]
        self.has_memory = bool(self._memory)
        self.is_causal = bool(C.llama_get_causal_attn(self._ctx))
        rank = self.pooling == "rank"
        size = C.llama_model_n_cls_out if rank else C.llama_model_n_embd_out
        self.n_vector = int(size(model._model))

    def vectors_of_tokens(self, n_tokens: int) -> Vectors:
        """The vectors of the `n_tokens` tokens of the last decode, without pooling."""
        pointer = C.llama_get_embeddings(self._ctx)
        if not pointer:
            raise failure("the model gave no embeddings")
        return np.ctypeslib.as_array(pointer, (n_tokens, self.n_vector)).copy()

    def vector_of_sequence(self, sequence: int) -> Vectors:
        """The pooled embedding of `sequence` from the last decode: one row."""
        pointer = C.llama_get_embeddings_seq(self._ctx, sequence)
        if not pointer:
            raise failure("the model gave no embedding")
        return np.ctypeslib.as_array(pointer, (1, self.n_vector)).copy()
