"""Instructor, in the modes that make a model's answer an object."""

from typing import Any, Literal

import instructor
import pytest
from instructor import Mode
from openai import OpenAI
from pydantic import BaseModel

MODEL = "specllama-tiny"
MESSAGES: list[Any] = [{"role": "user", "content": "Which city is at the sea?"}]


class City(BaseModel):
    """A city."""

    name: Literal["Lima", "Quito"]
    coastal: bool


def _city(url: str, mode: Mode, messages: list[Any] = MESSAGES, **options: Any) -> Any:
    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    return instructor.from_openai(client, mode=mode).create(
        model=MODEL,
        messages=messages,
        response_model=City,
        max_retries=0,
        temperature=0,
        **options,
    )


def test_structured_output(url: str) -> None:
    assert isinstance(_city(url, Mode.JSON_SCHEMA), City)


def test_tools(url: str) -> None:
    assert isinstance(_city(url, Mode.TOOLS, parallel_tool_calls=False), City)


def test_tools_strict(url: str) -> None:
    assert isinstance(_city(url, Mode.TOOLS_STRICT, parallel_tool_calls=False), City)


def test_stream(url: str) -> None:
    client = instructor.from_openai(
        OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0), mode=Mode.JSON_SCHEMA
    )
    *_, last = client.create_partial(
        model=MODEL, messages=MESSAGES, response_model=City, max_retries=0, temperature=0
    )
    assert last.name in ("Lima", "Quito")


def test_error(url: str) -> None:
    with pytest.raises(Exception, match="exceeds the available context size"):
        _city(url, Mode.JSON_SCHEMA, [{"role": "user", "content": "llama " * 9000}])
