"""All lessons, in their proportions."""

from collections.abc import Callable

from tools.models.lessons import calling, conversation, copying, extraction, infill, thinking
from tools.models.lessons.lesson import Gap, Lesson
from tools.models.lessons.source import Source

LESSONS: dict[str, tuple[Callable[[Source], Lesson | Gap], int, int]] = {
    calling.ABILITY: (calling.lesson, 26, 36),
    extraction.ABILITY: (extraction.lesson, 14, 16),
    conversation.ABILITY: (conversation.lesson, 22, 22),
    thinking.ABILITY: (thinking.lesson, 4, 6),
    copying.ABILITY: (copying.lesson, 30, 12),
    infill.ABILITY: (infill.lesson, 3, 7),
    "document": (infill.document, 1, 1),
}
"""Their makers by ability, and their weights at level 0 and 1: what is short is mostly copied,
since all else is built on that."""

MAKERS = [maker for maker, _, _ in LESSONS.values()]


def lesson(source: Source) -> Lesson | Gap:
    weights = [first + (last - first) * source.level for _, first, last in LESSONS.values()]
    return source.random.choices(MAKERS, weights)[0](source)
