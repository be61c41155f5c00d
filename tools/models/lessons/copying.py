"""Copying: a text unchanged, or with one word replaced by another."""

import re

from tools.models.lessons import scenes, words
from tools.models.lessons.exercises import simple
from tools.models.lessons.lesson import Lesson, Message, user
from tools.models.lessons.phrasings import (
    BECOMES,
    BEFORE,
    CHANGE,
    CHANGE_LAST,
    CHANGE_THAT,
    COPY,
    COPY_LAST,
    NEXT,
    SWAP,
    SWAP_LAST,
    TURN,
    is_held_out_in,
    phrase,
    varied,
)
from tools.models.lessons.source import Source, is_held_out
from tools.models.lessons.toolbox import unknown_verb

ABILITY = "copying"

REPEAT = (
    "Repeat this text:\n{text}", "Repeat this text: {text}", "Copy this text:\n\n{text}",
    "Write this text again: {text}", "Say this again:\n{text}", "{text}\n\nRepeat the text above.",
    "Give me the same text: {text}", "Please copy the following text.\n\n{text}",
    "Echo: {text}", "Type this text once more:\n{text}", "Repeat: {text}",
    "Copy: {text}", "Write down: {text}", "Return this text unchanged:\n{text}", "Please repeat: {text}",
)  # fmt: skip
REPLACE = (
    "Repeat this text with {old} replaced by {new}:\n{text}",
    "Repeat this text with \"{old}\" replaced by \"{new}\": {text}",
    "Replace {old} by {new} in this text: {text}", "Replace \"{old}\" with \"{new}\":\n\n{text}",
    "Copy this text, but write {new} instead of {old}:\n{text}",
    "{text}\n\nRepeat the text above with {old} replaced by {new}.",
    "Write this text again and change {old} to {new}: {text}",
    "Change every {old} to {new}: {text}", "Substitute {new} for {old} in: {text}",
    "In the following text, {old} becomes {new}. Write it.\n{text}",
    "In this text, {old} turns into {new}. Write it.\n{text}", "In the text below, {old} is now {new}. Write the text.\n{text}",
    "Write {new} instead of {old} in: {text}", "Copy the text below but use {new} instead of {old}:\n{text}",
    "Use {new} wherever this text says {old}: {text}", "Repeat this with {new} instead of {old}: {text}",
    "Copy this, but {old} is written {new}:\n{text}", "{old} becomes {new} in what follows. Write it again.\n{text}",
    "Wherever it says {old}, write {new}: {text}", "This text, please, with {new} in the place of {old}: {text}",
)  # fmt: skip
REPLACING = (CHANGE, CHANGE, CHANGE_LAST, CHANGE_THAT, SWAP, SWAP_LAST, TURN, BECOMES)


def lesson(source: Source) -> Lesson:
    # Copying is learnt quickly, replacing is not.
    return replaced(source) if source.chance(0.5 if source.held_out else 0.65) else repeated(source)


def paragraph(source: Source, n_words: int) -> list[str]:
    """Returns sentences of about `n_words` in all; some words are repeated, as in real texts."""
    known = [source.word() for _ in range(max(3, n_words // 3))]
    again = 0.3
    if not source.held_out and source.chance(0.3):
        # So few words that only several preceding words determine the next one.
        known, again = [source.running_word() for _ in range(source.number(3, 12))], 0.95
    doubled = not source.held_out and source.chance(0.3)
    sentences = []
    while n_words > 0:
        n = min(n_words, source.number(3, 14))
        n_words -= n
        chosen = [
            source.one(known) if source.chance(again) else source.running_word() for _ in range(n)
        ]
        if doubled:
            chosen = [same for each in chosen for same in (each,) * (1 + source.chance(0.05))]
        if n > 5 and source.chance(0.3):
            chosen[n // 2] += source.one((",", ";", ","))
        if source.chance(0.1):
            chosen[-1] = str(source.integer(0, 9999))
        chosen[0] = chosen[0].capitalize()
        sentences.append(" ".join(chosen) + source.one((".", ".", ".", "!", "?")))
    return sentences


def length(source: Source) -> int:
    """Returns a length that is mostly short, sometimes up to the limit of the level."""
    if source.held_out:
        return source.upto(20, 90)
    return source.upto(2, 25) if source.chance(0.35) else source.upto(10, 160)


def repeated(source: Source) -> Lesson:
    separator = "\n" if source.chance(0.1) else " "
    text = separator.join(paragraph(source, length(source)))
    pattern = phrase(source, REPEAT, [COPY, COPY_LAST], 0.7)
    if source.held_out:
        return _repetition(source, pattern, text)
    if source.chance(0.2):
        text = natural(source)
    elif source.chance(0.1):
        # The content is not meant as a request.
        asked_for = simple(source).messages[0]["content"]
        text = text if names_held_out(asked_for) else asked_for
    if source.chance(0.1):
        # An unknown word asks for nothing else.
        pattern = unknown_verb(source) + source.one(NEXT)
    asked = re.findall(r"\b[A-Za-z]{2,}", pattern.replace("{text}", ""))
    if source.chance(0.4):
        text = mixed(source, text, asked)
    decisive = tuple(begin for word in asked for begin in begins(word))
    return _repetition(source, polite(source, pattern), text, decisive)


def _repetition(source: Source, pattern: str, text: str, decisive: tuple[str, ...] = ()) -> Lesson:
    request = pattern.format(text=text)
    return _lesson(source, "repeat", request, text, "I copy the text.", decisive)


def polite(source: Source, pattern: str) -> str:
    """Returns the pattern with an opening, unless that is one of the evaluation."""
    return pattern if is_held_out_in(REPEAT, pattern) else varied(source, pattern)


def mixed(source: Source, text: str, asked: list[str]) -> str:
    """Returns the text with words that begin like words of the request, without a meaning here."""
    parts = text.split(" ")
    for word in source.some(asked, min(len(asked), source.number(1, 3))):
        for _ in range(source.number(1, 2)):
            parts.insert(source.number(0, len(parts)), begun(source, word.lower()))
    return " ".join(parts)


def begins(word: str) -> tuple[str, str]:
    """Returns beginnings of words that might be mistaken for this one."""
    return word[:2].lower(), word[:2].capitalize()


def replaced(source: Source) -> Lesson:
    if not source.held_out and source.chance(0.25):
        text = natural(source)
        # Two letters are hardly a word, and a short text may have no other.
        listed = re.findall(r"\b[A-Za-z]{3,}\b", text)
        if listed:
            old = listed[0] if source.chance(0.2) else source.one(listed)
            return _replacement(
                source, old, source.name() if old[0].isupper() else source.noun(), text
            )
    # Replacing is learnt from short texts, and from texts with many occurrences of the word.
    short = not source.held_out and source.chance(0.4)
    n = source.number(3, 24) if short else length(source)
    most = source.number(1, 3) if short else 1
    old, new = source.noun(), source.noun()
    misleading = not source.held_out and source.chance(0.35)
    sentences = []
    for sentence in paragraph(source, n):
        parts = sentence.split(" ")
        if misleading:
            # Words that begin like the replaced word, and stay.
            parts.insert(source.number(0, len(parts) - 1), begun(source, old))
        if source.chance(0.5) and len(parts) > 2:
            for _ in range(most):
                parts.insert(source.number(1, len(parts) - 1), old)
        sentences.append(" ".join(parts))
    if not any(old in sentence.split(" ") for sentence in sentences):
        sentences[0] = f"{source.word().capitalize()} {old} {sentences[0]}"
    return _replacement(source, old, new, " ".join(sentences))


def natural(source: Source) -> str:
    """Returns sentences with a meaning, without words of the evaluation."""
    n = source.upto(1, 5)
    chosen: list[str] = []
    while len(chosen) < n:
        each = scenes.sentence(source)
        if not names_held_out(each):
            chosen.append(each)
    return " ".join(chosen)


def names_held_out(text: str) -> bool:
    """True if the text has words of the evaluation."""
    listed = set(re.findall("[a-z]{2,}", text.lower())).difference(words.SMALL)
    return any(map(is_held_out, listed))


def _replacement(source: Source, old: str, new: str, text: str) -> Lesson:
    changed = re.sub(rf"\b{old}\b", new, text)
    if not source.held_out and new not in text and source.chance(0.2):
        request = unworded(source, old, new, text)
    else:
        pattern = phrase(source, REPLACE, REPLACING, 0.8)
        if not source.held_out and source.chance(0.3):
            # Words of the request may be in the text, too, and stay there.
            text, changed = beside(source, pattern, old, text, changed)
        request = pattern.format(old=old, new=new, text=text)
    thought = f"I copy the text and write {new} for {old}."
    return _lesson(source, "replace", request, changed, thought, (new, *begins(old)))


def beside(source: Source, pattern: str, old: str, text: str, changed: str) -> tuple[str, str]:
    """Returns a text and its replacement, both with words of the pattern at the same places."""
    said = {each.lower() for each in re.findall(r"(?<![{\w])[A-Za-z]{2,}\b(?!})", pattern)}
    listed = sorted(each for each in said - {old.lower()} if not names_held_out(each))
    if not listed:
        return text, changed
    parts, others = text.split(" "), changed.split(" ")
    for _ in range(source.number(1, 3)):
        place, word = source.number(1, len(parts)), source.one(listed)
        parts.insert(place, word)
        others.insert(place, word)
    return " ".join(parts), " ".join(others)


def begun(source: Source, word: str) -> str:
    """Returns another word with the same first letters."""
    first = word[: source.number(1, max(1, len(word) - 1))]
    return source.own(lambda: first + source.made_up())


def unworded(source: Source, old: str, new: str, text: str) -> str:
    """Returns a request in meaningless words: the word in the text is the one to replace."""
    mark = source.one(("", "", "", '"', "'"))
    named = [f"{mark}{each}{mark}" for each in (old, new)]
    if source.chance(0.3):
        named.reverse()
    asked = f"{source.link(0, 5)} {f' {source.link(1, 3)} '.join(named)}".strip()
    asked += source.one(("", "", f" {source.link(1, 3)}", f". {source.link(1, 3)}"))
    if not asked.startswith(tuple(named)) and source.chance(0.7):
        asked = asked[0].upper() + asked[1:]
    if source.chance(0.2):
        return source.one(BEFORE).format(text=text) + asked + source.one((".", ""))
    return asked + source.one(NEXT).format(text=text)


def _lesson(
    source: Source,
    kind: str,
    request: str,
    text: str,
    thought: str,
    decisive: tuple[str, ...] = (),
) -> Lesson:
    answer: Message = {"role": "assistant", "content": text}
    if source.chance(0.4):
        answer["reasoning_content"] = thought
    messages = [user(request)]
    return Lesson(ability=ABILITY, kind=kind, messages=messages, answer=answer, decisive=decisive)
