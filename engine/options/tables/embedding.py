"""Options of a server that embeds or reranks instead of generating."""

from functools import partial
from typing import Annotated, Literal

import msgspec

from specllama.engine.options.declaration import INT32_MAX, Opt

Pooling = Literal["none", "mean", "cls", "last", "rank"]

_embedding = partial(Opt, group="Embeddings and reranking")


class EmbeddingOptions(msgspec.Struct, kw_only=True, frozen=True):
    """How the vectors of an input's tokens become its embedding."""

    embedding: Annotated[
        bool,
        _embedding(
            names="--embedding --embeddings",
            env="LLAMA_ARG_EMBEDDINGS",
            help="Serve only embeddings; generation is disabled.",
        ),
    ] = False
    reranking: Annotated[
        bool,
        _embedding(
            names="--reranking --rerank",
            env="LLAMA_ARG_RERANKING",
            help="Serve reranking; the same as --embedding --pooling rank.",
        ),
    ] = False
    pooling: Annotated[
        Literal["", Pooling],
        _embedding(
            names="--pooling",
            env="LLAMA_ARG_POOLING",
            metavar="TYPE",
            help="Pooling of the token vectors: none, mean, cls (first token), last (last token) "
            "or rank (score of a reranker).",
            default="the model's own",
        ),
    ] = ""
    embd_normalize: Annotated[
        int,
        _embedding(
            names="--embd-normalize",
            metavar="N",
            min=-1,
            max=INT32_MAX,
            help="Normalization of embeddings: -1 none, 0 maximum absolute value (scaled to "
            "32760), 1 taxicab, 2 Euclidean, N p-norm with p = N.",
        ),
    ] = 2

    def embeds(self) -> bool:
        """Returns whether the model embeds or reranks instead of generating."""
        return self.embedding or self.reranking
