"""Hooks for MkDocs while it builds the site: pages from elsewhere, links, the API's reference."""

import re
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

from tools.docs import pages, reference

_FETCHED = re.compile(
    r"""<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=["']?(https?:[^"'>\s]+)"""
)

OPERATIONS = "{operations}"
"""The placeholder for the tables on the page about the API."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for page, path in pages.included().items():
        files.append(File.generated(config, page, content=path.read_text("utf-8")))
    for name, content in reference.files(reference.description()).items():
        files.append(File.generated(config, f"api/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    text = pages.on_the_site(markdown, page.file.src_uri)
    if OPERATIONS in text:
        text = text.replace(OPERATIONS, reference.operations(reference.description()))
    return text


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Checks that the page loads nothing from other hosts."""
    if found := _FETCHED.findall(output):
        raise PluginError(f"{page.file.src_uri} loads from another host: {found[0]}")
    return output
