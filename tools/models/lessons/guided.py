"""System prompts that fix a name, a style or an answer."""

from dataclasses import replace

from tools.models.lessons import phrasings, words
from tools.models.lessons.exercises import arithmetic, fixed, repeat, simple
from tools.models.lessons.lesson import Lesson, exercise, system
from tools.models.lessons.phrasings import phrase
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

_ANSWERS = ("all answers", "every answer", "each reply", "all replies", "everything you say", "your replies", "each answer", "all that you say")  # fmt: skip
_HAS = ("is", "will be", "must be", "should be")
MORE_NAMED = (
    (("Your name", "The name you have", "The assistant's name", "Your new name", "From now on your name"), (" ",), _HAS, (" {name}", " \"{name}\""), (".", "", ". Be kind.")),
    (("Act as", "Pretend to be", "Be", "Behave as", "Answer as", "Speak as", "You act as", "Imagine that you are", "From now on you are", "They call you", "People call you", "You go by the name", "The user knows you as", "You are the {job}", "You work as a {job}. Your name is"), (" {name}", " {name}, a {job}", " {name}, the assistant"), (".", "")),
)  # fmt: skip
MORE_ALWAYS = (
    (("Answer", "Reply", "Respond", "You answer", "You reply", "You always answer", "You always reply", "Always reply", "Always respond"), (" with", " just with", " only with"), (" {text}", " \"{text}\"", " the text \"{text}\"", " the words {text}"), ("", ".", ", no matter what.", ", whatever the question is.", " each time.", " to all questions.", " and nothing else.")),
    (("No matter what is asked", "To all questions", "Each time", "In all cases", "To any message", "Whatever comes"), (", say ", ", answer ", ", reply ", " you say ", " you answer "), ("{text}", "\"{text}\""), ("", ".")),
    (("Your answer", "The only answer", "Your reply", "The right answer to everything", "Each answer", "All you can say"), (" is always", " is", " has to be", " must be"), (" {text}", " \"{text}\"", ": {text}"), ("", ".")),
)  # fmt: skip
MORE_IF_ASKED = (
    (("If", "When", "Whenever", "As soon as", "In case"), (" the user", " someone", " anybody", " a person"), (" mentions {noun}", " wants to know about {noun}", " talks about {noun}", " speaks of {noun}", " has a question about {noun}", " says something about {noun}"), (", say", ", answer", ", reply", " you say", " you answer", ", tell them"), (" {text}", " \"{text}\"", ": {text}"), ("", ".")),
    (("About {noun}", "On {noun}", "To anything about {noun}", "For {noun}"), (" say", ", answer", " you reply", ", only say", " the answer is"), (" {text}", " \"{text}\"", ": {text}"), ("", ".")),
)  # fmt: skip
MORE_ASKED = (
    (("What do you know about", "Anything on", "Say something about", "Do you know", "Can you tell me about", "Let's talk about", "What is known about", "I need help with", "How about", "What do you think of", "Who knows about", "Talk to me about"), (" {noun}", " the {noun}"), ("?", ".", "")),
)  # fmt: skip
MORE_IN_UPPER = (
    (("Write", "Give", "Type", "Put", "Say"), (" ",), _ANSWERS, (" in upper case", " in capital letters", " in capitals", " in block letters", " in big letters"), (".", "", ", please.")),
    (("Capital letters only", "Speak in capital letters", "Reply in capitals", "Respond in upper case", "Shout: all letters are capitals", "Use nothing but capital letters", "No small letters", "Your replies are in upper case", "Every letter has to be a capital", "Answer with capital letters"), (".", "")),
)  # fmt: skip
MORE_ENDING = (
    (("Close", "Conclude", "Stop", "End", "Finish"), (" ",), _ANSWERS, (" with",), (" {text}", " \"{text}\"", " the word {text}", " the word \"{text}\""), (".", "")),
    (("Add", "Write", "Say", "Append"), (" {text}", " \"{text}\"", " the word {text}"), (" at the end of ", " after ", " behind ", " as the last word of "), _ANSWERS, (".", "")),
    (("The last word of ", "The end of "), _ANSWERS, (" is ", " must be ", " has to be "), ("{text}", "\"{text}\""), (".", "")),
)  # fmt: skip
MORE_BEGINNING = (
    (("Open", "Introduce", "Begin", "Start"), (" ",), _ANSWERS, (" with",), (" {text}", " \"{text}\"", " the word {text}", " the word \"{text}\""), (".", "")),
    (("Add", "Write", "Say", "Prepend"), (" {text}", " \"{text}\"", " the word {text}"), (" at the start of ", " before ", " in front of ", " as the first word of "), _ANSWERS, (".", "")),
    (("The first word of ", "The beginning of "), _ANSWERS, (" is ", " must be ", " has to be "), ("{text}", "\"{text}\""), (".", "")),
)  # fmt: skip


def guided(source: Source) -> Lesson:
    """A system prompt that fixes a name, a style or an answer."""
    kind = source.one(("name", "always", "asked", "upper", "ending", "beginning"))
    if kind == "name":
        name = source.name()
        prompt = phrase(source, NAMED, MORE_NAMED, 0.6).format(
            name=name, job=source.listed(words.JOBS)
        )
        asked = phrase(source, WHO, phrasings.WHO, 0.5)
        return _guided(source, "system-name", prompt, asked, f"I am {name}.", (name,))
    text = " ".join(source.words(1, 3)).capitalize() if source.chance(0.6) else source.made_up()
    if kind == "always":
        other = simple(source)
        prompt = phrase(source, ALWAYS, MORE_ALWAYS, 0.6).format(text=text)
        return _guided(source, "system-answer", prompt, other.messages[0]["content"], text, (text,))
    if kind == "asked":
        noun = source.noun()
        prompt = phrase(source, IF_ASKED, MORE_IF_ASKED, 0.7).format(noun=noun, text=text)
        asked = phrase(source, ASKED, MORE_ASKED, 0.6).format(noun=noun)
        return _guided(source, "system-answer", prompt, asked, text, (text,))
    other = source.one((fixed, arithmetic, repeat, question))(source)
    content = other.answer["content"]
    request = other.messages[0]["content"]
    if kind == "upper":
        upper = content.upper()
        return _guided(
            source,
            "system-style",
            phrase(source, IN_UPPER, MORE_IN_UPPER, 0.7),
            request,
            upper,
            (upper,),
        )
    word = source.made_up()
    if kind == "ending":
        prompt, answer = (
            phrase(source, ENDING, MORE_ENDING, 0.7).format(text=word),
            f"{content} {word}",
        )
    else:
        prompt, answer = (
            phrase(source, BEGINNING, MORE_BEGINNING, 0.7).format(text=word),
            f"{word} {content}",
        )
    return _guided(source, "system-style", prompt, request, answer, (word,))


def _guided(
    source: Source, kind: str, prompt: str, request: str, answer: str, facts: tuple[str, ...]
) -> Lesson:
    made = exercise(source, kind, request, answer, "I follow the system prompt.", facts=facts)
    before = f"{source.phrase(PLAIN_SYSTEMS)} " if source.chance(0.15) else ""
    return replace(made, messages=[system(before + prompt), *made.messages])
