"""The code blocks of the documents, and what is said of each in comments in front of it:

- `<!-- not run: REASON -->`: it is not executed.
- `<!-- server: OPTIONS -->`: it is sent to a server with these options, not to a plain one.
- `<!-- prints: TEXT -->`: this is in what it prints.
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
"""What a program prints, and drawings."""

_MARK = re.compile(r"<!-- (not run|server|prints): (.+?) -->", re.DOTALL)


@dataclass(frozen=True)
class Block:
    document: str
    """Path of the document, from the root of the repository."""
    line: int
    language: str
    """Empty for a block that tells none."""
    content: str
    marks: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        return f"{self.document}:{self.line}"

    @property
    def is_executed(self) -> bool:
        return self.language in EXECUTED and "not run" not in self.marks


def documents() -> list[Path]:
    """All of this repository's own pages."""
    # Caches of tools have a README, too, in folders that begin with a dot.
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("[!.]*/README.md")]
    return sorted(set(found))


def blocks(path: Path) -> Iterator[Block]:
    """The blocks of one document, from its beginning to its end, those in lists included."""
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
            # Marks hold for the block that follows at once.
            marks = {name: " ".join(what.split()) for name, what in _MARK.findall(token.content)}
        else:
            marks = {}


def all_blocks() -> list[Block]:
    return [block for path in documents() for block in blocks(path)]
