"""OpenAI's official client library, used as in its documentation."""

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from contract_tests.kit.bodies import MESSAGES, PROMPT
from contract_tests.kit.clients.openai_client import MODEL, client_of
from contract_tests.kit.server import SECONDS, Server, Start, needs_key


@pytest.fixture
def client(server: Server) -> Iterator[OpenAI]:
    with client_of(server) as client:
        yield client


def test_models(client: OpenAI) -> None:
    models = client.models.list()
    [model, *_] = models.data
    assert model.object == "model"
    assert isinstance(model.created, int)
    assert model.model_extra is not None
    assert model.model_extra["meta"]["n_vocab"] > 0


def test_a_model(client: OpenAI) -> None:
    for model in client.models.list().data:
        assert client.models.retrieve(model.id) == model
    for name in ("gpt-4o", "org/name"):
        with pytest.raises(openai.NotFoundError, match="not found; GET /models"):
            client.models.retrieve(name)


def test_unsupported_operations(client: OpenAI) -> None:
    """They are refused by name, and the client doesn't retry."""
    recording = ("speech.wav", b"RIFF....WAVE")
    with pytest.raises(openai.InternalServerError, match="audio") as refused:
        client.audio.transcriptions.create(model=MODEL, file=recording)
    assert refused.value.status_code == 501


def test_completion(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6, seed=1)
    assert answer.object == "text_completion"
    assert answer.model == client.models.list().data[0].id
    [choice] = answer.choices
    assert choice.finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    again = client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=6, seed=1)
    assert again.choices[0].text == choice.text
    assert again.id != answer.id


def test_completion_of_several_prompts(client: OpenAI) -> None:
    answer = client.completions.create(model=MODEL, prompt=[PROMPT, "And"], max_tokens=3, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1]
    tokens = client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=3)
    assert tokens.usage is not None
    assert tokens.usage.prompt_tokens == 3


def test_streamed_completion(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "prompt": PROMPT,
        "max_tokens": 8,
        "seed": 1,
        "temperature": 0.5,
    }
    plain = client.completions.create(**options)
    stream = client.completions.create(**options, stream=True)
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == plain.choices[0].text
    assert chunks[-1].choices[0].finish_reason == plain.choices[0].finish_reason
    assert chunks[-1].usage == plain.usage or chunks[-1].usage.total_tokens > 0


def test_chat(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, max_completion_tokens=6, seed=1
    )
    [choice] = answer.choices
    assert answer.object == "chat.completion"
    assert choice.message.role == "assistant"
    assert isinstance(choice.message.content, str)
    assert answer.usage is not None
    assert answer.usage.completion_tokens <= 6
    again = client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=6, seed=1)
    assert again.choices[0].message.content == choice.message.content


def test_parts_of_a_message(client: OpenAI) -> None:
    parts: Any = [{"type": "text", "text": MESSAGES[0]["content"]}]
    options: dict[str, Any] = {"model": MODEL, "max_tokens": 5, "seed": 1}
    answers = [
        client.chat.completions.create(messages=[{"role": "user", "content": content}], **options)
        for content in (parts, MESSAGES[0]["content"])
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


def test_streamed_chat(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8, "seed": 1}
    plain = client.chat.completions.create(**options)
    stream = client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    )
    *chunks, last = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == plain.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices[0].finish_reason == plain.choices[0].finish_reason
    assert last.choices == []
    assert last.usage.completion_tokens == plain.usage.completion_tokens


def test_the_client_s_own_stream_helper(client: OpenAI) -> None:
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": MESSAGES,
        "max_tokens": 8,
        "seed": 1,
        "reasoning_effort": "none",
    }
    with client.chat.completions.stream(**options) as stream:
        kinds = {event.type for event in stream}
        snapshot = stream.current_completion_snapshot
    assert {"chunk", "content.delta", "content.done"} <= kinds
    plain = client.chat.completions.create(**options)
    assert snapshot.choices[0].message.content == plain.choices[0].message.content


def test_stop(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 30}
    whole = client.completions.create(**options, extra_body={"ignore_eos": True}).choices[0].text
    word = whole[len(whole) // 2 :][:3]
    answer = client.completions.create(
        **options, stop=[word], extra_body={"ignore_eos": True}
    ).choices[0]
    assert answer.text == whole[: whole.index(word)]
    assert answer.finish_reason == "stop"


def test_logit_bias(client: OpenAI) -> None:
    options: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "temperature": 0, "max_tokens": 4}
    forced = client.completions.create(**options, logit_bias={"100": 100})
    only = client.completions.create(
        **options, extra_body={"ignore_eos": True}, logit_bias={"100": 1000}
    )
    assert only.choices[0].text
    pieces = len(only.choices[0].text) // 4
    assert only.choices[0].text == only.choices[0].text[:pieces] * 4
    assert forced.choices[0].text


def test_asynchronous_client(server: Server) -> None:
    async def run() -> tuple[str, str, int]:
        key = server.api_key or "none"
        async with AsyncOpenAI(
            base_url=f"{server.url}/v1", api_key=key, timeout=SECONDS, max_retries=0
        ) as client:
            options: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}
            options["seed"] = 1
            plain, models = await asyncio.gather(
                client.chat.completions.create(**options), client.models.list()
            )
            stream = await client.chat.completions.create(**options, stream=True)
            parts = [c.choices[0].delta.content or "" async for c in stream]
            return plain.choices[0].message.content or "", "".join(parts), len(models.data)

    plain, streamed, n_models = asyncio.run(run())
    assert plain == streamed
    assert n_models >= 1


# ---- errors --------------------------------------------------------------------------------


def test_a_wrong_key(server: Server) -> None:
    needs_key(server)
    with client_of(server, "wrong") as client:
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model=MODEL, messages=MESSAGES, max_tokens=2)
        assert caught.value.type == "authentication_error"
        with pytest.raises(openai.AuthenticationError):
            client.completions.create(model=MODEL, prompt=PROMPT, stream=True)


def test_a_bad_request(client: OpenAI) -> None:
    hot: Any = "hot"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(
                model=MODEL, messages=MESSAGES, temperature=hot, stream=stream
            )
        assert caught.value.type == "invalid_request_error"
        assert "temperature" in str(caught.value)
    without_role: Any = [{"content": "a"}]
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model=MODEL, messages=without_role)


def test_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.images.generate(prompt="a llama")
    assert caught.value.type == "not_found_error"


def test_not_supported(client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(
            model=MODEL, prompt="[img-1]", extra_body={"image_data": [{"data": "", "id": 1}]}
        )
    assert caught.value.status_code == 501
    assert caught.value.type == "not_supported_error"


def test_too_long_a_prompt(own_server: Start) -> None:
    server = own_server("-c", "256")
    with client_of(server) as client, pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=MODEL, prompt="word " * 256, max_tokens=2)
    assert caught.value.type == "exceed_context_size_error"
    body: Any = caught.value.body
    assert body["n_ctx"] == 256


def test_an_engine_that_dies(own_server: Start) -> None:
    server = own_server("-np", "1")
    with client_of(server) as client:
        stream = client.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=6000, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        next(stream)
        server.kill_engine()
        with pytest.raises(openai.APIError, match="engine"):
            list(stream)
        assert client.completions.create(model=MODEL, prompt=PROMPT, max_tokens=2).choices
