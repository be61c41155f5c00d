"""Takes the picture of the page for chats that README.md shows.

    specllama --port 8080 &
    python -m tools.docs.picture [--url http://127.0.0.1:8080] [--output docs/page.png]

It needs Playwright and Chromium (`pip install -e '.[webui]'`, `apt-get install chromium`).
"""

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
QUESTIONS = (
    "Hello!",
    "Repeat this text: Each prefix is computed **once**, and all requests share it.",
)
"""Within the abilities of the shipped model."""
SIZE = (1000, 620)


def main(argv: Sequence[str] | None = None) -> int:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(
        prog="python -m tools.docs.picture",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--url", default="http://127.0.0.1:8080", help="a server (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("docs/page.png"), help="the file (default: %(default)s)"
    )
    given = parser.parse_args(argv)
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        parser.error("no Chromium found")
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=program, chromium_sandbox=False)
        page = browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]})
        page.add_init_script("localStorage['specllama.settings'] = '{\"temperature\": 0}'")
        page.goto(given.url)
        page.locator("body[data-ready]").wait_for()
        for number, question in enumerate(QUESTIONS):
            page.get_by_label("Message", exact=True).fill(question)
            page.keyboard.press("Enter")
            page.locator(".message.assistant:not(.running)").nth(number).wait_for()
        page.locator(".message.running").wait_for(state="detached")
        page.screenshot(path=given.output)
        browser.close()
    print(given.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
