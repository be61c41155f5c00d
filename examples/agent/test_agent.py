"""Tests of the agent against a real server, offline. They pass with any model, since they don't
depend on its decisions: they check that calls follow their schema, and that errors reach it."""

from typing import Any

import pytest
from agent import Agent, Tool
from openai import OpenAI

from specllama.testing import LLMServer

SETTINGS: dict[str, Any] = {
    "max_tokens": 400,
    "seed": 1,
    "extra_body": {"chat_template_kwargs": {"enable_thinking": False}},
}
ROOMS = ("kitchen", "bedroom")


@pytest.fixture
def switched() -> list[tuple[str, bool]]:
    return []


@pytest.fixture
def agent(llm_server: LLMServer, switched: list[tuple[str, bool]]) -> Agent:
    def switch_light(room: str, on: bool) -> dict[str, bool]:
        switched.append((room, on))
        return {"ok": True}

    tool = Tool(
        "Switch the light of a room",
        {
            "type": "object",
            "properties": {
                "room": {"type": "string", "enum": list(ROOMS)},
                "on": {"type": "boolean"},
            },
            "required": ["room", "on"],
        },
        switch_light,
    )
    client = OpenAI(base_url=f"{llm_server.base_url}/v1", api_key="none needed")
    return Agent(client, llm_server.model, {"switch_light": tool}, **SETTINGS)


def test_the_light_is_switched(agent: Agent, switched: list[tuple[str, bool]]) -> None:
    result = agent.run("Turn on the light in the kitchen.", must_call=True)
    done = [arguments for _, arguments, result in result.calls if result == '{"ok": true}']
    assert done
    assert [(each["room"], each["on"]) for each in done] == switched
    assert all(room in ROOMS and isinstance(on, bool) for room, on in switched)


def test_an_agent_of_one_round_only_answers(agent: Agent, switched: list[tuple[str, bool]]) -> None:
    assert agent.run("Turn on the light.", max_rounds=1).calls == []
    assert not switched


def test_the_model_receives_the_error_of_a_tool(llm_server: LLMServer) -> None:
    def fail() -> None:
        raise RuntimeError("no such lamp")

    tool = Tool("Always fails", {"type": "object", "properties": {}}, fail)
    client = OpenAI(base_url=f"{llm_server.base_url}/v1", api_key="none needed")
    agent = Agent(client, llm_server.model, {"fail": tool}, **SETTINGS)
    result = agent.run("Go!", max_rounds=2, must_call=True)
    assert result.calls
    assert ("fail", {}, '{"error": "no such lamp"}') in result.calls
