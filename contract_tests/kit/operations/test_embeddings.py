"""Embeddings and reranking, on servers that were started for them."""

import asyncio
import base64
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from schemathesis import Case

from contract_tests.kit import contract, fuzzing
from contract_tests.kit.bodies import BODIES, EMBEDDING, RERANKING, body, path, with_text
from contract_tests.kit.server import SECONDS, Launcher, OwnServer, Server, Start, wait_until

TEXTS = ["A llama carries wool.", "The bus leaves at nine.", "x", "wool " * 60]
QUERY = "What carries wool?"
SAME: dict[str, Any] = {"abs": 5e-3}
"""Tolerance between two batches: a half-precision cache and quantized weights round differently in
each."""
MANY = 20_000

Vector = list[float]


@pytest.fixture(scope="module")
def embedder(module_server: Start) -> OwnServer:
    """The shipped model, which every installation has, with an API key."""
    return module_server("--embeddings", "--pooling", "mean", api_key="key")


@pytest.fixture(scope="module")
def unpooled(module_server: Start, launcher: Launcher) -> OwnServer:
    """A decoder with pooling none, and a batch that is too small for long inputs."""
    return module_server(
        "-m", launcher.model_file("tiny-embed"), "--embedding", "--pooling", "none"
    )


@pytest.fixture(scope="module")
def bert(module_server: Start, launcher: Launcher) -> OwnServer:
    """An encoder, which has to evaluate an input at once, with small batches."""
    return module_server(
        "-m", launcher.model_file("tiny-bert"), "--embeddings", "-ub", "64", "-np", "8"
    )


@pytest.fixture(scope="module")
def reranker(module_server: Start, launcher: Launcher) -> OwnServer:
    return module_server("-m", launcher.model_file("tiny-rerank"), "--rerank")


def native(server: Server, **request: Any) -> list[list[Vector]]:
    """Returns the vectors of each input."""
    answer = contract.check(server.post("/embedding", request))
    assert [entry["index"] for entry in answer] == list(range(len(answer)))
    return [entry["embedding"] for entry in answer]


def embed(server: Server, **request: Any) -> list[Vector]:
    answer = contract.check(server.post("/v1/embeddings", request))
    assert [entry["index"] for entry in answer["data"]] == list(range(len(answer["data"])))
    return [entry["embedding"] for entry in answer["data"]]


def tokens_of(server: Server, text: str, **options: Any) -> list[int]:
    request = {"content": text, "add_special": True, **options}
    tokens: list[int] = server.ask("/tokenize", request)["tokens"]
    return tokens


def norm(vector: Vector, p: float = 2) -> float:
    return float(sum(abs(x) ** p for x in vector) ** (1 / p))


# ---- vectors -------------------------------------------------------------------------------


def test_all_formats_are_equal(embedder: Server) -> None:
    vectors = embed(embedder, input=TEXTS)
    assert [[vector] for vector in vectors] == native(embedder, input=TEXTS)
    packed: list[Any] = embed(embedder, input=TEXTS, encoding_format="base64")
    for text, vector in zip(packed, vectors, strict=True):
        raw = base64.b64decode(text, validate=True)
        assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == vector
    for request in ({"content": TEXTS}, {"input": TEXTS, "content": "other"}):
        assert native(embedder, **request) == [[vector] for vector in vectors]
    both = embedder.ask("/v1/embeddings", {"content": TEXTS})  # OpenAI has no such field
    assert [entry["embedding"] for entry in both] == [[vector] for vector in vectors]


def test_an_input_alone_and_in_a_batch(bert: Server) -> None:
    together = embed(bert, input=TEXTS[:3] * 20)
    alone = [embed(bert, input=text)[0] for text in TEXTS[:3]]
    for i, vector in enumerate(together):
        assert vector == pytest.approx(alone[i % 3], **SAME)
    for i, vector in enumerate(alone):
        assert vector != pytest.approx(alone[i - 1], **SAME)


@pytest.mark.parametrize("name", EMBEDDING)
def test_forms_of_an_input(name: str, embedder: Server) -> None:
    text = TEXTS[0]
    tokens = tokens_of(embedder, text)

    def vectors(given: Any) -> list[Vector]:
        answer = contract.check(embedder.post(path(name), {"input": given}))
        if isinstance(answer, list):
            return [vector for entry in answer for vector in entry["embedding"]]
        return [entry["embedding"] for entry in answer["data"]]

    [expected] = vectors(text)
    parts = [{"type": "text", "text": text[:7]}, {"type": "text", "text": text[7:]}]
    for given in (tokens, {"content": text}, {"content": parts}):
        assert vectors(given) == [pytest.approx(expected, **SAME)]
        assert vectors([given]) == [pytest.approx(expected, **SAME)]
    several = [text, tokens, {"content": text}]
    assert vectors(several) == [pytest.approx(expected, **SAME)] * 3
    assert len(vectors([tokens[0], text])) == 1
    image = {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    contract.check(embedder.post(path(name), {"input": image}), 501)


def test_norms_and_dimensions(embedder: Server) -> None:
    [[raw]] = native(embedder, content="wool", embd_normalize=-1)
    assert norm(raw) != pytest.approx(1, abs=1e-3)
    [[default]] = native(embedder, content="wool")
    assert norm(default) == pytest.approx(1)
    for p in (1, 2, 3, 7):
        [[vector]] = native(embedder, content="wool", embd_normalize=p)
        assert norm(vector, p) == pytest.approx(1, rel=1e-4)
        scale = norm(raw, p)
        assert vector == pytest.approx([x / scale for x in raw], **SAME)
    for p in (100, 2**31 - 1):
        [[vector]] = native(embedder, content="wool", embd_normalize=p)
        assert max(map(abs, vector)) == pytest.approx(1, abs=0.05)
    [[vector]] = native(embedder, content="wool", embd_normalize=0)
    assert max(map(abs, vector)) == pytest.approx(32760)
    [cut] = embed(embedder, input="wool", dimensions=10)
    assert len(cut) == 10
    assert cut == pytest.approx([x / norm(raw[:10]) for x in raw[:10]], **SAME)
    assert embed(embedder, input="wool", dimensions=len(raw)) == [pytest.approx(default, **SAME)]
    refused = embedder.post("/v1/embeddings", {"input": "wool", "dimensions": len(raw) + 1})
    assert str(len(raw)) in contract.check(refused, 400)["error"]["message"]


def test_the_norm_of_the_command_line(own_server: Start) -> None:
    server = own_server("--embeddings", "--pooling", "mean", "--embd-normalize", "1")
    [[vector]] = native(server, content="wool")
    assert norm(vector, 1) == pytest.approx(1, rel=1e-4)


def test_without_pooling_each_token_has_a_vector(unpooled: Server) -> None:
    inputs = [TEXTS[0], TEXTS[3] * 2]
    answers = native(unpooled, input=inputs)
    for text, vectors in zip(inputs, answers, strict=True):
        assert len(vectors) == len(tokens_of(unpooled, text))
        assert any(abs(norm(vector) - 1) > 0.01 for vector in vectors)
    error = contract.check(unpooled.post("/v1/embeddings", {"input": "a"}), 400)["error"]
    assert "none" in error["message"]
    contract.check(unpooled.post("/v1/embeddings", {"content": "a"}), 400)


def test_usage_and_names(embedder: Server) -> None:
    n = sum(len(tokens_of(embedder, text)) for text in TEXTS)
    answer = embedder.ask("/v1/embeddings", {"input": TEXTS, "model": "any"})
    assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}
    assert answer["model"] == "any"
    own = embedder.get("/v1/models").json()["data"][0]["id"]
    assert embedder.ask("/v1/embeddings", {"input": "a"})["model"] == own


def test_inputs_that_are_too_long(bert: Server) -> None:
    error = contract.check(bert.post("/embedding", {"content": "x " * 80}), 500)["error"]
    assert "is too large to process" in error["message"]
    assert "--ubatch-size is 64" in error["message"]
    error = contract.check(bert.post("/embedding", {"content": "x " * 200}), 400)["error"]
    assert (error["type"], error["n_prompt_tokens"]) == ("exceed_context_size_error", 202)
    assert "is too large to process" in error["message"], "clients of embeddings search for it"
    assert error["n_ctx"] == bert.get("/props").json()["default_generation_settings"]["n_ctx"]


def test_the_rest_of_the_server(embedder: Server) -> None:
    for name in ("tokenize", "detokenize", "apply_template"):
        contract.check(embedder.post(path(name), BODIES[name]))
    for where in ("/props", "/slots", "/v1/models", "/health"):
        contract.check(embedder.get(where))
    assert len(embedder.slots()) == embedder.get("/props").json()["total_slots"]


# ---- scores --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RERANKING)
def test_documents_come_best_first(name: str, reranker: Server) -> None:
    documents = [*TEXTS[:3], "wool", TEXTS[0]]
    request = {"query": QUERY, "documents": documents, "model": "any"}
    answer = contract.check(reranker.post(path(name), request))
    assert answer["model"] == "any"
    results = answer["results"]
    scores = [result["relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert sorted(result["index"] for result in results) == list(range(5))
    assert not any("document" in result for result in results)
    by_index = {result["index"]: result["relevance_score"] for result in results}
    assert by_index[0] == pytest.approx(by_index[4], **SAME)
    for index, document in enumerate(documents):
        [alone] = reranker.ask(path(name), {"query": QUERY, "documents": [document]})["results"]
        assert alone["relevance_score"] == pytest.approx(by_index[index], **SAME)
    n = sum(
        len(tokens_of(reranker, QUERY)) + len(tokens_of(reranker, document, add_special=False))
        for document in documents
    )
    assert answer["usage"] == {"prompt_tokens": n, "total_tokens": n}

    best = reranker.ask(path(name), {**request, "top_n": 2, "return_documents": True})["results"]
    assert [result["index"] for result in best] == [result["index"] for result in results[:2]]
    assert [each["document"]["text"] for each in best] == [documents[r["index"]] for r in best]
    assert len(reranker.ask(path(name), {**request, "top_n": 99})["results"]) == 5
    assert reranker.ask(path(name), {**request, "top_n": 0})["results"] == []


def test_the_format_of_tei(reranker: Server) -> None:
    texts = TEXTS[:3]
    jina = reranker.ask("/rerank", {"query": QUERY, "documents": texts})["results"]
    tei = contract.check(reranker.post("/rerank", {"query": QUERY, "texts": texts}))
    assert [each["index"] for each in tei] == [each["index"] for each in jina]
    assert [each["score"] for each in tei] == [
        pytest.approx(each["relevance_score"], **SAME) for each in jina
    ]
    request = {"query": QUERY, "texts": texts, "return_text": True, "raw_scores": False, "top_n": 2}
    shown = contract.check(reranker.post("/rerank", request))
    assert [each["text"] for each in shown] == [texts[each["index"]] for each in tei[:2]]
    assert all(0 < each["score"] < 1 for each in shown)


def test_scores_can_be_had_as_vectors(reranker: Server) -> None:
    [[score]] = native(reranker, content=f"{QUERY} wool")
    assert len(score) == 1
    assert abs(score[0]) != 1.0


def test_a_model_that_can_not_rerank(launcher: Launcher) -> None:
    ended = launcher.run("--reranking", "--port", "0")
    assert ended.returncode != 0
    assert "no classification head" in ended.stderr


def test_a_model_that_only_embeds(launcher: Launcher) -> None:
    ended = launcher.run("-m", launcher.model_file("tiny-bert"), "--port", "0")
    assert ended.returncode != 0
    assert "--embeddings" in ended.stderr
    ended = launcher.run("--reranking", "--pooling", "mean")
    assert "--pooling" in ended.stderr


# ---- together ------------------------------------------------------------------------------


def test_many_requests_at_once(bert: Server) -> None:
    texts = [f"llama {i} carries wool" for i in range(40)]
    expected = embed(bert, input=texts)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda text: embed(bert, input=text), texts))
    for [ours], wanted in zip(answers, expected, strict=True):
        assert ours == pytest.approx(wanted, **SAME)


def test_a_large_request_blocks_no_other(bert: Server) -> None:
    large = {"input": ["wool and more wool"] * MANY, "encoding_format": "base64"}
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(bert.post, "/v1/embeddings", large)
        bert.wait_until_busy()
        for _ in range(5):
            embed(bert, input=TEXTS[:3])
        assert not slow.done(), "the large request was too small to measure"
        data = contract.check(slow.result(SECONDS))["data"]
    assert len(data) == MANY
    assert len({entry["embedding"] for entry in data}) < MANY


def test_more_documents_than_are_allowed(reranker: Server) -> None:
    request = {"query": QUERY, "documents": ["wool"] * 100_000}
    for refused in (request, {"query": QUERY, "texts": ["wool"] * 100_000}):
        error = contract.check(reranker.post("/rerank", refused), 400)["error"]
        assert "100000" in error["message"]
    request["documents"] = request["documents"][:2000]
    assert len(reranker.ask("/rerank", request)["results"]) == 2000


@pytest.mark.parametrize("name", ["create_embedding", "create_openai_embeddings"])
def test_a_client_that_goes_away(name: str, bert: Server) -> None:
    raw = json.dumps({"input": ["wool and more wool"] * MANY}).encode()
    connection = bert.raw(bert.head(path(name), len(raw)) + raw)
    bert.wait_until_busy()
    connection.close()
    bert.wait_until_idle()
    embed(bert, input="wool")


def test_one_bad_input_spoils_its_request_only(bert: Server) -> None:
    good = {"input": ["wool"] * 200}
    bad = {"input": ["wool"] * 199 + ["x " * 100]}
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda each: bert.post("/v1/embeddings", each), [good, bad] * 4))
    for answer, status in zip(answers, [200, 500] * 4, strict=True):
        contract.check(answer, status)
    bert.wait_until_idle()


def test_a_new_engine_embeds_again(own_server: Start) -> None:
    server = own_server("--embeddings", "--pooling", "mean")
    before = embed(server, input="wool")
    server.kill_engine()
    wait_until(lambda: server.post("/v1/embeddings", {"input": "a"}).status_code == 200, "it is up")
    assert embed(server, input="wool") == before


# ---- odd input -----------------------------------------------------------------------------

ODD = ["\x00", "a\x00b", "\U0010ffff", "\ufffe", "\u202e", "e\u0301" * 20, "[SEP]", "{query}"]


@pytest.mark.parametrize("text", ODD, ids=ascii)
def test_odd_texts(text: str, bert: Server, reranker: Server) -> None:
    for name in EMBEDDING:
        contract.check(bert.post(path(name), with_text(name, text)))
    for query in (QUERY, text, ""):
        contract.check(reranker.post("/rerank", {"query": query, "documents": [text, ""]}))


def test_a_text_of_10_megabytes(embedder: Server, reranker: Server) -> None:
    text = "lorem ipsum " * 850_000
    for server, name in ((embedder, "create_embedding"), (reranker, "create_rerank")):
        error = contract.check(server.post(path(name), with_text(name, text)), 400)["error"]
        assert error["type"] == "exceed_context_size_error"
        contract.check(server.post(path(name), body(name)))


def test_unknown_fields_are_ignored(embedder: Server, reranker: Server) -> None:
    unknown: dict[str, Any] = {
        "unheard_of": 1,
        "": None,
        "x" * 1000: [],
        "stream": True,
        "n_predict": "a",
    }
    for name in (*EMBEDDING, *RERANKING):
        server = reranker if name in RERANKING else embedder
        without = contract.check(server.post(path(name), body(name)))
        assert contract.check(server.post(path(name), body(name, **unknown))) == without


# ---- OpenAI's client library -----------------------------------------------------------------


@pytest.fixture
def client(embedder: Server) -> Iterator[openai.OpenAI]:
    options: dict[str, Any] = {
        "base_url": f"{embedder.url}/v1",
        "api_key": embedder.api_key,
        "max_retries": 0,
    }
    with openai.OpenAI(**options, timeout=SECONDS) as client:
        yield client


def test_openai_client(client: openai.OpenAI, embedder: Server) -> None:
    expected = embed(embedder, input=TEXTS)
    answer = client.embeddings.create(model="any", input=TEXTS)  # asks for base64
    assert [entry.index for entry in answer.data] == [0, 1, 2, 3]
    for entry, wanted in zip(answer.data, expected, strict=True):
        assert entry.embedding == pytest.approx(wanted, **SAME)
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    plain = client.embeddings.create(model="any", input=TEXTS[0], encoding_format="float")
    assert plain.data[0].embedding == pytest.approx(expected[0], **SAME)
    tokens = tokens_of(embedder, TEXTS[0])
    for given in (tokens, [tokens]):
        of_tokens = client.embeddings.create(model="any", input=given)
        assert of_tokens.data[0].embedding == pytest.approx(expected[0], **SAME)
        assert of_tokens.usage.prompt_tokens == len(tokens)
    short = client.embeddings.create(model="any", input="a", dimensions=8)
    assert len(short.data[0].embedding) == 8
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="any", input="a", dimensions=100_000)


def test_openai_client_without_waiting(embedder: Server) -> None:
    async def all_of(n: int) -> list[Any]:
        url, key = f"{embedder.url}/v1", embedder.api_key
        async with openai.AsyncOpenAI(base_url=url, api_key=key, timeout=SECONDS) as client:
            calls = [client.embeddings.create(model="any", input=f"wool {i}") for i in range(n)]
            return await asyncio.gather(*calls)

    answers = asyncio.run(all_of(20))
    expected = embed(embedder, input=[f"wool {i}" for i in range(20)])
    for answer, wanted in zip(answers, expected, strict=True):
        assert answer.data[0].embedding == pytest.approx(wanted, **SAME)


def test_openai_client_gets_the_error_of_the_wrong_mode(server: Server) -> None:
    options: dict[str, Any] = {"base_url": f"{server.url}/v1", "api_key": server.api_key or "none"}
    with (
        openai.OpenAI(**options, max_retries=0, timeout=SECONDS) as client,
        pytest.raises(openai.InternalServerError, match="--embeddings") as caught,
    ):
        client.embeddings.create(model="any", input="a")
    assert caught.value.status_code == 501


# ---- generated requests ----------------------------------------------------------------------


def call(case: Case[Any], server: Server) -> None:
    fuzzing.skip_spellings(case)
    case.call_and_validate(base_url=server.url, headers=server.auth, timeout=SECONDS)


ONE_OF_EACH = ["create_embedding", "create_openai_embeddings"]


@pytest.mark.parametrize("operation", ONE_OF_EACH)
def test_valid_inputs(operation: str, embedder: Server) -> None:
    fuzzing.fuzz("positive", operation, lambda case: call(case, embedder))


@pytest.mark.parametrize("operation", ONE_OF_EACH)
def test_invalid_inputs(operation: str, embedder: Server) -> None:
    fuzzing.fuzz("negative", operation, lambda case: call(case, embedder))


@pytest.fixture(scope="module")
def guarded_reranker(module_server: Start, launcher: Launcher) -> OwnServer:
    return module_server("-m", launcher.model_file("tiny-rerank"), "--reranking", api_key="key")


def test_valid_queries(guarded_reranker: Server) -> None:
    fuzzing.fuzz("positive", "create_rerank", lambda case: call(case, guarded_reranker))


def test_invalid_queries(guarded_reranker: Server) -> None:
    fuzzing.fuzz("negative", "create_rerank", lambda case: call(case, guarded_reranker))
