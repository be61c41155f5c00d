"""The tables of the API, and pages that need no network."""

from types import SimpleNamespace
from typing import Any

import pytest
from mkdocs.exceptions import PluginError

from tools.docs import hooks


def _page(name: str) -> Any:
    return SimpleNamespace(file=SimpleNamespace(src_uri=name))


def test_the_tables_of_operations_take_their_place() -> None:
    text = hooks.on_page_markdown(f"# API\n\n{hooks.OPERATIONS}\n", _page("api.md"))
    assert "| `GET /health` |" in text
    assert hooks.OPERATIONS not in text


@pytest.mark.parametrize(
    "html",
    [
        '<script src="https://example.com/a.js"></script>',
        '<link rel="stylesheet" href="http://example.com/a.css">',
        '<img alt="" src=https://example.com/a.png>',
    ],
)
def test_a_page_that_asks_another_host_is_an_error(html: str) -> None:
    with pytest.raises(PluginError, match="loads from another host: http"):
        hooks.on_post_page(html, _page("a.md"))
    assert hooks.on_post_page('<a href="https://example.com">', _page("a.md"))
