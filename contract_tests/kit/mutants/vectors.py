"""Embeddings and reranking."""

from typing import Any

from contract_tests.kit.bodies import RERANKING
from contract_tests.kit.checks import vectors
from contract_tests.kit.mutants.exchange import Answer, Mutation, PassOn, Request
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import at, bodies, plain, without

EMBEDDERS = Mutants("Embeddings", "embedder")
RERANKERS = Mutants("Reranking", "reranker")

OPENAI, NATIVE = "create_openai_embeddings", "create_embedding"


@EMBEDDERS.caught_by(vectors.vectors_have_length_one, "a vector of the length")
def vectors_have_any_length() -> Mutation:
    """Vectors have the length 2 instead of 1."""
    return plain(
        at("data.*.embedding", lambda v: [2 * x for x in v] if isinstance(v, list) else v), OPENAI
    )


@EMBEDDERS.caught_by(vectors.vectors_are_as_short_as_asked_for, "in the place of 8")
def vectors_have_all_dimensions() -> Mutation:
    """`dimensions` is ignored."""
    return bodies(without("dimensions"), OPENAI)


@EMBEDDERS.caught_by(vectors.vectors_are_in_the_order_of_their_inputs, "not the vector of")
def vectors_come_in_another_order() -> Mutation:
    """The first vector is that of the last input."""

    def change(entries: list[Any]) -> list[Any]:
        return [{**entry, "index": i} for i, entry in enumerate(entries[::-1])]

    return plain(at("data", change), OPENAI)


@EMBEDDERS.caught_by(vectors.vectors_are_in_the_order_of_their_inputs, "a vector for each|==")
def inputs_are_left_out() -> Mutation:
    """Only the first of several inputs is embedded."""
    return bodies(
        at("input", lambda given: given[:1] if isinstance(given, list) else given), OPENAI
    )


@EMBEDDERS.caught_by(vectors.tokens_of_inputs_are_counted, "==")
def inputs_are_counted_twice() -> Mutation:
    """`usage` is twice the number of tokens."""
    return plain(at("usage", lambda usage: {name: 2 * n for name, n in usage.items()}), OPENAI)


@EMBEDDERS.caught_by(vectors.vectors_are_the_same_in_all_formats, "POST /embedding")
def native_vectors_point_elsewhere() -> Mutation:
    """The native format has another vector than OpenAI's format."""
    return plain(at("*.embedding.*", lambda vector: [-x for x in vector]), NATIVE)


# ---- reranking -------------------------------------------------------------------------------


@RERANKERS.caught_by(vectors.documents_are_in_the_order_of_their_scores, "not the best first")
def the_worst_document_comes_first() -> Mutation:
    """Results are in the wrong order."""
    return plain(at("results", lambda results: results[::-1]), *RERANKING)


@RERANKERS.caught_by(vectors.documents_are_in_the_order_of_their_scores, "==")
def all_documents_are_the_best() -> Mutation:
    """`top_n` is ignored."""
    return bodies(without("top_n"), *RERANKING)


@RERANKERS.caught_by(vectors.scores_belong_to_their_documents, "the score of")
def scores_are_those_of_others() -> Mutation:
    """A document has the score of another one."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        if request.operation not in RERANKING:
            return await pass_on(request)
        documents = request.json["documents"]

        def change(result: dict[str, Any]) -> dict[str, Any]:
            at = (result["index"] + 1) % len(documents)
            shown = {"document": {"text": documents[at]}} if "document" in result else {}
            return {**result, "index": at, **shown}

        return await plain(_of_results(change))(request, pass_on)

    return mutation


def _of_results(change: Any) -> Any:
    return at("results.*", change)
