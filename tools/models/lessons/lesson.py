"""What a lesson is: a conversation whose last message is to be learnt, or a text with a gap."""

import re
from dataclasses import dataclass
from typing import Any

from tools.models.lessons.phrasings import varied
from tools.models.lessons.source import Source

Message = dict[str, Any]

CONVERSATION = "conversation"
THINKS = 0.45
"""The part of the exercises whose answer begins with a thought."""


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """A conversation in the words of the OpenAI API, and its answer.

    `ability` and `kind` say what is practised. `answer` may have `content`, `tool_calls` and
    `reasoning_content`; without the last it is to be learnt with thinking off.
    `facts` are words that a right answer contains, where more than one wording is right.
    `decisive` are words of a copied text that might be another, and so are hard.
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
    """A text with a gap, and what belongs there. A text without a suffix is just continued. `own`
    ones are of our making."""

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
    """`pattern` with these values, and "an" before vowels."""
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
    """One question and its answer, with the thought if it `thinks`, by default in some of them.
    What can't be done without a thought is thought `aloud`: the answer begins with it."""
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
