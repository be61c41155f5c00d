"""Questions about a sentence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tools.models.lessons import phrasings, words
from tools.models.lessons.lesson import Lesson, exercise, filled
from tools.models.lessons.phrasings import phrase, several
from tools.models.lessons.source import Source


@dataclass(frozen=True, kw_only=True)
class Question:
    """`asked` are the question's phrasings; `answer`, and `fact`, which is a part of it, are
    patterns."""

    asked: tuple[str, ...]
    answer: str
    fact: str


def ask(answer: str, fact: str, *asked: str) -> Question:
    return Question(asked=asked, answer=answer, fact=fact)


Values = dict[str, str]
Scene = tuple[Callable[[Source], Values], tuple[str, ...], tuple[Question, ...]]


def one(source: Source, listed: Sequence[str]) -> str:
    """Returns a word of a list, or, in some lessons, a made-up one."""
    return source.listed(listed) if source.held_out or source.chance(0.6) else source.made_up()


def two(source: Source, listed: Sequence[str]) -> list[str]:
    """Returns two different words; see `one`."""
    if source.held_out or source.chance(0.6):
        return source.listed_some(listed, 2)
    return [source.made_up(), source.made_up()]


def thing_values(source: Source) -> Values:
    color, other = two(source, words.COLORS)
    place, elsewhere = two(source, words.PLACES)
    return {
        "thing": one(source, words.THINGS), "color": color, "other": other,
        "place": place, "elsewhere": elsewhere,
    }  # fmt: skip


def look_values(source: Source) -> Values:
    looks, other = two(source, source.one((words.COLORS, words.ADJECTIVES)))
    return {
        "thing": one(source, source.one((words.THINGS, words.ANIMALS))),
        "looks": looks, "other": other,
    }  # fmt: skip


def home_values(source: Source) -> Values:
    return {"name": source.name(), "city": source.city(), "elsewhere": source.city()}


def job_values(source: Source) -> Values:
    job, another = two(source, words.JOBS)
    adjective, wrong = two(source, words.ADJECTIVES)
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
    animal, other = two(source, words.ANIMALS)
    adjective, wrong = two(source, words.ADJECTIVES)
    return {
        "name": source.name(), "animal": animal, "other": other,
        "adjective": adjective, "wrong": wrong,
    }  # fmt: skip


def gift_values(source: Source) -> Values:
    thing, other = two(source, words.THINGS)
    return {"name": source.name(), "thing": thing, "other": other, "friend": source.name()}


SCENES: tuple[Scene, ...] = (
    (thing_values, ("The {color} {thing} is in the {place}.", "There is a {color} {thing} in the {place}.", "A {color} {thing} lies in the {place}.", "In the {place} is a {color} {thing}.", "The {place} has a {color} {thing}.", "You find a {color} {thing} in the {place}.", "The {place} holds a {color} {thing}.", "In our {place} there is a {color} {thing}.", "The {place} got a {color} {thing}.", "Somebody put a {color} {thing} into the {place}."), (
        ask("In the {place}.", "{place}", "Where is the {thing}?", "Where do I find the {thing}?", "Where is the {color} {thing}?", "In which place is the {thing}?", "Where must I look for the {thing}?"),
        ask("The {thing} is {color}.", "{color}", "What color is the {thing}?", "Which color does the {thing} have?", "What color does the {thing} have?", "Which color is the {thing}?", "Tell me the color of the {thing}."),
        ask("The {color} {thing}.", "{thing}", "What is in the {place}?", "Which thing is in the {place}?", "What do I find in the {place}?", "What is there in the {place}?", "What does the {place} have in it?"),
        ask("Yes.", "Yes", "Is the {thing} {color}?", "Is the {thing} in the {place}?", "Is there a {thing} in the {place}?", "Is it true that the {thing} is {color}?", "Does the {place} have a {thing}?"),
        ask("No, it is {color}.", "No", "Is the {thing} {other}?", "Is it true that the {thing} is {other}?", "Is the color of the {thing} {other}?", "Is it a {other} {thing}?", "Does the {thing} have the color {other}?"),
        ask("No, it is in the {place}.", "No", "Is the {thing} in the {elsewhere}?", "Is it true that the {thing} is in the {elsewhere}?", "Is the {color} {thing} in the {elsewhere}?", "Is there a {thing} in the {elsewhere}?", "Do I find the {thing} in the {elsewhere}?"),
    )),
    (look_values, ("The {thing} is {looks}.", "My {thing} is {looks}.", "This {thing} is {looks}.", "We have a {looks} {thing}.", "Our {thing} is {looks}.", "Her {thing} is {looks}.", "I have a {looks} {thing}.", "Their {thing} was {looks}.", "It is a {looks} {thing}.", "That {thing} looks {looks}."), (
        ask("Yes.", "Yes", "Is the {thing} {looks}?", "Is it true that the {thing} is {looks}?", "Is it a {looks} {thing}?", "Do we have a {looks} {thing}?", "Is it right that the {thing} is {looks}?"),
        ask("No, it is {looks}.", "No", "Is the {thing} {other}?", "Is it true that the {thing} is {other}?", "Is it a {other} {thing}?", "Do we have a {other} {thing}?", "Is it right that the {thing} is {other}?"),
        ask("The {thing} is {looks}.", "{looks}", "What is the {thing} like?", "How is the {thing}?", "What do you know about the {thing}?", "How does the {thing} look?", "What did I say about the {thing}?"),
        ask("The {thing} is {looks}.", "{thing}", "What is {looks}?", "Which thing is {looks}?", "What did I call {looks}?", "Which of them is {looks}?", "Tell me what is {looks}."),
    )),
    (home_values, ("{name} lives in {city}.", "{name} has a flat in {city}.", "{name} has always lived in {city}.", "{name} is at home in {city}.", "The home of {name} is {city}.", "{city} is the home of {name}.", "The city of {name} is {city}.", "{name} makes a home in {city}.", "You find {name} in {city}.", "{name} moved to {city}."), (
        ask("{name} lives in {city}.", "{city}", "Where does {name} live?", "In which city does {name} live?", "Where is {name} at home?", "Which city does {name} live in?", "What is the city of {name}?"),
        ask("{name} lives in {city}.", "{name}", "Who lives in {city}?", "Who has a home in {city}?", "Which person lives in {city}?", "Who is at home in {city}?", "Whose city is {city}?"),
        ask("Yes.", "Yes", "Does {name} live in {city}?", "Is {name} at home in {city}?", "Is it true that {name} lives in {city}?", "Is {city} the city of {name}?", "Has {name} a home in {city}?"),
        ask("No, {name} lives in {city}.", "No", "Does {name} live in {elsewhere}?", "Is {name} at home in {elsewhere}?", "Is it true that {name} lives in {elsewhere}?", "Is {elsewhere} the city of {name}?", "Has {name} a home in {elsewhere}?"),
    )),
    (job_values, ("{name} is a {adjective} {job}.", "{name} works as a {adjective} {job}.", "{name} became a {adjective} {job}.", "We know {name}, a {adjective} {job}.", "A {adjective} {job}, that is {name}.", "That {adjective} {job} is {name}.", "A {job}, and a {adjective} one, is {name}.", "The {adjective} {job} is called {name}.", "This is {name}, the {adjective} {job}.", "{name}, a {adjective} {job}, is here."), (
        ask("{name} is a {job}.", "{job}", "What is {name}?", "What does {name} do?", "What is the job of {name}?", "Which job does {name} have?", "As what does {name} work?"),
        ask("{name} is a {job}.", "{name}", "Who is a {job}?", "Who works as a {job}?", "Who is the {job}?", "Which person is a {job}?", "What is the name of the {job}?"),
        ask("Yes.", "Yes", "Is {name} a {job}?", "Does {name} work as a {job}?", "Is it true that {name} is a {job}?", "Is {name} {adjective}?", "Is the {job} {adjective}?"),
        ask("No, {name} is a {job}.", "No", "Is {name} a {another}?", "Does {name} work as a {another}?", "Is it true that {name} is a {another}?", "Is {name} the {another}?", "Has {name} the job of a {another}?"),
        ask("No, {name} is {adjective}.", "No", "Is {name} {wrong}?", "Is it true that {name} is {wrong}?", "Is {name} a {wrong} {job}?", "Is the {job} {wrong}?", "Would you call {name} {wrong}?"),
    )),
    (age_values, ("{name} is {age} years old.", "{name} is {age}.", "{name} turned {age} this year.", "{name} has the age of {age}.", "The age of {name} is {age}.", "{name}'s age is {age}.", "The years of {name} are {age}.", "{name} has lived {age} years.", "The age that {name} has is {age}.", "{name} just became {age}."), (
        ask("{name} is {age} years old.", "{age}", "How old is {name}?", "What is the age of {name}?", "Which age has {name}?", "What age is {name}?", "How many years old is {name}?"),
        ask("{name} is {age} years old.", "{name}", "Who is {age} years old?", "Who is {age}?", "Who has the age of {age}?", "Which person is {age} years old?", "Whose age is {age}?"),
        ask("Yes.", "Yes", "Is {name} {age} years old?", "Is {name} {age}?", "Is it true that {name} is {age}?", "Has {name} the age of {age}?", "Is the age of {name} {age}?"),
        ask("No, {name} is {age} years old.", "No", "Is {name} {wrong} years old?", "Is {name} {wrong}?", "Is it true that {name} is {wrong}?", "Has {name} the age of {wrong}?", "Is the age of {name} {wrong}?"),
    )),
    (pet_values, ("{name} has a {adjective} {animal}.", "{name} owns a {adjective} {animal}.", "{name} feeds a {adjective} {animal}.", "{name} keeps a {adjective} {animal}.", "A {adjective} {animal} lives with {name}.", "{name} lives with a {adjective} {animal}.", "A {adjective} {animal} belongs to {name}.", "The animal of {name} is a {adjective} {animal}.", "With {name} is a {adjective} {animal}.", "{name} bought a {adjective} {animal}."), (
        ask("{name} has a {adjective} {animal}.", "{animal}", "What does {name} have?", "Which animal does {name} have?", "What animal has {name}?", "What does {name} own?", "Which animal is with {name}?"),
        ask("{name} has a {animal}.", "{name}", "Who has a {animal}?", "Who owns a {animal}?", "Who has the {adjective} {animal}?", "Which person has a {animal}?", "Whose animal is the {animal}?"),
        ask("Yes.", "Yes", "Does {name} have a {animal}?", "Has {name} a {animal}?", "Is the {animal} {adjective}?", "Is it true that {name} has a {animal}?", "Does {name} own a {animal}?"),
        ask("No, {name} has a {animal}.", "No", "Does {name} have a {other}?", "Has {name} a {other}?", "Is the animal of {name} a {other}?", "Is it true that {name} has a {other}?", "Does {name} own a {other}?"),
        ask("No, it is {adjective}.", "No", "Is the {animal} {wrong}?", "Is it true that the {animal} is {wrong}?", "Is it a {wrong} {animal}?", "Is the animal {wrong}?", "Would you call the {animal} {wrong}?"),
    )),
    (gift_values, ("{name} gave the {thing} to {friend}.", "{name} brought {friend} the {thing}.", "{name} sent {friend} the {thing}.", "{friend} got the {thing} from {name}.", "The {thing} went from {name} to {friend}.", "The {thing} came from {name} to {friend}.", "A {thing} went to {friend} from {name}.", "{name} handed the {thing} to {friend}.", "{friend} has the {thing} from {name}.", "{name} passed the {thing} on to {friend}."), (
        ask("{name} gave the {thing} to {friend}.", "{name}", "Who gave the {thing} to {friend}?", "Who gave {friend} the {thing}?", "From whom is the {thing}?", "Who gave away the {thing}?", "From whom did {friend} get the {thing}?"),
        ask("{name} gave the {thing} to {friend}.", "{thing}", "What did {name} give to {friend}?", "What did {friend} get?", "What did {name} give away?", "What did {name} give {friend}?", "Which thing did {friend} get from {name}?"),
        ask("{name} gave the {thing} to {friend}.", "{friend}", "Whom did {name} give the {thing} to?", "Who got the {thing}?", "To whom did {name} give the {thing}?", "Who has the {thing} now?", "Who got something from {name}?"),
        ask("Yes.", "Yes", "Did {name} give the {thing} to {friend}?", "Did {friend} get the {thing}?", "Is the {thing} from {name}?", "Is it true that {friend} got the {thing}?", "Did {name} give {friend} the {thing}?"),
        ask("No, {name} gave the {thing} to {friend}.", "No", "Did {name} give the {other} to {friend}?", "Did {friend} get the {other}?", "Is the {other} from {name}?", "Is it true that {friend} got the {other}?", "Did {name} give {friend} the {other}?"),
    )),
)  # fmt: skip


def likes_values(source: Source) -> Values:
    thing, other = two(source, words.NOUNS)
    return {"name": source.name(), "thing": thing, "other": other}


def key_values(source: Source) -> Values:
    return {
        "key": source.noun(), "owner": source.name(), "value": source.word(),
        "wrong": source.made_up(),
    }  # fmt: skip


def move_values(source: Source) -> Values:
    place, elsewhere = two(source, words.PLACES)
    return {
        "name": source.name(), "place": place, "elsewhere": elsewhere,
        "time": source.time(), "late": source.time(),
    }  # fmt: skip


def price_values(source: Source) -> Values:
    return {
        "thing": one(source, words.THINGS), "price": str(source.integer(1, 999)),
        "wrong": str(source.integer(1000, 1999)), "number": str(source.integer(2, 60)),
    }  # fmt: skip


TRAINED: tuple[Scene, ...] = (
    (likes_values, ("{name} likes the {thing}.", "{name} is fond of the {thing}.", "What {name} likes is the {thing}.", "{name} prefers the {thing}.", "The {thing} is what {name} likes most."), (
        ask("{name} likes the {thing}.", "{thing}", "What does {name} like?", "What is {name} fond of?", "Which thing does {name} like?", "What is liked by {name}?", "Tell me what {name} likes."),
        ask("{name} likes the {thing}.", "{name}", "Who likes the {thing}?", "Who is fond of the {thing}?", "Which person likes the {thing}?", "By whom is the {thing} liked?", "Tell me who likes the {thing}."),
        ask("Yes.", "Yes", "Does {name} like the {thing}?", "Is {name} fond of the {thing}?", "Is it right that {name} likes the {thing}?", "Is it the {thing} that {name} likes?", "Is the {thing} liked by {name}?"),
        ask("No, {name} likes the {thing}.", "No", "Does {name} like the {other}?", "Is {name} fond of the {other}?", "Is it right that {name} likes the {other}?", "Is it the {other} that {name} likes?", "Is the {other} liked by {name}?"),
    )),
    (key_values, ("The {key} of {owner} is {value}.", "{owner} has the {key} {value}.", "{value} is the {key} of {owner}.", "{owner}: {key} {value}.", "{owner} has {value} as {key}.", "As {key}, {owner} has {value}."), (
        ask("The {key} of {owner} is {value}.", "{value}", "What is the {key} of {owner}?", "Which {key} does {owner} have?", "What {key} does {owner} have?", "Tell me the {key} of {owner}.", "What's the {key} of {owner}?", "What does {owner} have as {key}?"),
        ask("The {key} of {owner} is {value}.", "{owner}", "Whose {key} is {value}?", "Who has the {key} {value}?", "Who has {value} as {key}?", "The {key} of which person is {value}?", "Which person has the {key} {value}?"),
        ask("Yes.", "Yes", "Is the {key} of {owner} {value}?", "Does {owner} have the {key} {value}?", "Is {value} the {key} of {owner}?", "Has {owner} {value} as {key}?", "Is it right that the {key} of {owner} is {value}?"),
        ask("No, it is {value}.", "No", "Is the {key} of {owner} {wrong}?", "Does {owner} have the {key} {wrong}?", "Is {wrong} the {key} of {owner}?", "Has {owner} {wrong} as {key}?", "Is it right that the {key} of {owner} is {wrong}?"),
    )),
    (move_values, ("{name} went to the {place} at {time}.", "At {time} {name} walks into the {place}.", "{name} will be in the {place} at {time}.", "In the {place} waits {name} at {time}.", "You meet {name} at {time} in the {place}."), (
        ask("In the {place}.", "{place}", "Where is {name} at {time}?", "Where do I meet {name}?", "In which place is {name}?", "Where does one find {name}?", "Where is {name}?"),
        ask("At {time}.", "{time}", "When is {name} in the {place}?", "At what time is {name} there?", "When do I meet {name}?", "What time is it when {name} is there?", "At which time is {name} in the {place}?"),
        ask("{name} is in the {place}.", "{name}", "Who is in the {place}?", "Who is there at {time}?", "Whom do I meet in the {place}?", "Which person is in the {place}?", "Who comes at {time}?"),
        ask("Yes.", "Yes", "Is {name} in the {place}?", "Is {name} there at {time}?", "Do I meet {name} in the {place}?", "Do I meet {name} at {time}?", "Is it the {place} where {name} is?"),
        ask("No, it is the {place}.", "No", "Is {name} in the {elsewhere}?", "Do I meet {name} in the {elsewhere}?", "Is it the {elsewhere} where {name} is?", "Did {name} go to the {elsewhere}?", "Is {name} there, in the {elsewhere}?"),
        ask("No, at {time}.", "No", "Is {name} there at {late}?", "Do I meet {name} at {late}?", "Is it {late} when {name} comes?", "Does {name} come at {late}?", "Is {late} the time of {name}?"),
    )),
    (price_values, ("The {thing} costs {price} dollars.", "For the {thing} you pay {price} dollars.", "The price of the {thing} is {price} dollars.", "{price} dollars is what the {thing} costs.", "They want {price} dollars for the {thing}."), (
        ask("It costs {price} dollars.", "{price}", "How much is the {thing}?", "What does the {thing} cost?", "What is the price of the {thing}?", "How much does the {thing} cost?", "How many dollars is the {thing}?"),
        ask("The {thing}.", "{thing}", "What costs {price} dollars?", "Which thing costs {price} dollars?", "What is sold for {price} dollars?", "What has the price {price}?", "What do I get for {price} dollars?"),
        ask("Yes.", "Yes", "Does the {thing} cost {price} dollars?", "Is the price of the {thing} {price}?", "Is the {thing} sold for {price} dollars?", "Do I get the {thing} for {price} dollars?", "Are {price} dollars the price of the {thing}?"),
        ask("No, it costs {price} dollars.", "No", "Does the {thing} cost {wrong} dollars?", "Is the price of the {thing} {wrong}?", "Is the {thing} sold for {wrong} dollars?", "Do I pay {wrong} dollars for the {thing}?", "Are {wrong} dollars the price of the {thing}?"),
    )),
)  # fmt: skip
"""More scenes, with phrasings for the training only."""


More = tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]
MORE: tuple[More, ...] = (
    (("Look, a {color} {thing} in the {place}!", "Inside the {place} one sees a {color} {thing}.", "The {place}: a {color} {thing} stands there.", "We keep a {color} {thing} in the {place}.", "In the {place} they left a {color} {thing}.", "The {thing}, a {color} one, is in the {place}.", "There you have the {place} with its {color} {thing}.", "The {place} comes with a {color} {thing}.", "I saw a {color} {thing} at the {place}."), (
        ("Where can I see the {thing}?", "In what place is the {color} {thing}?", "Where did they leave the {thing}?", "Where should one go for the {thing}?", "Which place has the {thing}?", "Where might the {thing} be?", "Where can the {thing} be found?"),
        ("Of what color is the {thing}?", "The {thing} has which color?", "How is the {thing} painted?", "Name the color of the {thing}.", "In which color is the {thing}?", "What color would you say the {thing} has?"),
        ("What can be seen in the {place}?", "What stands in the {place}?", "Name the thing in the {place}.", "What does one find in the {place}?", "The {place} has what in it?", "What did they put in the {place}?"),
        ("Has the {place} a {thing}?", "Can I find the {thing} in the {place}?", "Is {color} the color of the {thing}?", "Did they put a {thing} into the {place}?", "Would you say the {thing} is {color}?"),
        ("Would you say the {thing} is {other}?", "Is {other} the color of the {thing}?", "Is the {thing} painted {other}?", "Has the {thing} a {other} color?", "Is this {thing} a {other} one?"),
        ("Can I find the {thing} in the {elsewhere}?", "Has the {elsewhere} a {thing}?", "Should I look for the {thing} in the {elsewhere}?", "Did they put the {thing} into the {elsewhere}?", "Is the {elsewhere} where the {thing} is?"),
    )),
    (("{looks} is what the {thing} is.", "How {looks} the {thing} is!", "The {thing} seems {looks}.", "You have a {looks} {thing}.", "Such a {looks} {thing}!", "The {thing} here is {looks}.", "There goes a {looks} {thing}.", "His {thing} turned {looks}.", "I would call this {thing} {looks}."), (
        ("Does the {thing} look {looks}?", "Is this {thing} {looks}?", "Can one say that the {thing} is {looks}?"),
        ("Does the {thing} look {other}?", "Is this {thing} {other}?", "Can one say that the {thing} is {other}?"),
        ("What can you tell me about the {thing}?", "Describe the {thing}.", "What would you call the {thing}?", "In what way is the {thing} special?", "What did we hear of the {thing}?", "What sort of {thing} is it?"),
        ("What would you call {looks}?", "What looks {looks}?", "Name what is {looks}.", "What was said to be {looks}?", "What here is {looks}?"),
    )),
    (("{name} stays in {city}.", "{name} is a citizen of {city}.", "Since years {name} has been in {city}.", "In {city} lives {name}.", "The house of {name} is in {city}.", "{name} calls {city} home.", "{name} has a house in {city}.", "Home for {name} means {city}.", "{name} comes from {city} and stays there."), (
        ("Where is the home of {name}?", "Where does {name} stay?", "What does {name} call home?", "In what city is {name} at home?", "Name the city of {name}.", "Where would I find {name}?", "Where has {name} a home?"),
        ("Who stays in {city}?", "Who calls {city} home?", "Who is found in {city}?", "Which person is at home in {city}?", "Name who lives in {city}.", "Who has the city {city}?"),
        ("Does {name} stay in {city}?", "Is the home of {name} {city}?", "Would I find {name} in {city}?", "Does {name} have a home in {city}?", "Is it {city} where {name} lives?"),
        ("Does {name} stay in {elsewhere}?", "Is the home of {name} {elsewhere}?", "Would I find {name} in {elsewhere}?", "Does {name} have a home in {elsewhere}?", "Is it {elsewhere} where {name} lives?"),
    )),
    (("{name}: {job}, and {adjective}.", "Meet {name}, our {adjective} {job}.", "{name} has long been a {adjective} {job}.", "They say that {name} is a {adjective} {job}.", "Here comes {name}, a {adjective} {job}.", "The {job} {name} is {adjective}.", "Our {job} is {name}, who is {adjective}.", "A {adjective} {job} has the name {name}.", "A {adjective} {job}, called {name}, is here."), (
        ("What work does {name} do?", "{name} has which job?", "Name the job of {name}.", "How does {name} earn money?", "What is the work of {name}?", "What does {name} work as?", "By job, what is {name}?"),
        ("How is the {job} called?", "Name the {job}.", "Who has the job of a {job}?", "What name does the {job} have?", "Which name has the {job}?", "Who would be the {job}?"),
        ("Is {name} one of the {adjective} ones?", "Is {name} a {adjective} {job}?", "Is the {job} called {name}?"),
        ("Is {another} the job of {name}?", "Does {name} earn money as a {another}?", "Would {name} be a {another}?", "Is {name} known as a {another}?"),
        ("Would one say that {name} is {wrong}?", "Is {name} {wrong} as a {job}?", "Is {name} a {wrong} one?", "Do they call {name} {wrong}?", "Is this {job} {wrong}?"),
    )),
    (("{name}, {age} years old, is here.", "{age} years is the age of {name}.", "At {age}, {name} is still here.", "Since a week {name} is {age} years old.", "{name} will stay {age} for a while.", "{name}: {age} years.", "{age} years ago {name} was born.", "{name} counts {age} years.", "They say that {name} is {age} years of age."), (
        ("How many years has {name}?", "Name the age of {name}.", "{name} is how old?", "How many years does {name} count?", "Of what age is {name}?", "At what age is {name}?"),
        ("Who counts {age} years?", "Who is of the age {age}?", "Name who is {age} years old.", "Which person is {age}?", "Who is at the age of {age}?"),
        ("Does {name} count {age} years?", "Is {name} of the age {age}?", "Would {name} be {age}?", "Is {age} the age of {name}?"),
        ("Does {name} count {wrong} years?", "Is {name} of the age {wrong}?", "Would {name} be {wrong}?", "Is {wrong} the age of {name}?"),
    )),
    (("There is {name} with a {adjective} {animal}.", "A {adjective} {animal} follows {name}.", "{name} walks a {adjective} {animal}.", "{name} takes care of a {adjective} {animal}.", "At home {name} has a {adjective} {animal}.", "{name} got a {adjective} {animal}.", "{name} found a {adjective} {animal}.", "To {name} belongs a {adjective} {animal}.", "{name} came with a {adjective} {animal}."), (
        ("Name the animal of {name}.", "What animal is with {name}?", "What belongs to {name}?", "Which animal belongs to {name}?", "What kind of animal does {name} keep?", "{name} has which animal?"),
        ("Who keeps a {animal}?", "To whom does the {animal} belong?", "Who is with the {animal}?", "Name who has a {animal}.", "Who lives with a {animal}?", "Whose is the {animal}?"),
        ("Does {name} keep a {animal}?", "Does a {animal} belong to {name}?", "Is the animal of {name} a {animal}?"),
        ("Does {name} keep a {other}?", "Does a {other} belong to {name}?", "Is there a {other} with {name}?", "Did {name} get a {other}?"),
        ("Does the {animal} look {wrong}?", "Is the animal of {name} {wrong}?", "Can one call the {animal} {wrong}?", "Is the {animal} of {name} {wrong}?"),
    )),
    (("{name} let {friend} have the {thing}.", "To {friend} went the {thing}, from {name}.", "From {name} the {thing} came to {friend}.", "The {thing} is for {friend}, from {name}.", "{friend} took the {thing} from {name}.", "It was {name} who gave {friend} the {thing}.", "{name} made {friend} a present of the {thing}.", "{friend} was given the {thing} by {name}.", "{name} had the {thing} and passed it to {friend}.", "The {thing} that {friend} has is from {name}.", "{name} handed {friend} the {thing}."), (
        ("By whom was the {thing} given to {friend}?", "Who passed on the {thing}?", "Who let {friend} have the {thing}?", "Where did {friend} get the {thing} from?", "Who made a present of the {thing}?", "From whom did the {thing} come?", "Who had the {thing} before {friend}?", "Whose present is the {thing}?"),
        ("What was given to {friend}?", "What did {name} pass on?", "What came from {name}?", "What does {friend} have from {name}?", "Name what {friend} got.", "Which thing did {name} give away?"),
        ("Who was given the {thing}?", "To whom went the {thing}?", "Who took the {thing}?", "Who was it that {name} gave something?", "For whom is the {thing}?", "Who got the {thing} from {name}?", "To whom did {name} give something?"),
        ("Was the {thing} given to {friend}?", "Does {friend} have the {thing} now?", "Was it {name} who gave the {thing} away?", "Did the {thing} go to {friend}?"),
        ("Was the {other} given to {friend}?", "Does {friend} have the {other} now?", "Did {name} give away the {other}?", "Did the {other} go to {friend}?"),
    )),
)  # fmt: skip
"""More sentences for each scene, and more phrasings of its questions, for the training."""


ABOUT = (
    "{text} {question}", "{text}\n{question}", "{text}\n\n{question}", "Text: {text} Question: {question}",
    "Here is a text: {text} {question}", "{question} Text: {text}", "Read: {text} {question}",
    "{text} Now tell me: {question}", "Text: {text}\nQuestion: {question}", "Given: {text}\n{question}",
)  # fmt: skip


def question(source: Source) -> Lesson:
    """Returns a question about one sentence, which may be among others."""
    (make, sentences, questions), (more_sentences, more_asked) = _scene(source)
    values = make(source)
    text = filled(several(source, sentences, more_sentences), **values)
    # Next to other scenes, only a sentence that names its own things is clear.
    asked, more = source.one(list(zip(questions, more_asked, strict=True)))
    told = [text, *(sentence(source) for _ in range(source.upto(1, 3) - 1))]
    if not source.held_out and source.chance(0.35):
        others = alike(source, make, values)
        told.append(filled(several(source, sentences, more_sentences), **others))
    request = phrase(source, ABOUT, phrasings.ABOUT, 0.8).format(
        text=" ".join(source.some(told, len(told))),
        question=filled(several(source, asked.asked, more), **values),
    )
    return exercise(
        source,
        "question",
        request,
        filled(asked.answer, **values),
        f"The text says: {text}",
        facts=(asked.fact.format(**values),),
    )


TRUE = {
    "other": ("color", "looks", "animal", "thing"), "elsewhere": ("place", "city"), "another": ("job",),
    "wrong": ("adjective", "age", "value", "price"), "late": ("time",),
}  # fmt: skip
"""Questions about things that aren't so, and the questions that they replace."""


def alike(source: Source, make: Callable[[Source], Values], values: Values) -> Values:
    """Returns values of the same scene, all different from `values`. A false statement about one
    may be true of the other, so an answer has to look at the right person."""
    while True:
        others = make(source)
        if source.chance(0.5):
            for false, trues in TRUE.items():
                true = next((each for each in trues if each in values), None)
                if false in values and true:
                    others[true] = values[false]
        kept = {key: value for key, value in values.items() if key not in TRUE}
        if set(others.values()).isdisjoint(kept.values()):
            return others


ALL: list[tuple[Scene, More]] = [
    *zip(SCENES, MORE, strict=True),
    *((each, ((), ((),) * len(each[2]))) for each in TRAINED),
]
"""Each scene with further phrasings for the training; the scenes of the evaluation come first."""


def _scene(source: Source) -> tuple[Scene, More]:
    return source.one(ALL[: len(SCENES)] if source.held_out else ALL)


def sentence(source: Source) -> str:
    """Returns a sentence of any scene."""
    (make, sentences, _), (more, _) = _scene(source)
    return filled(several(source, sentences, more), **make(source))
