"""Short conversation: single questions, system prompts, and several turns."""

from collections.abc import Callable
from dataclasses import replace

from tools.models.lessons.exercises import simple
from tools.models.lessons.guided import PLAIN_SYSTEMS, guided
from tools.models.lessons.lesson import CONVERSATION, Lesson, system
from tools.models.lessons.source import Source
from tools.models.lessons.turns import turns

ABILITY = CONVERSATION


def lesson(source: Source) -> Lesson:
    makers: tuple[Callable[[Source], Lesson], ...] = (simple, guided, turns)
    made = source.random.choices(makers, (65, 17, 18))[0](source)
    if made.messages[0]["role"] != "system" and source.chance(0.2):
        messages = [system(source.phrase(PLAIN_SYSTEMS)), *made.messages]
        return replace(made, messages=messages)
    return made
