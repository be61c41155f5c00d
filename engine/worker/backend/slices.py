"""Slices of a text that have the same tokens one by one as together.

llama.cpp splits a text at its special tokens in a time that grows with the square of their number:
20,000 messages of a chat take it 22 seconds. In slices they take a fraction of one.

A text may be cut before the text T of a special token if llama.cpp is certain to find that token
there. It looks for one special token after the other, the longest first, in what the others have
left. So T is found wherever it stands, unless a part of it is taken by a token found before. That
can't be if no special token's text overlaps with T (T's own included), contains it, or is a part of
it. Then no token reaches over the cut either, and the two sides have nothing to do with each other,
provided that T doesn't take the white space before it, and has none at its ends for a neighbour to
take.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SLICE = 4096
"""Bytes from which on a slice ends at the next place where it may."""
WINDOW = 8192  # bytes that are searched at once: the GIL is held for so long
MAX_TEXTS = 256
"""Special tokens that slices may begin with: some vocabularies have thousands, mostly unused."""
_UNUSED = re.compile(b"unused|reserved", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Special:
    """A special token's text. One that `strips` takes the white space beside it; one that is
    `plain` is found even where special tokens are not parsed."""

    text: bytes
    strips: bool = False
    plain: bool = False


class Slicer:
    """Cuts texts for a vocabulary with these special tokens."""

    def __init__(self, specials: Sequence[Special]) -> None:
        clear = _clear(specials)
        self._longest = max((len(each.text) for each in clear), default=0)
        self._parsed = _pattern(clear)
        self._plain = _pattern([each for each in clear if each.plain])

    def slices(self, text: bytes, *, parse_special: bool) -> Iterator[bytes]:
        """`text` in pieces, each but the last of `SLICE` bytes or more."""
        pattern, start = self._parsed if parse_special else self._plain, 0
        while pattern and (cut := self._next(pattern, text, start + SLICE)) is not None:
            yield text[start:cut]
            start = cut
        yield text[start:]

    def _next(self, pattern: re.Pattern[bytes], text: bytes, start: int) -> int | None:
        """The first place from `start` on where a slice may begin."""
        while start < len(text):
            if found := pattern.search(text, start, start + WINDOW + self._longest):
                return found.start()
            start += WINDOW
        return None


def _pattern(specials: Sequence[Special]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(re.escape(each.text) for each in specials)) if specials else None


def _clear(specials: Sequence[Special]) -> list[Special]:
    """Those that llama.cpp finds wherever their text stands; `MAX_TEXTS` at most."""
    texts = {each.text for each in specials}
    if b"" in texts:
        return []
    begins = {text[:n] for text in texts for n in range(1, len(text))}
    ends = {text[n:] for text in texts for n in range(1, len(text))}
    all_texts = b"\n".join(each.text for each in specials)
    clear: list[Special] = []
    for each in sorted(specials, key=lambda special: bool(_UNUSED.search(special.text))):
        text = each.text
        if (
            not each.strips
            and text == text.strip()
            and begins.isdisjoint(_parts(text, at_end=True))
            and ends.isdisjoint(_parts(text, at_end=False))
            and all_texts.count(text) == 1
            and not any(other in text for other in texts if other != text)
        ):
            clear.append(each)
            if len(clear) == MAX_TEXTS:
                break
    return clear


def _parts(text: bytes, *, at_end: bool) -> Iterable[bytes]:
    """The ends of `text`, or its beginnings, but not all of it."""
    return (text[n:] if at_end else text[:n] for n in range(1, len(text)))
