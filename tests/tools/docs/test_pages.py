"""Links of pages that move to the site."""

from pathlib import Path

import pytest
import yaml

from tools.docs.blocks import ROOT, documents
from tools.docs.pages import LINK, MADE, included, on_the_site, source_of


@pytest.mark.parametrize(
    ("page", "text", "expected"),
    [
        # From a document at the root to a page, to another such document, and to the source.
        ("architecture.md", "[a](docs/options.md#model)", "[a](options.md#model)"),
        ("architecture.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("architecture.md", "see [a](tests/test_documents.py).", "see a."),
        ("description.md", "[a](server.yaml) [b](../docs/api.md)", "a [b](api.md)"),
        # From a page below docs/.
        ("options.md", "[a](presets.md)", "[a](presets.md)"),
        ("guides/tools.md", "[a](../templates.md#x)", "[a](../templates.md#x)"),
        ("guides/tools.md", "[a](../../SECURITY.md)", "[a](../security.md)"),
        ("figures.md", "[a](../benchmarks/README.md)", "[a](benchmarks.md)"),
        ("changelog.md", "[a](README.md)", "[a](index.md)"),
        # Other links stay: MkDocs reports links that lead nowhere.
        ("options.md", "[a](https://example.com/x.md)", "[a](https://example.com/x.md)"),
        ("options.md", "[a](#b)", "[a](#b)"),
        ("options.md", "[a](nowhere.md)", "[a](nowhere.md)"),
        ("options.md", "[a](../nowhere.py)", "[a](../nowhere.py)"),
        ("options.md", "a\n\n<!-- not run: b\nc -->\n\nd", "a\n\n\nd"),
        ("changelog.md", "- a\n  <!-- breaks: b -->\n- c", "- a\n- c"),
        ("options.md", "```text\n<!-- b -->\n```", "```text\n<!-- b -->\n```"),
        ("architecture.md", "```text\n[a](README.md)\n```", "```text\n[a](README.md)\n```"),
    ],
)
def test_links(page: str, text: str, expected: str) -> None:
    assert on_the_site(text, page) == expected


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_in_the_repository(path: Path) -> None:
    targets = [
        match["target"].partition("#")[0] for match in LINK.finditer(path.read_text("utf-8"))
    ]
    places = [(path.parent / target).resolve() for target in targets if target]
    astray = [place for place in places if not place.exists()]
    assert not [place for place in astray if not place.is_relative_to(ROOT / MADE)]


def test_pages_from_elsewhere_exist() -> None:
    for page, path in included().items():
        assert path.is_file()
        assert path == ROOT / source_of(page)
        assert not (ROOT / "docs" / page).exists()


def test_every_page_is_in_the_navigation() -> None:
    def pages(node: object) -> list[str]:
        match node:
            case str():
                return [node]
            case list():
                return [page for each in node for page in pages(each)]
            case dict():
                return [page for each in node.values() for page in pages(each)]
        return []

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"])
    there = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted([*there, *included()])
