"""The chat page with the shipped model, used like a person uses it."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from contract_tests.kit.server import OwnServer, Start
from contract_tests.own.page.visits import TALKING, Visit, expect

if TYPE_CHECKING:
    from playwright.sync_api import Route

WITHOUT_THOUGHTS = {"chat_template_kwargs": {"enable_thinking": False}}
A_LOT = re.compile(".{20}")
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"unit": {"enum": ["celsius"]}},
            "required": ["unit"],
        },
    },
}


def test_an_answer(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, custom=TALKING, max_tokens=24)
    assert visit.ask("Tell me about llamas.")
    facts = visit.answered().locator(".facts")
    for part in ("specllama-tiny", "24 tokens", "tokens/s", "cut off"):
        expect(facts).to_contain_text(part)
    for part in ("of 4.1K tokens", "% of the prompt cached"):
        expect(visit.find(".usage")).to_contain_text(part)
    expect(visit.find(".conversation")).to_have_text(["Tell me about llamas."])


def test_conversations_stay(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, custom=TALKING, max_tokens=8)
    first = visit.ask("One")
    visit.new_chat()
    visit.ask("Another")
    visit.reload()
    expect(visit.find(".message.user .text")).to_have_text(["Another"])
    visit.choose("One")
    expect(visit.find(".message.assistant .body")).to_have_text([first])

    visit.find("#sidebar input").fill("anoth")
    expect(visit.find(".conversation")).to_have_text(["Another"])
    visit.find("#sidebar input").fill("")
    expect(visit.find(".conversation")).to_have_text(["Another", "One"])
    visit.find(".conversations li").first.hover()
    visit.page.get_by_role("button", name="Delete Another").click()
    expect(visit.find(".conversation")).to_have_text(["One"])
    visit.reload()
    expect(visit.find(".conversation")).to_have_text(["One"])


def test_the_last_action_is_stored(visit: Visit, plain: OwnServer) -> None:
    """The page stores it even if the user closes the page at once."""
    visit.open(plain.url)
    visit.script([{"content": "first"}], [{"content": "second"}])
    visit.ask("One")
    visit.click("Generate again")
    visit.says("second")
    visit.page.evaluate(
        """addEventListener("pagehide", () =>
             document.querySelector("[aria-label='Previous branch']").click())"""
    )
    visit.reload()
    visit.says("first")


_REDRAW = "document.querySelector('#sidebar input').dispatchEvent(new Event('input'))"
"""Draws the list of conversations again, as the page does when it has stored an answer."""
_TIMERS = "new Promise((done) => setTimeout(done))"
"""Waits for the timers that are due."""


def test_the_list_can_be_used_while_it_is_drawn(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    visit.script([{"content": "ok"}])
    visit.ask("One")
    visit.new_chat()
    visit.ask("Another")
    expect(visit.find(".conversation")).to_have_text(["Another", "One"])
    visit.page.get_by_role("button", name="One", exact=True).hover()
    visit.page.mouse.down()
    visit.page.evaluate(_REDRAW)
    visit.page.mouse.up()
    expect(visit.find(".message.user .text")).to_have_text(["One"])

    rename = visit.page.get_by_role("button", name="Rename Another")
    rename.focus()
    visit.page.evaluate(_REDRAW)
    expect(rename).to_be_focused()
    visit.page.keyboard.press("Enter")
    title = visit.page.get_by_label("Title")
    expect(title).to_be_focused()
    title.fill("More")
    visit.page.evaluate(_REDRAW)
    expect(title).to_have_value("More")
    visit.page.keyboard.press("Enter")
    expect(visit.find(".conversation")).to_have_text(["More", "One"])
    visit.reload()
    expect(visit.find(".conversation")).to_have_text(["More", "One"])


def test_the_list_is_drawn_while_a_title_is_edited(visit: Visit, plain: OwnServer) -> None:
    """The list that is due since the button was pressed doesn't replace the field."""
    visit.open(plain.url)
    visit.script([{"content": "ok"}])
    visit.ask("One")
    visit.page.get_by_role("button", name="Rename One").hover()
    visit.page.mouse.down()
    visit.page.evaluate(_REDRAW)
    visit.page.mouse.up()
    visit.page.evaluate(_TIMERS)
    title = visit.page.get_by_label("Title")
    expect(title).to_be_focused()
    title.fill("More")
    visit.page.keyboard.press("Enter")
    expect(visit.find(".conversation")).to_have_text(["More"])


def test_a_deletion_can_be_undone(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    visit.script([{"content": "first"}], [{"content": "second"}], [{"content": "third"}])
    visit.ask("One")
    visit.ask("Two")
    visit.page.get_by_role("button", name="Delete from here on").nth(2).click()
    expect(visit.find(".message")).to_have_count(2)
    visit.click("Undo")
    visit.says("second")
    expect(visit.find(".message")).to_have_count(4)
    # Messages from after the deletion stay, as a branch.
    visit.page.get_by_role("button", name="Delete from here on").nth(2).click()
    expect(visit.find(".message")).to_have_count(2)
    assert visit.ask("Three") == "third"
    visit.click("Undo")
    visit.says("second")
    visit.find(".message.user .branches", has_text="1/2").wait_for()

    visit.find(".conversations li").hover()
    visit.page.get_by_role("button", name="Delete One").click()
    visit.find("text=No conversations yet").wait_for()
    expect(visit.find(".message")).to_have_count(0)
    visit.click("Undo")
    visit.says("second")
    visit.reload()
    visit.says("second")
    expect(visit.find(".message")).to_have_count(4)

    # With the keyboard, the focus is kept, and the notice stays while it has the focus.
    visit.find(".conversation").focus()
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Tab")
    expect(visit.page.get_by_role("button", name="Delete One")).to_be_focused()
    visit.page.keyboard.press("Enter")
    visit.find("text=No conversations yet").wait_for()
    expect(visit.find(":focus")).to_have_text("Undo")
    visit.page.keyboard.press("Enter")
    visit.says("second")
    expect(visit.find(".notice", has_text="Deleted: One")).to_have_count(0)


def test_an_answer_goes_on_while_others_are_made(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, custom='{"ignore_eos": true}', max_tokens=-1)
    visit.say("Never end.")
    visit.find(".running .body", has_text=A_LOT).wait_for()
    visit.new_chat()
    visit.say("Neither.")
    visit.find(".running .body", has_text=A_LOT).wait_for()
    visit.click("Stop")
    visit.answered()
    visit.choose("Never end.")
    visit.find(".running .body", has_text=A_LOT).wait_for()
    visit.click("Stop")
    said = visit.answer()
    visit.reload()
    expect(visit.find(".message.assistant .body")).to_have_text([said], use_inner_text=True)


def test_stop(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, custom=TALKING, max_tokens=-1)
    visit.say("Never end.")
    visit.find(".running .body", has_text=A_LOT).wait_for()
    visit.click("Stop")
    expect(visit.answered().locator(".facts")).to_contain_text("stopped")
    plain.wait_until_idle()
    expect(visit.page.get_by_role("button", name="Send", exact=True)).to_be_visible()


def test_branches(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    bodies = visit.script(*([{"content": f"answer {n}"}] for n in range(9)))
    assert visit.ask("first") == "answer 0"
    visit.click("Generate again")
    visit.says("answer 1")
    assert bodies[1]["messages"] == [{"role": "user", "content": "first"}]
    expect(visit.find(".message.assistant .branches")).to_have_text("2/2")
    visit.click("Previous branch")
    visit.says("answer 0")

    visit.page.get_by_role("button", name="Edit", exact=True).click()
    visit.find(".edit-text").fill("second")
    visit.find(".edit-text").press("Control+Enter")
    visit.says("answer 2")
    assert bodies[2]["messages"] == [{"role": "user", "content": "second"}]
    expect(visit.find(".message.user .branches")).to_have_text("2/2")
    visit.page.get_by_role("button", name="Previous branch").first.click()
    visit.says("answer 0")

    visit.ask("and more")
    assert [each["content"] for each in bodies[3]["messages"]] == ["first", "answer 0", "and more"]


def test_thoughts_are_folded(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    visit.script([{"reasoning_content": "Let me see."}, {"content": "It is 4."}])
    assert visit.ask("2 + 2?") == "It is 4."
    thoughts = visit.find(".assistant .thoughts-text")
    expect(thoughts).to_have_text("Let me see.")
    expect(thoughts).to_be_hidden()
    visit.find(".assistant .thoughts summary").click()
    expect(thoughts).to_be_visible()


def test_tool_calls(visit: Visit, plain: OwnServer) -> None:
    """The shipped model makes the forced call; the user enters the result."""
    fields = json.dumps(
        {"tool_choice": "required", "parallel_tool_calls": False, **WITHOUT_THOUGHTS}
    )
    visit.open(plain.url, tools=json.dumps([TOOL]), custom=fields, max_tokens=200)
    visit.say("How is the weather?")
    answer = visit.answered()
    expect(answer.locator(".call code")).to_have_text("get_weather")
    expect(answer.locator(".call pre")).to_have_text('{ "unit": "celsius" }')
    bodies = visit.script([{"content": "It is warm."}])
    visit.page.get_by_label("Result of get_weather").fill("21 degrees")
    visit.click("Send the results")
    visit.says("It is warm.")
    call, result = bodies[0]["messages"][-2:]
    assert call["tool_calls"][0]["function"]["name"] == "get_weather"
    assert result["content"] == "21 degrees"
    assert result["tool_call_id"] == call["tool_calls"][0]["id"]


def test_answers_of_a_schema(visit: Visit, plain: OwnServer) -> None:
    schema = json.dumps({"enum": ["yes", "no"]})
    fields = json.dumps(WITHOUT_THOUGHTS)
    visit.open(plain.url, jsonSchema=schema, systemMessage="Be brief.", custom=fields)
    assert re.search('"(yes|no)"', visit.ask("Well?"))


def test_errors_are_shown(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, custom='{"temperature": "warm"}')
    visit.expected.append("status of 400")
    visit.say("Hello")
    expect(visit.answered().locator(".error")).to_contain_text("temperature")
    visit.page.evaluate("localStorage['specllama.settings'] = '{\"custom\": \"{\"}'")
    visit.reload()
    visit.find(".error:visible").wait_for()
    visit.say("Hello")
    visit.find(".error", has_text="More fields in the settings is not JSON").wait_for()


def test_a_server_that_ends_is_reported(own_server: Start, visit: Visit) -> None:
    server = own_server()
    visit.open(server.url, custom=TALKING)
    visit.expected.append("ERR_")
    visit.say("Never end.")
    visit.find(".running .body", has_text=A_LOT).wait_for()
    server.process.kill()
    expect(visit.answered().locator(".error")).not_to_be_empty()


def test_rich_text(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    text = """# Title\n\nA **word**, $e^{i\\pi} = -1$ and \\(x_1\\), for $5 and $6.

$$\\int_0^1 x\\,dx$$

```python
def f(): return "a"
```

| a | b |
|---|--:|
| 1 | 2 |

3. third

- [x] done
- [ ] to do
"""
    visit.script([{"content": text[:40]}, {"content": text[40:]}])
    visit.say("Show me")
    answer = visit.answered()
    answer.locator(".hljs-keyword").first.wait_for()
    answer.locator(".katex-display").wait_for()
    expect(answer.locator(".katex")).to_have_count(3)
    expect(answer).to_contain_text("for $5 and $6.")
    expect(answer.locator("h1")).to_have_text("Title")
    expect(answer.locator("td")).to_have_text(["1", "2"])
    expect(answer.locator(".code-head")).to_have_text("python")
    expect(answer.locator("td").last).to_have_css("text-align", "right")
    expect(answer.locator("ol")).to_have_attribute("start", "3")
    boxes = answer.get_by_role("checkbox")
    expect(boxes).to_have_count(2)
    expect(boxes.first).to_be_checked()
    expect(boxes.last).not_to_be_checked()
    # The server has KaTeX's fonts.
    visit.page.wait_for_function(
        """() => [...document.fonts].some(
             (each) => each.family === "KaTeX_Main" && each.status === "loaded")"""
    )
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.click("Copy the code")
    visit.page.wait_for_function(
        "async (text) => (await navigator.clipboard.readText()).trim() === text",
        arg='def f(): return "a"',
    )


def test_a_message_is_busy_until_it_is_drawn(visit: Visit, plain: OwnServer) -> None:
    """Screen readers wait for its formulas as well."""
    visit.open(plain.url)
    held: list[Route] = []
    visit.page.route("**/katex.min.js", lambda route: held.append(route))
    visit.script([{"content": "$x^2$"}])
    with visit.page.expect_request("**/katex.min.js"):
        visit.say("Show me")
    answer = visit.find(".message.assistant")
    expect(answer.locator(".facts")).to_be_visible()
    expect(answer).to_have_attribute("aria-busy", "true")
    held.pop().continue_()
    expect(answer).to_have_attribute("aria-busy", "false")
    expect(answer.locator(".katex")).to_be_visible()


def test_a_prompt_that_takes_long(visit: Visit, plain: OwnServer) -> None:
    """The bar is shown until the first token."""
    visit.open(plain.url)
    head = {
        "choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}],
        "prompt_progress": {"total": 2000, "cache": 500, "processed": 1000, "time_ms": 5},
    }
    visit.page.evaluate(
        """(chunk) => {
          const real = fetch;
          window.fetch = (path, options) => {
            if (!String(path).includes("chat/completions")) return real(path, options);
            const stream = new ReadableStream({ start: (controller) => {
              const write = (each) => controller.enqueue(
                new TextEncoder().encode(`data: ${JSON.stringify(each)}\\n\\n`));
              write(chunk);
              window.go = () => {
                const delta = { content: "There." };
                write({ choices: [{ index: 0, delta, finish_reason: "stop" }] });
                controller.close();
              };
            } });
            return Promise.resolve(new Response(stream));
          };
        }""",
        head,
    )
    visit.say("A long text")
    bar = visit.find(".assistant .progress progress")
    expect(bar).to_have_attribute("max", "2000")
    state = visit.find(".assistant .progress")
    expect(state).to_contain_text("1K of 2K tokens, 500 of them cached")
    expect(state).to_be_visible()
    visit.page.evaluate("go()")
    assert visit.answer() == "There."
    expect(state).to_be_hidden()


def test_export_and_import(visit: Visit, plain: OwnServer, tmp_path: Path) -> None:
    visit.open(plain.url)
    visit.script([{"content": "kept"}])
    visit.ask("Keep this")
    expect(visit.find(".conversation")).to_have_text(["Keep this"])
    visit.export_all(tmp_path / "all.json")
    visit.click("Delete all")
    visit.page.get_by_role("alertdialog", name="Delete 1 conversation?").wait_for()
    visit.click("Cancel")
    expect(visit.page.get_by_role("alertdialog")).to_have_count(0)
    expect(visit.find(".conversation")).to_have_text(["Keep this"])
    visit.delete_all()
    visit.import_from(tmp_path / "all.json")
    visit.find("text=1 conversation imported").wait_for()
    visit.choose("Keep this")
    expect(visit.find(".message.assistant .body")).to_have_text(["kept"])


def test_files(visit: Visit, plain: OwnServer, tmp_path: Path) -> None:
    """A text is added to the message; an image only if the model has image input."""
    text, image, film = tmp_path / "notes.md", tmp_path / "dot.png", tmp_path / "film.mp4"
    film.write_bytes(b"film")
    text.write_text("Llamas carry wool.")
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    visit.open(plain.url)
    bodies = visit.script([{"content": "ok"}])
    picker = visit.find("input[type=file]")
    picker.set_input_files([text, image, film])
    visit.find("text=dot.png: this model doesn't support images").wait_for()
    visit.find("text=film.mp4: videos are not supported").wait_for()
    visit.find(".composer .file >> text=notes.md").wait_for()
    visit.ask("Sum it up")
    [sent] = bodies[0]["messages"]
    assert sent["content"] == "File notes.md:\n\nLlamas carry wool.\n\nSum it up"

    def seeing(route: "Route") -> None:
        response = route.fetch()
        modalities = {"vision": True, "audio": True, "video": False}
        route.fulfill(json=response.json() | {"modalities": modalities})

    visit.page.route("**/props*", seeing)
    visit.reload()
    visit.page.get_by_role("button", name="Add files: texts, PDFs, images, sounds").wait_for()
    visit.expected.append("dot.png")  # only its first bytes are those of an image
    visit.new_chat()
    visit.find("input[type=file]").set_input_files([image])
    visit.find(".composer .file.image").wait_for()
    visit.ask("What is this?")
    [part, words] = bodies[1]["messages"][0]["content"]
    assert part["image_url"]["url"].startswith("data:image/png;base64,iVBORw0KGgo")
    assert words == {"type": "text", "text": "What is this?"}


_HANDED = """(how) => {
  const data = new DataTransfer();
  data.items.add(new File(["Llamas carry wool."], `${how}.txt`, { type: "text/plain" }));
  const options = { bubbles: true, cancelable: true };
  const event = how === "drop"
    ? new DragEvent("drop", { ...options, dataTransfer: data })
    : new ClipboardEvent("paste", { ...options, clipboardData: data });
  document.querySelector("#prompt").dispatchEvent(event);
}"""


def test_files_that_are_dropped_or_pasted(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    bodies = visit.script([{"content": "ok"}])
    for how in ("drop", "paste"):
        visit.page.evaluate(_HANDED, how)
        visit.find(".composer .file", has_text=f"{how}.txt").wait_for()
    visit.page.get_by_role("button", name="Remove paste.txt").click()
    expect(visit.find(".composer .file")).to_have_count(1)
    visit.ask("Sum it up")
    [sent] = bodies[0]["messages"]
    assert sent["content"] == "File drop.txt:\n\nLlamas carry wool.\n\nSum it up"
