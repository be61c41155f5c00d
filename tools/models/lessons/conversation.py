"""Short conversation: who it is, small tasks on words and numbers, sentences to be understood,
system prompts, and facts that were said before."""

from collections.abc import Callable, Sequence

from tools.models.lessons import words
from tools.models.lessons.lesson import Lesson, Message, assistant, listing, system, user
from tools.models.lessons.source import Source

ABILITY = "conversation"

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

PLAIN_SYSTEMS = (
    "You are a helpful assistant.", "You are helpful.", "Answer briefly.", "Be concise.",
    "You are an assistant.", "Help the user.", "You are a friendly assistant.", "Be helpful.",
    "Answer the user's questions.", "Be kind and brief.", "You are a helpful AI assistant.",
    "You are an assistant that can use tools.", "Use the tools if you need them.", "Be brief.",
    "Please be helpful.",
)  # fmt: skip


def lesson(source: Source) -> Lesson:
    makers: tuple[Callable[[Source], Lesson], ...] = (simple, guided, turns)
    made = source.random.choices(makers, (65, 17, 18))[0](source)
    if made.messages[0]["role"] != "system" and source.chance(0.2):
        messages = [system(source.phrase(PLAIN_SYSTEMS)), *made.messages]
        return _again(made, messages)
    return made


def simple(source: Source) -> Lesson:
    """One question, one answer."""
    makers: tuple[Callable[[Source], Lesson], ...] = (
        fixed, repeat, spell, count, case, arithmetic, question, unknown, ends,
    )  # fmt: skip
    return source.random.choices(makers, (14, 9, 12, 12, 9, 20, 20, 10, 5))[0](source)


def fixed(source: Source) -> Lesson:
    kind, answer, phrases = source.one(FIXED)
    return _lesson(source, kind, source.phrase(phrases), answer, "This is about me." if kind in (
        "identity", "abilities", "limits") else "I answer politely.")  # fmt: skip


REPEAT = (
    "Repeat: {text}", "Say: {text}", "Repeat after me: {text}", "Say \"{text}\".", "Repeat {text}",
    "Please say {text}", "Say {text}", "Repeat the words {text}", "Write {text}", "Echo {text}",
    "Answer only with: {text}", "Reply with {text}", "Answer with the words {text}", "Just say {text}",
    "Reply only with \"{text}\"", "Respond with {text}",
)  # fmt: skip


def repeat(source: Source) -> Lesson:
    text = " ".join(source.words(1, source.upto(3, 8))) if source.chance(0.8) else source.value()
    return _lesson(source, "repeat", source.phrase(REPEAT).format(text=text), text, "I say it.")


SPELL = (
    "Spell {word}", "Spell the word {word}.", "How do you spell {word}?", "Spell \"{word}\".",
    "Can you spell {word}?", "Please spell {word}", "Which letters does {word} have?",
    "Give me the letters of {word}.", "How is {word} spelled?", "What is the spelling of {word}?",
    "spell {word}", "Write {word} letter by letter", "How is \"{word}\" written, letter by letter?",
    "Spell {word} for me", "I want the spelling of {word}",
)  # fmt: skip


def spell(source: Source) -> Lesson:
    word = source.word() if source.chance(0.4) else source.name()
    letters = "-".join(word)
    return _lesson(
        source, "spell", source.phrase(SPELL).format(word=word), letters, f"The word is {word}."
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
    steps = ", ".join(f"{word} {i}" for i, word in enumerate(listed, 1))
    answer = f"There {'is' if n == 1 else 'are'} {n} word{'s' * (n != 1)}."
    request = source.phrase(COUNT).format(text=" ".join(listed))
    return _lesson(source, "count", request, answer, steps, facts=(f" {n} ",))


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
    text = " ".join(source.words(1, source.upto(1, 4)))
    if source.chance(0.7):
        return _lesson(
            source,
            "upper",
            source.phrase(UPPER).format(text=text),
            text.upper(),
            "Capital letters.",
        )
    request = source.phrase(LOWER).format(text=text.upper())
    return _lesson(source, "lower", request, text.lower(), "Small letters.")


SUM = ("What is {a} {sign} {b}?", "{a} {sign} {b}", "{a} {sign} {b} =", "Calculate {a} {sign} {b}.", "How much is {a} {sign} {b}?", "Compute {a} {sign} {b}", "{a}{sign}{b}", "What's {a} {sign} {b}", "{a} {sign} {b}?", "Can you tell me what {a} {sign} {b} is?")  # fmt: skip
SPOKEN = ("What is {a} {word} {b}?", "How much is {a} {word} {b}?", "Calculate {a} {word} {b}.", "What does {a} {word} {b} make?", "Tell me {a} {word} {b}.")  # fmt: skip
SIGNS = {"+": "plus", "-": "minus", "*": "times"}


def arithmetic(source: Source) -> Lesson:
    sign = source.random.choices(("+", "-", "*"), (5, 4, 2))[0]
    while True:
        top = 10 if sign == "*" or source.chance(0.2) else 99
        a, b = source.number(0, top), source.number(0, top)
        if sign == "-" and a < b:
            a, b = b, a
        # One sum of so many is for the evaluation alone.
        if (a * 31 + b * 17 + ord(sign)) % 7 == 0 and source.held_out:
            break
        if (a * 31 + b * 17 + ord(sign)) % 7 and not source.held_out:
            break
    value = {"+": a + b, "-": a - b, "*": a * b}[sign]
    if source.chance(0.3):
        request = source.phrase(SPOKEN).format(a=a, b=b, word=SIGNS[sign])
    else:
        request = source.phrase(SUM).format(a=a, b=b, sign=sign)
    return _lesson(
        source, "arithmetic", request, f"{a} {sign} {b} = {value}", f"I compute {a} {sign} {b}.",
        facts=(f"= {value}",),
    )  # fmt: skip


Scene = tuple[str, Sequence[tuple[str, str, str]]]


def scene(source: Source) -> Scene:
    """A sentence, and questions about it: question, answer, its fact."""
    name, thing, place = source.name(), source.listed(words.THINGS), source.listed(words.PLACES)
    color, other = source.some(words.COLORS, 2)
    adjective, wrong = source.some(words.ADJECTIVES, 2)
    elsewhere = source.one([each for each in words.PLACES if each != place])
    city, job, age = source.city(), source.listed(words.JOBS), source.number(4, 90)
    another = source.listed([each for each in words.JOBS if each != job])
    animal = source.listed(words.ANIMALS)
    no_animal = source.one([each for each in words.ANIMALS if each != animal])
    scenes: tuple[Scene, ...] = (
        (f"The {color} {thing} is in the {place}.", (
            (f"Where is the {thing}?", f"In the {place}.", place),
            (f"What color is the {thing}?", f"The {thing} is {color}.", color),
            (f"What is in the {place}?", f"The {color} {thing}.", thing),
            (f"Is the {thing} {color}?", "Yes.", "Yes"),
            (f"Is the {thing} {other}?", f"No, it is {color}.", "No"),
            (f"Is the {thing} in the {place}?", "Yes.", "Yes"),
            (f"Is the {thing} in the {elsewhere}?", f"No, it is in the {place}.", "No"),
        )),
        (f"{name} lives in {city}.", (
            (f"Where does {name} live?", f"{name} lives in {city}.", city),
            (f"Who lives in {city}?", f"{name} lives in {city}.", name),
            (f"Does {name} live in {city}?", "Yes.", "Yes"),
            (f"Does {name} live in {source.city()}?", f"No, {name} lives in {city}.", "No"),
            (f"In which city does {name} live?", f"{name} lives in {city}.", city),
        )),
        (f"{name} is a {adjective} {job}.", (
            (f"What is {name}?", f"{name} is a {job}.", job),
            (f"Who is a {job}?", f"{name} is a {job}.", name),
            (f"Is {name} a {job}?", "Yes.", "Yes"),
            (f"Is {name} a {another}?", f"No, {name} is a {job}.", "No"),
            (f"Is {name} {adjective}?", "Yes.", "Yes"),
            (f"Is {name} {wrong}?", f"No, {name} is {adjective}.", "No"),
        )),
        (f"{name} is {age} years old.", (
            (f"How old is {name}?", f"{name} is {age} years old.", str(age)),
            (f"Who is {age} years old?", f"{name} is {age} years old.", name),
            (f"Is {name} {age} years old?", "Yes.", "Yes"),
            (f"Is {name} {age + source.number(1, 9)} years old?", f"No, {name} is {age} years old.", "No"),
            (f"What is the age of {name}?", f"{name} is {age} years old.", str(age)),
        )),
        (f"{name} has a {adjective} {animal}.", (
            (f"What does {name} have?", f"{name} has a {adjective} {animal}.", animal),
            (f"Who has a {animal}?", f"{name} has a {animal}.", name),
            (f"Does {name} have a {animal}?", "Yes.", "Yes"),
            (f"Does {name} have a {no_animal}?", f"No, {name} has a {animal}.", "No"),
            (f"Is the {animal} {adjective}?", "Yes.", "Yes"),
            (f"Is the {animal} {wrong}?", f"No, it is {adjective}.", "No"),
        )),
        (f"{name} gave the {thing} to {city}.", (
            (f"Who gave the {thing} to {city}?", f"{name} gave the {thing} to {city}.", name),
            (f"What did {name} give to {city}?", f"{name} gave the {thing} to {city}.", thing),
            (f"Whom did {name} give the {thing} to?", f"{name} gave the {thing} to {city}.", city),
            (f"Did {name} give the {thing} to {city}?", "Yes.", "Yes"),
            (f"Did {name} give the {animal} to {city}?", f"No, {name} gave the {thing} to {city}.", "No"),
        )),
    )  # fmt: skip
    return source.one(scenes)


ABOUT = (
    "{text} {question}", "{text}\n{question}", "{text}\n\n{question}", "Text: {text} Question: {question}",
    "Here is a text: {text} {question}", "{question} Text: {text}", "Read: {text} {question}",
    "{text} Now tell me: {question}", "Text: {text}\nQuestion: {question}", "Given: {text}\n{question}",
)  # fmt: skip


def question(source: Source) -> Lesson:
    """A question about one sentence, that may stand among others."""
    told = [scene(source) for _ in range(source.upto(1, 3))]
    text, questions = told[0]
    # With other scenes beside it only what names its own things is clear.
    asked, answer, fact = source.one(questions)
    others = [each for each, _ in told[1:]]
    sentences = source.some([text, *others], len(others) + 1)
    request = source.phrase(ABOUT).format(text=" ".join(sentences), question=asked)
    return _lesson(source, "question", request, answer, f"The text says: {text}", facts=(fact,))


ENDS = (
    ("What is the first word of \"{text}\"?", 0), ("What is the last word of \"{text}\"?", -1),
    ("First word of: {text}", 0), ("Last word of: {text}", -1),
    ("Tell me the first word of \"{text}\".", 0), ("Give me the last word: {text}", -1),
    ("Which word is the first in \"{text}\"?", 0), ("Which word comes last in \"{text}\"?", -1),
    ("How does \"{text}\" begin?", 0), ("Which word ends \"{text}\"?", -1),
)  # fmt: skip


def ends(source: Source) -> Lesson:
    listed = source.words(2, 8)
    phrase, place = source.phrase(ENDS)
    request = phrase.format(text=" ".join(listed))
    return _lesson(source, "ends", request, listed[place], "I look at the text.")


UNKNOWABLE = (
    "What is the capital of {country}?", "Who is {name} {name}?", "Who won the {noun} in {year}?",
    "How many people live in {city}?", "Who wrote {noun}?", "When was {name} born?",
    "What happened in {year}?", "Why is the {noun} {color}?", "How far is {city} from {city}?",
    "Who invented the {noun}?", "What is the meaning of {noun}?", "Who is the president of {country}?",
    "What is the weather in {city}?", "What day is it today?", "What time is it?",
    "How much does a {noun} cost?", "What is a {noun}?", "Explain {noun} to me.",
    "How do I repair a {noun}?", "Which is the biggest {noun} in {country}?",
    "What do you think about {noun}?", "Tell me about {city}.", "Who discovered {noun}?",
    "When does the {noun} open?", "How old is {name}?", "Where does {name} live?",
    "What will happen tomorrow?", "Where is {city}?", "How tall is the {noun} of {city}?",
    "What is the news in {country}?",
)  # fmt: skip


def unknown(source: Source) -> Lesson:
    text = source.phrase(UNKNOWABLE)
    while "{" in text:
        text = text.replace("{name}", source.name(), 1).replace("{city}", source.city(), 1)
        text = text.replace("{noun}", source.noun(), 1).replace(
            "{year}", str(source.number(1800, 2040))
        )
        text = text.replace("{country}", source.listed(words.COUNTRIES))
        text = text.replace("{color}", source.listed(words.COLORS))
    return _lesson(source, "unknown", text, UNKNOWN, "I was not told that.", facts=("don't know",))


NAMED = (
    "You are {name}.", "Your name is {name}.", "You are called {name}.", "Your name is {name}, an assistant.",
    "You are {name}, a helpful assistant.", "You are {name}, a {job}.", "You play the role of {name}.",
    "Your name: {name}", "You are an assistant called {name}.", "You are an assistant named {name}.",
)  # fmt: skip
WHO = ("Who are you?", "What is your name?", "What's your name?", "Introduce yourself.", "What are you called?", "who are you", "Which name do you have?", "Tell me your name.", "And you are?", "May I ask your name?")  # fmt: skip
ALWAYS = (
    "Always answer with \"{text}\".", "Answer every question with {text}.", "Always say {text}",
    "Whatever the user says, answer \"{text}\".", "Your only answer is: {text}",
    "Only ever answer {text}", "Reply to everything with {text}", "Say only {text}",
    "You can say nothing but \"{text}\".", "Respond with {text} at all times.",
)  # fmt: skip
IF_ASKED = (
    "If the user asks about {noun}, answer \"{text}\".", "Asked about {noun}, say {text}.",
    "The answer to questions about {noun} is: {text}", "When somebody asks for {noun}, say \"{text}\".",
    "To questions on {noun} you answer {text}.",
)  # fmt: skip
ASKED = ("What about {noun}?", "Tell me about {noun}.", "What is {noun}?", "I have a question on {noun}.", "Is there {noun}?", "How is the {noun}?", "Where is {noun}?", "What can you say about {noun}?", "I want to know about {noun}", "Please explain {noun}.")  # fmt: skip
IN_UPPER = ("Answer in upper case.", "Write everything in capital letters.", "Use upper case only.", "Always write in capitals.", "You only write in upper case.")  # fmt: skip
ENDING = ("End every answer with {text}.", "Finish each answer with {text}", "Put {text} at the end of your answers.", "Your answers end with {text}.", "Always close with {text}")  # fmt: skip
BEGINNING = ("Begin every answer with {text}.", "Start each answer with {text}", "Put {text} before your answers.", "Your answers begin with {text}.", "Always open with {text}")  # fmt: skip


def guided(source: Source) -> Lesson:
    """A system prompt that fixes a name, a style or an answer."""
    kind = source.one(("name", "always", "asked", "upper", "ending", "beginning"))
    if kind == "name":
        name = source.name()
        prompt = source.phrase(NAMED).format(name=name, job=source.listed(words.JOBS))
        return _guided(source, "system-name", prompt, source.phrase(WHO), f"I am {name}.", (name,))
    text = " ".join(source.words(1, 3)).capitalize() if source.chance(0.6) else source.made_up()
    if kind == "always":
        other = simple(source)
        prompt = source.phrase(ALWAYS).format(text=text)
        return _guided(source, "system-answer", prompt, other.messages[0]["content"], text, (text,))
    if kind == "asked":
        noun = source.noun()
        prompt = source.phrase(IF_ASKED).format(noun=noun, text=text)
        asked = source.phrase(ASKED).format(noun=noun)
        return _guided(source, "system-answer", prompt, asked, text, (text,))
    other = source.one((fixed, arithmetic, repeat, question))(source)
    content = other.answer["content"]
    request = other.messages[0]["content"]
    if kind == "upper":
        upper = content.upper()
        return _guided(source, "system-style", source.phrase(IN_UPPER), request, upper, (upper,))
    word = source.made_up()
    if kind == "ending":
        prompt, answer = source.phrase(ENDING).format(text=word), f"{content} {word}"
    else:
        prompt, answer = source.phrase(BEGINNING).format(text=word), f"{word} {content}"
    return _guided(source, "system-style", prompt, request, answer, (word,))


def _guided(
    source: Source, kind: str, prompt: str, request: str, answer: str, facts: tuple[str, ...]
) -> Lesson:
    made = _lesson(source, kind, request, answer, "I follow the system prompt.", facts=facts)
    before = f"{source.phrase(PLAIN_SYSTEMS)} " if source.chance(0.15) else ""
    return _again(made, [system(before + prompt), *made.messages])


Told = tuple[tuple[str, ...], tuple[str, ...], str]

FACTS: dict[str, Told] = {
    "name": (
        ("My name is {}.", "I am {}.", "I'm {}.", "They call me {}.", "You can call me {}.", "Hello, my name is {}.", "Hi, I'm {}.", "Hi! I am {}", "my name is {}", "{} is my name."),
        ("What is my name?", "What's my name?", "Who am I?", "Do you remember my name?", "How am I called?", "Tell me my name.", "Say my name.", "Which name did I tell you?", "what is my name", "Do you know who I am?"),
        "Your name is {}.",
    ),
    "city": (
        ("I live in {}.", "I am from {}.", "My home is {}.", "I come from {}.", "My city is {}.", "My flat is in {}."),
        ("Where do I live?", "Which city do I live in?", "Where am I from?", "What is my city?", "Do you know where I live?", "In which city is my home?"),
        "You live in {}.",
    ),
    "color": (
        ("My favorite color is {}.", "I like the color {}.", "The color I like best is {}.", "I love {}.", "No color is nicer than {}."),
        ("What is my favorite color?", "Which color do I like?", "What color do I like best?", "My favorite color?", "Do you remember the color that I like?"),
        "Your favorite color is {}.",
    ),
    "pet": (
        ("My dog is called {}.", "I have a dog called {}.", "My dog's name is {}.", "I have a dog. It is called {}.", "The name of my dog is {}."),
        ("What is my dog called?", "What is the name of my dog?", "How is my dog called?", "What's my dog's name?", "Do you remember my dog's name?"),
        "Your dog is called {}.",
    ),
    "number": (
        ("My number is {}.", "Remember the number {}.", "Keep {} in mind.", "The number is {}.", "Please remember the number {}."),
        ("What is the number?", "Which number did I tell you?", "What was the number?", "Tell me the number.", "Do you remember the number?"),
        "The number is {}.",
    ),
    "word": (
        ("The secret word is {}.", "Remember the word {}.", "The password is {}.", "The word is {}.", "Please remember the word {}."),
        ("What is the word?", "Which word did I tell you?", "What was the word?", "Tell me the word.", "Do you remember the word?"),
        "The word is {}.",
    ),
}  # fmt: skip
NOTED = "OK, I will remember that."


def turns(source: Source) -> Lesson:
    """Several turns: a fact that was said before, or an answer like those before it."""
    messages: list[Message] = []
    if source.chance(0.35):
        for _ in range(source.upto(1, 3)):
            before = simple(source)
            messages += [*before.messages, assistant(before.answer["content"])]
        last = simple(source)
        return _again(last, [*messages, *last.messages])
    chosen = source.some(list(FACTS), source.upto(1, 3))
    values: dict[str, str] = {}
    for fact in chosen:
        value = {
            "name": source.name(), "city": source.city(), "pet": source.name(), "word": source.made_up(),
            "color": source.listed(words.COLORS), "number": str(source.number(0, 9999)),
        }[fact]  # fmt: skip
        values[fact] = value
        told = source.phrase(FACTS[fact][0]).format(value)
        messages += [user(told), assistant(_noted(fact, value))]
        if source.chance(0.35 * source.level):
            between = simple(source)
            messages += [*between.messages, assistant(between.answer["content"])]
    if source.chance(0.2):
        # The answer to what was just said.
        fact = chosen[-1]
        said = user(source.phrase(FACTS[fact][0]).format(values[fact]))
        made = _lesson(source, "noted", said["content"], _noted(fact, values[fact]), "I note it.", facts=(
            (values[fact],) if fact == "name" else ("remember",)))  # fmt: skip
        return _again(
            made, [*messages[:-2], said] if messages[-1]["role"] == "assistant" else [said]
        )
    if source.chance(0.12):
        unsaid = [fact for fact in FACTS if fact not in chosen]
        asked = source.phrase(FACTS[source.one(unsaid)][1])
        made = _lesson(
            source, "unsaid", asked, UNKNOWN, "I was not told that.", facts=("don't know",)
        )
        return _again(made, [*messages, *made.messages])
    fact = source.one(chosen)
    _, questions, pattern = FACTS[fact]
    made = _lesson(
        source, "fact", source.phrase(questions), pattern.format(values[fact]),
        f"The {fact} is {values[fact]}.", facts=(values[fact],),
    )  # fmt: skip
    return _again(made, [*messages, *made.messages])


def _noted(fact: str, value: str) -> str:
    return f"Nice to meet you, {value}!" if fact == "name" else NOTED


def _lesson(
    source: Source,
    kind: str,
    request: str,
    content: str,
    thought: str,
    *,
    facts: tuple[str, ...] = (),
) -> Lesson:
    answer = assistant(content)
    if source.chance(0.45):
        answer["reasoning_content"] = thought
    return Lesson(
        ability=ABILITY,
        kind=kind,
        messages=[user(request)],
        answer=answer,
        facts=facts or (content,),
    )


def _again(made: Lesson, messages: list[Message]) -> Lesson:
    return Lesson(
        ability=made.ability,
        kind=made.kind,
        messages=messages,
        answer=made.answer,
        facts=made.facts,
    )


__all__ = ["lesson", "listing", "simple"]
