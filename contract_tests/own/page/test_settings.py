"""Settings of requests, for all conversations and for one, and the switch for reasoning."""

from pathlib import Path
from typing import Any

from contract_tests.kit.server import OwnServer
from contract_tests.own.page.visits import Visit, expect


def _settings_of_this(visit: Visit) -> None:
    visit.click("Settings")
    visit.page.get_by_label("Settings of").select_option("This conversation")


def test_thinking_is_switched(visit: Visit, plain: OwnServer) -> None:
    """The switch applies to one conversation and doesn't change the others."""
    visit.open(plain.url, custom='{"chat_template_kwargs": {"colour": "red"}}')
    bodies = visit.script([{"content": "ok"}])
    switch = visit.page.get_by_label("Thinking")
    visit.ask("As it comes")
    for chosen in ("off", "on"):
        switch.select_option(chosen)
        visit.ask(f"Thinking is {chosen}")
    visit.reload()
    expect(switch).to_have_value("on")
    visit.new_chat()
    expect(switch).to_have_value("auto")
    visit.ask("As it comes")
    assert [each["chat_template_kwargs"] for each in bodies] == [
        {"colour": "red"},
        {"colour": "red", "enable_thinking": False},
        {"colour": "red", "enable_thinking": True},
        {"colour": "red"},
    ]


def test_the_model_answers_at_once(visit: Visit, plain: OwnServer) -> None:
    """The shipped model's template uses the switch."""
    visit.open(plain.url, thinking="off", max_tokens=8)
    with visit.page.expect_request("**/v1/chat/completions") as sent:
        visit.ask("Hello")
    body: Any = sent.value.post_data_json
    prompt = plain.http.post("/apply-template", json=body).json()["prompt"]
    del body["chat_template_kwargs"]
    assert prompt != plain.http.post("/apply-template", json=body).json()["prompt"]
    expect(visit.find(".assistant .thoughts")).to_be_hidden()


def test_no_switch_without_thoughts(visit: Visit, plain: OwnServer) -> None:
    visit.page.route(
        "**/props*",
        lambda route: route.fulfill(
            json=route.fetch().json() | {"chat_template": "{{ messages }}"}
        ),
    )
    visit.open(plain.url)
    expect(visit.page.get_by_label("Thinking")).to_be_hidden()


def test_a_conversation_has_settings_of_its_own(
    visit: Visit, plain: OwnServer, tmp_path: Path
) -> None:
    visit.open(plain.url, systemMessage="Be brief.", temperature=0.25)
    bodies = visit.script([{"content": "ok"}])
    _settings_of_this(visit)
    prompt = visit.page.get_by_label("System prompt")
    expect(prompt).to_have_attribute("placeholder", "Be brief.")
    expect(prompt).to_have_value("")
    prompt.fill("Be a llama.")
    visit.page.get_by_label("Temperature").fill("1.5")
    visit.close_settings()
    visit.ask("first")
    visit.find(".usage", has_text="Settings of its own").wait_for()
    visit.new_chat()
    visit.ask("second")
    visit.choose("first")
    visit.reload()
    visit.ask("third")
    expect(visit.find(".conversation")).to_have_text(["first", "second"])
    visit.export_all(tmp_path / "all.json")
    visit.delete_all()
    visit.import_from(tmp_path / "all.json")
    visit.find("text=2 conversations imported").wait_for()
    visit.choose("first")
    visit.ask("fourth")
    said = [(each["messages"][0]["content"], each["temperature"]) for each in bodies]
    own, all_ = ("Be a llama.", 1.5), ("Be brief.", 0.25)
    assert said == [own, all_, own, own]

    _settings_of_this(visit)
    visit.page.get_by_label("System prompt").fill("")
    visit.page.get_by_label("Temperature").fill("")
    visit.close_settings()
    visit.ask("fifth")
    assert bodies[-1]["messages"][0]["content"] == "Be brief."
    expect(visit.find(".usage", has_text="Settings of its own")).to_have_count(0)


def test_thoughts_go_back_to_the_model(visit: Visit, plain: OwnServer) -> None:
    """A model that uses tools continues with its reasoning from before the call."""
    visit.open(plain.url)
    call = {"index": 0, "id": "1", "function": {"name": "f", "arguments": "{}"}}
    bodies = visit.script([{"reasoning_content": "I need f."}, {"tool_calls": [call]}])
    visit.say("Go on")
    visit.page.get_by_label("Result of f").fill("42")
    visit.click("Send the results")
    visit.find(".message.tool").wait_for()
    visit.answered()
    assert bodies[1]["messages"][1]["reasoning_content"] == "I need f."
    with_thoughts = plain.http.post("/apply-template", json=bodies[1]).json()["prompt"]
    assert "I need f." in with_thoughts
