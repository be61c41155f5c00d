"""Compares texts with markers in them: where two of them differ, a marker stays whole.

A marker is a tag in angle brackets (open-ended, too: a name may follow `<function=`) or a word in
capitals in square ones. Words stay whole like markers.
"""

import re

TAG = re.compile(r"<[^<>{}]*>|\[/?[A-Z][A-Z_ ]*\]")
_UNIT = re.compile(
    r"[\]\[][\]\[<>]+\w+[\]\[<>]{2,}(?:/?[^<>{}]*(?:>|$))?"  # a name in brackets before a tag
    r"|<[^<>{}]*(?:>|$)|\[/?[A-Z][A-Z_ ]*\]|\w+"
)
_OPPOSITES = tuple(
    (change(begin), change(end))
    for begin, end in (("start", "end"), ("begin", "end"), ("open", "close"))
    for change in (str.lower, str.upper, str.capitalize)
)


def common_prefix(first: str, *others: str) -> str:
    """The longest common prefix of all texts that ends with a whole marker or word."""
    size = len(first)
    for other in others:
        pairs = zip(first[:size], other, strict=False)
        size = next((i for i, (a, b) in enumerate(pairs) if a != b), min(size, len(other)))
    cut = size
    for text in (first, *others):
        cut = min(cut, _around(text, size)[0])
    return first[:size] if cut == size else common_prefix(first[:cut], *others)


def common_suffix(first: str, second: str) -> str:
    """The longest common suffix of both texts that begins with a whole marker or word."""
    size = 0
    while size < min(len(first), len(second)) and first[-1 - size] == second[-1 - size]:
        size += 1
    while True:
        cuts = [len(text) - _around(text, len(text) - size)[1] for text in (first, second)]
        if min(cuts) == size:
            return first[len(first) - size :]
        size = min(cuts)


def inside(text: str, position: int) -> bool:
    """True if a cut at `position` would go through a marker or a word of `text`."""
    return _around(text, position) != (position, position)


def closings(tag: str) -> list[str]:
    """The markers that may close what `tag` opens, by the habits of markup."""
    brackets = re.match(r"<\||<\uff5c|<|\[", tag)
    found = [f"{tag[: brackets.end()]}/{tag[brackets.end() :]}"] if brackets else []
    if tag.startswith("<|"):
        found.append(f"</{tag[1:]}")
        if not tag.endswith("|>"):
            found.append(f"<{tag[2:-1]}|>")
    return found + [tag.replace(begin, end) for begin, end in _OPPOSITES if begin in tag]


def openings(tag: str) -> list[str]:
    """The markers that `tag` may close."""
    found = [tag.replace("/", "", 1)] if "/" in tag[:3] else []
    return found + [tag.replace(end, begin) for begin, end in _OPPOSITES if end in tag]


def tags(text: str) -> list[str]:
    """The closed markers in `text`, in order."""
    return TAG.findall(text)


def _around(text: str, position: int) -> tuple[int, int]:
    for unit in _UNIT.finditer(text):
        if unit.start() < position < unit.end():
            return unit.start(), unit.end()
        if unit.start() >= position:
            break
    return position, position
