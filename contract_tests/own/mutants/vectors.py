"""Embeddings and reranking."""

import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.responses import Response

import handlers.embeddings
import handlers.rerank
import handlers.running.usage
from contract_tests.kit.checks import vectors
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.pool.client import EngineClient
from engine.protocol.messages import PromptParts, Vectors
from handlers.embeddings import Rows
from handlers.http.json_answer import JSONAnswer
from handlers.running.served import Served

EMBEDDERS = Mutants("Embeddings", "embedder")
RERANKERS = Mutants("Reranking", "reranker")


@EMBEDDERS.caught_by(vectors.vectors_have_length_one, "a vector of the length")
def vectors_have_any_length(replace: Replace) -> None:
    """Vectors are as the model gives them."""
    _embed_with(replace, normalize=-1)


@EMBEDDERS.caught_by(vectors.vectors_are_as_short_as_asked_for, "in the place of 8")
def vectors_have_all_dimensions(replace: Replace) -> None:
    """`dimensions` means nothing."""
    _embed_with(replace, dimensions=0)


def _embed_with(replace: Replace, **instead: int) -> None:
    """Texts are embedded with other parameters than those that were asked for."""
    original = EngineClient.embed

    def embed(
        self: EngineClient,
        inputs: Sequence[PromptParts],
        *,
        normalize: int,
        dimensions: int = 0,
    ) -> AsyncGenerator[Vectors, None]:
        asked = {"normalize": normalize, "dimensions": dimensions}
        return original(self, inputs, **asked | instead)

    replace(EngineClient, "embed", embed)


@EMBEDDERS.caught_by(vectors.vectors_are_in_the_order_of_their_inputs, "not the vector of")
def vectors_come_in_another_order(replace: Replace) -> None:
    """The first vector is that of the last input."""
    original = handlers.embeddings.split

    def split(vectors: Vectors) -> Iterator[Rows]:
        return iter([*original(vectors)][::-1])

    replace(handlers.embeddings, "split", split)


@EMBEDDERS.caught_by(vectors.vectors_are_in_the_order_of_their_inputs, "a vector for each|==")
def inputs_are_left_out(replace: Replace) -> None:
    """Only the first of several inputs is embedded."""
    original = handlers.embeddings.parse_inputs

    def parse_inputs(body: Mapping[str, Any]) -> list[Any]:
        return original(body)[:1]

    replace(handlers.embeddings, "parse_inputs", parse_inputs)


@EMBEDDERS.caught_by(vectors.tokens_of_inputs_are_counted, "==")
def inputs_are_counted_twice(replace: Replace) -> None:
    """`usage` is twice as much as was read."""
    original = handlers.running.usage.counted

    async def doubled(work: AsyncGenerator[Vectors, None]) -> AsyncGenerator[Vectors, None]:
        async for each in original(work):
            yield msgspec.structs.replace(each, n_tokens=2 * each.n_tokens)

    def counted(work: AsyncGenerator[Vectors, None]) -> AsyncGenerator[Vectors, None]:
        return doubled(work)

    replace(handlers.embeddings, "counted", counted)


@EMBEDDERS.caught_by(vectors.vectors_are_the_same_in_all_formats, "POST /embedding")
def native_vectors_point_elsewhere(replace: Replace) -> None:
    """The native format has another vector than OpenAI's."""
    original = handlers.embeddings._native

    async def native(model: Served, engine: EngineClient, body: Mapping[str, Any]) -> Response:
        answer = json.loads(bytes((await original(model, engine, body)).body))
        for entry in answer:
            entry["embedding"] = [[-x for x in vector] for vector in entry["embedding"]]
        return JSONAnswer(answer)

    replace(handlers.embeddings, "_native", native)


# ---- reranking -------------------------------------------------------------------------------

Best = list[tuple[int, float]]


def _change_best(replace: Replace, change: Any) -> None:
    original = handlers.rerank.jina_results

    def jina_results(
        body: Mapping[str, Any], documents: list[str], best: Best
    ) -> list[dict[str, Any]]:
        return original(body, documents, change(best))

    replace(handlers.rerank, "jina_results", jina_results)


@RERANKERS.caught_by(vectors.documents_are_in_the_order_of_their_scores, "not the best first")
def the_worst_document_comes_first(replace: Replace) -> None:
    """Results are in the wrong order."""
    _change_best(replace, lambda best: best[::-1])


@RERANKERS.caught_by(vectors.documents_are_in_the_order_of_their_scores, "==")
def all_documents_are_the_best(replace: Replace) -> None:
    """`top_n` means nothing."""
    original = handlers.rerank.create_versioned_rerank

    async def create_versioned_rerank(body: dict[str, Any]) -> Response:
        return await original({key: body[key] for key in body if key != "top_n"})

    replace(handlers.rerank, "create_versioned_rerank", create_versioned_rerank)


@RERANKERS.caught_by(vectors.scores_belong_to_their_documents, "the score of")
def scores_are_those_of_others(replace: Replace) -> None:
    """A score belongs to the next document."""
    _change_best(replace, lambda best: [((index + 1) % len(best), score) for index, score in best])
