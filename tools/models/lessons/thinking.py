"""Questions that a thought helps with: asked with thinking on, and off."""

from collections.abc import Callable

from tools.models.lessons import words
from tools.models.lessons.lesson import Lesson, exercise
from tools.models.lessons.source import Source

ABILITY = "thinking"


def lesson(source: Source) -> Lesson:
    makers: tuple[Callable[[Source], Lesson], ...] = (
        larger,
        place,
        letters,
        chain,
        story,
        backwards,
    )
    return source.one(makers)(source)


LARGER = (
    "Which is larger, {a} or {b}?", "Which number is larger: {a} or {b}?", "{a} or {b}, which is larger?",
    "What is more, {a} or {b}?", "Tell me the larger one of {a} and {b}.", "Which is the greater number, {a} or {b}?",
    "Compare {a} and {b}. Which is larger?", "Is {a} or {b} the larger number?", "The larger of {a} and {b}?",
    "Take {a} and {b}: which one is more?",
)  # fmt: skip


def larger(source: Source) -> Lesson:
    top = 99 if source.chance(0.5) else 9999
    a = b = source.integer(0, top)
    while b == a:
        b = source.integer(0, top)
    most, least = max(a, b), min(a, b)
    return _exercise(
        source,
        "larger",
        source.phrase(LARGER).format(a=a, b=b),
        f"The larger number is {most}.",
        f"{most} is more than {least}.",
        (f"is {most}",),
    )


PLACE = (
    "What is word {n} of: {text}", "Which word is number {n} in \"{text}\"?", "Word number {n} of \"{text}\"?",
    "Give me word {n} of this text: {text}", "Find word {n}: {text}", "Tell me word number {n}: {text}",
    "In \"{text}\", which word is word {n}?", "{text}\n\nWhat is word number {n}?", "Which is word {n} here? {text}",
    "Say the word that is number {n} of these: {text}",
)  # fmt: skip


def place(source: Source) -> Lesson:
    listed = source.words(2, source.upto(4, 8))
    n = source.number(1, len(listed))
    steps = ", ".join(f"{i} {word}" for i, word in enumerate(listed[:n], 1))
    request = source.phrase(PLACE).format(n=n, text=" ".join(listed))
    return _exercise(
        source, "place", request, f"Word {n} is {listed[n - 1]}.", f"{steps}.", (listed[n - 1],)
    )


LETTERS = (
    "How many letters has {word}?", "How many letters does {word} have?", "Count the letters of {word}.",
    "What is the number of letters in {word}?", "Letters in {word}?", "How many letters are in \"{word}\"?",
    "Count the letters: {word}", "How long is the word {word}?", "Number of letters of {word}?",
    "Say how many letters \"{word}\" is made of.",
)  # fmt: skip


def letters(source: Source) -> Lesson:
    word = source.word()
    steps = ", ".join(f"{letter} {i}" for i, letter in enumerate(word, 1))
    many = f"{len(word)} letter{'s' * (len(word) != 1)}"
    request = source.phrase(LETTERS).format(word=word)
    return _exercise(source, "letters", request, f"It has {many}.", f"{steps}.", (f" {many}",))


CHAIN = (
    "What is {a} + {b} + {c}?", "Add {a}, {b} and {c}.", "{a} + {b} + {c} =", "How much is {a} + {b} + {c}?",
    "What do {a}, {b} and {c} make together?", "Compute {a} + {b} + {c}.", "What is {a} plus {b} plus {c}?",
    "Add up: {a}, {b}, {c}", "{a} plus {b} plus {c}?", "Give me the sum of {a}, {b} and {c}.",
)  # fmt: skip


def chain(source: Source) -> Lesson:
    a, b, c = (source.integer(1, 20) for _ in range(3))
    request = source.phrase(CHAIN).format(a=a, b=b, c=c)
    total = a + b + c
    steps = f"{a} + {b} = {a + b}. {a + b} + {c} = {total}."
    return _exercise(source, "chain", request, f"The sum is {total}.", steps, (f"is {total}.",))


MORE = (
    "{name} has {a} {thing}. {friend} brings {b} more.", "{name} owns {a} {thing} and gets {b} from {friend}.",
    "There are {a} {thing}. {friend} adds {b}.", "{name} had {a} {thing} and bought {b} more.",
    "{friend} gives {b} {thing} to {name}, who had {a}.",
)  # fmt: skip
LESS = (
    "{name} has {a} {thing}. {friend} takes {b} away.", "{name} owns {a} {thing} and gives {b} to {friend}.",
    "There are {a} {thing}. {friend} removes {b}.", "{name} had {a} {thing} and lost {b}.",
    "{friend} takes {b} {thing} from {name}, who had {a}.",
)  # fmt: skip
LEFT = (
    "{text} How many are there now?", "{text} How many {thing} are there now?", "{text}\nHow many is that?",
    "{text} What is the number of {thing} now?", "{text} How many {thing} does that make?",
)  # fmt: skip


def story(source: Source) -> Lesson:
    a, b = source.integer(10, 60), source.integer(1, 10)
    more = source.chance(0.5)
    total, sign = (a + b, "+") if more else (a - b, "-")
    values = {"name": source.name(), "friend": source.name(), "a": a, "b": b}
    values["thing"] = source.listed(words.THINGS) + "s"
    text = source.phrase(MORE if more else LESS).format(**values)
    request = source.phrase(LEFT).format(text=text, thing=values["thing"])
    answer = f"There are {total} now."
    return _exercise(
        source, "story", request, answer, f"{a} {sign} {b} = {total}.", (f" {total} now",)
    )


BACKWARDS = (
    "Write these words backwards: {text}", "Reverse the order of the words: {text}", "Last word first: {text}",
    "Turn around the order of these words: {text}", "Say these words from the last to the first: {text}",
)  # fmt: skip


def backwards(source: Source) -> Lesson:
    listed = source.words(2, source.upto(3, 6))
    steps = ", ".join(f"{i} {word}" for i, word in enumerate(listed, 1))
    request = source.phrase(BACKWARDS).format(text=" ".join(listed))
    return _exercise(source, "backwards", request, " ".join(listed[::-1]), f"{steps}.")


def _exercise(
    source: Source,
    kind: str,
    request: str,
    content: str,
    thought: str,
    facts: tuple[str, ...] = (),
) -> Lesson:
    return exercise(source, kind, request, content, thought, facts=facts, ability=ABILITY)
