"""All lessons, in their proportions."""

from collections.abc import Callable

from tools.models.lessons import calling, conversation, copying, extraction, infill, thinking
from tools.models.lessons.lesson import Gap, Lesson
from tools.models.lessons.source import Source

LESSONS: dict[str, tuple[Callable[[Source], Lesson | Gap], int]] = {
    calling.ABILITY: (calling.lesson, 36),
    extraction.ABILITY: (extraction.lesson, 16),
    conversation.ABILITY: (conversation.lesson, 22),
    thinking.ABILITY: (thinking.lesson, 6),
    copying.ABILITY: (copying.lesson, 12),
    infill.ABILITY: (infill.lesson, 7),
    "document": (infill.document, 1),
}
"""Their makers and weights by ability."""

MAKERS = [maker for maker, _ in LESSONS.values()]
WEIGHTS = [weight for _, weight in LESSONS.values()]


def lesson(source: Source) -> Lesson | Gap:
    return source.random.choices(MAKERS, WEIGHTS)[0](source)
