"""Tools, reasoning and formats in chat completions on a live server, with the templates of many
families and with the server's own.

The model may be any, even one that was never trained. So the tests force what they need: calls
whose arguments end by themselves, and the end of reasoning.
"""

import json
import string
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest

from contract_tests.kit.bodies import MESSAGES, body
from contract_tests.kit.chat import (
    N_TOKENS,
    NAME,
    PATH,
    SWITCH,
    Answer,
    answer_of,
    answers,
    asking,
    both,
    call,
    check_calls,
    named,
    result,
    the_answer,
    tool,
)
from contract_tests.kit.server import Launcher, OwnServer, Server, Start
from contract_tests.own.servers import start
from tests.support import chat_fixtures as fixtures

DIFFERENT = ("qwen_3", "qwen_3_coder", "llama_3", "mistral_nemo", "deepseek_r1", "gpt_oss")
"""Tags around JSON, tags only, no marks around JSON, a list with ids, sections and reasoning that
the prompt opens, channels."""
DIM = {
    "type": "object",
    "properties": {"percent": {"enum": [20, 50, 80]}, "warm": {"type": "boolean"}},
    "required": ["percent"],
    "additionalProperties": False,
}
TOOLS = [tool(), tool("dim", DIM)]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "family" in metafunc.fixturenames:
        everything = metafunc.config.getoption("--all-families")
        names = [each.name for each in fixtures.FIXTURES] if everything else DIFFERENT
        metafunc.parametrize("family", names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def family(
    request: pytest.FixtureRequest, launcher: Launcher, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OwnServer]:
    """A server with the chat template of one family."""
    directory = tmp_path_factory.mktemp(request.param)
    file = directory / "template.jinja"
    file.write_text(fixtures.fixture(request.param).source, encoding="utf-8")
    server = start(directory, "--chat-template-file", str(file), "-np", "2")
    yield server
    server.close()


def family_of(request: pytest.FixtureRequest) -> Any:
    return fixtures.fixture(request.node.callspec.params["family"])


def no_end_of_thoughts(server: Server) -> list[Any]:
    """Returns a `logit_bias` with which a model doesn't end its reasoning before the budget
    does."""
    return [[token, -50] for token in server.ask("/tokenize", {"content": "</think>"})["tokens"]]


# ---- every family ------------------------------------------------------------------------


def test_a_required_call(family: OwnServer) -> None:
    answer = the_answer(family, asking(tools=TOOLS))
    check_calls(answer, TOOLS)
    assert len(answer.calls) == 1
    assert (answer.content, answer.reasoning) == ("", "")


@pytest.mark.parametrize("name", ["switch", "dim"])
def test_a_named_call(name: str, family: OwnServer) -> None:
    answer = the_answer(family, asking(tools=TOOLS, tool_choice=named(name)))
    check_calls(answer, TOOLS)
    assert [each for each, _ in answer.calls] == [name]


def test_several_calls(family: OwnServer, request: pytest.FixtureRequest) -> None:
    """The model decides their number. The last one is cut off if the limit of tokens is reached."""
    answer = the_answer(family, asking(tools=TOOLS, parallel_tool_calls=True))
    assert answer.calls
    if not family_of(request).parallel:
        assert len(answer.calls) == 1
    if answer.reason == "length":
        answer.calls.pop()
        answer = answer._replace(reason="tool_calls")
    if answer.calls:
        check_calls(answer, TOOLS)


def test_no_call(family: OwnServer) -> None:
    answer = the_answer(family, asking(tools=TOOLS, tool_choice="none", max_tokens=12))
    assert not answer.calls
    assert answer.reason in ("stop", "length")


def test_a_call_or_a_text(family: OwnServer) -> None:
    answer = the_answer(family, asking(tools=TOOLS, tool_choice="auto", max_tokens=24))
    if answer.reason == "tool_calls":
        check_calls(answer, TOOLS)


def test_thoughts_that_end_in_a_call(family: OwnServer, request: pytest.FixtureRequest) -> None:
    """The budget ends the reasoning; the model of a family without reasoning calls at once."""
    forced = asking(
        tools=TOOLS,
        reasoning_budget_tokens=6,
        thinking_forced_open=True,
        logit_bias=no_end_of_thoughts(family),
    )
    answer = the_answer(family, forced)
    check_calls(answer, TOOLS)
    if family_of(request).opens_thoughts:
        assert answer.reasoning
    legacy = the_answer(family, {**forced, "reasoning_format": "deepseek-legacy"})
    assert (legacy.reasoning, legacy.calls) == (answer.reasoning, answer.calls)
    assert answer.reasoning.strip() in legacy.content
    kept = the_answer(family, {**forced, "reasoning_format": "none"})
    assert (kept.reasoning, kept.calls) == ("", answer.calls)
    assert answer.reasoning.strip() in kept.content
    switched_off = {**forced, "chat_template_kwargs": {"enable_thinking": False}}
    check_calls(the_answer(family, switched_off), TOOLS)


def test_stop_texts_count_after_the_reasoning(
    family: OwnServer, request: pytest.FixtureRequest
) -> None:
    """Reasoning, markers and calls have these letters; the answer's text ends at the first one."""
    letters = [*string.ascii_letters, " ", "\n", '"', "{", "<", "|"]
    forced = {
        "reasoning_budget_tokens": 6,
        "thinking_forced_open": True,
        "logit_bias": no_end_of_thoughts(family),
    }
    check_calls(the_answer(family, asking(tools=TOOLS, stop=letters, **forced)), TOOLS)
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": DIM}}
    asked = body(NAME, response_format=form, max_tokens=N_TOKENS, stop=["percent"], **forced)
    answer = the_answer(family, asked)
    assert answer.reason == "stop"
    assert answer.content.strip() == '{"', answer
    if family_of(request).opens_thoughts:
        assert answer.reasoning
        asked["stop"] = letters
        ended = the_answer(family, asked)
        assert (ended.reasoning, ended.content, ended.reason) == (answer.reasoning, "", "stop")


def test_a_form(family: OwnServer) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": DIM}}
    for budget in (0, 6):
        given = the_answer(
            family,
            body(NAME, response_format=form, max_tokens=N_TOKENS, reasoning_budget_tokens=budget),
        )
        assert given.reason == "stop"
        jsonschema_rs.validate(DIM, json.loads(given.content))
        assert given.reasoning == "" or budget


def test_an_agent(family: OwnServer) -> None:
    """Two tools, one after the other, and an answer."""
    messages: list[Any] = [{"role": "user", "content": "Light, please, but not too much."}]
    n_tokens = 0
    for name in ("switch", "dim"):
        [plain, _] = both(
            family, asking(tools=TOOLS, tool_choice=named(name), messages=messages), 200
        )
        [choice] = plain[0]["choices"]
        message = choice["message"]
        assert choice["finish_reason"] == "tool_calls"
        assert plain[0]["usage"]["prompt_tokens"] > n_tokens, "the prompt has no result"
        n_tokens = plain[0]["usage"]["prompt_tokens"]
        [made] = message["tool_calls"]
        messages += [message, result(made["id"], '{"done": true}')]
    last = the_answer(family, asking(tools=TOOLS, tool_choice="none", messages=messages))
    assert not last.calls
    assert last.reason in ("stop", "length")


# ---- any one -----------------------------------------------------------------------------


def test_several_answers(server: Server) -> None:
    for documents in both(server, asking(tools=TOOLS, n=2), 200):
        found = [answer_of(documents, index) for index in range(2)]
        for answer in found:
            check_calls(answer, TOOLS)
        assert not set(found[0].ids) & set(found[1].ids)


def test_allowed_tools(server: Server) -> None:
    allowed = {"mode": "required", "tools": [named("dim")]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = the_answer(server, asking(tools=TOOLS, tool_choice=choice))
    check_calls(answer, TOOLS)
    assert answer.calls[0][0] == "dim"
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}}
    request = asking(tools=TOOLS, tool_choice=choice, max_tokens=4)
    assert not the_answer(server, request).calls
    prompts = [
        server.ask("/apply-template", each)["prompt"]
        for each in (request, {"messages": request["messages"]})
    ]
    assert prompts[0] != prompts[1], "thoughts are switched off in the first"
    assert "dim" not in prompts[0]


def test_arguments_that_the_tool_does_not_have(server: Server) -> None:
    """JSON Schema would allow them, but a list of a function's parameters is meant to be
    complete."""
    listed = {name: DIM[name] for name in ("type", "properties", "required")}
    for seed in range(3):
        answer = the_answer(server, asking(tools=[tool("dim", listed)], seed=seed))
        check_calls(answer, [tool("dim", DIM)])
    for nothing in (None, {}, {"type": "object", "properties": {}}):
        answer = the_answer(server, asking(tools=[tool("stop", nothing)]))
        assert [(name, json.loads(text)) for name, text in answer.calls] == [("stop", {})]


def test_a_call_that_the_model_begins(server: Server) -> None:
    """After the model has written the marker, the text is parsed as a call."""
    marker = server.ask("/tokenize", {"content": "<tool_call>", "parse_special": True})["tokens"]
    if len(marker) != 1:
        assert not isinstance(server, OwnServer), "the shipped model has one"
        pytest.skip("the model has no token that begins a call")
    free = asking(tools=TOOLS, tool_choice="auto", logit_bias=[[marker[0], 1000]])
    check_calls(the_answer(server, free), TOOLS)
    unparsed = the_answer(server, {**free, "parse_tool_calls": False})
    assert unparsed.content.startswith("<tool_call>")
    assert (unparsed.calls, unparsed.reason) == ([], "stop")


def test_a_call_that_is_cut_off(server: Server) -> None:
    for n in (1, 5, 12):
        answer = the_answer(server, asking(tools=TOOLS, max_tokens=n))
        assert answer.reason == "length"
        assert len(answer.calls) <= 1


def test_probabilities_of_answers_with_calls(server: Server) -> None:
    """Only the content has probabilities, not the call."""
    for documents in both(server, asking(tools=TOOLS, logprobs=True, top_logprobs=2), 200):
        choices = [choice for each in documents for choice in each["choices"]]
        tokens = [
            token for each in choices for token in (each.get("logprobs") or {}).get("content", ())
        ]
        answer = answer_of(documents)
        check_calls(answer, TOOLS)
        assert "".join(token["token"] for token in tokens) == answer.content


def test_counts(server: Server) -> None:
    request = asking(tools=TOOLS, stream_options={"include_usage": True})
    counted = server.ask("/v1/chat/completions/input_tokens", request)["input_tokens"]
    for documents in both(server, request, 200):
        usage = documents[-1]["usage"]
        assert usage["prompt_tokens"] == counted
        assert usage["total_tokens"] == counted + usage["completion_tokens"]
    without = {**request, "tools": None, "tool_choice": None}
    assert server.ask("/v1/chat/completions/input_tokens", without)["input_tokens"] < counted


def test_reasoning_formats(server: Server) -> None:
    """The same reasoning in different places."""
    request = body(
        NAME,
        thinking_forced_open=True,
        reasoning_budget_tokens=8,
        max_tokens=N_TOKENS,
        temperature=0,
        json_schema=SWITCH,
        grammar=None,
        logit_bias=no_end_of_thoughts(server),
    )
    request["messages"] = [*MESSAGES, {"role": "assistant", "reasoning_content": "Well,"}]
    request["messages"][-1]["content"] = ""
    found = {
        format: the_answer(server, {**request, "reasoning_format": format})
        for format in ("deepseek", "auto", "deepseek-legacy", "none")
    }
    thoughts = found["deepseek"].reasoning
    assert thoughts
    assert found["auto"].said == found["deepseek"].said
    jsonschema_rs.validate(SWITCH, json.loads(found["deepseek"].content))
    assert found["deepseek-legacy"].reasoning == thoughts
    assert found["none"].reasoning == ""
    for format in ("deepseek-legacy", "none"):
        before, end, after = found[format].content.partition("</think>")
        assert thoughts.strip() in before
        assert end
        assert json.loads(after) == json.loads(found["deepseek"].content)


def test_a_server_that_does_not_think(own_server: Start) -> None:
    server = own_server("--reasoning-budget", "0", "-np", "1")
    forced = asking(tools=TOOLS)
    del forced["reasoning_budget_tokens"]
    answer = the_answer(server, forced)
    check_calls(answer, TOOLS)
    assert answer.reasoning == ""


def test_answers_that_are_begun(server: Server, own_server: Start) -> None:
    begun = [*MESSAGES, {"role": "assistant", "content": "A llama"}]
    request = body(NAME, messages=begun)
    assert server.ask("/apply-template", request)["prompt"].endswith("A llama")
    forced = asking(tools=TOOLS, messages=begun)
    check_calls(the_answer(server, forced), TOOLS)
    other = own_server("--no-prefill-assistant", "-np", "1")
    prompt = other.ask("/apply-template", request)["prompt"]
    assert "A llama" in prompt
    assert not prompt.endswith("A llama")
    check_calls(the_answer(other, forced), TOOLS)


def test_results_of_several_calls(server: Server) -> None:
    """In any order; each result belongs to the call with its id."""
    messages = [
        *MESSAGES,
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [call("one000000"), call("two000000", "dim", '{"percent": 20}')],
        },
        result("two000000", "second"),
        result("one000000", "first"),
    ]
    prompt = server.ask("/apply-template", {"messages": messages, "tools": TOOLS})["prompt"]
    assert '{"percent": 20}' in prompt
    assert "first" in prompt
    assert "second" in prompt
    given: Answer
    for given in answers(server, asking(tools=TOOLS, messages=messages)):
        check_calls(given, TOOLS)


def test_tools_at_every_path(server: Server) -> None:
    for at in (PATH, "/chat/completions", "/api/chat"):
        response = server.post(at, {**asking(tools=TOOLS), "stream": False})
        assert response.status_code == 200, response.text
        check_calls(answer_of([response.json()]), TOOLS)
