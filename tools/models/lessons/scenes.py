"""Questions about a sentence."""

from collections.abc import Callable
from dataclasses import dataclass

from tools.models.lessons import words
from tools.models.lessons.lesson import Lesson, exercise
from tools.models.lessons.source import Source


@dataclass(frozen=True, kw_only=True)
class Question:
    """`asked` are its phrasings; `answer` and `fact`, which is in it, are patterns, too."""

    asked: tuple[str, ...]
    answer: str
    fact: str


def ask(answer: str, fact: str, *asked: str) -> Question:
    return Question(asked=asked, answer=answer, fact=fact)


Values = dict[str, str]
Scene = tuple[Callable[[Source], Values], tuple[str, ...], tuple[Question, ...]]


def thing_values(source: Source) -> Values:
    color, other = source.listed_some(words.COLORS, 2)
    place, elsewhere = source.listed_some(words.PLACES, 2)
    return {
        "thing": source.listed(words.THINGS), "color": color, "other": other,
        "place": place, "elsewhere": elsewhere,
    }  # fmt: skip


def home_values(source: Source) -> Values:
    return {"name": source.name(), "city": source.city(), "elsewhere": source.city()}


def job_values(source: Source) -> Values:
    job, another = source.listed_some(words.JOBS, 2)
    adjective, wrong = source.listed_some(words.ADJECTIVES, 2)
    return {
        "name": source.name(), "job": job, "another": another,
        "adjective": adjective, "wrong": wrong,
    }  # fmt: skip


def age_values(source: Source) -> Values:
    return {
        "name": source.name(),
        "age": str(source.integer(4, 60)),
        "wrong": str(source.integer(61, 99)),
    }


def pet_values(source: Source) -> Values:
    animal, other = source.listed_some(words.ANIMALS, 2)
    adjective, wrong = source.listed_some(words.ADJECTIVES, 2)
    return {
        "name": source.name(), "animal": animal, "other": other,
        "adjective": adjective, "wrong": wrong,
    }  # fmt: skip


def gift_values(source: Source) -> Values:
    thing, other = source.listed_some(words.THINGS, 2)
    return {"name": source.name(), "thing": thing, "other": other, "friend": source.name()}


SCENES: tuple[Scene, ...] = (
    (thing_values, ("The {color} {thing} is in the {place}.", "There is a {color} {thing} in the {place}.", "A {color} {thing} lies in the {place}.", "In the {place} is a {color} {thing}.", "The {place} has a {color} {thing}."), (
        ask("In the {place}.", "{place}", "Where is the {thing}?", "Where do I find the {thing}?", "Where is the {color} {thing}?", "In which place is the {thing}?", "Where must I look for the {thing}?"),
        ask("The {thing} is {color}.", "{color}", "What color is the {thing}?", "Which color does the {thing} have?", "What color does the {thing} have?", "Which color is the {thing}?", "Tell me the color of the {thing}."),
        ask("The {color} {thing}.", "{thing}", "What is in the {place}?", "Which thing is in the {place}?", "What do I find in the {place}?", "What is there in the {place}?", "What does the {place} have in it?"),
        ask("Yes.", "Yes", "Is the {thing} {color}?", "Is the {thing} in the {place}?", "Is there a {thing} in the {place}?", "Is it true that the {thing} is {color}?", "Does the {place} have a {thing}?"),
        ask("No, it is {color}.", "No", "Is the {thing} {other}?", "Is it true that the {thing} is {other}?", "Is the color of the {thing} {other}?", "Is it a {other} {thing}?", "Does the {thing} have the color {other}?"),
        ask("No, it is in the {place}.", "No", "Is the {thing} in the {elsewhere}?", "Is it true that the {thing} is in the {elsewhere}?", "Is the {color} {thing} in the {elsewhere}?", "Is there a {thing} in the {elsewhere}?", "Do I find the {thing} in the {elsewhere}?"),
    )),
    (home_values, ("{name} lives in {city}.", "{name} has a flat in {city}.", "{name} has always lived in {city}.", "{name} is at home in {city}.", "The home of {name} is {city}."), (
        ask("{name} lives in {city}.", "{city}", "Where does {name} live?", "In which city does {name} live?", "Where is {name} at home?", "Which city does {name} live in?", "What is the city of {name}?"),
        ask("{name} lives in {city}.", "{name}", "Who lives in {city}?", "Who has a home in {city}?", "Which person lives in {city}?", "Who is at home in {city}?", "Whose city is {city}?"),
        ask("Yes.", "Yes", "Does {name} live in {city}?", "Is {name} at home in {city}?", "Is it true that {name} lives in {city}?", "Is {city} the city of {name}?", "Has {name} a home in {city}?"),
        ask("No, {name} lives in {city}.", "No", "Does {name} live in {elsewhere}?", "Is {name} at home in {elsewhere}?", "Is it true that {name} lives in {elsewhere}?", "Is {elsewhere} the city of {name}?", "Has {name} a home in {elsewhere}?"),
    )),
    (job_values, ("{name} is a {adjective} {job}.", "{name} works as a {adjective} {job}.", "{name} became a {adjective} {job}.", "We know {name}, a {adjective} {job}.", "A {adjective} {job}, that is {name}."), (
        ask("{name} is a {job}.", "{job}", "What is {name}?", "What does {name} do?", "What is the job of {name}?", "Which job does {name} have?", "As what does {name} work?"),
        ask("{name} is a {job}.", "{name}", "Who is a {job}?", "Who works as a {job}?", "Who is the {job}?", "Which person is a {job}?", "What is the name of the {job}?"),
        ask("Yes.", "Yes", "Is {name} a {job}?", "Does {name} work as a {job}?", "Is it true that {name} is a {job}?", "Is {name} {adjective}?", "Is the {job} {adjective}?"),
        ask("No, {name} is a {job}.", "No", "Is {name} a {another}?", "Does {name} work as a {another}?", "Is it true that {name} is a {another}?", "Is {name} the {another}?", "Has {name} the job of a {another}?"),
        ask("No, {name} is {adjective}.", "No", "Is {name} {wrong}?", "Is it true that {name} is {wrong}?", "Is {name} a {wrong} {job}?", "Is the {job} {wrong}?", "Would you call {name} {wrong}?"),
    )),
    (age_values, ("{name} is {age} years old.", "{name} is {age}.", "{name} turned {age} this year.", "{name} has the age of {age}.", "The age of {name} is {age}."), (
        ask("{name} is {age} years old.", "{age}", "How old is {name}?", "What is the age of {name}?", "Which age has {name}?", "What age is {name}?", "How many years old is {name}?"),
        ask("{name} is {age} years old.", "{name}", "Who is {age} years old?", "Who is {age}?", "Who has the age of {age}?", "Which person is {age} years old?", "Whose age is {age}?"),
        ask("Yes.", "Yes", "Is {name} {age} years old?", "Is {name} {age}?", "Is it true that {name} is {age}?", "Has {name} the age of {age}?", "Is the age of {name} {age}?"),
        ask("No, {name} is {age} years old.", "No", "Is {name} {wrong} years old?", "Is {name} {wrong}?", "Is it true that {name} is {wrong}?", "Has {name} the age of {wrong}?", "Is the age of {name} {wrong}?"),
    )),
    (pet_values, ("{name} has a {adjective} {animal}.", "{name} owns a {adjective} {animal}.", "{name} feeds a {adjective} {animal}.", "{name} keeps a {adjective} {animal}.", "A {adjective} {animal} lives with {name}."), (
        ask("{name} has a {adjective} {animal}.", "{animal}", "What does {name} have?", "Which animal does {name} have?", "What animal has {name}?", "What does {name} own?", "Which animal is with {name}?"),
        ask("{name} has a {animal}.", "{name}", "Who has a {animal}?", "Who owns a {animal}?", "Who has the {adjective} {animal}?", "Which person has a {animal}?", "Whose animal is the {animal}?"),
        ask("Yes.", "Yes", "Does {name} have a {animal}?", "Has {name} a {animal}?", "Is the {animal} {adjective}?", "Is it true that {name} has a {animal}?", "Does {name} own a {animal}?"),
        ask("No, {name} has a {animal}.", "No", "Does {name} have a {other}?", "Has {name} a {other}?", "Is the animal of {name} a {other}?", "Is it true that {name} has a {other}?", "Does {name} own a {other}?"),
        ask("No, it is {adjective}.", "No", "Is the {animal} {wrong}?", "Is it true that the {animal} is {wrong}?", "Is it a {wrong} {animal}?", "Is the animal {wrong}?", "Would you call the {animal} {wrong}?"),
    )),
    (gift_values, ("{name} gave the {thing} to {friend}.", "{name} brought {friend} the {thing}.", "{name} sent {friend} the {thing}.", "{friend} got the {thing} from {name}.", "The {thing} went from {name} to {friend}."), (
        ask("{name} gave the {thing} to {friend}.", "{name}", "Who gave the {thing} to {friend}?", "Who gave {friend} the {thing}?", "From whom is the {thing}?", "Who gave away the {thing}?", "From whom did {friend} get the {thing}?"),
        ask("{name} gave the {thing} to {friend}.", "{thing}", "What did {name} give to {friend}?", "What did {friend} get?", "What did {name} give away?", "What did {name} give {friend}?", "Which thing did {friend} get from {name}?"),
        ask("{name} gave the {thing} to {friend}.", "{friend}", "Whom did {name} give the {thing} to?", "Who got the {thing}?", "To whom did {name} give the {thing}?", "Who has the {thing} now?", "Who got something from {name}?"),
        ask("Yes.", "Yes", "Did {name} give the {thing} to {friend}?", "Did {friend} get the {thing}?", "Is the {thing} from {name}?", "Is it true that {friend} got the {thing}?", "Did {name} give {friend} the {thing}?"),
        ask("No, {name} gave the {thing} to {friend}.", "No", "Did {name} give the {other} to {friend}?", "Did {friend} get the {other}?", "Is the {other} from {name}?", "Is it true that {friend} got the {other}?", "Did {name} give {friend} the {other}?"),
    )),
)  # fmt: skip


ABOUT = (
    "{text} {question}", "{text}\n{question}", "{text}\n\n{question}", "Text: {text} Question: {question}",
    "Here is a text: {text} {question}", "{question} Text: {text}", "Read: {text} {question}",
    "{text} Now tell me: {question}", "Text: {text}\nQuestion: {question}", "Given: {text}\n{question}",
)  # fmt: skip


def question(source: Source) -> Lesson:
    """A question about one sentence, that may stand among others."""
    make, sentences, questions = source.one(SCENES)
    values = make(source)
    text = source.phrase(sentences).format(**values)
    # With other scenes beside it only what names its own things is clear.
    asked = source.one(questions)
    told = [text, *(_other(source) for _ in range(source.upto(1, 3) - 1))]
    request = source.phrase(ABOUT).format(
        text=" ".join(source.some(told, len(told))),
        question=source.phrase(asked.asked).format(**values),
    )
    return exercise(
        source,
        "question",
        request,
        asked.answer.format(**values),
        f"The text says: {text}",
        facts=(asked.fact.format(**values),),
    )


def _other(source: Source) -> str:
    make, sentences, _ = source.one(SCENES)
    return source.phrase(sentences).format(**make(source))
