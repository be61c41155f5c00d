"""A visit to the page: actions of a person, and errors in the browser's console."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from contract_tests.kit.server import SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request, Route
    from playwright.sync_api import expect as expect
else:

    def expect(shown):
        """Returns Playwright's assertions of an element, which wait: a page changes later than an
        action on it returns. `tests/test_time_limits.py` forbids other assertions."""
        import playwright.sync_api

        return playwright.sync_api.expect(shown)


TALKING = json.dumps(
    {
        "grammar": "root ::= [a-z]+",
        "ignore_eos": True,
        "chat_template_kwargs": {"enable_thinking": False},
    }
)
"""More fields of requests with which any model answers at once, in a text that has to be
stopped."""

_WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", (event) =>
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
"""

_NOTICES_STAY = """{
  const wait = window.setTimeout.bind(window);
  window.setTimeout = (act, delay, ...values) => (delay >= 6000 ? 0 : wait(act, delay, ...values));
}"""
"""No test has to be faster than the end of a notice: `notify` in `dom.js`."""


class Visit:
    """One visitor. `complaints` are the lines that the page wrote into the browser's console."""

    def __init__(self, browser: "Browser") -> None:
        self._context = browser.new_context(viewport={"width": 1200, "height": 800})
        self._context.set_default_timeout(1000 * SECONDS)
        self._context.add_init_script(_WATCH)
        self._context.add_init_script(_NOTICES_STAY)
        self.complaints: list[str] = []
        # Patterns of the complaints that servers without tools cause, or the test itself.
        self.expected = ["status of 403 .*/tools$"]
        self.hosts: set[str] = set()
        self.page: Page = self._context.new_page()
        self.page.on("console", lambda m: self._note(m.type, f"{m.text} {m.location.get('url')}"))
        self.page.on("pageerror", lambda error: self._note("error", str(error)))
        self.page.on("request", self._requested)

    def _note(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(text)

    def _requested(self, request: "Request") -> None:
        address = urlsplit(request.url)
        if address.scheme not in ("data", "blob"):
            self.hosts.add(address.netloc)

    def end(self) -> None:
        """Checks that no unexpected line was in the console, no policy was violated, and nothing
        was loaded from another host."""
        violations = self.page.evaluate("window.violations ?? []")
        host = urlsplit(self.page.url).netloc
        self._context.close()
        unforeseen = [
            each
            for each in self.complaints
            if not any(re.search(pattern, each) for pattern in self.expected)
        ]
        assert not unforeseen
        assert not violations
        assert self.hosts <= {host}

    # ---- actions ----

    def open(self, url: str, **settings: Any) -> None:
        """Opens the page, with some settings of the user, and waits until it has loaded the model's
        data."""
        if settings:
            stored = json.dumps(json.dumps(settings))
            script = f"localStorage['specllama.settings'] ??= {stored}"
            self._context.add_init_script(script)
        self.page.goto(url + "/")
        self.ready()

    def ready(self) -> None:
        """Waits until the page has the data of the server, the model and the tools."""
        self.find("body[data-ready]").wait_for()

    def reload(self) -> None:
        self.page.reload()
        self.ready()

    def find(self, selector: str, **options: Any) -> "Locator":
        return self.page.locator(selector, **options)

    def click(self, name: str) -> None:
        """Clicks the button with this name."""
        self.page.get_by_role("button", name=name, exact=True).last.click()

    def close_settings(self) -> None:
        """Closes the dialog of the settings, and waits until the page has applied them: a browser
        handles the end of a dialog after the click."""
        self.click("Close")
        self.settings_closed()

    def settings_closed(self) -> None:
        expect(self.find("#settings-title")).to_have_count(0)

    def choose(self, title: str) -> None:
        """Opens the conversation with this title."""
        self.page.get_by_role("button", name=title, exact=True).click()
        current = self.find(".conversation[aria-current=true]")
        expect(current).to_have_text(title)

    def new_chat(self) -> None:
        self.click("New chat")
        expect(self.find(".message")).to_have_count(0)

    def say(self, text: str) -> None:
        """Sends a message, and waits until the page has taken it: then it shows the new answer as
        well."""
        message = self.page.get_by_label("Message", exact=True)
        message.fill(text)
        message.press("Enter")
        expect(message).to_have_value("")

    def drawn(self) -> None:
        """Waits until all messages are complete, with highlighted code and with formulas."""
        expect(self.find(".message[aria-busy=true]")).to_have_count(0)

    def answered(self) -> "Locator":
        """Returns the last answer, once it is complete."""
        answer = self.find(".message.assistant").last
        # Only a complete answer has them.
        expect(answer.locator(".facts, .error:visible").first).to_be_visible()
        self.drawn()
        return answer

    def says(self, text: str) -> None:
        """Waits until the last message is complete and contains the text."""
        expect(self.find(".message:last-child[aria-busy=false] .body")).to_contain_text(text)

    def answer(self) -> str:
        """Returns the text of the last answer, once it is complete."""
        return self.answered().locator(".body").inner_text()

    def ask(self, text: str) -> str:
        self.say(text)
        return self.answer()

    def unfold(self, selector: str, count: int) -> None:
        """Opens all folded elements that the selector finds: `count` elements `details`."""
        folded = self.find(f"{selector}:not([open])")
        for left in range(count, 0, -1):
            expect(folded).to_have_count(left)
            folded.locator("summary").first.click()
        expect(folded).to_have_count(0)

    def fits(self, width: int) -> None:
        """Checks that the page isn't wider than the window, which has this width."""
        expect(self.find("html")).to_have_js_property("scrollWidth", width)

    def accessible(self, where: str) -> None:
        """Checks the page by axe's rules. Skips the test without axe."""
        axe = pytest.importorskip("axe_playwright_python.sync_playwright")
        found: Any = axe.Axe().run(self.page).response["violations"]
        wrong = [
            f"{each['id']}: {node['target']} {node.get('failureSummary')}"
            for each in found
            for node in each["nodes"]
        ]
        assert not wrong, where

    def export_all(self, place: Path) -> None:
        """Exports all conversations into the file `place`."""
        self.click("Settings")
        with self.page.expect_download() as download:
            self.click("Export all")
        download.value.save_as(place)

    def delete_all(self) -> None:
        """Deletes all conversations in the settings."""
        self.click("Delete all")
        self.click("Delete")
        self.find("text=No conversations yet").wait_for()
        self.settings_closed()

    def import_from(self, place: Path) -> None:
        self.click("Settings")
        with self.page.expect_file_chooser() as chooser:
            self.click("Import")
        chooser.value.set_files(place)
        self.settings_closed()

    # ---- a model with prescribed answers ----

    def script(self, *answers: Sequence[dict[str, Any]]) -> list[Any]:
        """Makes the model answer with these deltas, one list for each request. Returns a list that
        gets the bodies of the requests."""
        bodies: list[Any] = []

        def answer(route: "Route") -> None:
            bodies.append(route.request.post_data_json)
            deltas = answers[min(len(bodies), len(answers)) - 1]
            chunks: list[Any] = [{"choices": [{"index": 0, "delta": each}]} for each in deltas]
            chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
            chunks.append({"choices": [], "timings": {"cache_n": 3, "prompt_n": 1, "predicted_n": 4,
                                                      "predicted_per_second": 8.0}})  # fmt: skip
            text = "".join(f"data: {json.dumps(each)}\n\n" for each in chunks) + "data: [DONE]\n\n"
            route.fulfill(status=200, content_type="text/event-stream", body=text)

        self.page.route("**/v1/chat/completions", answer)
        return bodies

    # ---- a server with prescribed tools ----

    def offer(self, *tools: Any, results: Sequence[Any] = ()) -> list[Any]:
        """Makes the server list these tools, and answer calls with these results, of which the last
        one is repeated; a call without a result never ends. Returns a list that gets the bodies of
        the calls."""
        bodies: list[Any] = []

        def answer(route: "Route") -> None:
            if route.request.method == "GET":
                route.fulfill(json=tools)
                return
            bodies.append(route.request.post_data_json)
            if results:
                route.fulfill(json=results[min(len(bodies), len(results)) - 1])

        self.page.route("**/tools", answer)
        return bodies


def tool(name: str, description: str = "", **changes: Any) -> dict[str, Any]:
    """Returns an element of the server's list of tools."""
    schema = {"type": "object", "properties": {"text": {"type": "string"}}}
    function = {"name": name, "description": description, "parameters": schema}
    return {
        "tool": name,
        "display_name": name,
        "type": "mcp",
        "permissions": {"write": False},
        "uses_cwd": False,
        "definition": {"type": "function", "function": function},
    } | changes


def call(name: str, arguments: Any = None, id: str = "1", index: int = 0) -> dict[str, Any]:
    """Returns a delta with a call of a tool."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    function = {"name": name, "arguments": text}
    return {"tool_calls": [{"index": index, "id": id, "function": function}]}
