"""The code blocks of the documents, and the marks in comments before them:

- `<!-- not run: REASON -->`: the block is not executed.
- `<!-- server: OPTIONS -->`: the block uses a server with these options instead of a plain one.
- `<!-- prints: TEXT -->`: the output of the block contains this text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[2]
EXECUTED = frozenset({"bash", "python"})
PARSED = frozenset({"json", "yaml", "toml", "ini"})
SHOWN = frozenset({"text"})
"""The language of blocks with output or drawings."""

_MARK = re.compile(r"<!-- (not run|server|prints): (.+?) -->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    document: str
    """Path of the document, relative to the root of the repository."""
    line: int
    language: str
    """Empty for a block without a language."""
    content: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def is_executed(self) -> bool:
        return self.language in EXECUTED and "not run" not in self.marks


def documents() -> list[Path]:
    """Returns all of this repository's own pages."""
    # Hidden folders, such as the caches of tools, may have a README, too.
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("[!.]*/README.md")]
    return sorted(set(found))


def blocks(path: Path) -> Iterator[Block]:
    """Yields the blocks of one document in their order, blocks in lists included."""
    yield from blocks_of(path.read_text("utf-8"), path.relative_to(ROOT).as_posix())


def blocks_of(text: str, document: str) -> Iterator[Block]:
    marks: dict[str, str] = {}
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("fence", "code_block"):
            language = token.info.strip().partition(" ")[0]
            line = (token.map or [0])[0] + 1
            yield Block(document, line, language, token.content, marks)
            marks = {}
        elif token.type == "html_block":
            # Marks apply to the block right after them.
            marks = {name: " ".join(what.split()) for name, what in _MARK.findall(token.content)}
        else:
            marks = {}


def all_blocks() -> list[Block]:
    return [block for path in documents() for block in blocks(path)]
