"""The pages of the site, and their links.

A page lies in `docs/` or elsewhere in the repository, where its links are relative to its place.
On the site, a link to a page leads to the page, and one to a file that is no page is its text
alone: the site has no copy of the source.
"""

import posixpath
import re
from pathlib import Path

from tools.docs.blocks import ROOT

ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "index.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "contract_tests/README.md": "contract-tests.md",
    "openapi/README.md": "description.md",
}
"""Documents outside of `docs/`, and the pages that they are. The start page takes the place of the
README, which says the same to readers of the repository."""

LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s:]+)\)")
"""A link that isn't an address."""
MADE = "docs/api/"
"""What is there on the site alone: the interactive page."""

_COMMENT = re.compile(r"^ *<!-- .*? -->\n", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def included() -> dict[str, Path]:
    """Pages of the site that lie outside of `docs/`."""
    return {page: ROOT / path for path, page in ELSEWHERE.items() if path != "README.md"}


def source_of(page: str) -> str:
    """Where a page of the site lies in the repository."""
    sources = {page: path for path, page in ELSEWHERE.items() if path != "README.md"}
    return sources.get(page, f"docs/{page}")


def on_the_site(markdown: str, page: str) -> str:
    """The text of a page, with the links that it has on the site, and without comments: they are
    for the tests of the repository."""
    here = posixpath.dirname(source_of(page))

    def link(match: re.Match[str]) -> str:
        path, _, anchor = match["target"].partition("#")
        if not path:
            return match[0]
        target = posixpath.normpath(posixpath.join(here, path))
        found = _page(target)
        if found is None:
            return match["text"] if (ROOT / target).exists() else match[0]
        relative = posixpath.relpath(found, posixpath.dirname(page) or ".")
        return f"[{match['text']}]({relative}{'#' if anchor else ''}{anchor})"

    parts = _FENCE.split(markdown)
    return "".join(
        each if n % 2 else LINK.sub(link, _COMMENT.sub("", each)) for n, each in enumerate(parts)
    )


def _page(path: str) -> str | None:
    """The page that a file of the repository is."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return path.removeprefix("docs/") if re.match(r"docs/.*\.md$", path) else None
