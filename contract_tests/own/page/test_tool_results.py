"""Results of the server's tools in the page: each form of an answer, and calls with wrong arguments
or ids."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from contract_tests.kit.server import OwnServer
from contract_tests.own.page.visits import Visit, call, expect, tool

if TYPE_CHECKING:
    from playwright.sync_api import Route

ANSWER = [{"content": "It says so."}]


def _answer(visit: Visit, **answer: Any) -> list[Any]:
    """Makes the server answer calls like this. Returns a list that gets the bodies of the calls."""
    bodies: list[Any] = []

    def calls(route: "Route") -> None:
        if route.request.method == "GET":
            route.fallback()
            return
        bodies.append(route.request.post_data_json)
        route.fulfill(**answer)

    visit.page.route("**/tools", calls)
    return bodies


def _result(body: Any) -> str:
    """Returns the only result in a request to the model."""
    [content] = [each["content"] for each in body["messages"] if each["role"] == "tool"]
    assert isinstance(content, str)
    return content


@pytest.mark.parametrize(
    ("status", "body", "content"),
    [
        (200, '{"error": "no such file"}', '{"error":"no such file"}'),
        (200, '{"os": "Linux", "cwd": "/"}', '{"os":"Linux","cwd":"/"}'),
        (200, '{"plain_text_response": ""}', ""),
        (200, r'{"plain_text_response": "\ud800"}', "\ufffd"),
        (200, "null", "null"),
        (200, "<html>", '{"error":"the answer is not JSON"}'),
        (404, '{"error": {"message": "no tool", "type": "x"}}', '{"error":"no tool"}'),
        (500, '{"error": {"message": "broken", "type": "x"}}', '{"error":"broken"}'),
    ],
)
def test_results_go_to_the_model(
    status: int, body: str, content: str, visit: Visit, plain: OwnServer
) -> None:
    visit.expected.append(f"status of {status}")
    visit.offer(tool("echo"))
    visit.open(plain.url)
    _answer(visit, status=status, body=body)
    bodies = visit.script([call("echo")], ANSWER)
    visit.say("Now")
    visit.click("Allow once")
    visit.says("It says so.")
    assert _result(bodies[1]) == content
    outcome = "Failed: " if '"error"' in content else "Result of "
    expect(visit.find(".result summary")).to_have_text(f"{outcome}echo")


@pytest.mark.parametrize("text", ["{", "[]", "5", '"a"', "null"])
def test_wrong_arguments(text: str, visit: Visit, plain: OwnServer) -> None:
    """They are no reason to ask the user; the model can correct them."""
    called = visit.offer(tool("echo"))
    visit.open(plain.url)
    bodies = visit.script([call("echo", text)], ANSWER)
    visit.say("Now")
    visit.says("It says so.")
    assert _result(bodies[1]) == '{"error":"the arguments are not a JSON object"}'
    assert not called


def test_the_arguments_are_shown_as_they_are_sent(visit: Visit, plain: OwnServer) -> None:
    """JSON with the same name twice has one meaning in the page, and another for some programs."""
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url)
    visit.script([call("echo", '{"text": "good", "text": "bad"}')], ANSWER)
    visit.say("Now")
    visit.find(".consent").wait_for()
    expect(visit.find(".call pre")).to_have_text('{ "text": "bad" }')
    visit.click("Allow once")
    visit.says("It says so.")
    assert called == [{"tool": "echo", "params": {"text": "bad"}}]


def test_calls_without_ids(visit: Visit, plain: OwnServer) -> None:
    visit.offer(tool("echo"), results=[{"plain_text_response": "1"}, {"plain_text_response": "2"}])
    visit.open(plain.url)
    bodies = visit.script([call("echo", id=""), call("echo", id="", index=1)], ANSWER)
    visit.say("Now")
    visit.click("Always allow")
    visit.says("It says so.")
    [answer, first, second] = bodies[1]["messages"][1:]
    ids = [each["id"] for each in answer["tool_calls"]]
    assert [first["tool_call_id"], second["tool_call_id"]] == ids
    assert "" not in ids
    assert (first["content"], second["content"]) == ("1", "2")


def _events(*events: Any) -> str:
    return "".join(f"data: {json.dumps(each)}\n\n" for each in events)


@pytest.mark.parametrize(
    ("events", "content"),
    [
        ([{"chunk": "a\n"}, {"chunk": "b"}, {"done": True}], "a\nb"),
        ([{"chunk": "a"}, {"done": True, "error": "killed"}], '{"error":"killed\\na"}'),
        ([{"chunk": "a"}], '{"error":"the connection ended before the tool was done\\na"}'),
    ],
)
def test_a_shell_streams(events: Any, content: str, visit: Visit, plain: OwnServer) -> None:
    shell = tool("exec_shell_command", type="server", permissions={"write": True})
    visit.offer(shell)
    visit.open(plain.url)
    asked = _answer(visit, status=200, content_type="text/event-stream", body=_events(*events))
    bodies = visit.script([call("exec_shell_command", {"command": "ls"})], ANSWER)
    visit.say("List")
    visit.find(".consent", has_text="of this server, which may change something?").wait_for()
    visit.click("Allow once")
    visit.says("It says so.")
    assert asked == [{"tool": "exec_shell_command", "params": {"command": "ls"}, "stream": True}]
    assert _result(bodies[1]) == content


def test_a_shell_without_a_stream(visit: Visit, plain: OwnServer) -> None:
    visit.expected.append("status of 404")
    visit.offer(tool("exec_shell_command", type="server"))
    visit.open(plain.url)

    def answer(route: "Route") -> None:
        if route.request.method == "GET":
            route.fallback()
        elif "stream" in (route.request.post_data_json or {}):
            route.fulfill(status=404, json={"error": {"message": "does not support stream"}})
        else:
            route.fulfill(json={"plain_text_response": "listed"})

    visit.page.route("**/tools", answer)
    bodies = visit.script([call("exec_shell_command")], ANSWER)
    visit.say("List")
    visit.click("Allow once")
    visit.says("It says so.")
    assert _result(bodies[1]) == "listed"
