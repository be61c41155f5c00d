"""A browser for the tests of the page. Without a browser they are skipped."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from contract_tests.kit.server import SECONDS, OwnServer, Start

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from contract_tests.own.page.visits import Visit

# Failed assertions in this module shall show their values.
pytest.register_assert_rewrite("contract_tests.own.page.visits")

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    """A browser for one module. It is closed after the module, because this thread has a running
    event loop until then, and asyncio allows no second one."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: pip install -e '.[webui]'"
    )
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("there is no Chromium to test the page in: apt-get install chromium")
    playwright.expect.set_options(timeout=1000 * SECONDS)
    with playwright.sync_playwright() as running:
        # Chromium's sandbox doesn't work as root in a container.
        browser = running.chromium.launch(executable_path=program, chromium_sandbox=False)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: "Browser") -> Iterator["Visit"]:
    """A new visitor with an empty storage. Errors in the browser's console fail the test."""
    from contract_tests.own.page.visits import Visit

    visit = Visit(browser)
    yield visit
    visit.end()


@pytest.fixture(scope="module")
def plain(browser: "Browser", module_server: Start) -> OwnServer:
    """A server of the shipped model. `browser` comes first, so that no server starts without
    one."""
    return module_server("--parallel", "2", "--metrics")
