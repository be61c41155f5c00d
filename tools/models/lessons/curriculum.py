"""All lessons, with their proportions, without those that `barrier` keeps for the evaluation."""

from collections.abc import Callable

from tools.models.lessons import calling, conversation, copying, extraction, infill, thinking
from tools.models.lessons.held_out.barrier import held_out_in
from tools.models.lessons.lesson import Gap, Lesson
from tools.models.lessons.source import Source

AnyLesson = Lesson | Gap
Maker = Callable[[Source], list[AnyLesson]]

FAMILY = (3, 8)
"""The number of lessons that share their tools, which are most of a prompt and evaluated once for
all."""


def _alone(make: Callable[[Source], AnyLesson]) -> Maker:
    return lambda source: [make(source)]


def _with_tools(source: Source) -> list[AnyLesson]:
    return [*calling.family(source, source.number(*FAMILY))]


LESSONS: dict[str, tuple[Maker, int, int]] = {
    calling.ABILITY: (_with_tools, 9, 13),
    extraction.ABILITY: (_alone(extraction.lesson), 16, 22),
    conversation.ABILITY: (_alone(conversation.lesson), 30, 22),
    thinking.ABILITY: (_alone(thinking.lesson), 11, 9),
    copying.ABILITY: (_alone(copying.lesson), 20, 17),
    infill.ABILITY: (_alone(infill.lesson), 5, 22),
    "document": (_alone(infill.document), 1, 2),
}
"""Makers by ability, and their weights at level 0 and 1. Short lessons are mostly copying, because
all other abilities build on it."""

ABILITIES = [each for each in LESSONS if each != "document"]
"""The ability of a lesson; a document belongs to infill."""

MAKERS = [maker for maker, _, _ in LESSONS.values()]


def lessons(source: Source) -> list[AnyLesson]:
    """Returns one lesson, or several whose prompts begin alike."""
    weights = [first + (last - first) * source.level for _, first, last in LESSONS.values()]
    make = source.random.choices(MAKERS, weights)[0]
    while any(map(held_out_in, made := make(source))):
        pass
    return made
