"""The server's tools in the page: the user's consent, and the loop of calls and answers."""

import json
from typing import TYPE_CHECKING, Any

import pytest

from contract_tests.kit.server import OwnServer
from contract_tests.own.page.visits import TALKING, Visit, call, expect, tool

if TYPE_CHECKING:
    from playwright.sync_api import Route

DECLINED = "The user declined this call."
ANSWER = [{"content": "It says so."}]


def _roles(body: Any) -> list[str]:
    return [each["role"] for each in body["messages"]]


def _results(body: Any) -> list[str]:
    return [each["content"] for each in body["messages"] if each["role"] == "tool"]


def _choose(visit: Visit, label: str, option: str) -> None:
    """Chooses in the settings of the tools, which the button below the message opens."""
    visit.find(".choose-tools").click()
    visit.page.get_by_label(label, exact=True).select_option(option)
    visit.close_settings()


def test_a_call_with_consent(visit: Visit, plain: OwnServer) -> None:
    """The call's arguments are shown before the tool runs, and its result goes to the model."""
    visit.open(plain.url)
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "hello back"}])
    visit.reload()
    bodies = visit.script([call("echo", {"text": "hello"})], ANSWER)
    visit.say("Say hello")
    visit.page.get_by_role("group", name="May the model call echo?").wait_for()
    expect(visit.find(".call pre")).to_have_text('{ "text": "hello" }')
    assert not called
    visit.click("Allow once")
    visit.says("It says so.")
    assert called == [{"tool": "echo", "params": {"text": "hello"}}]
    expect(visit.find(".result summary")).to_have_text("Result of echo")
    expect(visit.find(".result pre")).to_have_text("hello back")
    assert [each["function"]["name"] for each in bodies[0]["tools"]] == ["echo"]
    assert _roles(bodies[1]) == ["user", "assistant", "tool"]
    [asked, result] = bodies[1]["messages"][1:]
    assert result["tool_call_id"] == asked["tool_calls"][0]["id"]
    assert result["content"] == "hello back"

    visit.reload()
    visit.find(".result").wait_for()
    expect(visit.find(".message")).to_have_count(4)


def test_consent_is_remembered_until_it_is_revoked(visit: Visit, plain: OwnServer) -> None:
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url)
    visit.script([call("echo"), call("echo", id="2", index=1)], ANSWER, [call("echo")], ANSWER)
    visit.say("Twice")
    visit.click("Always allow")
    visit.says("It says so.")
    assert len(called) == 2
    visit.reload()
    visit.say("Again")
    visit.find(".message.tool").nth(2).wait_for()
    visit.says("It says so.")

    visit.script([call("echo")], ANSWER)
    _choose(visit, "Consent to echo", "Ask before each call")
    visit.say("Now")
    visit.click("Never allow")
    visit.says("It says so.")
    visit.script([call("echo")], ANSWER)
    visit.say("And now")
    visit.find(".result", has_text=f"Declined: echo{DECLINED}").nth(1).wait_for()
    visit.find(".choose-tools").click()
    visit.click("Ask again for all tools")
    expect(visit.page.get_by_label("Consent to echo", exact=True)).to_have_value("ask")
    assert len(called) == 3


def test_consent_ends_when_the_tool_changes(visit: Visit, plain: OwnServer) -> None:
    visit.offer(tool("echo", "Echoes."), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url)
    visit.script([call("echo")], ANSWER)
    visit.say("Now")
    visit.click("Always allow")
    visit.says("It says so.")
    visit.offer(tool("echo", "Sends all files."), results=[{"plain_text_response": "ok"}])
    visit.reload()
    visit.script([call("echo")], ANSWER)
    visit.say("Again")
    visit.page.get_by_role("group", name="May the model call echo?").wait_for()
    visit.click("Decline")
    visit.says("It says so.")


def test_a_declined_call(visit: Visit, plain: OwnServer) -> None:
    """The model learns of it; the next call is asked for again."""
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url)
    bodies = visit.script([call("echo")], [call("echo")], ANSWER)
    visit.say("Now")
    visit.click("Decline")
    visit.find(".message.tool").wait_for()
    visit.click("Allow once")
    visit.says("It says so.")
    assert _results(bodies[-1]) == [DECLINED, "ok"]
    assert len(called) == 1


def test_tools_are_switched_off(visit: Visit, plain: OwnServer) -> None:
    """For all conversations or for one, each tool or all; a call of such a tool doesn't run."""
    called = visit.offer(tool("a"), tool("b"), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url)
    bodies = visit.script(ANSWER)

    def offered() -> list[str]:
        visit.ask("Now")
        return [each["function"]["name"] for each in bodies[-1].get("tools", [])]

    assert offered() == ["a", "b"]
    _choose(visit, "Use of a", "Off")
    expect(visit.find(".choose-tools")).to_have_attribute("title", "Tools: 1 of 2")
    assert offered() == ["b"]
    visit.find(".choose-tools").click()
    visit.page.get_by_label("Settings of").select_option("This conversation")
    # Consent is for all conversations.
    expect(visit.page.get_by_label("Consent to a")).to_have_count(0)
    visit.page.get_by_label("Use of a", exact=True).select_option("On")
    visit.close_settings()
    assert offered() == ["a", "b"]
    visit.new_chat()
    assert offered() == ["b"]
    bodies = visit.script([call("a")], ANSWER)
    visit.say("Call it")
    visit.says("It says so.")
    assert _results(bodies[-1]) == ['{"error":"there is no tool a"}']
    assert not called
    _choose(visit, "All tools", "Off")
    bodies = visit.script(ANSWER)
    visit.reload()
    assert offered() == []


@pytest.mark.parametrize("status", [403, 404, 405, 501, 429, 500, 200])
def test_without_tools_the_page_is_as_before(status: int, visit: Visit, plain: OwnServer) -> None:
    visit.expected.append(f"status of {status}")
    error = {"error": {"code": status, "message": "no tools", "type": "feature_disabled"}}
    body: Any = [] if status == 200 else error
    requests: list[str] = []

    def answer(route: "Route") -> None:
        requests.append(route.request.method)
        route.fulfill(status=status, json=body)

    visit.page.route("**/tools", answer)
    visit.open(plain.url)
    expect(visit.find(".choose-tools")).to_be_hidden()
    expect(visit.find(".notice")).to_have_count(0)
    bodies = visit.script(ANSWER)
    visit.ask("Hello")
    assert "tools" not in bodies[0]
    visit.click("Settings")
    expect(visit.page.get_by_label("System prompt")).to_be_visible()
    expect(visit.find(".tools-fields")).to_be_hidden()
    # Calls of other functions wait for results of the user.
    visit.close_settings()
    visit.script([call("f")], ANSWER)
    visit.say("Call f")
    visit.page.get_by_label("Result of f").fill("42")
    visit.click("Send the results")
    visit.says("It says so.")
    # A refusal holds for the whole visit.
    assert (requests == ["GET"]) == (status in (403, 404, 405, 501))


def test_functions_of_the_settings_stay_with_the_user(visit: Visit, plain: OwnServer) -> None:
    """Such a function wins over a tool of the server with its name."""
    called = visit.offer(tool("echo"), tool("f"), results=[{"plain_text_response": "ok"}])
    own = json.dumps([{"type": "function", "function": {"name": "f"}}])
    visit.open(plain.url, tools=own)
    calls = [call("f", id="x"), call("echo", id="y", index=1)]
    bodies = visit.script(calls, ANSWER)
    visit.say("Both")
    visit.click("Allow once")
    visit.page.get_by_label("Result of f").fill("mine")
    visit.click("Send the results")
    visit.says("It says so.")
    assert [each["function"]["name"] for each in bodies[0]["tools"]] == ["f", "echo"]
    results = {each["tool_call_id"]: each["content"] for each in bodies[1]["messages"][2:]}
    assert results == {"x": "mine", "y": "ok"}
    assert len(called) == 1


def test_a_grammar_excludes_tools(visit: Visit, plain: OwnServer) -> None:
    """The server refuses both together."""
    visit.offer(tool("echo"))
    visit.open(plain.url, custom=TALKING, max_tokens=8)
    with visit.page.expect_request("**/v1/chat/completions") as sent:
        assert visit.ask("Hello")
    body: Any = sent.value.post_data_json
    assert "tools" not in body


def test_rounds_are_bounded(visit: Visit, plain: OwnServer) -> None:
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url, toolRounds=2)
    bodies = visit.script([call("echo")])  # in every answer
    visit.say("For ever")
    visit.click("Always allow")
    visit.find(".results", has_text="Calls that wait: echo").wait_for()
    visit.find(".notice", has_text="The model has called tools in 2 answers in a row").wait_for()
    assert (len(bodies), len(called)) == (3, 2)
    visit.click("Continue")
    visit.find(".message.tool").nth(3).wait_for()
    visit.find(".results", has_text="Calls that wait: echo").wait_for()
    assert (len(bodies), len(called)) == (5, 4)
    # A message of the user in place of a result declines the call.
    bodies = visit.script(ANSWER)
    visit.ask("Enough")
    assert _roles(bodies[0])[-3:] == ["assistant", "tool", "user"]
    assert _results(bodies[0])[-1] == DECLINED


def test_a_question_is_stopped(visit: Visit, plain: OwnServer) -> None:
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url)
    visit.script([call("echo")], ANSWER)
    visit.say("Now")
    visit.find(".consent").wait_for()
    visit.click("Stop")
    expect(visit.find(".consent")).to_have_count(0)
    visit.reload()
    visit.click("Continue")
    assert not called
    visit.click("Allow once")
    visit.says("It says so.")
    assert len(called) == 1


def test_a_running_tool_is_stopped(visit: Visit, plain: OwnServer) -> None:
    """The request of the tool ends; the model learns of it with the next message."""
    called = visit.offer(tool("sleep"))
    visit.open(plain.url)
    visit.script([call("sleep")])
    visit.say("Sleep")
    visit.click("Allow once")
    visit.find(".call", has_text="sleep is running").wait_for()
    with visit.page.expect_event("requestfailed", lambda each: each.url.endswith("/tools")):
        visit.click("Stop")
    visit.find(".result", has_text="Stopped: sleep").wait_for()
    expect(visit.find(".message")).to_have_count(3)
    bodies = visit.script(ANSWER)
    visit.ask("Why?")
    assert _roles(bodies[0]) == ["user", "assistant", "tool", "user"]
    assert _results(bodies[0])[0].startswith("The user stopped this call")
    assert len(called) == 1


def test_conversations_ask_on_their_own(visit: Visit, plain: OwnServer) -> None:
    """A turn goes on while the user reads another conversation."""
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url)
    visit.script([call("echo")], [call("echo")], ANSWER)
    visit.say("One")
    visit.find(".consent").wait_for()
    visit.new_chat()
    expect(visit.find(".consent")).to_have_count(0)
    visit.choose("One")
    visit.find(".consent").wait_for()
    # Both buttons are clicked before the page can draw the next question.
    visit.page.evaluate(
        """() => {
          document.querySelector(".consent button").click();
          document.querySelector(".new").click();
        }"""
    )
    visit.find(".notice", has_text="One: The model asks to call echo").wait_for()
    assert len(called) == 1
    visit.choose("One")
    visit.click("Allow once")
    visit.says("It says so.")
    expect(visit.find(".message")).to_have_count(6)


# ---- keys and screen readers ------------------------------------------------------------------


def test_questions_are_answered_by_keys(visit: Visit, plain: OwnServer) -> None:
    """The page announces the question and never moves the focus to its buttons: a key that the user
    is about to press can't answer it."""
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "ok"}])
    visit.open(plain.url)
    visit.script([call("echo")], ANSWER)
    visit.say("Now")
    visit.find(".consent").wait_for()
    visit.find("[aria-live]", has_text="The model asks to call echo").wait_for(state="attached")
    expect(visit.find("#prompt")).to_be_focused()
    visit.page.keyboard.press("Enter")
    for name in ("Never allow", "Decline", "Always allow", "Allow once"):
        visit.page.keyboard.press("Shift+Tab")
        expect(visit.page.get_by_role("button", name=name)).to_be_focused()
    assert not called
    visit.page.keyboard.press("Enter")
    visit.says("It says so.")
    assert len(called) == 1
    expect(visit.find("#prompt")).to_be_focused()


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_accessibility(theme: str, width: int, visit: Visit, plain: OwnServer) -> None:
    """As in test_access."""
    visit.page.set_viewport_size({"width": width, "height": 700})
    long_name = "a_tool_with_a_long_name" * 4
    visit.offer(tool("echo"), tool(long_name), results=[{"plain_text_response": "ok " * 999}])
    visit.open(plain.url, theme=theme)
    visit.script([call("echo"), call(long_name, {"text": "word" * 60}, id="2", index=1)])
    visit.say("Now")
    visit.find(".consent").wait_for()
    visit.accessible("a question")
    visit.click("Allow once")
    visit.find(".result:not([open]) summary").click()
    visit.find(".consent").wait_for()
    visit.accessible("a result")
    visit.click("Stop")
    visit.find(".results", has_text="Calls that wait").wait_for()
    visit.accessible("a waiting call")
    visit.find(".choose-tools").click()
    visit.find(".tool-list summary").last.click()
    visit.accessible("the settings of tools")
    visit.fits(width)
