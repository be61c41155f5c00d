"""Questions for which reasoning helps, with reasoning on and off."""

from collections.abc import Callable

from tools.models.lessons import phrasings, words
from tools.models.lessons.exercises import is_held_out_sum, worked
from tools.models.lessons.lesson import Lesson, exercise
from tools.models.lessons.phrasings import phrase, several
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
    while not source.held_out and (a == b or source.chance(0.4)):
        # Most random numbers have the largest number of digits.
        a, b = (source.integer(0, 10 ** source.number(1, 5) - 1) for _ in range(2))
    most = max(a, b)
    return _exercise(
        source,
        "larger",
        phrase(source, LARGER, phrasings.LARGER).format(a=a, b=b),
        f"The larger number is {most}.",
        compared(a, b),
        (str(most),),
    )


def compared(a: int, b: int) -> str:
    """Compares two numbers digit by digit."""
    steps = [f"{a} has {len(str(a))} digits, {b} has {len(str(b))}"]
    if len(str(a)) == len(str(b)):
        for one, other in zip(str(a), str(b), strict=True):
            sign = "=" if one == other else "<" if one < other else ">"
            steps.append(f"{one} {sign} {other}")
            if sign != "=":
                break
    return f"{', '.join(steps)}: {max(a, b)} is more than {min(a, b)}."


PLACE = (
    "What is word {n} of: {text}", "Which word is number {n} in \"{text}\"?", "Word number {n} of \"{text}\"?",
    "Give me word {n} of this text: {text}", "Find word {n}: {text}", "Tell me word number {n}: {text}",
    "In \"{text}\", which word is word {n}?", "{text}\n\nWhat is word number {n}?", "Which is word {n} here? {text}",
    "Say the word that is number {n} of these: {text}",
)  # fmt: skip


ORDINALS = "first second third fourth fifth sixth seventh eighth".split()
NTH = (
    "What is the {n} word of \"{text}\"?", "Tell me the {n} word: {text}", "Which word is the {n} in \"{text}\"?", "The {n} word of: {text}",
    "Give me the {n} word of this text: {text}", "Which is the {n} of these words? {text}", "{text}\n\nWhat is the {n} word?", "{n} word of \"{text}\"?",
    "Say the {n} word of \"{text}\".", "Which word comes {n} in \"{text}\"?",
)  # fmt: skip
"""Used only in the training."""


def place(source: Source) -> Lesson:
    listed = source.words(2, source.upto(4, 8))
    n = source.number(1, len(listed))
    steps = ", ".join(f"{i} {word}" for i, word in enumerate(listed[:n], 1))
    pattern, said = phrase(source, PLACE, phrasings.PLACE), str(n)
    if not source.held_out and 1 < n <= len(ORDINALS) and source.chance(0.3):
        pattern, said = source.one(NTH), ORDINALS[n - 1]
    request = pattern.format(n=said, text=" ".join(listed))
    return _exercise(
        source, "place", request, f"Word {n} is {listed[n - 1]}.", f"{steps}.", (listed[n - 1],)
    )


LETTERS = (
    "How many letters has {word}?", "How many letters does {word} have?", "Count the letters of {word}.",
    "What is the number of letters in {word}?", "Letters in {word}?", "How many letters are in \"{word}\"?",
    "Count the letters: {word}", "How long is the word {word}?", "Number of letters of {word}?",
    "Say how many letters \"{word}\" is made of.",
    "Letters in the word {word}?", "{word}: how many letters?", "Letter count of {word}?", "How many letters are there in {word}?",
    "Of how many letters is {word} made?", "Say how many letters {word} has.", "Say how many letters are in \"{word}\".", "Tell me the number of letters in {word}.",
    "The letters in {word}, how many are they?", "What's the letter count of {word}?",
)  # fmt: skip


def letters(source: Source) -> Lesson:
    word = source.word()
    steps = ", ".join(f"{letter} {i}" for i, letter in enumerate(word, 1))
    many = f"{len(word)} letter{'s' * (len(word) != 1)}"
    request = phrase(source, LETTERS, phrasings.LETTERS).format(word=word)
    facts = (str(len(word)),)
    return _exercise(source, "letters", request, f"It has {many}.", f"{steps}.", facts, aloud=True)


CHAIN = (
    "What is {a} + {b} + {c}?", "Add {a}, {b} and {c}.", "{a} + {b} + {c} =", "How much is {a} + {b} + {c}?",
    "What do {a}, {b} and {c} make together?", "Compute {a} + {b} + {c}.", "What is {a} plus {b} plus {c}?",
    "Add up: {a}, {b}, {c}", "{a} plus {b} plus {c}?", "Give me the sum of {a}, {b} and {c}.",
)  # fmt: skip


def chain(source: Source) -> Lesson:
    while True:
        a, b, c = (source.number(1, 20) for _ in range(3))
        # A question of the evaluation has at least one sum that was never trained.
        held_out = is_held_out_sum(a, "+", b) or is_held_out_sum(a + b, "+", c)
        if held_out == source.held_out:
            break
    request = phrase(source, CHAIN, phrasings.CHAIN).format(a=a, b=b, c=c)
    total = a + b + c
    steps = f"{worked(a, '+', b)} {worked(a + b, '+', c)}"
    answer = f"{a} + {b} + {c} = {a + b} + {c} = {total}"
    return _exercise(source, "chain", request, answer, steps, (str(total),))


MORE = (
    "{name} has {a} {thing}. {friend} brings {b} more.", "{name} owns {a} {thing} and gets {b} from {friend}.",
    "There are {a} {thing}. {friend} adds {b}.", "{name} had {a} {thing} and bought {b} more.",
    "{friend} gives {b} {thing} to {name}, who had {a}.",
    "{name} keeps {a} {thing} and buys {b}.", "{a} {thing} belong to {name}, and {friend} adds {b}.", "{friend} has {b} {thing} for {name}, who has {a}.",
    "Beside the {a} {thing} there are {b} new ones.", "{name} has {a} {thing}, then finds {b} more.",
)  # fmt: skip
LESS = (
    "{name} has {a} {thing}. {friend} takes {b} away.", "{name} owns {a} {thing} and gives {b} to {friend}.",
    "There are {a} {thing}. {friend} removes {b}.", "{name} had {a} {thing} and lost {b}.",
    "{friend} takes {b} {thing} from {name}, who had {a}.",
    "{name} keeps {a} {thing} and sells {b}.", "{a} {thing} belong to {name}, and {friend} takes {b}.", "{friend} wants {b} {thing} of {name}, who has {a}, and gets them.",
    "Of {a} {thing}, {b} fell down and broke.", "{name} had {a} {thing}, but {b} got lost.",
)  # fmt: skip
GAINS = (
    "{b} more {thing} come to the {a} that {name} has.", "{name} receives {b} {thing} besides the {a} from before.",
    "{name} found {b} {thing} and had {a} already.", "In the box are {a} {thing}. {name} puts in {b} more.",
    "{name} counts {a} {thing}. Then {friend} gives {b} more.", "After {a} {thing}, {name} makes {b} more.",
    "{friend} hands {b} {thing} to {name}. Before that, {name} had {a}.", "{name} starts with {a} {thing} and wins {b}.",
    "{a} {thing} are on the table. {friend} puts {b} there.", "{name} gets {b} {thing}. {name} had {a} before.",
    "{name} collects {a} {thing} today and {b} tomorrow.", "To {a} {thing} {friend} adds another {b}.",
    "{friend} gives {name}, who had {a}, another {b} {thing}.", "{friend} hands {b} {thing} to {name}, and {name} had {a} already.",
    "{name}, who had {a} {thing}, gets {b} from {friend}.", "{friend} sends {b} {thing} to {name}, who owned {a} till then.",
    "{friend} brings {b} {thing} for {name}, who has {a}.", "{friend} sells {b} {thing} to {name}, who had {a}.",
)  # fmt: skip
LOSSES = (
    "Of the {a} {thing} that {name} has, {b} get lost.", "{name} gives away {b} of {a} {thing}.",
    "{name} sold {b} {thing} and had {a} before.", "In the box are {a} {thing}. {name} takes out {b}.",
    "{name} counts {a} {thing}. Then {friend} takes {b}.", "Out of {a} {thing}, {name} breaks {b}.",
    "{friend} gets {b} {thing} from {name}. Before that, {name} had {a}.", "{name} starts with {a} {thing} and loses {b}.",
    "{a} {thing} are on the table. {friend} takes {b} of them.", "{name} eats {b} {thing}. {name} had {a} before.",
    "{name} needs {b} of the {a} {thing}.", "From {a} {thing} {friend} takes {b}.",
    "{name}, who had {a} {thing}, gives {b} to {friend}.", "{name}, who has {a} {thing}, sends {b} to {friend}.",
    "{friend} steals {b} {thing} from {name}, who had {a}.", "{friend} gets {b} of the {a} {thing} that {name} had.",
    "{friend} buys {b} {thing} from {name}, who owned {a}.", "{name} gives {b} {thing} to {friend}, out of {a}.",
)  # fmt: skip
LEFT = (
    "{text} How many are there now?", "{text} How many {thing} are there now?", "{text}\nHow many is that?",
    "{text} What is the number of {thing} now?", "{text} How many {thing} does that make?",
    "{text} How many {thing} are that?", "{text} Say the number of {thing}.", "{text} How many does that make?", "{text} How many {thing} is it then?",
    "{text} And how many {thing} are there at the end?",
)  # fmt: skip


def story(source: Source) -> Lesson:
    more = source.chance(0.5)
    sign = "+" if more else "-"
    while True:
        a, b = source.number(10, 60), source.number(1, 10)
        if is_held_out_sum(a, sign, b) == source.held_out:
            break
    values = {"name": source.name(), "friend": source.name(), "a": a, "b": b}
    values["thing"] = source.listed(words.THINGS) + "s"
    if not source.held_out and source.chance(0.4):
        text = transfer(source, more).format(**values)
    else:
        text = several(source, *((MORE, GAINS) if more else (LESS, LOSSES))).format(**values)
    total = a + b if more else a - b
    request = phrase(source, LEFT, phrasings.LEFT).format(text=text, thing=values["thing"])
    answer = f"{a} {sign} {b} = {total}, so there are {total}."
    return _exercise(source, "story", request, answer, worked(a, sign, b), (str(total),))


HANDS = ("gives", "hands", "sends", "brings", "sells", "passes", "lends", "mails", "throws", "donates", "returns", "presents")  # fmt: skip
GETS = ("takes", "gets", "receives", "buys", "borrows", "wins", "steals", "fetches", "collects", "is given", "earns", "demands")  # fmt: skip
HAD = (", who had {a}", ", who has {a}", ", who owned {a}", ", whose number was {a}", " ({a} till then)", ", who counted {a} before", ", with {a} so far", ", the owner of {a}", ", who began with {a}")  # fmt: skip


def transfer(source: Source, more: bool) -> str:
    """One person gives something to another, and one of them had some before: the result depends on
    which one."""
    giver, receiver = ("{friend}", "{name}") if more else ("{name}", "{friend}")
    # The first verbs belong to the evaluation.
    if source.chance(0.5):
        verb = source.one(HANDS[1:] if more else HANDS)
        text = f"{giver} {verb} {{b}} {{thing}} to {receiver}"
    else:
        verb = source.one(GETS if more else GETS[1:])
        text = f"{receiver} {verb} {{b}} {{thing}} from {giver}"
    if source.chance(0.2):
        return f"{text}. Before that, {{name}} had {{a}}."
    had = source.one(HAD)
    comma = "," if had.startswith(",") and not text.endswith("{name}") else ""
    return text.replace("{name}", f"{{name}}{had}{comma}") + "."


BACKWARDS = (
    "Write these words backwards: {text}", "Reverse the order of the words: {text}", "Last word first: {text}",
    "Turn around the order of these words: {text}", "Say these words from the last to the first: {text}",
)  # fmt: skip


def backwards(source: Source) -> Lesson:
    listed = source.words(2, source.upto(3, 6))
    steps = ", ".join(f"{i} {word}" for i, word in enumerate(listed, 1))
    request = phrase(source, BACKWARDS, phrasings.BACKWARDS).format(text=" ".join(listed))
    return _exercise(source, "backwards", request, " ".join(listed[::-1]), f"{steps}.")


def _exercise(
    source: Source,
    kind: str,
    request: str,
    content: str,
    thought: str,
    facts: tuple[str, ...] = (),
    *,
    aloud: bool = False,
) -> Lesson:
    return exercise(
        source, kind, request, content, thought, facts=facts, ability=ABILITY, aloud=aloud
    )
