"""The types of lessons: a conversation whose last message is learnt, or a text with a gap."""

import re
from dataclasses import dataclass
from typing import Any

from tools.models.lessons.phrasings import varied
from tools.models.lessons.source import Source

Message = dict[str, Any]

CONVERSATION = "conversation"
THINKS = 0.45
"""The share of exercises whose answer begins with reasoning."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A conversation in the format of the OpenAI API, and its answer.

    `ability` and `kind` name what is practised. `answer` may have `content`, `tool_calls` and
    `reasoning_content`; without the last one it is learnt with reasoning off. `facts` are words
    that a right answer contains, if several wordings are right. `decisive` are the words of a
    copied text that could easily be wrong.
    """

    ability: str
    kind: str
    messages: list[Message]
    answer: Message
    tools: tuple[Message, ...] = ()
    facts: tuple[str, ...] = ()
    decisive: tuple[str, ...] = ()

    @property
    def thinks(self) -> bool:
        return "reasoning_content" in self.answer


@dataclass(frozen=True, kw_only=True)
class Gap:
    """A text with a gap, and the text of the gap. Without a suffix, the text is only continued.
    `own` texts are written by us."""

    ability: str
    kind: str
    prefix: str
    middle: str
    suffix: str | None
    own: bool = False


def user(content: str) -> Message:
    return {"role": "user", "content": content}


def system(content: str) -> Message:
    return {"role": "system", "content": content}


def assistant(content: str) -> Message:
    return {"role": "assistant", "content": content}


def listing(words: list[str]) -> str:
    """`a, b and c`"""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def filled(pattern: str, *values: object, **named: object) -> str:
    """Returns `pattern` with these values, and "an" before vowels."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", pattern.format(*values, **named))


def exercise(
    source: Source,
    kind: str,
    request: str,
    content: str,
    thought: str,
    *,
    facts: tuple[str, ...] = (),
    ability: str = CONVERSATION,
    thinks: bool | None = None,
    aloud: bool = False,
) -> Lesson:
    """Returns one question with its answer, with reasoning if it `thinks`, by default in some of
    them. A question that needs reasoning is answered with reasoning `aloud`: the answer begins with
    it."""
    answer = assistant(content)
    if source.chance(THINKS) if thinks is None else thinks:
        answer["reasoning_content"] = thought
    elif aloud:
        answer["content"] = f"{thought} {content}"
    return Lesson(
        ability=ability,
        kind=kind,
        messages=[user(varied(source, request))],
        answer=answer,
        facts=facts or (content,),
    )
