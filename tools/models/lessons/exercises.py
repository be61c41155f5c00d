"""Single questions: the model's identity, small tasks with words and numbers, unanswerable
questions."""

from collections.abc import Callable

from tools.models.lessons import phrasings, words
from tools.models.lessons.lesson import Lesson, exercise
from tools.models.lessons.phrasings import COPY, COPY_LAST, phrase, several
from tools.models.lessons.scenes import question
from tools.models.lessons.source import Source

IDENTITY = "I am the small model that ships with specllama."
ABILITIES = (
    "I can call tools, extract JSON, repeat and change texts, spell and count words, do simple "
    "arithmetic and answer questions about a text."
)
LIMITS = (
    "I know very little about the world. I am good at short tasks on the text that you give me."
)
UNKNOWN = "I don't know that."
GREETING = "Hello! How can I help you?"

FIXED: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("greeting", GREETING, ("Hi", "Hello", "Hello!", "Hey", "Good day", "Hi!", "Hi there", "Good morning", "Hello there", "Hey there!", "hi", "hello", "Good evening", "Hallo", "Greetings", "Hey!", "Hello, model", "Good afternoon", "Hi, anyone there?", "Howdy")),
    ("mood", "I am fine, thank you. How can I help you?", ("How are you?", "How are you doing?", "How do you do?", "Are you well?", "How is it going?", "How are you today?", "What's up?", "Are you OK?", "How do you feel?", "Is everything fine with you?")),
    ("thanks", "You are welcome!", ("Thanks", "Thank you", "Thanks a lot", "Thank you!", "Many thanks", "Thanks!", "Great, thanks", "thank you very much", "thx", "Thank you so much", "Cheers", "Perfect, thanks!", "Well done", "Good job!", "Thanks for your help")),
    ("bye", "Goodbye!", ("Bye", "Goodbye", "See you", "Bye!", "See you later", "Good night", "Bye bye", "Until tomorrow", "I have to go", "Farewell")),
    ("identity", IDENTITY, ("Who are you?", "What are you?", "What is your name?", "Which model are you?", "Who am I talking to?", "What's your name?", "Tell me who you are.", "Introduce yourself.", "Are you a model?", "What kind of model are you?", "who are you", "Please introduce yourself", "Are you ChatGPT?", "What model is this?", "Say who you are", "Are you a human?", "Are you a robot?", "Do you have a name?", "Who is there?", "Whom do I speak with?")),
    ("abilities", ABILITIES, ("What can you do?", "How can you help me?", "What are you good at?", "What are you for?", "What do you know to do?", "Help", "What can I ask you?", "Tell me what you can do.", "What are your abilities?", "Which tasks can you do?", "help me", "List what you can do", "What are you able to do?", "What should I ask?", "In what can you help?")),
    ("limits", LIMITS, ("What can't you do?", "What do you know?", "How smart are you?", "Are you clever?", "What are your limits?", "What is it that you can't do?", "Are you a big model?", "How big are you?", "Do you know much?", "Do you know everything?")),
)  # fmt: skip

MORE_FIXED: dict[str, tuple[str, ...]] = {
    "greeting": ("Hiya", "Yo", "Hey you", "Hello again", "Hi again", "Hello, assistant", "Hey, are you there?", "Anyone there?", "Hello everybody", "Good to see you", "Hello to you", "Hi, model!", "A good day to you", "Heya", "Hullo", "Hi, friend", "Welcome", "Morning!", "Evening!"),
    "mood": ("How is life?", "How are things?", "How goes it?", "Are you fine?", "Are you all right?", "How have you been?", "How is your day?", "Is all well with you?", "Everything OK?", "Everything all right with you?", "Do you feel good?", "How's it going?", "What's new?", "You OK?"),
    "thanks": ("Thanks for that", "Thanks for the answer", "Thank you for everything", "Thanks for all", "Thanks for helping me", "Thank you for your time", "I thank you", "Much appreciated", "That was helpful, thanks", "Nice work, thank you", "Thanks, you helped me", "OK, thanks", "Good, thank you", "Super, thanks a lot", "Thank you, that is good", "Very good", "Great job!", "Nice work", "Good work!", "You did well", "That helped"),
    "bye": ("See you soon", "See you tomorrow", "Until then", "Later!", "Take care", "Take care, bye", "Good bye", "I am leaving", "I must leave now", "I have to leave", "So long", "That is all for today, bye", "Until next time", "Good night, model", "Bye for now", "Have a nice day", "We are done, goodbye", "I go now", "Time to go"),
    "abilities": ("What can you do for me?", "What are you able to do for me?", "What do you do?", "What is your job?", "What can I use you for?", "For what are you made?", "Show me what you can do", "Name your abilities", "What tasks do you know?", "How can I use you?", "What are you made for?", "Which things can you do?", "Say what you can do", "What help can you give?", "I need help", "Please help me", "What do you know how to do?"),
    "limits": ("What do you not know?", "What are you bad at?", "Is there something that you can't do?", "Do you know a lot?", "How much do you know?", "Are you smart?", "Do you know the world?", "Where are your limits?", "Name your limits.", "What is hard for you?", "How clever are you?", "Can you do everything?", "Do you know all?", "Are you a small model?", "How large are you?",
        "Write a poem", "Tell me a joke", "Write a story", "Tell me a story", "Write a poem about the sea", "Sing a song", "Write an essay", "Invent a fairy tale", "Make up a story", "Write a song about rain", "Give me advice", "Write a program", "Plan my day", "Write a letter for me", "Draw a picture", "Teach me French", "Do my homework", "Write me a book"),
}  # fmt: skip
"""Used only in the training."""


# Fixed answers are learnt at once; letters, sums and texts need many lessons.
TRAINED = (5, 6, 16, 13, 24, 20, 32, 6, 4)
EVALUATED = (14, 9, 12, 12, 9, 20, 20, 10, 5)


def simple(source: Source) -> Lesson:
    """Returns one question with its answer."""
    makers: tuple[Callable[[Source], Lesson], ...] = (
        fixed, repeat, spell, count, case, arithmetic, question, unknown, ends,
    )  # fmt: skip
    return source.random.choices(makers, EVALUATED if source.held_out else TRAINED)[0](source)


def fixed(source: Source) -> Lesson:
    kind, answer, phrases = source.one(FIXED)
    who = kind == "identity"
    request = (
        phrase(source, phrases, phrasings.WHO, 0.4)
        if who
        else several(source, phrases, MORE_FIXED.get(kind, ()))
    )
    return exercise(source, kind, request, answer, "This is about me." if kind in (
        "identity", "abilities", "limits") else "I answer politely.")  # fmt: skip


REPEAT = (
    "Repeat: {text}", "Say: {text}", "Repeat after me: {text}", "Say \"{text}\".", "Repeat {text}",
    "Please say {text}", "Say {text}", "Repeat the words {text}", "Write {text}", "Echo {text}",
    "Answer only with: {text}", "Reply with {text}", "Answer with the words {text}", "Just say {text}",
    "Reply only with \"{text}\"", "Respond with {text}",
)  # fmt: skip


def repeat(source: Source) -> Lesson:
    text = " ".join(source.words(1, source.upto(3, 8))) if source.chance(0.8) else source.value()
    if not source.held_out and source.chance(0.06):
        # The content is not meant as a request.
        text = source.phrase(source.one(FIXED[:4])[2])
        text += source.one(("", f" {source.word()}"))
    if not source.held_out and source.chance(0.15):
        # With any verb, because there is only one thing that it could mean.
        verb = source.one((source.made_up, source.word, source.piece))().capitalize()
        asked = source.one(("{} {}", "{} {}", "{}: {}", '{} "{}"', "{} {}, please")).format(
            verb, text
        )
        return exercise(source, "echo", asked, text, "I say it.")
    return exercise(
        source,
        "repeat",
        phrase(source, REPEAT, [COPY, COPY_LAST, phrasings.SAY], 0.6).format(text=text),
        text,
        "I say it.",
    )


SPELL = (
    "Spell {word}", "Spell the word {word}.", "How do you spell {word}?", "Spell \"{word}\".",
    "Can you spell {word}?", "Please spell {word}", "Which letters does {word} have?",
    "Give me the letters of {word}.", "How is {word} spelled?", "What is the spelling of {word}?",
    "spell {word}", "Write {word} letter by letter", "How is \"{word}\" written, letter by letter?",
    "Spell {word} for me", "I want the spelling of {word}",
)  # fmt: skip


def spell(source: Source) -> Lesson:
    if not source.held_out and source.chance(0.45):
        # Many words at once teach as much as many lessons.
        listed = source.words(2, 10)
        content = "\n".join("-".join(word) for word in listed)
        request = source.one(SPELL_ALL).format(text=", ".join(listed))
        return exercise(source, "spell", request, content, "I spell each word.")
    word = source.word() if source.chance(0.4) else source.name()
    letters = "-".join(word)
    return exercise(
        source,
        "spell",
        phrase(source, SPELL, phrasings.SPELL, 0.6).format(word=word),
        letters,
        f"The word is {word}.",
    )


COUNT = (
    "How many words are in \"{text}\"?", "Count the words: {text}", "How many words does this have: {text}",
    "Count the words in \"{text}\".", "How many words has \"{text}\"?", "Number of words in: {text}",
    "How many words are there? {text}", "What is the number of words in \"{text}\"?",
    "Count words: {text}", "Tell me how many words are in: {text}", "How many words: {text}",
    "How long is this text in words? {text}", "Give me the word count of \"{text}\".",
    "word count: {text}", "Please count how many words \"{text}\" has.",
)  # fmt: skip


def count(source: Source) -> Lesson:
    listed = source.words(1, source.upto(4, 10))
    n = len(listed)
    steps = ", ".join(f"{word} {i}" for i, word in enumerate(listed, 1)) + "."
    answer = f"There {'is' if n == 1 else 'are'} {n} word{'s' * (n != 1)}."
    request = phrase(source, COUNT, phrasings.COUNT).format(text=" ".join(listed))
    return exercise(source, "count", request, answer, steps, facts=(str(n),), aloud=True)


UPPER = (
    "Write {text} in upper case.", "Upper case: {text}", "Make this upper case: {text}",
    "Convert \"{text}\" to upper case.", "Write \"{text}\" in capital letters.",
    "uppercase {text}", "In capitals: {text}", "Turn {text} into upper case", "Put {text} in capitals",
    "Please write this in upper case: {text}",
)  # fmt: skip
LOWER = (
    "Write {text} in lower case.", "Lower case: {text}", "Make this lower case: {text}",
    "Convert \"{text}\" to lower case.", "Write \"{text}\" in small letters.",
    "lowercase {text}", "In small letters: {text}", "Turn {text} into lower case",
    "Put {text} in lower case", "Please write this in lower case: {text}",
)  # fmt: skip


def case(source: Source) -> Lesson:
    few = not source.held_out and source.chance(0.3)
    most = 4 if source.held_out else 12
    text = " ".join(source.words(1, 2 if few else source.upto(1, most)))
    if source.chance(0.7 if source.held_out else 0.5):
        return exercise(
            source,
            "upper",
            phrase(source, UPPER, phrasings.UPPER).format(text=text),
            text.upper(),
            "Capital letters.",
        )
    request = phrase(source, LOWER, phrasings.LOWER).format(text=text.upper())
    return exercise(source, "lower", request, text.lower(), "Small letters.")


SUM = ("What is {a} {sign} {b}?", "{a} {sign} {b}", "{a} {sign} {b} =", "Calculate {a} {sign} {b}.", "How much is {a} {sign} {b}?", "Compute {a} {sign} {b}", "{a}{sign}{b}", "What's {a} {sign} {b}", "{a} {sign} {b}?", "Can you tell me what {a} {sign} {b} is?")  # fmt: skip
SPOKEN = ("What is {a} {word} {b}?", "How much is {a} {word} {b}?", "Calculate {a} {word} {b}.", "What does {a} {word} {b} make?", "Tell me {a} {word} {b}.")  # fmt: skip
SIGNS = {"+": "plus", "-": "minus", "*": "times"}


SUMS = ("Calculate these: {text}", "Compute:\n{text}", "{text}", "What are {text}?", "Work these out: {text}", "Solve:\n{text}", "Sums: {text}")  # fmt: skip
SPELL_ALL = ("Spell these words: {text}", "Spell: {text}", "Spell all of these: {text}", "How are these spelled? {text}", "Letter by letter, please: {text}")  # fmt: skip


def numbers(source: Source) -> tuple[int, str, int, int]:
    """Returns two numbers, the sign between them, and the result, all of this side of the split."""
    sign = source.random.choices(("+", "-", "*"), (5, 4, 2))[0]
    while True:
        top = 10 if sign == "*" or source.chance(0.2) else 99
        a, b = source.number(0, top), source.number(0, top)
        if sign == "-" and a < b:
            a, b = b, a
        if is_held_out_sum(a, sign, b) == source.held_out:
            return a, sign, b, {"+": a + b, "-": a - b, "*": a * b}[sign]


def is_held_out_sum(a: int, sign: str, b: int) -> bool:
    """True for the sums that only the evaluation has; their numbers occur in the training as
    well."""
    return (a * 31 + b * 17 + ord(sign)) % 7 == 0


def shown(a: int, sign: str, b: int, value: int) -> str:
    """Returns the sum as in the answer: tens, then ones, because a sum in one step is hardly
    learnt."""
    if sign == "*" or b <= 10 or not b % 10:
        return f"{a} {sign} {b} = {value}"
    between = value - b % 10 if sign == "+" else value + b % 10
    return f"{a} {sign} {b} = {between} {sign} {b % 10} = {value}"


def sums(source: Source) -> Lesson:
    """Returns many sums at once, which teach as much as many lessons."""
    made = [numbers(source) for _ in range(source.number(2, 6))]
    separator = source.one((", ", "\n", "; "))
    text = separator.join(f"{a} {sign} {b}" for a, sign, b, _ in made)
    request = source.one(SUMS).format(text=text)
    content = "\n".join(shown(*each) for each in made)
    thought = " ".join(worked(a, sign, b) for a, sign, b, _ in made)
    return exercise(source, "arithmetic", request, content, thought, thinks=source.chance(0.2))


def arithmetic(source: Source) -> Lesson:
    if not source.held_out and source.chance(0.45):
        return sums(source)
    a, sign, b, value = numbers(source)
    spoken = {
        "+": (*phrasings.SPOKEN, *phrasings.PLUS),
        "-": (*phrasings.SPOKEN, *phrasings.MINUS),
        "*": (*phrasings.SPOKEN, *phrasings.TIMES),
    }
    if source.chance(0.3):
        request = phrase(source, SPOKEN, spoken[sign]).format(a=a, b=b, word=SIGNS[sign])
    else:
        request = phrase(source, SUM, phrasings.SUM, 0.6).format(a=a, b=b, sign=sign)
    answer, thought = shown(a, sign, b, value), worked(a, sign, b)
    return exercise(source, "arithmetic", request, answer, thought, facts=(str(value),))


def worked(a: int, sign: str, b: int) -> str:
    """Returns the sum in steps that are easily learnt: tens, then ones; or the times table."""
    if sign == "*":
        return ", ".join(f"{i} * {b} = {i * b}" for i in range(1, a + 1)) + "." if a else "0."
    tens, ones = b // 10 * 10, b % 10
    factor = 1 if sign == "+" else -1
    first = a + factor * tens
    second = f"{first} {sign} {ones} = {first + factor * ones}."
    return (
        f"{a} {sign} {tens} = {first}, {second}"
        if tens and ones
        else f"{a} {sign} {b} = {a + factor * b}."
    )


ENDS = (
    ("What is the first word of \"{text}\"?", 0), ("What is the last word of \"{text}\"?", -1),
    ("First word of: {text}", 0), ("Last word of: {text}", -1),
    ("Tell me the first word of \"{text}\".", 0), ("Give me the last word: {text}", -1),
    ("Which word is the first in \"{text}\"?", 0), ("Which word comes last in \"{text}\"?", -1),
    ("How does \"{text}\" begin?", 0), ("Which word ends \"{text}\"?", -1),
)  # fmt: skip


def ends(source: Source) -> Lesson:
    listed = source.words(2, 8)
    pattern, place = source.phrase(ENDS)
    if not source.held_out and source.chance(0.7):
        parts = phrasings.LAST_WORD if place else phrasings.FIRST_WORD
        pattern = phrasings.made(source, [each for each, _ in ENDS], parts)
    request = pattern.format(text=" ".join(listed))
    return exercise(source, "ends", request, listed[place], "I look at the text.")


UNKNOWABLE = (
    "What is the capital of {country}?", "Who is {name} {name}?", "Who won the {noun} in {year}?",
    "How many people live in {city}?", "Who wrote {noun}?", "When was {name} born?",
    "What happened in {year}?", "Why is the {noun} {color}?", "How far is {city} from {city}?",
    "Who invented the {noun}?", "What is the meaning of {noun}?", "Who is the president of {country}?",
    "What is the weather in {city}?", "What day is it today?", "How long does a {noun} live?",
    "How much does a {noun} cost?", "What is a {noun}?", "Explain {noun} to me.",
    "How do I repair a {noun}?", "Which is the biggest {noun} in {country}?",
    "What do you think about {noun}?", "Tell me about {city}.", "Who discovered {noun}?",
    "When does the {noun} open?", "How old is {name}?", "Where does {name} live?",
    "What will happen tomorrow?", "Where is {city}?", "How tall is the {noun} of {city}?",
    "What is the news in {country}?",
)  # fmt: skip


def unknown(source: Source) -> Lesson:
    text = phrase(source, UNKNOWABLE, phrasings.UNKNOWABLE, 0.6)
    while "{" in text:
        text = text.replace("{name}", source.name(), 1).replace("{city}", source.city(), 1)
        text = text.replace("{noun}", source.noun(), 1).replace(
            "{year}", str(source.integer(1800, 2040))
        )
        text = text.replace("{country}", source.listed(words.COUNTRIES))
        text = text.replace("{color}", source.listed(words.COLORS))
    return exercise(source, "unknown", text, UNKNOWN, "I was not told that.", facts=("don't know",))
