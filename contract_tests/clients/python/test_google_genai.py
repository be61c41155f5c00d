"""Google's client, with version 1 of its API, which is its default, and with the beta."""

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import pytest
from google import genai
from google.genai import errors, types
from pydantic import BaseModel

MODEL = "specllama-tiny"
QUESTION = "How is the weather in Lima?"
SHORT: dict[str, Any] = {"temperature": 0, "max_output_tokens": 12}
PARAMETERS: Any = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Lima", "Quito"]}},
    "required": ["city"],
}


class City(BaseModel):
    name: Literal["Lima", "Quito"]
    coastal: bool


def client_of(url: str, version: str) -> genai.Client:
    options = types.HttpOptions(base_url=url, api_version=version)
    return genai.Client(api_key="none", http_options=options)


@pytest.fixture(params=["v1", "v1beta"])
def client(request: pytest.FixtureRequest, url: str) -> Iterator[genai.Client]:
    with client_of(url, request.param) as client:
        yield client


@pytest.fixture
def beta(url: str) -> Iterator[genai.Client]:
    """A client of the beta, which has the paths of models in Google's form."""
    with client_of(url, "v1beta") as client:
        yield client


def test_models(beta: genai.Client) -> None:
    [model] = beta.models.list(config={"page_size": 1})
    assert model.name == f"models/{MODEL}"
    assert "generateContent" in (model.supported_actions or [])


def test_models_get(beta: genai.Client) -> None:
    for name in (MODEL, f"models/{MODEL}"):
        assert beta.models.get(model=name).display_name == MODEL
    with pytest.raises(errors.ClientError) as caught:
        beta.models.get(model="gemini-2.5-flash")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


def test_chat(client: genai.Client) -> None:
    answer = client.models.generate_content(
        model=MODEL, contents=QUESTION, config={**SHORT, "system_instruction": "Be brief."}
    )
    assert answer.text
    assert answer.model_version == MODEL
    assert answer.usage_metadata
    assert 0 < (answer.usage_metadata.candidates_token_count or 0) <= 12


def test_chat_tokens_counted(client: genai.Client) -> None:
    assert (client.models.count_tokens(model=MODEL, contents=QUESTION).total_tokens or 0) > 0


def test_chat_conversation(client: genai.Client) -> None:
    chat = client.chats.create(model=MODEL, config={"temperature": 0, "max_output_tokens": 40})
    assert chat.send_message("Hello").text
    assert "".join(piece.text or "" for piece in chat.send_message_stream("Who are you?"))
    assert [each.role for each in chat.get_history(curated=True)][:3] == ["user", "model", "user"]
    assert chat.get_history(curated=True)[-1].role == "model"


def test_chat_candidates(client: genai.Client) -> None:
    config: Any = {"candidate_count": 2, "max_output_tokens": 8, "seed": 1}
    answer = client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
    assert [each.index for each in answer.candidates or []] == [0, 1]


def test_stream(client: genai.Client) -> None:
    config: Any = {**SHORT, "safety_settings": []}
    whole = client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
    pieces = [*client.models.generate_content_stream(model=MODEL, contents=QUESTION, config=config)]
    assert len(pieces) > 2
    assert "".join(piece.text or "" for piece in pieces) == whole.text
    [last] = pieces[-1].candidates or []
    assert last.finish_reason
    assert pieces[-1].usage_metadata


def test_stream_asynchronous(client: genai.Client) -> None:
    async def run() -> str:
        stream = await client.aio.models.generate_content_stream(
            model=MODEL, contents=QUESTION, config=types.GenerateContentConfig(**SHORT)
        )
        return "".join([piece.text or "" async for piece in stream])

    assert asyncio.run(run())


def _calling(**config: Any) -> types.GenerateContentConfig:
    function = types.FunctionDeclaration(
        name="weather", description="The weather of a city", parameters_json_schema=PARAMETERS
    )
    mode: Any = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
    return types.GenerateContentConfig(
        temperature=0,
        max_output_tokens=200,
        tools=[types.Tool(function_declarations=[function])],
        tool_config=types.ToolConfig(function_calling_config=mode),
        **config,
    )


def test_tools(client: genai.Client) -> None:
    asked = types.Content(role="user", parts=[types.Part(text=QUESTION)])
    answer = client.models.generate_content(model=MODEL, contents=[asked], config=_calling())
    call = (answer.function_calls or [])[0]
    assert (call.args or {})["city"] in ("Lima", "Quito")
    assert answer.candidates
    assert answer.candidates[0].content
    returned = types.Part.from_function_response(name="weather", response={"result": "20 degrees"})
    history: Any = [
        asked,
        answer.candidates[0].content,
        types.Content(role="user", parts=[returned]),
    ]
    config = types.GenerateContentConfig(tools=_calling().tools, **SHORT)
    again = client.models.generate_content(model=MODEL, contents=history, config=config)
    assert again.candidates


def test_tools_streamed(client: genai.Client) -> None:
    stream = client.models.generate_content_stream(
        model=MODEL, contents=QUESTION, config=_calling()
    )
    calls = [call for piece in stream for call in piece.function_calls or ()]
    assert (calls[0].args or {})["city"] in ("Lima", "Quito")


def test_tools_run_by_the_client(client: genai.Client) -> None:
    asked: list[str] = []

    def weather(city: str) -> str:
        """The weather of a city."""
        asked.append(city)
        return "20 degrees"

    mode: Any = types.FunctionCallingConfig(mode=types.FunctionCallingConfigMode.ANY)
    config = types.GenerateContentConfig(
        temperature=0,
        max_output_tokens=200,
        tools=[weather],
        tool_config=types.ToolConfig(function_calling_config=mode),
        automatic_function_calling=types.AutomaticFunctionCallingConfig(maximum_remote_calls=2),
    )
    client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
    assert asked


def test_structured_output(client: genai.Client) -> None:
    for schema in ({"response_schema": City}, {"response_json_schema": City.model_json_schema()}):
        config: Any = {
            "temperature": 0,
            "max_output_tokens": 200,
            "response_mime_type": "application/json",
            **schema,
        }
        answer = client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
        assert City.model_validate_json(answer.text or "")


def test_structured_output_of_an_enum(client: genai.Client) -> None:
    config: Any = {
        "temperature": 0,
        "response_mime_type": "text/x.enum",
        "response_schema": {"type": "STRING", "enum": ["Lima", "Quito"]},
    }
    answer = client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
    assert answer.text in ("Lima", "Quito")


def test_probabilities(client: genai.Client) -> None:
    config: Any = {**SHORT, "response_logprobs": True, "logprobs": 2}
    answer = client.models.generate_content(model=MODEL, contents=QUESTION, config=config)
    [candidate] = answer.candidates or []
    assert candidate.logprobs_result
    chosen = candidate.logprobs_result.chosen_candidates or []
    assert "".join(each.token or "" for each in chosen) == answer.text
    tops = candidate.logprobs_result.top_candidates or []
    assert [len(each.candidates or []) for each in tops] == [2] * len(chosen)


def test_error(client: genai.Client) -> None:
    long = "llama " * 9000
    with pytest.raises(errors.ClientError, match="exceeds the available context size") as caught:
        client.models.generate_content(model=MODEL, contents=long)
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
    with pytest.raises(errors.ClientError, match="exceeds the maximum number of tokens"):
        list(client.models.generate_content_stream(model=MODEL, contents=long))


def test_error_of_features_that_only_google_has(client: genai.Client) -> None:
    with pytest.raises(errors.ServerError, match="cachedContent") as caught:
        client.models.generate_content(
            model=MODEL, contents=QUESTION, config={"cached_content": "cachedContents/1"}
        )
    assert caught.value.code == 501
