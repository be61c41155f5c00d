"""Options of a server that embeds or reranks instead of generating."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from specllama.engine.options.declaration import INT32_MAX, Opt

Pooling = Literal["none", "mean", "cls", "last", "rank"]

_embedding = partial(Opt, group="Embeddings and reranking")


class EmbeddingOptions(msgspec.Struct, kw_only=True, frozen=True):
    """What to make of the vectors of an input's tokens."""

    embedding: Annotated[
        bool,
        _embedding(
            names="--embedding --embeddings",
            env="LLAMA_ARG_EMBEDDINGS",
            help="Serve embeddings, and nothing that generates.",
        ),
    ] = False
    reranking: Annotated[
        bool,
        _embedding(
            names="--reranking --rerank",
            env="LLAMA_ARG_RERANKING",
            help="Serve reranking: short for --embedding --pooling rank.",
        ),
    ] = False
    pooling: Annotated[
        Literal["", Pooling],
        _embedding(
            names="--pooling",
            env="LLAMA_ARG_POOLING",
            metavar="TYPE",
            help="How the vectors of an input's tokens become one: not at all, their mean, that "
            "of the first or of the last token, or the score of a reranker.",
            default="what the model says",
        ),
    ] = ""
    embd_normalize: Annotated[
        int,
        _embedding(
            names="--embd-normalize",
            metavar="N",
            min=-1,
            max=INT32_MAX,
            help="Norm to divide embeddings by: -1 none, 0 the largest absolute value (which "
            "becomes 32760), 1 taxicab, 2 Euclidean, N the p-norm with p = N.",
        ),
    ] = 2

    def embeds(self) -> bool:
        """Whether the model embeds or reranks, and does not generate."""
        return self.embedding or self.reranking
