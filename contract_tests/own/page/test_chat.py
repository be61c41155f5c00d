"""The chat page with the shipped model, used like a person uses it."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from contract_tests.kit.server import OwnServer, Start
from contract_tests.own.page.visits import TALKING, Visit

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
    facts = visit.answered().locator(".facts").inner_text()
    assert "specllama-tiny" in facts
    assert "24 tokens" in facts
    assert "tokens/s" in facts
    assert "cut off" in facts
    usage = visit.find(".usage").inner_text()
    assert "of 4.1K tokens" in usage
    assert "% of the prompt cached" in usage
    assert visit.find(".conversation").all_inner_texts() == ["Tell me about llamas."]


def test_conversations_stay(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, custom=TALKING, max_tokens=8)
    first = visit.ask("One")
    visit.click("New chat")
    assert visit.find(".message").count() == 0
    visit.ask("Another")
    visit.page.reload()
    visit.find(".message").first.wait_for()
    assert visit.find(".message.user .text").all_inner_texts() == ["Another"]
    visit.page.get_by_role("button", name="One", exact=True).click()
    assert visit.find(".message.assistant .body").inner_text() == first

    visit.find("#sidebar input").fill("anoth")
    assert visit.find(".conversation").all_inner_texts() == ["Another"]
    visit.find("#sidebar input").fill("")
    visit.find(".conversations li").first.hover()
    visit.page.get_by_role("button", name="Delete Another").click()
    visit.find(".conversation", has_text="Another").wait_for(state="detached")
    visit.page.reload()
    visit.find(".conversation").wait_for()
    assert visit.find(".conversation").all_inner_texts() == ["One"]


def test_a_deletion_can_be_undone(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    visit.script([{"content": "first"}], [{"content": "second"}], [{"content": "third"}])
    visit.ask("One")
    visit.ask("Two")
    visit.page.get_by_role("button", name="Delete from here on").nth(2).click()
    visit.find(".message").nth(2).wait_for(state="detached")
    visit.click("Undo")
    visit.says("second")
    assert visit.find(".message").count() == 4
    # Messages from after the deletion stay, as a branch.
    visit.page.get_by_role("button", name="Delete from here on").nth(2).click()
    visit.find(".message").nth(2).wait_for(state="detached")
    assert visit.ask("Three") == "third"
    visit.click("Undo")
    visit.says("second")
    visit.find(".message.user .branches", has_text="1/2").wait_for()

    visit.find(".conversations li").hover()
    visit.page.get_by_role("button", name="Delete One").click()
    visit.find("text=No conversations yet").wait_for()
    assert visit.find(".message").count() == 0
    visit.click("Undo")
    visit.says("second")
    visit.page.reload()
    visit.says("second")
    assert visit.find(".message").count() == 4

    # With the keyboard, the focus is kept, and the notice stays while it has the focus.
    visit.find(".conversation").focus()
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Tab")
    visit.page.keyboard.press("Enter")
    visit.find("text=No conversations yet").wait_for()
    assert visit.page.evaluate("document.activeElement.textContent") == "Undo"
    visit.page.keyboard.press("Enter")
    visit.says("second")
    assert visit.find(".notice", has_text="Deleted: One").count() == 0


def test_an_answer_goes_on_while_others_are_made(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, custom='{"ignore_eos": true}', max_tokens=-1)
    visit.say("Never end.")
    visit.find(".running .body", has_text=A_LOT).wait_for()
    visit.click("New chat")
    visit.say("Neither.")
    visit.find(".running .body", has_text=A_LOT).wait_for()
    visit.click("Stop")
    visit.answered()
    visit.page.get_by_role("button", name="Never end.", exact=True).click()
    visit.find(".running .body", has_text=A_LOT).wait_for()
    visit.click("Stop")
    said = visit.answered().locator(".body").inner_text()
    visit.page.reload()
    visit.find(".message").first.wait_for()
    assert visit.find(".message.assistant .body").inner_text() == said


def test_stop(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url, custom=TALKING, max_tokens=-1)
    visit.say("Never end.")
    visit.find(".running .body", has_text=A_LOT).wait_for()
    visit.click("Stop")
    assert "stopped" in visit.answered().locator(".facts").inner_text()
    assert not any(slot["is_processing"] for slot in plain.wait_until_idle())
    assert visit.page.get_by_role("button", name="Send", exact=True).count() == 1


def test_branches(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    bodies = visit.script(*([{"content": f"answer {n}"}] for n in range(9)))
    assert visit.ask("first") == "answer 0"
    visit.click("Generate again")
    visit.says("answer 1")
    assert bodies[1]["messages"] == [{"role": "user", "content": "first"}]
    assert visit.find(".message.assistant .branches").inner_text() == "2/2"
    visit.click("Previous branch")
    assert visit.find(".message.assistant .body").inner_text() == "answer 0"

    visit.page.get_by_role("button", name="Edit", exact=True).click()
    visit.find(".edit-text").fill("second")
    visit.page.keyboard.press("Control+Enter")
    visit.says("answer 2")
    assert bodies[2]["messages"] == [{"role": "user", "content": "second"}]
    assert visit.find(".message.user .branches").inner_text() == "2/2"
    visit.page.get_by_role("button", name="Previous branch").first.click()
    visit.says("answer 0")

    visit.ask("and more")
    assert [each["content"] for each in bodies[3]["messages"]] == ["first", "answer 0", "and more"]


def test_thoughts_are_folded(visit: Visit, plain: OwnServer) -> None:
    visit.open(plain.url)
    visit.script([{"reasoning_content": "Let me see."}, {"content": "It is 4."}])
    assert visit.ask("2 + 2?") == "It is 4."
    thoughts = visit.find(".assistant .thoughts-text")
    assert not thoughts.is_visible()
    visit.find(".assistant .thoughts summary").click()
    assert thoughts.inner_text() == "Let me see."


def test_tool_calls(visit: Visit, plain: OwnServer) -> None:
    """The shipped model makes the forced call; the user enters the result."""
    fields = json.dumps(
        {"tool_choice": "required", "parallel_tool_calls": False, **WITHOUT_THOUGHTS}
    )
    visit.open(plain.url, tools=json.dumps([TOOL]), custom=fields, max_tokens=200)
    visit.say("How is the weather?")
    answer = visit.answered()
    assert answer.locator(".call code").inner_text() == "get_weather"
    assert json.loads(answer.locator(".call pre").inner_text()) == {"unit": "celsius"}
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
    assert "temperature" in visit.answered().locator(".error").inner_text()
    visit.page.evaluate("localStorage['specllama.settings'] = '{\"custom\": \"{\"}'")
    visit.page.reload()
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
    assert visit.answered().locator(".error").inner_text()


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
    assert answer.locator(".katex").count() == 3
    assert "for $5 and $6." in answer.inner_text()
    assert answer.locator("h1").inner_text() == "Title"
    assert answer.locator("td").all_inner_texts() == ["1", "2"]
    assert answer.locator(".code-head").inner_text().strip() == "python"
    aligned = "getComputedStyle(document.querySelector('.body td:last-child')).textAlign"
    assert visit.page.evaluate(aligned) == "right"
    assert answer.locator("ol").get_attribute("start") == "3"
    boxes = answer.get_by_role("checkbox").all()
    assert [each.is_checked() for each in boxes] == [True, False]
    # The server has KaTeX's fonts.
    loaded = visit.page.evaluate(
        """document.fonts.ready.then(() => [...document.fonts]
             .filter((each) => each.status === "loaded").map((each) => each.family))"""
    )
    assert "KaTeX_Main" in loaded
    visit.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    visit.click("Copy the code")
    copied = visit.page.evaluate("navigator.clipboard.readText()")
    assert copied.strip() == 'def f(): return "a"'


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
    bar.wait_for()
    assert bar.get_attribute("max") == "2000"
    assert "1K of 2K tokens, 500 of them cached" in visit.find(".assistant .progress").inner_text()
    visit.page.evaluate("go()")
    assert visit.answered().locator(".body").inner_text() == "There."
    assert not visit.find(".progress:visible").count()


def test_export_and_import(visit: Visit, plain: OwnServer, tmp_path: Path) -> None:
    visit.open(plain.url)
    visit.script([{"content": "kept"}])
    visit.ask("Keep this")
    visit.export_all(tmp_path / "all.json")
    visit.click("Delete all")
    visit.page.get_by_role("alertdialog", name="Delete 1 conversation?").wait_for()
    visit.click("Cancel")
    visit.page.get_by_role("alertdialog").wait_for(state="detached")
    assert visit.find(".conversation").all_inner_texts() == ["Keep this"]
    visit.delete_all()
    visit.import_from(tmp_path / "all.json")
    visit.find("text=1 conversation imported").wait_for()
    visit.page.get_by_role("button", name="Keep this", exact=True).click()
    assert visit.find(".message.assistant .body").inner_text() == "kept"


def test_files(visit: Visit, plain: OwnServer, tmp_path: Path) -> None:
    """A text is added to the message; an image only if the model has image input."""
    text, image = tmp_path / "notes.md", tmp_path / "dot.png"
    text.write_text("Llamas carry wool.")
    image.write_bytes(b"\x89PNG\r\n\x1a\n")
    visit.open(plain.url)
    bodies = visit.script([{"content": "ok"}])
    picker = visit.find("input[type=file]")
    picker.set_input_files([text, image])
    visit.find("text=dot.png: this model doesn't support images").wait_for()
    visit.find(".composer .file >> text=notes.md").wait_for()
    visit.ask("Sum it up")
    [sent] = bodies[0]["messages"]
    assert sent["content"] == "File notes.md:\n\nLlamas carry wool.\n\nSum it up"

    def seeing(route: "Route") -> None:
        response = route.fetch()
        modalities = {"vision": True, "audio": True, "video": False}
        route.fulfill(json=response.json() | {"modalities": modalities})

    visit.page.route("**/props*", seeing)
    visit.page.reload()
    visit.page.get_by_role("button", name="Add files: texts, PDFs, images, sounds").wait_for()
    visit.expected.append("dot.png")  # only its first bytes are those of an image
    visit.click("New chat")
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
    visit.ask("Sum it up")
    [sent] = bodies[0]["messages"]
    assert sent["content"] == "File drop.txt:\n\nLlamas carry wool.\n\nSum it up"
