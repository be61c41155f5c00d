"""Tools of the server whose names, descriptions, definitions and results are hostile."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit.server import OwnServer
from contract_tests.own.page.test_hostile import HOSTILE, check
from contract_tests.own.page.visits import Visit, call, expect, tool

ANSWER = [{"content": "It says so."}]

INVISIBLE = "a\u202eb\u200bc\x1b[31md\u2028e\U000e0041f"
SHOWN = "a⟨202E⟩b⟨200B⟩c⟨001B⟩[31md⟨2028⟩e⟨E0041⟩f"
AT_FIRST = re.compile(f"^{re.escape(SHOWN)}")


def _hostile_tool() -> dict[str, Any]:
    name = INVISIBLE + HOSTILE[:100]
    shape = {"type": "object", "properties": {HOSTILE: {"description": HOSTILE}}}
    function = {"name": name, "description": INVISIBLE + HOSTILE, "parameters": shape}
    return tool(name, definition={"type": "function", "function": function}, display_name=HOSTILE)


def test_hostile_tools(visit: Visit, plain: OwnServer) -> None:
    """Texts of tools are shown as texts, with all invisible characters, wherever they appear."""
    hostile = _hostile_tool()
    visit.offer(hostile, tool("__proto__"), results=[{"plain_text_response": INVISIBLE + HOSTILE}])
    visit.open(plain.url)
    visit.find(".choose-tools").click()
    visit.unfold(".tool-list details", 2)
    expect(visit.find(".tool-list summary").first).to_contain_text(SHOWN)
    expect(visit.find(".tool-list .hint").first).to_have_text(AT_FIRST)
    check(visit)
    visit.close_settings()
    arguments = {INVISIBLE: HOSTILE}
    visit.script([call(hostile["tool"], arguments), call("__proto__", index=1, id="2")], ANSWER)
    visit.say("Now")
    visit.find(".consent").wait_for()
    expect(visit.find(".call summary code").first).to_contain_text(SHOWN)
    expect(visit.find(".call pre").first).to_contain_text("⟨202E⟩")
    check(visit)
    visit.click("Always allow")
    visit.page.get_by_role("group", name="May the model call __proto__?").wait_for()
    visit.click("Never allow")
    visit.says("It says so.")
    expect(visit.find(".result pre").first).to_have_text(AT_FIRST)
    expect(visit.find(".result a")).to_have_count(0)
    check(visit)
    visit.reload()
    expect(visit.find(".message")).to_have_count(5)
    check(visit)
    assert visit.page.evaluate("({}).answer ?? null") is None


def test_a_long_result_is_cut(visit: Visit, plain: OwnServer) -> None:
    visit.offer(tool("echo"), results=[{"plain_text_response": "word " * 100_000}])
    visit.open(plain.url)
    bodies = visit.script([call("echo")], ANSWER)
    visit.say("Now")
    visit.click("Allow once")
    visit.says("It says so.")
    result = bodies[1]["messages"][-1]["content"]
    assert result.endswith("\n[434464 more characters were left out]")
    assert len(result) < 70_000
    expect(visit.find(".result:not([open])")).to_have_count(1)
    shown = re.compile(r"^.{20000}… and \d+ more characters$", re.DOTALL)
    expect(visit.find(".result pre")).to_have_text(shown)


def test_a_huge_result_is_refused(visit: Visit, plain: OwnServer) -> None:
    visit.offer(tool("echo"), results=[{"plain_text_response": "word " * 2_000_000}])
    visit.open(plain.url)
    bodies = visit.script([call("echo")], ANSWER)
    visit.say("Now")
    visit.click("Allow once")
    visit.says("It says so.")
    assert [bodies[1]["messages"][-1]["content"]] == ['{"error":"the answer is larger than 8 MiB"}']


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        5,
        [],
        {},
        tool(""),
        tool("x" * 300),
        tool("a") | {"definition": None},
        tool("a") | {"tool": "another"},
        tool("a", "long" * 20_000),
    ],
)
def test_unusable_tools_are_left_out(wrong: Any, visit: Visit, plain: OwnServer) -> None:
    visit.offer(wrong, tool("good"), tool("good", "a double"))
    visit.open(plain.url)
    visit.find(".notice", has_text="can't use 2 of the server's tools").wait_for()
    bodies = visit.script(ANSWER)
    visit.ask("Now")
    assert bodies[0]["tools"] == [tool("good")["definition"]]


@pytest.mark.parametrize("body", ["{}", "null", "5", "<html>", ""])
def test_an_answer_that_is_no_list(body: str, visit: Visit, plain: OwnServer) -> None:
    visit.page.route("**/tools", lambda route: route.fulfill(status=200, body=body))
    visit.open(plain.url)
    expect(visit.find(".choose-tools")).to_be_hidden()


@pytest.mark.parametrize("stored", ["{", "5", "{}", "[5, [], [1, 2]]", '[["echo", {"answer": 1}]]',
                                    '[["echo", {"answer": "always", "of": ""}]]'])  # fmt: skip
def test_a_broken_storage_gives_no_consent(stored: str, visit: Visit, plain: OwnServer) -> None:
    called = visit.offer(tool("echo"))
    visit.open(plain.url)
    visit.page.evaluate("(text) => { localStorage['specllama.tools'] = text; }", stored)
    visit.reload()
    visit.script([call("echo")], ANSWER)
    visit.say("Now")
    visit.click("Decline")
    visit.says("It says so.")
    assert not called


def test_imported_conversations_bring_no_consent(
    visit: Visit, plain: OwnServer, tmp_path: Path
) -> None:
    """A file can't make the page call a tool, nor allow calls."""
    called = visit.offer(tool("echo"), results=[{"plain_text_response": "ok"}])
    calls = [{"id": "1", "name": "echo", "arguments": '{"text": "planted"}'}]
    messages = [
        {"id": "a", "parent": None, "role": "user", "content": "Hello"},
        {"id": "b", "parent": "a", "role": "assistant", "content": "", "calls": calls},
    ]
    conversation = {"title": "Planted", "messages": messages, "leaf": "b",
                    "settings": {"consent": "always", "specllama.tools": "always"}}  # fmt: skip
    file = tmp_path / "a.json"
    file.write_text(
        json.dumps({"kind": "specllama-conversations", "conversations": [conversation]})
    )
    visit.open(plain.url)
    visit.import_from(file)
    visit.choose("Planted")
    visit.script(ANSWER)
    visit.click("Continue")
    visit.find(".consent").wait_for()
    expect(visit.find(".call pre")).to_contain_text("planted")
    visit.click("Decline")
    visit.says("It says so.")
    assert not called
