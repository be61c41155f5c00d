"""Phrases that make prose hard to read, and what to write in their place.

`lint` searches the description for them, and the repository's own tests search all its text files.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

PHRASES = {
    r"none of": "a sentence with `no` or `not`, with the thing as its subject",
    r"nobody": "the actor, such as `no client`, or the passive voice",
    r"but for": "`except`, or `without`",
    r"at the most": "`at most`",
    r"told": "`reported`, `listed`, `given`, or the actor with `receives`",
    r"tells": "`reports`, `shows`, `lists` or `names`",
    r"(?:hears|heard)": "`receives`, `reads` or `is used`",
    r"whoever": "the actor: the client, the caller, the thread",
    r"those (?:that|who|which)": "the things by their name: `requests that`, `clients that`",
    r"for (?:whom|whoever)": "the actor, such as `the client that`",
    r"what came": "the thing: the answer, the result, the error",
    r"in vain": "`without success`, or what failed",
    r"anew": "`again`",
    r"as it stands": "`unchanged`",
    r"personif\w*": "the thing that acts, or the passive voice",
}
"""The banned phrases, as regular expressions, and a replacement for each."""

_GAP = r"""(?: +|[ "']*\n[ \t]*(?:#|>|//|\*|f?["'])?[ \t]*)"""
"""The space between two words of a phrase: blanks, or a line break in prose, a comment or adjacent
string literals."""

_ANY = re.compile(
    "|".join(rf"\b(?P<p{n}>{each.replace(' ', _GAP)})\b" for n, each in enumerate(PHRASES)),
    re.IGNORECASE,
)
_REPLACEMENTS = tuple(PHRASES.values())


class Hit(NamedTuple):
    """A banned phrase in a text, the number of the line where it begins, and a replacement."""

    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f"{self.phrase!r}: write {self.instead}"


def search(text: str) -> Iterator[Hit]:
    """Returns the banned phrases of `text`, in their order."""
    for match in _ANY.finditer(text):
        assert match.lastgroup is not None
        line = text.count("\n", 0, match.start()) + 1
        phrase = " ".join(match.group().split())
        yield Hit(line, phrase, _REPLACEMENTS[int(match.lastgroup[1:])])
