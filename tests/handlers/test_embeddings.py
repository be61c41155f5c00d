"""The handlers of embeddings and reranking by themselves."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.wire.replies import Vectors
from specllama.handlers.apis.embed import split
from specllama.handlers.apis.openai.embeddings import parse_inputs
from specllama.handlers.rerank import jina_results, sigmoid, tei_results

BEST = [(1, 2.0), (0, -3.0)]
DOCUMENTS = ["a", "b"]


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ({"input": "a"}, [["a"]]),
        ({"content": "a"}, [["a"]]),
        ({"input": None, "content": "a"}, [["a"]]),
        ({"input": "a", "content": "b"}, [["a"]]),
        ({"input": ["a", "b"]}, [["a"], ["b"]]),
        ({"input": [1, 2.0]}, [[1, 2]]),
        ({"input": [1, "a"]}, [[1, "a"]]),
        ({"input": [[1], "a", {"content": "b"}]}, [[1], ["a"], ["b"]]),
        (
            {"input": {"content": [{"type": "text", "text": t} for t in ("a", "b")]}},
            [["ab"]],
        ),
    ],
)
def test_inputs(body: Any, inputs: list[list[int | str]]) -> None:
    assert parse_inputs(body) == inputs


@pytest.mark.parametrize(
    ("body", "kind", "word"),
    [
        ({}, "invalid_request_error", "input"),
        ({"input": None}, "invalid_request_error", "input"),
        ({"content": []}, "invalid_request_error", "content"),
        ({"input": [[1], []]}, "invalid_request_error", "input[1]"),
        ({"input": [-1]}, "invalid_request_error", "-1"),
        (
            {"input": {"content": [{"type": "image_url"}]}},
            "invalid_request_error",
            "input.content[0]",
        ),
    ],
)
def test_inputs_that_are_refused(body: Any, kind: str, word: str) -> None:
    with pytest.raises(EngineError) as caught:
        parse_inputs(body)
    assert caught.value.info.type == kind
    assert word in caught.value.info.message


def test_vectors_are_distinguished() -> None:
    values = np.arange(12, dtype="<f4").reshape(4, 3)
    parts = list(split(Vectors(1, values.tobytes(), [1, 3], 4)))
    assert [part.tolist() for part in parts] == [values[:1].tolist(), values[1:].tolist()]


@given(st.floats(allow_nan=False))
def test_sigmoid(x: float) -> None:
    assert 0 <= sigmoid(x) <= 1
    assert sigmoid(x) + sigmoid(-x) == pytest.approx(1)


def test_formats_of_ranks() -> None:
    assert jina_results({"query": "q"}, DOCUMENTS, BEST)[0] == {"index": 1, "relevance_score": 2.0}
    assert jina_results({"query": "q", "return_documents": True}, DOCUMENTS, BEST)[1][
        "document"
    ] == {"text": "a"}
    assert tei_results({"query": "q"}, DOCUMENTS, BEST)[1] == {"index": 0, "score": -3.0}
    assert tei_results({"query": "q", "raw_scores": None}, DOCUMENTS, BEST)[0]["score"] == 2.0
    squashed = tei_results(
        {"query": "q", "raw_scores": False, "return_text": True}, DOCUMENTS, BEST
    )
    assert squashed[0] == {"index": 1, "score": sigmoid(2.0), "text": "b"}
