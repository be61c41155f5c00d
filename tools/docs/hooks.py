"""What MkDocs calls when it builds the site: pages from elsewhere, links, the API's reference."""

from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from tools.docs import pages, reference

OPERATIONS = "<!-- operations -->"
"""Where the page about the API has its tables."""


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
