"""Ollama's other paths, with its official client library: generate, embed, ps, pull, /."""

import asyncio
import hashlib
import json
import math
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any

import httpx
import pytest
from ollama import AsyncClient, Client, ResponseError

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import MESSAGES, MODEL, OLLAMA, body, path
from contract_tests.kit.clients.ollama_client import fails, options_of
from contract_tests.kit.server import OwnServer, Server, Start, needs_key

QUESTION = MESSAGES[0]["content"]
SHORT = {"num_predict": 6, "seed": 1, "temperature": 0}
ANSWER = {
    "type": "object",
    "properties": {"answer": {"type": "boolean"}},
    "required": ["answer"],
    "additionalProperties": False,
}


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(**options_of(server)) as client:
        yield client


@pytest.fixture(scope="module")
def embedder(module_server: Start) -> OwnServer:
    return module_server(
        *("--embeddings", "--pooling", "mean", "-c", "256", "-np", "1"), api_key="key"
    )


@pytest.fixture
def embedding(embedder: OwnServer) -> Iterator[Client]:
    with Client(**options_of(embedder)) as client:
        yield client


# ---- the server --------------------------------------------------------------------------


def test_root(server: Server) -> None:
    for headers in ({}, {"Accept": "*/*"}, {"Accept": "application/json"}):
        response = server.get("/", headers={"Authorization": "", **headers})
        assert contract.check(response) == b"Ollama is running"
    head = server.http.head("/")
    assert (head.status_code, head.content) == (200, b"")
    browser = server.get("/", headers={"Accept": "text/html,*/*;q=0.8"})
    assert contract.check(browser)


def test_version(server: Server) -> None:
    """The version is public, and at least what VS Code needs (0.6.4)."""
    response = server.get("/api/version", headers={"Authorization": ""})
    version = contract.check(response)["version"]
    assert tuple(map(int, version.split("."))) >= (0, 6, 4)


def test_ps(client: Client, server: Server) -> None:
    props = server.get("/props").json()  # loads the model, if necessary
    [process] = client.ps().models
    [listed] = client.list().models
    assert process.model == process.name == listed.model
    assert process.size is not None
    assert listed.size is not None
    assert process.size >= listed.size
    assert process.details == listed.details
    assert isinstance(process.expires_at, datetime)
    assert process.expires_at > datetime.now(process.expires_at.tzinfo)
    assert process.size_vram is not None
    assert 0 <= process.size_vram <= process.size
    assert process.context_length == props["default_generation_settings"]["n_ctx"]
    assert process.digest == client.list().models[0].digest


def test_the_digest_is_that_of_the_file(own_server: Start, launcher: Any) -> None:
    file = launcher.model_file("tiny-rerank")
    server = own_server("-m", file, "--reranking")
    with open(file, "rb") as opened:
        expected = hashlib.file_digest(opened, "sha256").hexdigest()
    with Client(**options_of(server)) as client:
        assert [each.digest for each in client.ps().models] == [expected]
        assert [each.digest for each in client.list().models] == [expected]


@pytest.mark.parametrize("seconds", [None, 3000])
def test_when_a_model_expires(own_server: Start, seconds: int | None) -> None:
    options = () if seconds is None else ("--sleep-idle-seconds", str(seconds))
    server = own_server(*options)
    [process] = contract.check(server.get("/api/ps"))["models"]
    expires = datetime.fromisoformat(process["expires_at"])
    left = (expires - datetime.now(expires.tzinfo)).total_seconds()
    assert left > 10**9 if seconds is None else left <= seconds


def test_missing_models(client: Client) -> None:
    assert "/api/copy" in fails(404, lambda: client.copy(MODEL, "other"))
    assert "/api/delete" in fails(404, lambda: client.delete(MODEL))
    assert "/api/push" in fails(404, lambda: client.push(MODEL))
    assert "/api/create" in fails(404, lambda: client.create("mine", from_=MODEL))


def test_there_are_no_blobs(server: Server) -> None:
    digest = f"/api/blobs/sha256:{'0' * 64}"
    assert server.http.head(digest).status_code == 404
    for headers in ({}, {"User-Agent": "ollama/0.12 (amd64 linux)"}):
        answer = server.http.post(digest, content=b"x", headers=headers)
        assert answer.status_code == 404
        assert isinstance(answer.json()["error"], str)


def test_a_present_model_needs_no_download(client: Client) -> None:
    assert client.pull(MODEL).status == "success"
    assert [step.status for step in client.pull(MODEL, stream=True)][-1] == "success"


@pytest.mark.parametrize(
    "name", ["show_ollama_model", "pull_ollama_model", "create_ollama_generation"]
)
def test_a_request_that_names_nothing_means_the_only_model(name: str, server: Server) -> None:
    contract.check(server.post(path(name), {}), 200)


def test_errors_are_texts_for_any_client(server: Server) -> None:
    for name in OLLAMA:
        for headers in ({}, {"User-Agent": "OpenAI/Python 2.0"}):
            response = server.post(path(name), {"model": 5}, headers=headers)
            assert isinstance(contract.check(response, 400)["error"], str)
    for verb, where in (("DELETE", "/api/tags"), ("GET", "/api/show"), ("GET", "/api/chat/x")):
        answer = server.http.request(verb, where)
        assert answer.status_code in (404, 405)
        assert isinstance(answer.json()["error"], str)
    needs_key(server)
    response = server.get("/api/ps", headers={"Authorization": "Bearer wrong"})
    assert isinstance(contract.check(response, 401)["error"], str)


# ---- generate ----------------------------------------------------------------------------


def test_generate(client: Client) -> None:
    answer = client.generate(MODEL, QUESTION, options=SHORT)
    assert answer.model == MODEL
    assert isinstance(answer.response, str)
    assert answer.done
    assert answer.done_reason in ("stop", "length")
    assert answer.eval_count is not None
    assert 0 < answer.eval_count <= 6
    assert answer.prompt_eval_count
    assert answer.context
    *pieces, last = client.generate(MODEL, QUESTION, options=SHORT, stream=True)
    assert not any(piece.done for piece in pieces)
    assert all(piece.response or piece.thinking for piece in pieces)
    assert last.done
    assert last.response == ""
    assert "".join(piece.response or "" for piece in pieces) == answer.response
    assert (last.done_reason, last.context) == (answer.done_reason, answer.context)


def test_it_answers_as_a_chat_does(client: Client) -> None:
    system = {"role": "system", "content": "Short answers."}
    chat = client.chat(MODEL, [system, *MESSAGES], options=SHORT, think=False)
    answer = client.generate(
        MODEL, QUESTION, system=system["content"], options=SHORT, think=False, keep_alive="5m"
    )
    assert answer.response == chat.message.content
    assert answer.prompt_eval_count == chat.prompt_eval_count


def test_raw_is_a_completion(client: Client, server: Server) -> None:
    native = {"prompt": QUESTION, "n_predict": 6, "seed": 1, "temperature": 0}
    expected = server.ask("/completion", native)
    answer = client.generate(MODEL, QUESTION, raw=True, options=SHORT)
    assert answer.response == expected["content"]
    assert answer.prompt_eval_count == expected["tokens_evaluated"]
    assert answer.context is None


def test_a_suffix_is_that_of_a_gap(client: Client, server: Server) -> None:
    native = {"n_predict": 6, "seed": 1, "temperature": 0}
    gap = {"input_prefix": "def add(a, b):\n", "input_suffix": "\n    return c\n"}
    response = server.post("/infill", {**gap, **native})
    if response.status_code == 501:
        assert not isinstance(server, OwnServer), "the shipped model can"
        pytest.skip("the model can't fill gaps")
    answer = client.generate(MODEL, gap["input_prefix"], suffix=gap["input_suffix"], options=SHORT)
    assert answer.response == response.json()["content"]


def test_a_conversation_goes_on_with_its_context(client: Client, server: Server) -> None:
    first = client.generate(MODEL, QUESTION, options=SHORT, think=False)
    second = client.generate(MODEL, "And?", context=first.context, options=SHORT, think=False)
    alone = client.generate(MODEL, "And?", options=SHORT, think=False)
    assert first.context is not None
    assert second.context is not None
    assert second.context[: len(first.context)] == first.context
    assert second.prompt_eval_count is not None
    assert alone.prompt_eval_count is not None
    assert second.prompt_eval_count > alone.prompt_eval_count
    said = server.ask("/detokenize", {"tokens": list(second.context)})["content"]
    assert QUESTION in said
    assert first.response
    assert first.response in said
    n_vocab = server.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    beside = partial(client.generate, MODEL, "And?", context=[n_vocab])
    assert str(n_vocab) in fails(400, beside)


@pytest.mark.parametrize("stream", [False, True])
def test_format_of_a_generation(client: Client, stream: bool) -> None:
    generate: Any = client.generate  # typed for each literal value of `stream`
    options = {"num_predict": 200, "temperature": 0}
    answer = generate(MODEL, QUESTION, format=ANSWER, think=False, options=options, stream=stream)
    pieces = list(answer) if stream else [answer]
    value = json.loads("".join(piece.response for piece in pieces))
    assert isinstance(value["answer"], bool)
    assert pieces[-1].done_reason == "stop"


def test_logprobs_of_a_generation(client: Client) -> None:
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, "options": SHORT}
    answer = client.generate(MODEL, QUESTION, **asked)
    *pieces, last = client.generate(MODEL, QUESTION, stream=True, **asked)
    assert answer.logprobs is not None
    assert len(answer.logprobs) == answer.eval_count
    assert all(len(token.top_logprobs or ()) == 2 for token in answer.logprobs)
    streamed = [token for piece in (*pieces, last) for token in piece.logprobs or ()]
    assert [each.token for each in streamed] == [each.token for each in answer.logprobs]


def test_without_a_prompt_the_model_is_loaded(client: Client, server: Server) -> None:
    for keep_alive in (None, -1, "10m", 0):
        # On a router, 0 unloads the model.
        reasons = ("load", "unload") if keep_alive == 0 else ("load",)
        answer = client.generate(MODEL, keep_alive=keep_alive)
        assert (answer.response, answer.done) == ("", True)
        assert answer.done_reason in reasons
        chat = client.chat(MODEL, [], keep_alive=keep_alive)
        assert (chat.message.content, chat.done) == ("", True)
        assert chat.done_reason in reasons
    for stream in (False, True):
        response = server.post("/api/generate", {"model": MODEL, "stream": stream})
        contract.check(response)
        assert contract.media_type(response) == contract.JSON
        chat_body: dict[str, Any] = {
            "model": MODEL,
            "messages": [],
            "options": {},
            "stream": stream,
        }
        assert contract.check(server.post("/api/chat", chat_body))["done_reason"] == "load"
    [last] = client.generate(MODEL, stream=True)
    assert last.done_reason == "load"


def test_requests_that_a_generation_refuses(client: Client, server: Server) -> None:
    def generate(prompt: str = QUESTION, **changes: Any) -> Any:
        return lambda: client.generate(MODEL, prompt, **changes)

    assert "options.top_k" in fails(400, generate(options={"top_k": "many"}))
    assert "schema" in fails(400, generate(format={"type": "nothing"}, options=SHORT))
    assert "tokens" in fails(400, generate("word " * 100_000))
    assert "raw" in fails(400, generate(raw=True, system="a"))
    assert "suffix" in fails(400, generate(suffix="a", system="b"))
    assert "template" in fails(501, generate(template="{{ .Prompt }}"))
    assert "images" in fails(501, generate(images=[b"\x89PNG"]))
    assert "top_logprobs" in fails(400, generate(top_logprobs=5))
    assert client.generate(MODEL, QUESTION, template="", options=SHORT).done
    for changes in ({"context": ["a"]}, {"context": [-1]}, {"think": 5}, {"stream": "no"}):
        response = server.post("/api/generate", body("create_ollama_generation", **changes))
        contract.check(response, 400)


def test_lines_of_a_generation(server: Server) -> None:
    request = body("create_ollama_generation", stream=None)
    response = server.post("/api/generate", request)
    lines = contract.check(response)
    assert contract.media_type(response) == lint.LINES
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]


def test_an_engine_that_dies_ends_a_generation_with_an_error(own_server: Start) -> None:
    server = own_server("-np", "2")
    with Client(**options_of(server)) as client:
        options = {"num_predict": 6000, "ignore_eos": True}
        ask: Any = client.generate
        stream = ask(MODEL, QUESTION, stream=True, options=options)
        for _ in range(3):
            next(stream)
        server.kill_engine()
        with pytest.raises(ResponseError) as caught:
            list(stream)
        assert isinstance(caught.value.error, str)


def test_a_client_that_leaves_a_generation(server: Server) -> None:
    options = {"num_predict": 1500, "ignore_eos": True}
    request = body("create_ollama_generation", stream=True, options=options)
    with server.http.stream("POST", "/api/generate", json=request) as response:
        next(response.iter_lines())
    server.wait_until_idle()


def test_the_asynchronous_client(server: Server) -> None:
    async def talk() -> None:
        async with AsyncClient(**options_of(server)) as client:
            whole = await client.generate(MODEL, QUESTION, options=SHORT)
            stream = await client.generate(MODEL, QUESTION, options=SHORT, stream=True)
            pieces = [piece async for piece in stream]
            assert "".join(piece.response or "" for piece in pieces) == whole.response
            assert (await client.ps()).models
            assert (await client.pull(MODEL)).status == "success"

    asyncio.run(talk())


# ---- embed -------------------------------------------------------------------------------

TEXTS = ["A llama carries wool.", "The bus leaves at nine.", "\U0001f999"]


def test_embed(embedding: Client, embedder: OwnServer) -> None:
    answer = embedding.embed(MODEL, TEXTS)
    assert answer.model == MODEL
    data = embedder.ask("/v1/embeddings", {"input": TEXTS})
    expected = [each["embedding"] for each in data["data"]]
    assert [list(each) for each in answer.embeddings] == expected
    assert answer.prompt_eval_count == data["usage"]["prompt_tokens"]
    for vector in answer.embeddings:
        assert math.fsum(value * value for value in vector) == pytest.approx(1, abs=1e-5)
    [alone] = embedding.embed(MODEL, TEXTS[0], keep_alive=5, options={"num_ctx": 10}).embeddings
    assert list(alone) == expected[0]


def test_embed_nothing(embedding: Client) -> None:
    nothings: tuple[Any, ...] = ("", [])
    for nothing in nothings:
        answer = embedding.embed(MODEL, nothing)
        assert list(answer.embeddings) == []
        assert answer.prompt_eval_count == 0
    assert list(embedding.embeddings(MODEL, "").embedding) == []


def test_dimensions(embedding: Client) -> None:
    [whole] = embedding.embed(MODEL, TEXTS[0]).embeddings
    [short] = embedding.embed(MODEL, TEXTS[0], dimensions=4).embeddings
    assert len(short) == 4
    length = math.sqrt(math.fsum(value * value for value in whole[:4]))
    assert list(short) == pytest.approx([value / length for value in whole[:4]], abs=1e-5)
    many = len(whole) + 1
    assert "dimensions" in fails(400, lambda: embedding.embed(MODEL, "a", dimensions=many))


def test_a_long_text_is_cut_off_or_refused(embedding: Client, embedder: OwnServer) -> None:
    [process] = embedding.ps().models
    n_ctx = process.context_length
    assert n_ctx is not None
    text = "".join(f"{n} llamas. " for n in range(n_ctx))
    answer = embedding.embed(MODEL, [TEXTS[0], text])
    tokens = embedder.ask("/tokenize", {"content": text, "add_special": True})["tokens"]
    first = embedder.ask("/v1/embeddings", {"input": [tokens[:n_ctx]]})["data"][0]["embedding"]
    assert list(answer.embeddings[1]) == first
    message = fails(400, lambda: embedding.embed(MODEL, text, truncate=False))
    assert str(len(tokens)) in message
    assert list(embedding.embeddings(MODEL, text).embedding)


def test_older_embeddings(embedding: Client, embedder: OwnServer) -> None:
    vector = list(embedding.embeddings(MODEL, TEXTS[0]).embedding)
    request = {"content": TEXTS[0], "embd_normalize": -1}
    assert vector == embedder.ask("/embedding", request)[0]["embedding"][0]
    newer = {"prompt": TEXTS[0], "dimensions": "a", "truncate": 5}  # ignored by this operation
    assert embedder.ask("/api/embeddings", newer) == {"embedding": vector}


def test_a_server_that_generates_does_not_embed(client: Client) -> None:
    assert "--embeddings" in fails(501, lambda: client.embed(MODEL, "a"))
    assert "--embeddings" in fails(501, lambda: client.embeddings(MODEL, "a"))


def test_a_server_that_embeds_does_not_generate(embedding: Client) -> None:
    assert "--embeddings" in fails(501, lambda: embedding.generate(MODEL, "a"))
    assert embedding.generate(MODEL).done_reason == "load"


def test_a_vector_for_each_token_is_none_for_a_text(own_server: Start) -> None:
    server = own_server("--embeddings", "--pooling", "none")
    with Client(**options_of(server)) as client:
        assert "pooling" in fails(400, lambda: client.embed(MODEL, "a"))
        assert "pooling" in fails(400, lambda: client.embeddings(MODEL, "a"))


def test_other_clients_of_the_paths(server: Server) -> None:
    """JSON with the content type of a form is accepted, because `curl -d` sends it."""
    raw = json.dumps(body("create_ollama_generation")).encode()
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    response: httpx.Response = server.post("/api/generate", content=raw, headers=headers)
    assert contract.check(response)["done"] is True
