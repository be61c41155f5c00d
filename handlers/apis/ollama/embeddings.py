"""Embeddings in Ollama's format: what is asked, and the answers."""

from specllama.engine.options import Options
from specllama.handlers.apis.embed import Embedded, EmbeddingsAsked, only_vector
from specllama.handlers.apis.ollama.format import Watch
from specllama.handlers.apis.ollama.request import frees_memory
from specllama.handlers.http import schemas

AS_IT_IS, EUCLIDEAN = -1, 2
"""Norms."""
ONE_EACH = "the model has a vector for each token (--pooling none), not for all"


def read_ollama_inputs(body: schemas.OllamaEmbedRequest, options: Options) -> EmbeddingsAsked:
    given = body.get("input") or []
    return EmbeddingsAsked(
        inputs=[[text] for text in ([given] if isinstance(given, str) else given)],
        dimensions=int(body.get("dimensions") or 0),
        normalize=EUCLIDEAN,
        named=body.get("model"),
        shortens=body.get("truncate") is not False,
        unloads=frees_memory(body.get("keep_alive")),
    )


def read_ollama_prompt(body: schemas.OllamaEmbeddingsRequest, options: Options) -> EmbeddingsAsked:
    prompt = body.get("prompt")
    return EmbeddingsAsked(
        inputs=[[prompt]] if prompt else [],
        normalize=AS_IT_IS,
        shortens=True,
        unloads=frees_memory(body.get("keep_alive")),
    )


def inputs_form(asked: EmbeddingsAsked, made: Embedded) -> schemas.OllamaEmbedAnswer:
    """A vector for each input."""
    return {
        "model": asked.named or made.model,
        "embeddings": made.vectors(),
        **Watch(made.arrived, made.loaded).durations(),
        "prompt_eval_count": made.n_tokens,
    }


def prompt_form(asked: EmbeddingsAsked, made: Embedded) -> schemas.OllamaEmbeddingsAnswer:
    """The vector of the one text, if there is one."""
    return {"embedding": only_vector(made.rows[0]) if made.rows else []}
