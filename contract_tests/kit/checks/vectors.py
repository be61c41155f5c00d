"""Checks of servers that embed or rerank. See `checks`."""

import base64
import struct
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import Server

TEXTS = ["A llama carries wool.", "The bus leaves at nine.", "x"]
QUERY = "What carries wool?"
CLOSE = 0.02
"""The difference in a number that rounding in another batch may cause."""


def _ask(server: Server, where: str, **request: Any) -> Any:
    """Returns the answer, or skips the test if the server doesn't offer the operation."""
    response = server.post(where, request)
    if response.status_code == 501:
        pytest.skip(f"the server doesn't offer {where}")
    return contract.check(response)


def _vectors(server: Server, given: object, **more: object) -> list[list[float]]:
    answer = _ask(server, "/v1/embeddings", input=given, **more)
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    return [entry["embedding"] for entry in answer["data"]]


def _distance(a: list[float], b: list[float]) -> float:
    assert len(a) == len(b), f"{len(a)} and {len(b)} numbers"
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def vectors_have_length_one(server: Server) -> None:
    for vector in _vectors(server, TEXTS):
        length = sum(x * x for x in vector) ** 0.5
        assert abs(length - 1) < 1e-3, f"a vector of the length {length}"


def vectors_are_in_the_order_of_their_inputs(server: Server) -> None:
    together = _vectors(server, TEXTS)
    assert len(together) == len(TEXTS), "a vector for each input"
    for text, vector in zip(TEXTS, together, strict=True):
        [alone] = _vectors(server, text)
        assert _distance(alone, vector) < CLOSE, f"not the vector of {text!r}"


def vectors_are_the_same_in_all_formats(server: Server) -> None:
    expected = _vectors(server, TEXTS)
    native = _ask(server, "/embedding", content=TEXTS)
    assert [entry["index"] for entry in native] == list(range(len(TEXTS)))
    answer = _ask(server, "/v1/embeddings", input=TEXTS, encoding_format="base64")
    ollama = _ask(server, "/api/embed", input=TEXTS)["embeddings"]
    for i, vector in enumerate(expected):
        assert _distance(native[i]["embedding"][0], vector) < CLOSE, "POST /embedding"
        raw = base64.b64decode(answer["data"][i]["embedding"], validate=True)
        packed = list(struct.unpack(f"<{len(raw) // 4}f", raw))
        assert _distance(packed, vector) < CLOSE, "base64"
        assert _distance(ollama[i], vector) < CLOSE, "POST /api/embed"


def vectors_are_as_short_as_asked_for(server: Server) -> None:
    whole, short = _vectors(server, "x"), _vectors(server, "x", dimensions=8)
    assert len(short[0]) == 8, f"{len(short[0])} dimensions in the place of 8"
    assert len(whole[0]) >= 8
    assert abs(sum(x * x for x in short[0]) - 1) < 1e-3, "a short vector of another length"


def tokens_of_inputs_are_counted(server: Server) -> None:
    usage = _ask(server, "/v1/embeddings", input=TEXTS)["usage"]
    asked = [{"content": text, "add_special": True} for text in TEXTS]
    n = sum(len(server.ask("/tokenize", each)["tokens"]) for each in asked)
    assert usage == {"prompt_tokens": n, "total_tokens": n}


def documents_are_in_the_order_of_their_scores(server: Server) -> None:
    request = {"query": QUERY, "documents": TEXTS}
    results = _ask(server, "/v1/rerank", **request)["results"]
    assert sorted(each["index"] for each in results) == list(range(len(TEXTS)))
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True), f"not the best first: {scores}"
    best = _ask(server, "/v1/rerank", **request, top_n=2)["results"]
    assert [each["index"] for each in best] == [each["index"] for each in results][:2]


def scores_belong_to_their_documents(server: Server) -> None:
    """Scores don't depend on the order of the documents."""
    scores: list[dict[str, float]] = []
    for documents in (TEXTS, TEXTS[::-1]):
        request = {"query": QUERY, "documents": documents, "return_documents": True}
        results = _ask(server, "/v1/rerank", **request)["results"]
        for each in results:
            assert each["document"]["text"] == documents[each["index"]], each
        scores.append({documents[each["index"]]: each["relevance_score"] for each in results})
    for text in TEXTS:
        assert abs(scores[0][text] - scores[1][text]) < CLOSE, f"the score of {text!r}"


OF_EMBEDDERS = (
    vectors_have_length_one,
    vectors_are_in_the_order_of_their_inputs,
    vectors_are_the_same_in_all_formats,
    vectors_are_as_short_as_asked_for,
    tokens_of_inputs_are_counted,
)
OF_RERANKERS = (
    documents_are_in_the_order_of_their_scores,
    scores_belong_to_their_documents,
)
