"""POST /rerank: documents ranked by their relevance to a query, in Jina's format and in TEI's."""

import math
from collections.abc import AsyncGenerator
from contextlib import aclosing

from starlette.responses import Response

from specllama.engine.errors import invalid_request
from specllama.engine.wire.replies import Vectors
from specllama.handlers.apis.embed import split
from specllama.handlers.apis.wishes import wishes_in, with_headers
from specllama.handlers.http import schemas
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.admission import admit, admitted_call
from specllama.handlers.running.batch import BYTES_PER_TOKEN, counted
from specllama.handlers.running.resolve_model import resolve_model
from specllama.handlers.running.terms import in_time


async def create_rerank(body: schemas.RerankRequest) -> Response:
    """The best documents, in descending order: a list object, or just the array for `texts`
    (TEI)."""
    model = resolve_model(body)
    documents = body.get("documents") or body.get("texts")
    if not documents:
        raise invalid_request('"documents" must be a non-empty string array')
    n_characters = len(documents) * len(body["query"]) + sum(map(len, documents))
    await admit(model.name, n_characters // BYTES_PER_TOKEN)
    wishes = with_headers(wishes_in(body))
    async with in_time(wishes.timeout_ms):
        engine = await model.engine()
        engine.check_reranks()
        call = admitted_call()
        work = engine.rerank(
            body["query"],
            documents,
            owner=call.owner,
            terms=call.limited(model.terms(wishes)),
            meter=call.meter(),
        )
        scores, n_tokens = await until_disconnect(_scores(work))
    best = sorted(enumerate(scores), key=lambda each: -each[1])
    if (top_n := body.get("top_n")) is not None:
        best = best[: int(top_n)]
    if body.get("texts") is not None:
        return JSONAnswer(tei_results(body, documents, best))
    answer: schemas.RerankResponse = {
        "object": "list",
        "model": body.get("model") or model.name,
        "results": jina_results(body, documents, best),
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    }
    return JSONAnswer(answer)


create_reranking = create_rerank
create_versioned_rerank = create_rerank
create_versioned_reranking = create_rerank


async def _scores(scored: AsyncGenerator[Vectors, None]) -> tuple[list[float], int]:
    """Returns the score of each document, and the total number of tokens."""
    scores: list[float] = []
    n_tokens = 0
    async with aclosing(counted(scored)) as work:
        async for vectors in work:
            scores += [float(rows[0, 0]) for rows in split(vectors)]
            n_tokens += vectors.n_tokens
    return scores, n_tokens


def jina_results(
    body: schemas.RerankRequest, documents: list[str], best: list[tuple[int, float]]
) -> list[schemas.RankedDocument]:
    """Returns the results in Jina's format. `best` has (index of the document, score)."""
    made: list[schemas.RankedDocument] = []
    for index, score in best:
        made.append({"index": index, "relevance_score": score})
        if body.get("return_documents"):
            made[-1]["document"] = {"text": documents[index]}
    return made


def tei_results(
    body: schemas.RerankRequest, documents: list[str], best: list[tuple[int, float]]
) -> list[schemas.RankedText]:
    """Returns the results in TEI's format. `best` has (index of the document, score). Scores are
    the model's own, unless `raw_scores` is false."""
    squash = body.get("raw_scores") is False
    made: list[schemas.RankedText] = []
    for index, score in best:
        made.append({"index": index, "score": sigmoid(score) if squash else score})
        if body.get("return_text"):
            made[-1]["text"] = documents[index]
    return made


def sigmoid(x: float) -> float:
    # The exponential of a large positive number would overflow.
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
