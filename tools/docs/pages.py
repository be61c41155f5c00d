"""The pages of the site, and their links.

A page is in `docs/` or elsewhere in the repository, and its links are relative to its place. On the
site, a link to a page leads to the page; a link to any other file becomes plain text, because the
site has no copy of the source.
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
"""Documents outside `docs/`, with their pages. The start page replaces the README, which has the
same text for readers of the repository."""

LINK = re.compile(r"\[(?P<text>[^\[\]]*)\]\((?P<target>[^()\s:]+)\)")
"""A relative link."""
MADE = "docs/api/"
"""The folder that only the site has, with the interactive page."""

_COMMENT = re.compile(r"^ *<!-- .*? -->\n", re.DOTALL | re.MULTILINE)
_FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)


def included() -> dict[str, Path]:
    """Returns the pages of the site that are outside `docs/`."""
    return {page: ROOT / path for path, page in ELSEWHERE.items() if path != "README.md"}


def source_of(page: str) -> str:
    """Returns the path in the repository for a page of the site."""
    sources = {page: path for path, page in ELSEWHERE.items() if path != "README.md"}
    return sources.get(page, f"docs/{page}")


def on_the_site(markdown: str, page: str) -> str:
    """Returns the text of a page with the site's links, and without comments, which are only for
    the repository's tests."""
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
    """Returns the page that a file of the repository becomes, or None."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    return path.removeprefix("docs/") if re.match(r"docs/.*\.md$", path) else None
