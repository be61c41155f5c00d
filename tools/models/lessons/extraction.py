"""Extraction: sentences to JSON objects."""

import json
from collections.abc import Callable
from typing import Any

from tools.models.lessons import phrasings, words
from tools.models.lessons.distinctions import (
    told_denial,
    told_measures,
    told_owner,
    told_people,
)
from tools.models.lessons.lesson import Lesson, Message, filled, listing, user
from tools.models.lessons.phrasings import EXTRACT_ALL, EXTRACTION, phrase, several
from tools.models.lessons.source import Source

ABILITY = "extraction"

Maker = Callable[[Source], Any]

ASK = (
    "Extract {keys}: {text}", "Extract {keys} from this text: {text}", "Get {keys} as JSON: {text}",
    "{text}\n\nExtract {keys} as JSON.", "Find {keys} in this text: {text}",
    "Give me {keys} as JSON.\n\n{text}", "Turn this into JSON with {keys}: {text}",
    "Text: {text}\nKeys: {keys}", "Return a JSON object with {keys}. {text}",
    "What are {keys} here? Answer in JSON. {text}", "{text} Write {keys} as JSON.",
    "Read this and extract {keys}: \"{text}\"", "Extract the fields {keys}.\n{text}",
    "JSON with {keys}: {text}", "From the text \"{text}\" take {keys} as a JSON object.",
)  # fmt: skip
ASK_ALL = (
    "Extract the data as JSON: {text}", "Turn this into JSON: {text}", "{text}\n\nAs JSON:",
    "Extract the information: {text}", "Write this as a JSON object: {text}",
    "JSON: {text}", "Extract the facts from this sentence: {text}", "Convert to JSON: {text}",
    "Give me the data in this text: {text}", "Make a JSON object of this: {text}",
)  # fmt: skip

FIELDS: dict[str, tuple[Maker, tuple[str, ...]]] = {
    "name": (Source.name, ("{} is here", "his name is {}", "her name is {}", "my name is {}", "I am called {}", "the name is {}", "we met {}", "they call me {}")),
    "age": (lambda s: s.integer(1, 99), ("is {} years old", "aged {}", "turned {} this year", "is {}", "has the age {}", "{} years old")),
    "city": (Source.city, ("lives in {}", "comes from {}", "moved to {}", "is from {}", "works in {}", "stays in {}")),
    "country": (lambda s: s.listed(words.COUNTRIES), ("was born in {}", "grew up in {}", "travelled to {}", "likes {}", "has a house in {}")),
    "job": (lambda s: s.listed(words.JOBS), ("works as a {}", "is a {}", "earns money as a {}", "wants to be a {}", "became a {}")),
    "email": (Source.address, ("can be reached at {}", "has the email {}", "uses the address {}", "writes from {}", "email {}")),
    "phone": (lambda s: s.own(lambda: f"{s.number(100, 999)}-{s.number(1000, 9999)}"), ("has the phone number {}", "can be called at {}", "phone {}", "answers at {}", "has the number {}")),
    "color": (lambda s: s.listed(words.COLORS), ("likes the color {}", "wears {}", "loves {}", "painted the house {}", "prefers {}")),
    "animal": (lambda s: s.listed(words.ANIMALS), ("has a {}", "owns a {}", "feeds a {}", "saw a {}", "loves the {}")),
    "company": (lambda s: s.made_up().capitalize(), ("is at the company {}", "founded {}", "is employed by {}", "owns the company {}", "left the company {}")),
    "hobby": (lambda s: s.listed(words.HOBBIES), ("enjoys {}", "spends evenings with {}", "is good at {}", "has the hobby {}", "does {}")),
}  # fmt: skip
MORE_CLAUSES = {
    "name": ("this is {}", "it is {}"),
    "age": ("is now {} years old", "will soon be more than {}", "has lived {} years", "became {} last week", "is a person of {} years", "is of the age {}", "reached the age of {}"),
    "city": ("has a flat in {}", "spends the year in {}", "went to {}", "was seen in {}", "is at home in {}", "found work in {}"),
    "country": ("is a citizen of {}", "spent years in {}", "visits {}", "left {}", "knows all of {}"),
    "job": ("is employed as a {}", "is the new {}", "used to be a {}", "found work as a {}", "is known as a good {}"),
    "email": ("reads mail at {}", "gets mail at {}", "should be written to at {}", "has {} as email", "mail goes to {}", "email address {}", "mail: {}"),
    "phone": ("picks up at {}", "has the phone {}", "gets calls on {}", "uses the phone number {}", "phone: {}", "has a phone with the number {}", "number {}"),
    "color": ("dresses in {}", "thinks that {} is the best color", "bought something {}", "has a {} coat", "paints all in {}", "always prefers the color {}", "would rather have {}"),
    "animal": ("keeps a {}", "lives with a {}", "bought a {}", "walks a {}", "is followed by a {}"),
    "company": ("works for {}", "is paid by {}", "joined {}", "leads {}", "has a job at {}"),
    "hobby": ("likes {}", "loves {}", "spends the weekend with {}", "is fond of {}", "has taken up {}", "does some {}", "often does {}"),
}  # fmt: skip
SMALL_WORDS = {
    "job": ("a {}", "a {}", "as a {}"), "animal": ("the {}", "the {}", "a {}"), "color": ("{}", "{}", "in {}"), "hobby": ("{}", "{}", "at {}", "some {}"),
    "city": ("in {}", "from {}", "to {}"), "country": ("in {}", "all of {}", "from {}"), "company": ("the company {}", "at {}", "for {}"),
}  # fmt: skip
"""Words that mostly precede a value, whatever the verb."""
PRODUCT = (
    ("product", "price", "quantity"),
    (
        "{name} bought {quantity} {product} for {price} dollars.",
        "The {product} costs {price} euros and there are {quantity} of it.",
        "{quantity} pieces of {product} at {price} each.",
        "Order: {quantity} x {product}, {price} USD.",
        "We sell {quantity} {product} at a price of {price}.",
        "I would like {quantity} {product}. That is {price} in total.",
        "Price of {product}: {price}. In stock: {quantity}.",
        "There are {quantity} {product} left, {price} each.",
    ),
)
MEETING = (
    ("name", "date", "time", "place"),
    (
        "{name} comes on {date} at {time} to the {place}.",
        "Meeting with {name} on {date}, {time}, in the {place}.",
        "On {date} at {time} we see {name} in the {place}.",
        "The {place} is booked by {name} for {date} at {time}.",
        "{name}: {place}, {date}, {time}.",
        "Please meet {name} in the {place} at {time} on {date}.",
    ),
)


MORE_PRODUCT = (
    "{quantity} {product} cost {price} each.", "Stock: {quantity} {product}, price {price}.", "For {price} you get one {product}, and {quantity} are here.",
    "{name} sells {product} for {price}, {quantity} are left.", "The price for a {product} is {price}. We have {quantity}.", "{product} | {price} | {quantity} pieces",
    "Please send {quantity} {product} for {price} euros.", "{name} pays {price} for each of {quantity} {product}.", "In the shop are {quantity} {product} at {price}.",
    "We have {quantity} {product}, and each is {price}.", "They sold {quantity} {product} at {price} dollars.", "{product}: {quantity} in stock, {price} euros.",
    "A {product} is {price} euros, and {name} took {quantity}.", "Item {product}, number {quantity}, price {price}.", "{quantity} times {product}, which is {price} each.",
    "{name} ordered {product} ({quantity} of them) for {price}.", "Buy {quantity} {product}! Only {price} dollars.", "The cost of {product} is {price}; the shop keeps {quantity}.",
)  # fmt: skip
SIGNED = (
    "The {product} costs ${price}.", "{product} for ${price}", "The new {product} costs ${price} and comes in a few days.", "{quantity} {product} at ${price} each", "Buy {product} now, only ${price}!",
    "{product}: €{price}", "Pay ${price} for {quantity} {product}.", "Total: ${price} for {quantity} {product}", "We sell the {product} at €{price}.", "{name} sells {quantity} {product} for ${price}.", "${price} is the price of the {product}.",
    "{product} | ${price} | {quantity}", "Price ${price}, product {product}, quantity {quantity}", "Only {quantity} {product} are left, at €{price} each.", "Today the {product} is ${price}, {quantity} in stock.",
)  # fmt: skip
"""Used only in the training."""
MORE_MEETING = (
    "{name} will be in the {place} on {date} at {time}.", "See {name}, {date}, {time}, {place}.", "{date} {time}: {name} in the {place}",
    "At {time} on {date} {name} waits in the {place}.", "{place}, {date}, {time}: {name}", "The {place} at {time} on {date}, with {name}.",
    "{name} wants to talk on {date} in the {place}. It starts at {time}.", "We meet {name}. Place: {place}. Day: {date}. Time: {time}.",
    "Come to the {place} at {time}! {name} is there on {date}.", "{name} ({place}), {date}, {time}", "On {date}, {name} opens the {place} at {time}.",
    "{date}: the {place} is for {name}, from {time} on.", "Talk by {name}: {date}, {time}, {place}", "{name} - {date} - {time} - {place}",
)  # fmt: skip


def lesson(source: Source) -> Lesson:
    makers = PLAIN if source.held_out else (*PLAIN, *HARDER)
    shares = EVALUATED if source.held_out else TRAINED
    make = source.random.choices(makers, shares)[0]
    text, fields = make(source)
    keys = list(fields)
    if len(keys) > 1 and source.chance(0.35):
        keys = source.some(keys, source.number(1, len(keys) - 1))
    elif source.chance(0.3):
        source.random.shuffle(keys)
    # In random words, it is unknown what they say of a value, and which one is the key.
    if (
        source.chance(0.85 if source.held_out else 0.7)
        or set(keys) != set(fields)
        or make in PUZZLES
    ):
        named = listing(keys) if source.chance(0.8) else ", ".join(keys)
        if source.chance(0.2):
            named = "the " + named
        asked = phrase(source, ASK, EXTRACTION, 0.8).format(keys=named, text=text)
    else:
        keys = list(fields)
        asked = phrase(source, ASK_ALL, EXTRACT_ALL, 0.7).format(text=text)
    content = json.dumps({key: fields[key] for key in keys}, ensure_ascii=False)
    answer: Message = {"role": "assistant", "content": content}
    if source.chance(0.4):
        answer["reasoning_content"] = f"I look for {listing(keys)}."
    return Lesson(ability=ABILITY, kind="fields", messages=[user(asked)], answer=answer)


Found = tuple[str, dict[str, Any]]


Clause = Callable[[Source, str, Any], str]


def described(source: Source, key: str, value: Any) -> str:
    said = several(source, FIELDS[key][1], MORE_CLAUSES[key], phrasings.described(key), 0.25)
    return filled(said, value)


def puzzling(source: Source, key: str, value: Any) -> str:
    """Returns a clause, in some lessons in any words, so that only the value's form, a small word
    before it, or the other values determine the key."""
    if source.chance(0.4):
        return described(source, key, value)
    small = filled(source.one(SMALL_WORDS.get(key, ("{}",))), value)
    if source.chance(0.4):
        return f"{source.link(1, 2)} {small}"
    verb = source.one((source.made_up, source.word, source.piece))().lower()
    return f"{verb}{source.one(('s', 's', 'ed', ''))} {small}"


def acquaintance(source: Source) -> Found:
    return person(source, puzzling)


def person(source: Source, clause: Clause = described) -> Found:
    """Clauses about a person, in one or more sentences."""
    keys = source.some(
        [key for key in FIELDS if key != "name"], source.number(1, source.upto(1, 5))
    )
    name = source.name()
    if not source.held_out and source.chance(0.2):
        name += f" {source.name()}"
        if source.chance(0.4):
            return contact(source, name)
    fields: dict[str, Any] = {}
    clauses = []
    for key in keys:
        fields[key] = FIELDS[key][0](source)
        clauses.append(clause(source, key, fields[key]))
    fields = {"name": name, **fields}
    style = source.number(0, 3)
    if style == 0:
        return f"{name} {listing(clauses)}.", fields
    if style == 1:
        pronoun = source.one(("He", "She"))
        return " ".join(
            [f"{name} {clauses[0]}.", *(f"{pronoun} {each}." for each in clauses[1:])]
        ), fields
    if style == 2:
        # As in forms.
        separator = source.one((", ", "; ", "\n"))
        return separator.join(f"{key}: {value}" for key, value in fields.items()), fields
    noise = source.sentence(3, 7)
    sentences = [f"{name} {clauses[0]}.", *(f"{name} {each}." for each in clauses[1:])]
    sentences.insert(source.number(0, len(sentences)), noise)
    return " ".join(sentences), fields


CONTACTS = {
    "email": ("Write to {name} at {}", "{name} <{}>", "Contact: {name}, {}", "Mail {name}: {}", "Please mail {name} at {}.", "{} belongs to {name}", "{name} reads {}", "For more ask {name} ({}).", "Send it to {}, that is {name}.", "Reach {name} under {}"),
    "phone": ("Call {name} at {}", "{name}: {}", "Phone {} and ask for {name}.", "{name} is at {}", "Ring {name} on {}.", "Dial {} for {name}", "For more call {name} ({}).", "{name}, phone {}"),
    "city": ("Visit {name} in {}", "Meet {name} in {}.", "{name} ({})", "Greetings from {}, {name}", "Send it to {name} in {}.", "{name} of {}", "In {} ask for {name}."),
}  # fmt: skip
"""Used only in the training: beginnings that no value has."""


def contact(source: Source, name: str) -> Found:
    """Returns a name and the other parts of an address."""
    key = source.one(list(CONTACTS))
    value = FIELDS[key][0](source)
    return source.one(CONTACTS[key]).format(value, name=name), {"name": name, key: value}


def product(source: Source) -> Found:
    fields = {
        "product": source.listed(words.THINGS) if source.chance(0.5) else source.made_up(),
        "price": source.own(
            lambda: (
                source.number(1, 999)
                if source.chance(0.5)
                else round(source.number(100, 9999) / 100, 2)
            )
        ),
        "quantity": source.integer(2, 99),
    }
    text = several(source, PRODUCT[1], MORE_PRODUCT)
    if not source.held_out:
        if source.chance(0.3):
            # As they are named in shops.
            first = source.one((source.made_up, source.noun))().capitalize()
            fields["product"] = f"{first} {str(fields['product']).capitalize()}"
        if source.chance(0.3):
            text = source.one(SIGNED)
            fields = {key: value for key, value in fields.items() if f"{{{key}}}" in text}
    return text.format(name=source.name(), **fields), fields


def meeting(source: Source) -> Found:
    fields = {
        "name": source.name(),
        "date": source.date(),
        "time": source.time(),
        "place": source.listed(words.PLACES),
    }
    if not source.held_out and source.chance(0.3):
        # Their forms show what they are.
        separator = source.one((", ", "; ", ": ", " - ", "\n", " | "))
        return separator.join(source.some(list(fields.values()), 4)) + source.one((".", "")), fields
    return several(source, MEETING[1], MORE_MEETING).format(**fields), fields


SAID = (
    "the {key} is {value}", "{key}: {value}", "its {key} is {value}", "{key} {value}",
    "the {key} was {value}", "with the {key} {value}", "{value} is the {key}",
    "{key} = {value}", "a {key} of {value}", "has {value} as {key}",
    "it has {value} as its {key}", "with {value} as {key}", "shows {value} as its {key}", "the {key} used to be {value}",
    "whose {key} is {value}", "has the {key} {value}", "gives {value} as the {key}", "there the {key} was {value}",
    "its {key} had been {value}", "the {key} here is {value}",
)  # fmt: skip
MORE_SAID = (
    "{key} was {value}", "the {key} happens to be {value}", "we have {value} for {key}", "{key} being {value}",
    "{value} for the {key}", "its {key} was {value}", "{value} is its {key}", "as {key} we have {value}",
    "the {key} reads {value}", "the {key}, {value}", "{key} - {value}", "\"{key}\" is {value}",
    "{value} as the {key}", "a {key}, which is {value}", "the {key} equals {value}", "{key} ({value})",
    "{value} was its {key}", "{key} has the value {value}", "{value} counts as {key}", "for {key} it says {value}",
)  # fmt: skip


def goods(source: Source) -> Found:
    """Returns a product in any words: its number comes first, and "price" or a small word comes
    before the price."""
    _, fields = product(source)
    fields = {
        "product": source.listed(words.THINGS),
        "price": source.integer(1, 99),
        "quantity": source.integer(2, 99),
        **fields,
    }
    many = (
        f"{fields['quantity']} {source.one(('', '', 'of ', 'x ', 'pieces of '))}{fields['product']}"
    )
    costs = f"{source.one(('price', 'the price', 'a price of', 'priced', 'for', 'each', 'at', 'costs'))} {fields['price']}"
    order = [many, costs] if source.chance(0.75) else [costs, many]
    verb = source.one(
        ("", "", *(each.capitalize() + " " for each in (source.word(), source.name())))
    )
    text = f"{verb}{source.link(0, 2)} {f' {source.link(0, 2)} '.join(order)}"
    return " ".join(text.split()) + source.one((".", "", "!")), fields


def linked(source: Source, key: str, value: Any) -> str:
    """Returns a key and its value, in any order, with any words before and between them."""
    order = (key, str(value)) if source.chance(0.6) else (str(value), key)
    return f"{source.link(0, 2)} {f' {source.link(1, 2)} '.join(order)}".strip()


def made_up(source: Source) -> Found:
    """Returns keys and values with any names."""
    fields: dict[str, Any] = {}
    for _ in range(source.number(1, source.upto(2, 5))):
        if not source.held_out and source.chance(0.08):
            # Known keys may have any value.
            key = source.one(list(FIELDS))
            fields[key] = source.one((source.value(), source.word(), source.integer(0, 9999)))
            continue
        key = source.noun() if source.chance(0.75) else f"{source.noun()}_{source.made_up()}"
        fields[key] = source.one((source.value(), source.word(), source.integer(0, 9999)))
    clauses = []
    for key, value in fields.items():
        pattern = several(source, SAID, MORE_SAID, phrasings.SAID, 0.4)
        if not source.held_out and source.chance(0.12):
            opening = source.one((source.made_up(), source.word(), source.link(1, 1)))
            pattern = opening + source.one(OPENED)
        clauses.append(pattern.format(key=key, value=value))
    return _sentences(source, clauses, fields), fields


OPENED = (" {key} is {value}", " {key} is {value}", " {key} was {value}", " {key}: {value}", " {key} there is {value}", " {key} has been {value}")  # fmt: skip
"""After an unknown word: the key precedes "is"."""


def stated(source: Source) -> Found:
    """Returns keys and values with any names, in any words."""
    fields = made_up(source)[1]
    clauses = [linked(source, key, value) for key, value in fields.items()]
    return _sentences(source, clauses, fields), fields


def _sentences(source: Source, clauses: list[str], fields: dict[str, Any]) -> str:
    text = listing(clauses) if source.chance(0.5) else ". ".join(clauses)
    # A value stays unchanged.
    if source.held_out or not text.startswith(tuple(map(str, fields.values()))):
        text = text[0].upper() + text[1:]
    return text + "."


def denied(source: Source) -> Found:
    """Returns a sentence with a right and a wrong value of a key."""
    key = source.one([each for each in FIELDS if each != "name"])
    return told_denial(source, FIELDS[key][0], key)


def owned(source: Source) -> Found:
    """Returns a sentence that begins with a possessive."""
    key = source.one([each for each in FIELDS if each != "name"])
    return told_owner(source, FIELDS[key][0], key)


PLAIN = (person, product, meeting, made_up)
HARDER = (stated, acquaintance, goods, told_people, owned, denied, told_measures)
"""Only in the training."""
EVALUATED = (40, 12, 8, 40)
TRAINED = (21, 7, 6, 18, 11, 13, 4, 6, 5, 5, 4)
PUZZLES = HARDER
"""Lessons that need the keys to be known."""
