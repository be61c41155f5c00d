"""System prompts that fix a name, a style or an answer."""

from dataclasses import replace

from tools.models.lessons import words
from tools.models.lessons.exercises import arithmetic, fixed, repeat, simple
from tools.models.lessons.lesson import Lesson, exercise, system
from tools.models.lessons.scenes import question
from tools.models.lessons.source import Source

PLAIN_SYSTEMS = (
    "You are a helpful assistant.", "You are helpful.", "Answer briefly.", "Be concise.",
    "You are an assistant.", "Help the user.", "You are a friendly assistant.", "Be helpful.",
    "Answer the user's questions.", "Be kind and brief.", "You are a helpful AI assistant.",
    "You are an assistant that can use tools.", "Use the tools if you need them.", "Be brief.",
    "Please be helpful.",
)  # fmt: skip


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
    made = exercise(source, kind, request, answer, "I follow the system prompt.", facts=facts)
    before = f"{source.phrase(PLAIN_SYSTEMS)} " if source.chance(0.15) else ""
    return replace(made, messages=[system(before + prompt), *made.messages])
