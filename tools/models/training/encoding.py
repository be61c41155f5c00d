"""Encodes lessons as tokens, with the chat template in the model's file."""

import json
import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from tools.models.lessons.lesson import Gap, Lesson, Message
from tools.models.recipes import CHAT_TEMPLATE, TALKER
from tools.models.tokenizer import (
    END_OF_TEXT,
    SPECIAL_TOKENS,
    SPLIT_PATTERN,
)

VOCABULARY_SIZE = 1024
PROMPT_WEIGHT = 0.01
"""The weight of a prompt's token in the loss, relative to an answer's token."""
CODE_WEIGHT = 0.3
"""The weight of a token of code: most can't be predicted, and made half of the loss."""
TOOLS_WEIGHT = 3.0
"""The weight of an answer's token if there are tools: few of these tokens are a choice, and the
choice of a tool, or of no tool, is the hardest."""
CHOICE_WEIGHT = 4.0
"""The factor for a token that is a choice: the beginning of an answer, the place from which a value
is copied, whether a word is the one to replace. Most other tokens follow from it."""
RARE_FACTOR = 3.0
"""The factor for a choice in texts with few choices: a text in which a word is replaced, and a text
with a gap."""
OWN_CODE_WEIGHT = 1.0
"""The weight of a token of our own functions, which are more predictable than the library's."""

Tokens = NDArray[np.int32]
Weights = NDArray[np.float32]


@cache
def tokenizer() -> Tokenizer:
    """Returns a tokenizer that works as llama.cpp does with the model's vocabulary."""
    known = TALKER.vocabulary()
    assert known.merges is not None
    made = Tokenizer(models.BPE({token: id for id, token in enumerate(known.tokens)}, known.merges))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([AddedToken(each, normalized=False) for each in SPECIAL_TOKENS])
    return made


@cache
def pieces() -> tuple[str, ...]:
    """Returns the tokens that words consist of, without single letters."""
    return tuple(
        token for token in TALKER.vocabulary().tokens if re.fullmatch("[A-Za-z]{2,}", token)
    )


def prompt_and_answer(lesson: Lesson | Gap) -> tuple[str, str]:
    """Returns the prompt that the server would give the model, and the model's answer, its end
    included."""
    if isinstance(lesson, Gap):
        if lesson.suffix is None:
            return lesson.prefix, lesson.middle + END_OF_TEXT
        prompt = (
            f"<|repo_name|>myproject\n<|file_sep|>filename\n<|fim_prefix|>{lesson.prefix}"
            f"<|fim_suffix|>{lesson.suffix}<|fim_middle|>"
        )
        return prompt, lesson.middle + END_OF_TEXT
    context: dict[str, Any] = {"tools": list(lesson.tools) or None}
    messages = [_parsed(each) for each in lesson.messages]
    answer = _parsed(lesson.answer)
    template = _template()
    open_prompt = template.render(messages=messages, add_generation_prompt=True, **context)
    whole = template.render(messages=[*messages, answer], **context)
    assert whole.startswith(open_prompt)
    written = whole[len(open_prompt) :].removesuffix("\n")
    if lesson.thinks:
        return open_prompt, written
    return (
        template.render(
            messages=messages, add_generation_prompt=True, enable_thinking=False, **context
        ),
        written,
    )


def text(lesson: Lesson | Gap) -> str:
    return "".join(prompt_and_answer(lesson))


def encode(lesson: Lesson | Gap) -> tuple[Tokens, Weights]:
    """Returns a lesson's tokens, and the weight of each in the loss."""
    prompt, answer = prompt_and_answer(lesson)
    first = tokenizer().encode(prompt, add_special_tokens=False).ids
    second = tokenizer().encode(answer, add_special_tokens=False)
    weights = np.full(len(first) + len(second.ids), PROMPT_WEIGHT, np.float32)
    counts = _weight(lesson)
    weights[len(first) :] = counts
    rare = lesson.kind in ("gap", "replace")
    factor = CHOICE_WEIGHT * (RARE_FACTOR if rare else 1)
    begins = [begin for begin, _ in second.offsets]
    for i in {bisect_right(begins, place) - 1 for place in choices(lesson, answer)}:
        weights[len(first) + i] = counts * factor
    return np.array(first + second.ids, np.int32), weights


def _weight(lesson: Lesson | Gap) -> float:
    if isinstance(lesson, Gap):
        return OWN_CODE_WEIGHT if lesson.own else CODE_WEIGHT
    return TOOLS_WEIGHT if lesson.tools else 1.0


_VALUE = re.compile(r'": (?!{)\[?"?(?=.)|#(?=[0-9])|</tool_call>')


def choices(lesson: Lesson | Gap, answer: str) -> set[int]:
    """Returns the places in `answer` of characters at which the model makes a choice."""
    if isinstance(lesson, Gap):
        # The beginning of the gap, because it may be within a word, and its end.
        return {0, len(answer) - len(END_OF_TEXT)} if lesson.suffix is not None else set()
    places = {0}
    if lesson.thinks:
        places |= {len("<think>\n"), answer.rfind("</think>\n\n") + len("</think>\n\n")}
    if lesson.tools or lesson.ability == "extraction":
        places |= {found.end() for found in _VALUE.finditer(answer)}
    for word in (*lesson.decisive, *lesson.facts):
        places |= {found.start() for found in re.finditer(rf"\b{re.escape(word)}", answer)}
    return places


def plain_texts(lessons: Iterable[Lesson | Gap]) -> Iterable[str]:
    """Yields the texts of lessons without special tokens, for training a tokenizer."""
    special = re.compile("|".join(map(re.escape, SPECIAL_TOKENS)))
    for lesson in lessons:
        yield from filter(None, special.split(text(lesson)))


def _parsed(message: Message) -> Message:
    """Returns the message as the server passes it to the template: a call's arguments are an
    object."""
    if "tool_calls" not in message:
        return message
    calls = []
    for call in message["tool_calls"]:
        function = dict(call["function"])
        function["arguments"] = json.loads(function["arguments"])
        calls.append({**call, "function": function})
    return {"content": "", **message, "tool_calls": calls}


@cache
def _template() -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    environment.globals["raise_exception"] = _refuse
    return environment.from_string(CHAT_TEMPLATE.read_text("utf-8"))


def _refuse(reason: str) -> None:
    raise ValueError(reason)
