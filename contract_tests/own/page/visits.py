"""A visit to the page: actions of a person, and errors in the browser's console."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from contract_tests.kit.server import SECONDS

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Request, Route

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


class Visit:
    """One visitor. `complaints` are the lines that the page wrote into the browser's console."""

    def __init__(self, browser: "Browser") -> None:
        self._context = browser.new_context(viewport={"width": 1200, "height": 800})
        self._context.set_default_timeout(1000 * SECONDS)
        self._context.add_init_script(_WATCH)
        self.complaints: list[str] = []
        self.expected: list[str] = []  # patterns of complaints that the test causes
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
        """Waits until the page has the data of the server and the model."""
        self.find("body[data-ready]").wait_for()

    def find(self, selector: str, **options: Any) -> "Locator":
        return self.page.locator(selector, **options)

    def click(self, name: str) -> None:
        """Clicks the button with this name."""
        self.page.get_by_role("button", name=name, exact=True).last.click()

    def say(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.keyboard.press("Enter")

    def answered(self) -> "Locator":
        """Returns the last answer, once it is complete."""
        self.find(".message.assistant").last.wait_for()
        self.find(
            ".message.assistant:not(.running) .facts, .message.assistant .error:visible"
        ).last.wait_for()
        self.find(".message.running").wait_for(state="detached")
        return self.find(".message.assistant").last

    def says(self, text: str) -> None:
        """Waits until the last message contains the text."""
        self.find(".message:last-child .body", has_text=text).wait_for()

    def ask(self, text: str) -> str:
        self.say(text)
        return self.answered().locator(".body").inner_text()

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

    def import_from(self, place: Path) -> None:
        self.click("Settings")
        with self.page.expect_file_chooser() as chooser:
            self.click("Import")
        chooser.value.set_files(place)

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
