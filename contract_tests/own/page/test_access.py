"""Access to the page: keys, prefixes, routers, phones, keyboards, screen readers."""

import re
from typing import TYPE_CHECKING

import pytest

from contract_tests.kit.server import OwnServer, Start
from contract_tests.own.page.visits import TALKING, Visit, expect
from tools.models.zoo import CHAT, OTHER_CHAT, Zoo

if TYPE_CHECKING:
    from playwright.sync_api import Browser

KEY = "a-key-of-the-tests"

_KEPT_FOR_THE_TAB = """async (key) => {
  const databases = await indexedDB.databases();
  const rows = await Promise.all(databases.map(({ name }) => new Promise((resolve) => {
    indexedDB.open(name).onsuccess = ({ target: { result } }) => {
      const all = result.transaction("conversations").objectStore("conversations").getAll();
      all.onsuccess = () => resolve(all.result);
    };
  })));
  const stored = JSON.stringify([{ ...localStorage }, rows, document.cookie]);
  if (stored.includes(key)) throw new Error("the key is stored");
  return stored.includes("Welcome.") && Object.values(sessionStorage).includes(key);
}"""


def test_the_key_is_asked_for(own_server: Start, visit: Visit) -> None:
    server = own_server(api_key=KEY)
    visit.expected.append("status of 401")
    visit.page.goto(f"{server.url}/")
    dialog = visit.page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key").fill("wrong")
    dialog.get_by_role("button", name="Use this key").click()
    visit.find("dialog", has_text="The server rejected this key").wait_for()
    dialog.get_by_label("Key").fill(KEY)
    dialog.get_by_label("Key").press("Enter")
    visit.ready()
    visit.script([{"content": "Welcome."}])
    assert visit.ask("Hello") == "Welcome."
    visit.page.wait_for_function(_KEPT_FOR_THE_TAB, arg=KEY)
    visit.reload()
    expect(dialog).to_have_count(0)


def test_without_a_key_it_says_so(own_server: Start, visit: Visit) -> None:
    server = own_server(api_key=KEY)
    visit.expected.append("status of 401")
    visit.page.goto(f"{server.url}/")
    visit.click("Cancel")
    visit.find(".notice", has_text="The server can't be used: Invalid API Key").wait_for()


def test_below_a_prefix(own_server: Start, visit: Visit) -> None:
    server = own_server("--api-prefix", "/llm")
    visit.open(server.url, custom=TALKING, max_tokens=8)
    visit.page.wait_for_url("**/llm/")
    assert visit.ask("Hello")


def test_settings_of_the_operator(own_server: Start, visit: Visit) -> None:
    """They apply until the user changes them."""
    config = '{"systemMessage": "Be brief.", "temperature": 0.25, "theme": "dark"}'
    server = own_server("--ui-config", config)
    visit.open(server.url)
    bodies = visit.script([{"content": "ok"}])
    visit.ask("Hello")
    assert bodies[0]["messages"][0] == {"role": "system", "content": "Be brief."}
    assert bodies[0]["temperature"] == 0.25
    expect(visit.find("html")).to_have_attribute("data-theme", "dark")
    visit.click("Settings")
    visit.page.get_by_label("Temperature").fill("1.5")
    visit.close_settings()
    visit.ask("Again")
    assert bodies[1]["temperature"] == 1.5


# ---- routers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def router(browser: "Browser", module_server: Start, zoo: Zoo) -> OwnServer:
    files = ("--models-dir", str(zoo.directory), "--no-models-autoload")
    return module_server(*files, "--metrics", router=True)


def _choose(visit: Visit, name: str) -> None:
    visit.find(".picker").click()
    visit.page.get_by_role("button", name=re.compile(rf"^{name} ")).click()
    expect(visit.find(".picker .model-name")).to_have_text(name)


def test_models_are_chosen_and_loaded(visit: Visit, router: OwnServer) -> None:
    visit.open(router.url, max_tokens=8)
    _choose(visit, CHAT)
    visit.find(".picker").click()
    row = visit.find(".model-row").filter(has=visit.page.get_by_text(CHAT, exact=True))
    row.get_by_role("button", name=f"Load {CHAT}").click()
    row.get_by_role("button", name=f"Unload {CHAT}").wait_for()
    row.locator(".dot.loaded").wait_for()
    visit.page.keyboard.press("Escape")
    expect(row).to_be_hidden()
    visit.find(".picker .dot.loaded").wait_for()
    assert visit.ask("Hello")
    expect(visit.answered().locator(".facts")).to_contain_text(CHAT)

    _choose(visit, OTHER_CHAT)
    visit.expected.append("status of 400")
    visit.say("Hello")
    expect(visit.answered().locator(".error")).to_contain_text(OTHER_CHAT)

    visit.click("Server")
    section = visit.page.get_by_role("region", name=CHAT, exact=True)
    section.get_by_text("Cached prompts").wait_for()
    loaded = visit.find("#server tr").filter(
        has=visit.page.get_by_role("rowheader", name=CHAT, exact=True)
    )
    # Its context is known once it is loaded.
    loaded.locator("td:last-child").filter(has_text=re.compile(r"\d")).wait_for()
    visit.find(".picker").click()
    visit.expected.append("status of 503 .*/(metrics|slots)")  # requested while it was unloaded
    row.get_by_role("button", name=f"Unload {CHAT}").click()
    section.wait_for(state="detached")


# ---- the view of the server --------------------------------------------------------------------


def test_the_server(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, max_tokens=16)
    visit.ask("Hello")
    visit.click("Server")
    tiles = visit.find(".tile").filter(has_text="KV cache")
    expect(tiles).to_contain_text(re.compile(r"\d+ %"))
    slots = visit.find(".card", has_text="Slots")
    expect(slots.locator("tbody tr")).to_have_count(2)
    expect(slots).to_contain_text("new")
    visit.find(".card", has_text="Queue").get_by_text("No request waits.").wait_for()
    misses = visit.find(".card", has_text="Prompt tokens that were not cached")
    expect(misses).to_contain_text("it is new")
    expect(visit.find(".histogram")).to_have_count(4)
    first = visit.find(".histogram", has_text="Time to the first token")
    expect(first).to_contain_text("median")
    expect(visit.find(".message.assistant")).to_be_hidden()
    visit.click("Chat")
    expect(visit.find(".message.assistant")).to_be_visible()


def test_options_that_are_off(own_server: Start, visit: Visit) -> None:
    server = own_server("--no-slots")
    visit.open(server.url)
    visit.expected.append("status of 501")
    visit.click("Server")
    for option in ("--metrics", "--slots"):
        visit.find(".card code", has_text=option).wait_for()


# ---- phones, keys, screen readers -------------------------------------------------------------


def test_a_phone(visit: Visit, plain: OwnServer) -> None:
    visit.page.set_viewport_size({"width": 360, "height": 640})
    visit.open(plain.url)
    wide = "word" * 60
    visit.script([{"content": f"{wide}\n\n```\n{wide}\n```\n\n|{'a|' * 30}\n|{'-|' * 30}\n"}])
    visit.ask(wide)
    for tab, last in (("Server", ".histogram"), ("Chat", ".message.assistant table")):
        visit.click(tab)
        visit.find(last).last.wait_for()
        visit.fits(360)
    visit.page.get_by_role("button", name="Delete from here on").last.click()
    visit.page.get_by_label("Message", exact=True).fill("next")
    visit.page.get_by_role("button", name="Send", exact=True).click(trial=True)  # not covered
    visit.click("Undo")
    visit.page.get_by_label("Message", exact=True).fill("")
    expect(visit.find("#sidebar")).to_be_hidden()
    visit.click("Conversations")
    expect(visit.find("#sidebar")).to_be_visible()
    visit.new_chat()
    expect(visit.find("#sidebar")).to_be_hidden()


def test_the_keyboard(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    visit.script([{"content": "ok"}])
    expect(visit.find("#prompt")).to_be_focused()
    visit.page.keyboard.type("one")
    visit.page.keyboard.press("Shift+Enter")
    visit.page.keyboard.type("two")
    visit.page.keyboard.press("Enter")
    expect(visit.find("#prompt")).to_have_value("")
    visit.answered()
    expect(visit.find(".message.user .text")).to_have_text(re.compile("^one\ntwo$"))
    visit.page.keyboard.press("Control+Shift+O")
    expect(visit.find(".message")).to_have_count(0)
    visit.page.keyboard.press("Control+K")
    expect(visit.find("#sidebar input")).to_be_focused()
    visit.page.keyboard.type("one")
    expect(visit.find(".conversation")).to_have_text(["one"])
    visit.page.keyboard.press("Tab")
    expect(visit.find(".conversation")).to_be_focused()
    visit.page.keyboard.press("Enter")
    expect(visit.find(".message")).to_have_count(2)


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_accessibility(theme: str, width: int, visit: Visit, plain: OwnServer) -> None:
    """The page follows axe's rules for contrast, names, roles and landmarks."""
    visit.page.set_viewport_size({"width": width, "height": 700})
    visit.open(plain.url, theme=theme)
    visit.accessible("empty conversation")
    text = "# Title\n\n**Bold** [link](https://example.com) `code`\n\n```python\nx = 'a' # b\n```\n"
    table = "\n| a | b |\n|---|---|\n| 1 | 2 |\n\n- [x] done\n\n$$x^2$$\n"
    call = {"index": 0, "id": "1", "function": {"name": "f", "arguments": "{}"}}
    visit.script([{"reasoning_content": "Hm."}, {"content": text + table}, {"tool_calls": [call]}])
    visit.say("Show me")
    visit.answered().locator(".katex-display").wait_for()
    visit.accessible("an answer")
    visit.click("Delete from here on")
    visit.find(".notice").wait_for()
    visit.accessible("after a deletion")
    visit.click("Undo")
    visit.find(".katex-display").wait_for()
    visit.find(".picker").click()
    visit.find(".model-row").wait_for()
    visit.accessible("the models")
    visit.page.keyboard.press("Escape")
    expect(visit.find(".model-row")).to_be_hidden()
    visit.click("Server")
    visit.find(".histogram").first.wait_for()
    visit.accessible("the server")
    visit.click("Settings")
    visit.find("#settings-title").wait_for()
    visit.accessible("the settings")
    visit.click("Delete all")
    visit.page.get_by_role("alertdialog").wait_for()
    visit.accessible("a question")
