"""Several turns: facts from earlier turns."""

from dataclasses import replace

from tools.models.lessons import scenes, words
from tools.models.lessons.exercises import UNKNOWN, simple
from tools.models.lessons.lesson import Lesson, Message, assistant, exercise, filled, user
from tools.models.lessons.phrasings import asking, several
from tools.models.lessons.source import Source

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
MORE_TOLD = {
    "name": ("I am called {}.", "People call me {}.", "It's {} here.", "{} here.", "This is {}.", "The name is {}.", "Call me {}.", "i am {}", "My friends call me {}.", "Hey, this is {}.", "{} is what I am called.", "I go by the name {}.", "{} is the name I have.", "It is {} who is talking to you.", "{}, that is me."),
    "city": ("I have a house in {}.", "I moved to {}.", "I am at home in {}.", "{} is where I live.", "I spend my life in {}.", "I live in the city of {}.", "My family lives in {}, and so do I.", "No city is better than {}, where I live.", "You find my house in {}.", "If you want to visit me, come to {}.", "Home for me is {}."),
    "color": ("I like {} most of all.", "{} is my favorite color.", "I prefer {}.", "Of all colors I like {} best.", "My color is {}.", "I think {} is the best color.", "I want everything in {}.", "No color is better than {}.", "Nothing is more beautiful than {}.", "There is no color like {}.", "If I had to take a color, it would be {}.", "What I like to see is {}.", "The best of all colors? It is {}."),
    "pet": ("I own a dog called {}.", "{} is my dog.", "We have a dog, {}.", "My dog has the name {}.", "Our dog is called {}.", "I named my dog {}.", "At home there is my dog {}."),
    "number": ("Note the number {}.", "{} is the number.", "I say the number {}.", "Store the number {}.", "My lucky number is {}.", "Take the number {}.", "Don't forget the number {}."),
    "word": ("Note the word {}.", "{} is the word.", "My word is {}.", "Store the word {}.", "The code word is {}.", "I say the word {}.", "Don't forget the word {}."),
}  # fmt: skip
PRAISED = (
    "No color is as {adjective} as {}.", "No color can be more {adjective} than {}.", "Nothing is as {adjective} as {}.", "No color is {adjective} but {}.",
    "Which color is {adjective}? It is {}.", "The most {adjective} color is {}.", "There is no {adjective} color besides {}.", "Is there a color more {adjective} than {}? I say no.",
    "I find {} {adjective}.", "{} is {adjective}, other colors are not.", "No thing is so {adjective} as what is {}.", "I call only {} {adjective}.", "Is any color so {adjective}? No, only {} is.",
    "Is any color {adjective}er than {}? None.", "No color looks {adjective}er to me than {}.", "What color could be {adjective}er than {}?",
    "Of {adjective} colors there is one for me: {}.", "What is {adjective}er than {}?", "{} is the color that is {adjective}.", "There is nothing more {adjective} than {}.",
)  # fmt: skip
"""Of a color, with a wrong word: a liked thing isn't what it is called."""
MORE_ASKED = {
    "name": ("What am I called?", "Can you tell me my name?", "My name was?", "Who is talking to you?", "What did I say my name was?", "And what is my name?", "Which name is mine?", "Do you know my name?", "Do you remember who I am?", "How do people call me?"),
    "city": ("Where is my home?", "Tell me where I live.", "Which city did I name?", "In what city am I at home?", "What city do I come from?", "Where do I come from?", "Where is it that I live?", "Do you remember my city?", "Do you remember where my home is?"),
    "color": ("Tell me my favorite color.", "What color did I say I like?", "Which color is my favorite?", "What is the color I like?", "What's my color?", "Do you know my favorite color?", "Which color did I name?", "Do you still know my color?", "Do you remember my favorite color?", "Which color was it that I like?"),
    "pet": ("Tell me the name of my dog.", "What name does my dog have?", "Which name has my dog?", "What do I call my dog?", "Who is my dog?", "Do you know my dog?", "How did I name my dog?"),
    "number": ("Which number was it?", "Say the number.", "What number did I say?", "And the number?", "Do you know the number?", "Give me the number.", "Which number did I want you to note?"),
    "word": ("Which word was it?", "Say the word.", "What word did I say?", "And the word?", "Do you know the word?", "Give me the word.", "What is the secret word?", "Which word did I want you to note?"),
}  # fmt: skip
MEANT = {
    "name": ("my name", "who I am", "how I am called", "what I am called", "which name I have", "the name that I told you", "what my name is"),
    "city": ("where I live", "my city", "which city I live in", "where my home is", "the city that I come from", "where I am from", "what my city is"),
    "color": ("my favorite color", "which color I like", "what color I like best", "the color that I named", "what my favorite color is", "which color I like most"),
    "pet": ("the name of my dog", "what my dog is called", "my dog's name", "how my dog is called", "which name my dog has", "what I call my dog"),
    "number": ("the number", "which number I told you", "the number that I said", "what the number was", "which number it was", "my number"),
    "word": ("the word", "which word I told you", "the word that I said", "what the word was", "which word it was", "my word"),
}  # fmt: skip
MENTIONED = {
    "name": "my name", "city": "home", "color": "color", "pet": "my dog", "number": "number",
    "word": "word",
}  # fmt: skip
NOTED = "OK, I will remember that."


def turns(source: Source) -> Lesson:
    """Returns several turns: a fact from an earlier turn, or an answer like the ones before it."""
    messages: list[Message] = []
    if source.chance(0.35):
        for _ in range(source.upto(1, 3)):
            before = simple(source)
            messages += [*before.messages, assistant(before.answer["content"])]
        last = simple(source)
        return replace(last, messages=[*messages, *last.messages])
    chosen = source.some(list(FACTS), source.upto(1, 3))
    values: dict[str, str] = {}
    for fact in chosen:
        value = {
            "name": source.name(), "city": source.city(), "pet": source.name(), "word": source.made_up(),
            "color": scenes.one(source, words.COLORS), "number": str(source.integer(0, 9999)),
        }[fact]  # fmt: skip
        values[fact] = value
        told = said(source, fact, value)
        messages += [user(told), assistant(_noted(fact, value))]
        if source.chance(0.35 * source.level):
            between = simple(source)
            messages += [*between.messages, assistant(between.answer["content"])]
    if source.chance(0.2):
        # The answer to the last statement.
        fact = chosen[-1]
        told = said(source, fact, values[fact])
        last = exercise(source, "noted", told, _noted(fact, values[fact]), "I note it.", facts=(
            (values[fact],) if fact == "name" else ("remember",)))  # fmt: skip
        kept = messages[:-2] if messages[-1]["role"] == "assistant" else []
        return replace(last, messages=[*kept, user(told)])
    if source.chance(0.12):
        unsaid = [fact for fact in FACTS if fact not in chosen]
        fact = source.one(unsaid)
        last = exercise(
            source, "unsaid", asked(source, fact), UNKNOWN, "I was not told that.",
            facts=("don't know",),
        )  # fmt: skip
        return replace(last, messages=[*messages, *last.messages])
    fact = source.one(chosen)
    last = exercise(
        source, "fact", asked(source, fact), FACTS[fact][2].format(values[fact]),
        f"The {fact} is {values[fact]}.", facts=(values[fact],),
    )  # fmt: skip
    return replace(last, messages=[*messages, *last.messages])


def said(source: Source, fact: str, value: str) -> str:
    """Returns the fact, sometimes with any words before it and in it."""
    if source.held_out or not source.chance(0.15):
        if fact == "color" and not source.held_out and source.chance(0.25):
            return filled(source.one(PRAISED), value, adjective=source.own(source.word))
        return several(source, FACTS[fact][0], MORE_TOLD[fact]).format(value)
    order = (MENTIONED[fact], value) if source.chance(0.8) else (value, MENTIONED[fact])
    text = f"{source.link(0, 2)} {f' {source.link(1, 3)} '.join(order)}".strip()
    return (text if text.startswith(value) else text[0].upper() + text[1:]) + source.one((".", ""))


def asked(source: Source, fact: str) -> str:
    return several(source, FACTS[fact][1], MORE_ASKED[fact], asking(MEANT[fact]), 0.45)


def _noted(fact: str, value: str) -> str:
    return f"Nice to meet you, {value}!" if fact == "name" else NOTED
