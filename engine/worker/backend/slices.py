"""Cuts a text into slices that can be tokenized separately with the same result.

llama.cpp splits a text at its special tokens in a time that grows with the square of their number:
20,000 messages of a chat take 22 seconds. In slices, they take a fraction of a second.

A text may be cut before the text T of a special token if llama.cpp certainly finds that token
there. It searches for one special token after the other, the longest first, in the parts that the
earlier ones have left. So it finds every T, unless an earlier token has matched a part of it. That
is impossible if no special token's text (including T itself) overlaps with T, contains it, or is a
part of it. Then no token spans the cut either, and the two sides are independent, provided that T
doesn't strip the white space before it, and has no white space at its own ends that a neighbour
could strip.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

SLICE = 4096
"""Minimum bytes of a slice; it ends at the next possible place."""
WINDOW = 8192  # bytes per search, during which the GIL is held
MAX_TEXTS = 256
"""Maximum number of special tokens that slices may begin with: some vocabularies have thousands,
mostly unused."""
_UNUSED = re.compile(b"unused|reserved", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Special:
    """A special token's text. `strips`: the token includes the white space next to it. `plain`: it
    is found even if special tokens are not parsed."""

    text: bytes
    strips: bool = False
    plain: bool = False


class Slicer:
    """Cuts texts for a vocabulary with the special tokens `specials`."""

    def __init__(self, specials: Sequence[Special]) -> None:
        clear = _clear(specials)
        self._longest = max((len(each.text) for each in clear), default=0)
        self._parsed = _pattern(clear)
        self._plain = _pattern([each for each in clear if each.plain])

    def slices(self, text: bytes, *, parse_special: bool) -> Iterator[bytes]:
        """`text` in slices; all except the last have at least `SLICE` bytes."""
        pattern, start = self._parsed if parse_special else self._plain, 0
        while pattern and (cut := self._next(pattern, text, start + SLICE)) is not None:
            yield text[start:cut]
            start = cut
        yield text[start:]

    def _next(self, pattern: re.Pattern[bytes], text: bytes, start: int) -> int | None:
        """The first possible beginning of a slice from `start` on; None if there is none."""
        while start < len(text):
            if found := pattern.search(text, start, start + WINDOW + self._longest):
                return found.start()
            start += WINDOW
        return None


def _pattern(specials: Sequence[Special]) -> re.Pattern[bytes] | None:
    return re.compile(b"|".join(re.escape(each.text) for each in specials)) if specials else None


def _clear(specials: Sequence[Special]) -> list[Special]:
    """The special tokens that llama.cpp certainly finds wherever their text occurs, at most
    `MAX_TEXTS`."""
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
    """The proper suffixes (`at_end`) or prefixes of `text`."""
    return (text[n:] if at_end else text[:n] for n in range(1, len(text)))
