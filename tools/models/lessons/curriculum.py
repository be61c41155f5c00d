"""All lessons, in their proportions."""

from collections.abc import Callable

from tools.models.lessons import calling, conversation, copying, extraction, infill, thinking
from tools.models.lessons.lesson import Gap, Lesson
from tools.models.lessons.source import Source

LESSONS: dict[str, tuple[Callable[[Source], Lesson | Gap], int, int]] = {
    calling.ABILITY: (calling.lesson, 22, 26),
    extraction.ABILITY: (extraction.lesson, 16, 17),
    conversation.ABILITY: (conversation.lesson, 30, 31),
    thinking.ABILITY: (thinking.lesson, 10, 11),
    copying.ABILITY: (copying.lesson, 20, 11),
    infill.ABILITY: (infill.lesson, 3, 4),
    "document": (infill.document, 1, 1),
}
"""Their makers by ability, and their weights at level 0 and 1: what is short is mostly copied,
since all else is built on that. Sums, letters and texts take the most lessons to learn."""

MAKERS = [maker for maker, _, _ in LESSONS.values()]


def lesson(source: Source) -> Lesson | Gap:
    weights = [first + (last - first) * source.level for _, first, last in LESSONS.values()]
    return source.random.choices(MAKERS, weights)[0](source)
