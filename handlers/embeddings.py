"""POST /embedding in the native format, POST /v1/embeddings in OpenAI's."""

from starlette.responses import Response

from specllama.handlers.apis.embed import EmbeddingsDialect, embed
from specllama.handlers.apis.openai.embeddings import (
    native_embeddings,
    openai_embeddings,
    read_embeddings,
)
from specllama.handlers.http import schemas

_ONE_EACH = "Pooling type 'none' is not OAI compatible. Please use a different pooling type"

_NATIVE = EmbeddingsDialect(read=read_embeddings, form=native_embeddings)
_OPENAI = EmbeddingsDialect(read=read_embeddings, form=openai_embeddings, one_each=_ONE_EACH)
_OPENAI_CONTENT = EmbeddingsDialect(
    read=read_embeddings, form=native_embeddings, one_each=_ONE_EACH
)


async def create_embedding(body: schemas.EmbeddingRequest) -> Response:
    """An object for each input, with a list of vectors."""
    return await embed(_NATIVE, body)


create_embedding_alias = create_embedding


async def create_openai_embeddings(body: schemas.OpenAIEmbeddingRequest) -> Response:
    """A list object with a vector for each input. Inputs in `content`, a field that OpenAI's API
    doesn't have, are answered in the native format."""
    return await embed(_OPENAI_CONTENT if body.get("input") is None else _OPENAI, body)
