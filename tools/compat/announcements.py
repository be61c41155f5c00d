"""The breaking changes that CHANGELOG.md announces.

They are in the section `### Breaking` of `## [Unreleased]`. A bullet describes the change for
readers. Comments below it have patterns for the differences: `<!-- breaks: PATTERN -->`, where `*`
matches any text. A pattern has to match a whole line of the comparison.
"""

import re
from collections.abc import Iterable
from typing import NamedTuple

from tools.compat.comparison import Break

_PATTERN = re.compile(r"<!-- breaks: (.+?) -->")


class Verdict(NamedTuple):
    unannounced: list[Break]
    unused: list[str]
    """Patterns that match no difference."""


def announced(changelog: str) -> list[str]:
    """Returns the patterns of the unreleased part. Raises ValueError for a pattern without a bullet
    above it."""
    unreleased = _part(changelog, "## [Unreleased]", "\n## ")
    breaking = _part(unreleased, "### Breaking", "\n### ")
    text, *bullets = re.split(r"^- ", breaking, flags=re.MULTILINE)
    bare = _PATTERN.findall(text)
    bare += [each for bullet in bullets if bullet.startswith("<!--") for each in [bullet.strip()]]
    if bare:
        raise ValueError(f"no sentence of CHANGELOG.md announces {bare[0]!r}")
    return [pattern for bullet in bullets for pattern in _PATTERN.findall(bullet)]


def verdict(breaks: Iterable[Break], patterns: Iterable[str]) -> Verdict:
    expressions = {pattern: _expression(pattern) for pattern in patterns}
    found = list(breaks)
    used = {
        pattern
        for pattern, expression in expressions.items()
        if any(expression.fullmatch(str(each)) for each in found)
    }
    unannounced = [
        each
        for each in found
        if not any(expression.fullmatch(str(each)) for expression in expressions.values())
    ]
    return Verdict(unannounced, [each for each in expressions if each not in used])


def _expression(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")))


def _part(text: str, heading: str, end: str) -> str:
    """Returns the text between a heading and the next heading of its kind."""
    return f"\n{text}".partition(f"\n{heading}\n")[2].partition(end)[0]
