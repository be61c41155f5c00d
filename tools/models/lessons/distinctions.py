"""What one request or sentence has two of, and how they differ: two people, a value and its
opposite, the owner in a possessive and other possessives, a number and its unit. Only for the
training."""

from collections.abc import Callable, Sequence
from typing import Any

from tools.models.lessons import words
from tools.models.lessons.lesson import filled
from tools.models.lessons.phrasings import Parts
from tools.models.lessons.source import Source, is_held_out
from tools.models.lessons.toolbox import (
    DESCRIBED,
    Parameter,
    Tool,
    Value,
    any_verb,
    decimal,
    number,
    parameter_name,
    spoken,
    unknown_verb,
)

Found = tuple[str, dict[str, Any]]
Asked = tuple[str, dict[str, Value]]
Words = dict[str, str]
"""What a request says of a tool: a `verb`, which is often not the tool's, the tool's `own` verb, and
its `noun`."""
TEXT, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}


def made(source: Source, parts: Sequence[Parts]) -> str:
    """Returns a phrasing made from one of `parts`."""
    return "".join(map(source.one, source.one(parts)))


def trained(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Returns the pairs without a word that is only in the evaluation."""
    return [pair for pair in pairs if not any(map(is_held_out, pair))]


END = ("", "", ".", "!", ", please", ", please.")
DO = ("{verb} the {noun}", "{verb} a {noun}", "{verb} this {noun}", "{verb} my {noun}", "{verb} {noun}")  # fmt: skip

# ---- two people --------------------------------------------------------------------------------

GIVING = trained((
    ("giver", "receiver"), ("seller", "buyer"), ("payer", "payee"), ("from_person", "to_person"), ("writer", "reader"), ("origin", "goal"),
    ("from_name", "to_name"), ("source_person", "target_person"), ("donor", "recipient"), ("supplier", "customer"), ("maker", "user"), ("giver_name", "taker_name"),
))  # fmt: skip
"""Parameters and keys for two people: something goes from the first one to the second one."""
ROLES = trained((
    ("teacher", "student"), ("doctor", "patient"), ("boss", "worker"), ("captain", "sailor"), ("winner", "loser"), ("parent", "child"), ("caller", "friend"),
    ("first_player", "second_player"), ("guide", "visitor"), ("singer", "dancer"), ("mother", "daughter"), ("uncle", "nephew"), ("pilot", "guest"), ("judge", "lawyer"),
))  # fmt: skip
"""Those that only their own names distinguish."""
FROM_TO: tuple[Parts, ...] = (
    (DO, (" from {a} to {b}", " to {b} from {a}", " by {a} for {b}", " for {b} by {a}", " from {a}, for {b}", ", from {a} and for {b}", " to {b}, it is from {a}", " that {a} has for {b}", " of {a} to {b}"), END),
    (("From {a} to {b}: ", "To {b} from {a}: ", "By {a}, for {b}: ", "For {b}, from {a}: ", "{a} to {b}: ", "To {b}, by {a}: "), DO, END),
    (("{a} has a {noun} for {b}", "{b} gets a {noun} from {a}", "{b} should get the {noun} of {a}", "{a} gives the {noun} to {b}", "{a} wants {b} to have a {noun}", "The {noun} of {a} is for {b}", "The {noun} goes from {a} to {b}", "The {noun} goes to {b} from {a}", "{b} needs a {noun}, and {a} has it"), ("", ".", ". {verb} it.", ": {verb} it", ", {verb} it, please")),
)  # fmt: skip
NAMED: tuple[Parts, ...] = (
    (DO, (" with {a} as {ka} and {b} as {kb}", " with {b} as {kb} and {a} as {ka}", ", {ka} {a}, {kb} {b}", ", {kb} {b}, {ka} {a}", " where {a} is the {ka} and {b} the {kb}", " where {b} is the {kb} and {a} the {ka}", " of the {ka} {a} and the {kb} {b}", " for {b}, the {kb}, and {a}, the {ka}", " for the {kb} {b} by the {ka} {a}", " of {a}, our {ka}, and {b}, our {kb}"), END),
    (("{a} is the {ka} and {b} the {kb}", "{b} is the {kb}, {a} is the {ka}", "The {ka} is {a} and the {kb} is {b}", "Our {kb} is called {b}, and the {ka} {a}", "With {a}, the {ka}, and {b}, the {kb}"), (": ", ". ", ", "), DO, END),
)  # fmt: skip
TOLD_FROM_TO = (
    "{a} gave something to {b}", "{b} got something from {a}", "{a} sold a {noun} to {b}", "{b} bought a {noun} from {a}", "{a} sent {b} a {noun}", "{b} has a {noun} from {a}",
    "{a} wrote to {b}", "{b} heard from {a}", "a {noun} went from {a} to {b}", "a {noun} came to {b} from {a}", "{a} made a {noun} for {b}", "the {noun} by {a} is for {b}",
    "from {a} to {b}", "to {b} from {a}", "{a} -> {b}", "{b} received the {noun} that {a} sent", "what {b} has was sent by {a}", "{a} {verb}s a {noun} to {b}", "{b} {verb}s a {noun} from {a}",
)  # fmt: skip
TOLD_NAMED = (
    "the {ka} {a} met the {kb} {b}", "the {kb} {b} met the {ka} {a}", "{a} is the {ka} and {b} the {kb}", "{b} is the {kb}, and {a} is the {ka}", "{a}, the {ka}, {verb}s {b}, the {kb}", "{b}, the {kb}, {verb}s {a}, the {ka}",
    "the {ka} {a} {verb}s the {kb} {b}", "the {kb} {b} {verb}s the {ka} {a}", "{a} ({ka}) and {b} ({kb})", "{b} ({kb}) and {a} ({ka})", "with {a} as {ka} and {b} as {kb}", "as {kb} we have {b}, as {ka} {a}", "their {ka} is {a} and their {kb} is {b}",
)  # fmt: skip


def people(source: Source) -> tuple[tuple[str, str], bool]:
    """Returns the keys of two people, and whether small words like "from" distinguish them."""
    gives = source.chance(0.6)
    return source.one(GIVING if gives else ROLES), gives and source.chance(0.75)


def two_names(source: Source) -> tuple[str, str]:
    first, second = source.name(), source.name()
    while second == first:
        second = source.name()
    return first, second


def people_tool(source: Source) -> Tool:
    keys, gives = people(source)

    def ask(source: Source, said: Words) -> Asked:
        a, b = two_names(source)
        pattern = made(source, FROM_TO if gives else NAMED)
        text = filled(pattern, a=a, b=b, ka=spoken(keys[0]), kb=spoken(keys[1]), **said)
        return text, dict(zip(keys, (a, b), strict=True))

    parameters = [Parameter(name=key, schema=_described(source, TEXT, key)) for key in keys]
    return _tool(source, source.some(parameters, 2), ask)


def told_people(source: Source) -> Found:
    """Returns a sentence with two people."""
    keys, gives = people(source)
    a, b = two_names(source)
    text = filled(
        source.one(TOLD_FROM_TO if gives else TOLD_NAMED), a=a, b=b, ka=spoken(keys[0]),
        kb=spoken(keys[1]), verb=source.one((source.made_up, source.word))(), noun=source.noun(),
    )  # fmt: skip
    fields: dict[str, Any] = dict(zip(keys, (a, b), strict=True))
    if source.chance(0.3):
        fields["city"] = source.city()
        text += f" in {fields['city']}"
    return _sentence(text, a, b), fields


# ---- a value and its opposite ------------------------------------------------------------------

OPPOSITES = trained((
    ("on", "off"), ("up", "down"), ("left", "right"), ("hot", "cold"), ("fast", "slow"), ("loud", "quiet"), ("big", "small"), ("new", "old"), ("early", "late"), ("light", "dark"),
    ("full", "empty"), ("wet", "dry"), ("hard", "soft"), ("long", "short"), ("in", "out"), ("north", "south"), ("east", "west"), ("first", "last"), ("daily", "weekly"), ("high", "low"),
    ("warm", "cool"), ("single", "double"), ("open", "closed"), ("public", "private"), ("rough", "smooth"), ("thick", "thin"), ("front", "back"), ("inside", "outside"), ("day", "night"),
    ("indoor", "outdoor"), ("manual", "automatic"), ("even", "odd"), ("before", "after"), ("sweet", "sour"), ("cheap", "expensive"), ("rising", "falling"),
))  # fmt: skip
_BUT = (
    " {value}, not {other}", ", not {other} but {value}", " {value} instead of {other}", ", {value} and not {other}", ": {value} (not {other})", ", no {other}, just {value}", " {value} in place of {other}",
    ", {value} and never {other}", ", {value}, because {other} is wrong", ". Not {other}! It is {value}", ", {value}. By no means {other}", " with {value} and without {other}", ", I don't want {other} but {value}",
)  # fmt: skip
BUT: tuple[Parts, ...] = (
    (DO, _BUT, END),
    (("The {noun} should be", "I want the {noun} to be", "The {noun} must be", "Let the {noun} be", "Make the {noun}"), (" {value}, not {other}", " {value} and not {other}", " {value} instead of {other}", " not {other} but {value}", " {value}, it must not be {other}"), ("", ". {verb} it.", ".", ": {verb} it")),
    (("The {noun} is {other} now", "The {noun} was {other}", "It is {other} today", "So far the {noun} was {other}"), (", but {verb} the {noun} {value}", ", {verb} the {noun} {value}", ". {verb} the {noun}, it should be {value}", ", now {verb} the {noun} {value}"), END),
    (("Not {other}", "{value} and not {other}", "No {other}, {value}", "Instead of {other}, {value}"), (": ", ", ", " - "), DO, (" {value}", " with {value}", ", {value}", ": {value}"), END),
)  # fmt: skip
NOT_SAID: tuple[Parts, ...] = (
    (DO, (", just not {other}", ", only not {other}", ", but not {other}", " in no case {other}", ", everything except {other}", " without {other}", ", {other} is wrong", ", never {other}", " not {other}", ", I don't want {other}"), END),
    (("The {noun} must not be {other}", "The {noun} should not be {other}", "Not {other}, please", "I don't want the {noun} to be {other}", "Never {other}"), (": ", ". ", ", "), DO, END),
)  # fmt: skip
"""The value is the only other one."""


def options(source: Source, n: int) -> list[str]:
    """Returns different words, or two opposites."""
    if n == 2 and source.chance(0.45):
        return source.some(source.one(OPPOSITES), 2)
    found: list[str] = []
    while len(found) < n:
        word = source.word()
        if word not in found:
            found.append(word)
    return found


def opposite_tool(source: Source) -> Tool:
    listed = options(source, source.random.choices((2, 3, 4), (6, 2, 1))[0])
    key = parameter_name(source)

    def ask(source: Source, said: Words) -> Asked:
        value, other = source.some(listed, 2)
        silent = len(listed) == 2 and source.chance(0.3)
        pattern = made(source, NOT_SAID if silent else BUT)
        return filled(pattern, value=value, other=other, **said), {key: value}

    schema = _described(source, {"type": "string", "enum": listed}, key)
    return _tool(source, [Parameter(name=key, schema=schema)], ask)


DENIED = (
    "the {key} of {name} is {value}, not {other}", "the {key} of {name} is not {other} but {value}", "{name}: {key} {value}, not {other}", "{name} has {value} as {key}, not {other}", "the {key} of {name} was {other}, now it is {value}",
    "{name} had the {key} {other} and now has the {key} {value}", "the {key} of {name} is {value} instead of {other}", "{name} has the {key} {value}. It is not {other}", "the {key} {other} is wrong, {name} has {value}",
    "I said {other}, but the {key} of {name} is {value}", "the {key} of {name} used to be {other} and became {value}", "{other} was the {key} of {name} before, {value} is it today", "the {key} of {name} is {other}? No, {value}",
)  # fmt: skip


def told_denial(source: Source, make: Callable[[Source], Any], key: str) -> Found:
    """Returns a sentence with two values of a key: a right one and a wrong one."""
    value, other = make(source), make(source)
    while other == value:
        other = make(source)
    name = source.name()
    said = source.one(DENIED)
    text = filled(said, key=key, name=name, value=value, other=other)
    return _sentence(text, name, value, other), {"name": name, key: value}


# ---- possessives -------------------------------------------------------------------------------

TIMES = "Today Tonight Monday Tuesday Friday Sunday May June March Winter Summer Easter".split()
OWNERS = [each for each in "owner person member customer user player friend worker whose owned_by of_person belongs_to".split() if not is_held_out(each)]  # fmt: skip
OWNED: tuple[Parts, ...] = (
    (("{who}'s {noun}", "{who}'s new {noun}", "{who}'s {noun}", "{who}'s own {noun}"), (": {verb} it", ", {verb} it", "? {verb} it", " - {verb}", ". {verb} it", " has to be {verb}", " is to be {verb}", " is not here, {verb} it", " should be {verb} now", " was bad, so {verb} it", " and nothing else: {verb}", " must not wait"), END),
    (("{verb} {who}'s {noun}", "{verb} it, {who}'s {noun}", "{verb} {who}'s last {noun}"), END),
    (("{time}'s {noun}", "{time}'s last {noun}"), (" is for {who}", " belongs to {who}", " is of {who}", " comes from {who}", " was made by {who}", " is {who}'s"), ("", ". {verb} it.", ", {verb} it", ": {verb} it, please")),
)  # fmt: skip
"""The possessive of a time is not an owner."""
WITH = (", {key} {n}", " with {key} {n}", " ({key} {n})", " for {n} {key}", " and {n} {key}", ", {n} {key}")  # fmt: skip


def owner_tool(source: Source) -> Tool:
    key = source.one(OWNERS) if source.chance(0.7) else f"{source.made_up()}_{source.one(OWNERS)}"
    counted = parameter_name(source) if source.chance(0.4) else None
    parameters = [Parameter(name=key, schema=_described(source, TEXT, key))]
    if counted is not None:
        parameters.append(Parameter(name=counted, schema=_described(source, INTEGER, counted)))

    def ask(source: Source, said: Words) -> Asked:
        given: dict[str, Value] = {key: source.name()}
        who, time = given[key], source.one(TIMES)
        text = filled(made(source, OWNED), who=who, time=time, **said)
        if counted is not None:
            given[counted] = number(source)
            text = text.rstrip(".!") + source.one(WITH).format(
                key=spoken(counted), n=given[counted]
            )
        return text, given

    return _tool(source, parameters, ask)


POSSESSED = {
    "city": ("city", "home", "town"), "job": ("job", "work", "occupation"), "age": ("age", "years"), "animal": ("animal", "favorite animal"),
    "hobby": ("hobby", "favorite hobby"), "color": ("color", "favorite color"), "phone": ("phone", "number", "phone number"), "email": ("email", "address", "mail"),
    "country": ("country", "home country"), "company": ("company", "employer"),
}  # fmt: skip
"""Words for a key in a possessive."""
_IS = (" is {value}", ": {value}", " was {value}", " is called {value}", ", {value}", " = {value}", " has always been {value}", " is now {value}")  # fmt: skip


def told_owner(source: Source, make: Callable[[Source], Any], key: str) -> Found:
    """Returns a sentence that begins with a possessive: of a person, of a thing, or of a time."""
    value = make(source)
    called = source.one(POSSESSED.get(key, (key,)))
    pick = source.random.random()
    if pick < 0.2:
        name = source.name()
        text = f"{source.one(TIMES)}'s {source.noun()} is for {name}, {called} {value}"
        return _sentence(text, name), {"name": name, key: value}
    if pick < 0.35:
        thing = source.listed(words.THINGS) if source.chance(0.5) else source.made_up()
        price = source.integer(1, 999)
        text = f"The {thing}'s price{source.one(_IS).format(value=price)}"
        return _sentence(text), {"product": thing, "price": price}
    name = source.name()
    text = f"{name}'s {called}{source.one(_IS).format(value=value)}"
    return _sentence(text, name), {"name": name, key: value}


# ---- numbers with units ------------------------------------------------------------------------

UNITS = {
    "minutes": (" minutes", " min", "min", " mins"), "hours": (" hours", " h", "h"), "seconds": (" seconds", " sec", "s"), "days": (" days", " d"), "weeks": (" weeks",), "meters": (" meters", " m", "m"),
    "kilometers": (" kilometers", " km", "km"), "liters": (" liters", " l", "l"), "kilos": (" kilos", " kg", "kg"), "degrees": (" degrees", "°", " degrees C"), "percent": (" percent", "%", " %"), "pages": (" pages",),
    "points": (" points",), "steps": (" steps",), "euros": (" euros", " EUR", "€"), "volts": (" volts", "V", " V"), "miles": (" miles", " mi"), "tons": (" tons", " t", "t"), "times": (" times", "x"), "rows": (" rows",),
}  # fmt: skip
_BY = (" by {n}", " to {n}", " for {n}", " {n}", " up to {n}", " at {n}", " down to {n}", " with {n}", " up by {n}", " down by {n}", ", {n}", ": {n}", " on {n}", " over {n}", " after {n}", " within {n}")  # fmt: skip
BY: tuple[Parts, ...] = (
    (DO, _BY, ("", "", ".", "!", ", please", " now", " for me")),
    (("{own} it", "{own}", "{own} it", "{own} them"), _BY, END),
    (("{n}", "{n}, please", "Only {n}", "Just {n}"), (": ", ", ", " - "), DO, END),
    (("{n} for the {noun}", "The {noun} needs {n}", "The {noun} gets {n}", "The {noun} should have {n}", "{n} of {noun}"), ("", ".", ", {verb} it", ". {verb} it.")),
)  # fmt: skip
AMOUNTS = [each for each in "amount value number by to how_much size level quantity limit".split() if not is_held_out(each)]  # fmt: skip


def unit_tool(source: Source) -> Tool:
    """Returns a tool for a number with a unit. In some tools the unit is an argument, too."""
    known = [each for each in UNITS if not is_held_out(each)]
    units = source.some(known, source.number(2, 4)) if source.chance(0.2) else []
    unit = source.one(known)
    key = unit if not units and source.chance(0.5) else source.one(AMOUNTS)
    whole = source.chance(0.75)
    schema = _described(source, INTEGER if whole else NUMBER, key)
    parameters = [Parameter(name=key, schema=schema)]
    if units:
        parameters.append(Parameter(name="unit", schema={"type": "string", "enum": units}))

    def ask(source: Source, said: Words) -> Asked:
        given: dict[str, Value] = {key: number(source) if whole else decimal(source)}
        form = source.one(UNITS[unit])
        if units:
            given["unit"] = source.one(units)
            form = f" {given['unit']}"
        return filled(made(source, BY), n=f"{given[key]}{form}", **said), given

    return _tool(source, parameters, ask)


MEASURES = {
    "weight": (("{thing} weighs {n}", "{thing} is {n} heavy", "{thing} has a weight of {n}", "{n} is what {thing} weighs"), (" kilos", " kg", "kg", " grams", " tons", "t")),
    "height": (("{thing} is {n} high", "{thing} is {n} tall", "{thing} has a height of {n}", "{thing} goes up {n}"), (" meters", " m", "m", " feet", " cm", "cm")),
    "length": (("{thing} is {n} long", "{thing} has a length of {n}", "{thing} measures {n}"), (" meters", " m", "m", " km", " miles")),
    "speed": (("{thing} goes {n}", "{thing} runs at {n}", "{thing} has a speed of {n}", "{thing} does {n}"), (" km/h", "km/h", " mph", " m/s")),
    "minutes": (("{thing} takes {n}", "{thing} needs {n}", "{thing} is over after {n}"), (" minutes", " min", "min")),
    "temperature": (("{thing} is at {n}", "{thing} has {n}", "{thing} gets {n} warm"), (" degrees", "°", " degrees C")),
}  # fmt: skip
THINGS = [each for each in "product thing item object".split() if not is_held_out(each)]


def told_measures(source: Source) -> Found:
    """Returns a sentence on a thing with one or two numbers and their units."""
    known = [each for each in MEASURES if not is_held_out(each)]
    thing = source.listed(words.THINGS) if source.chance(0.4) else source.made_up()
    fields: dict[str, Any] = {source.one(THINGS): thing}
    said: list[str] = []
    for key in source.some(known, source.number(1, 2)):
        patterns, units = MEASURES[key]
        fields[key] = source.integer(1, 999)
        subject = "it" if said else f"{source.one(('the', 'this', 'our', 'a'))} {thing}"
        said.append(
            filled(source.one(patterns), thing=subject, n=f"{fields[key]}{source.one(units)}")
        )
    return _sentence(source.one((" and ", ". ", ", ")).join(said)), fields


# ---- all ---------------------------------------------------------------------------------------


def distinguishing_tool(source: Source) -> Tool:
    """Returns a made-up tool whose arguments are easily mistaken for each other."""
    return source.one((people_tool, opposite_tool, owner_tool, unit_tool))(source)


def _tool(
    source: Source, parameters: list[Parameter], ask: Callable[[Source, Words], Asked]
) -> Tool:
    """Returns a tool with any name."""
    verb, noun = any_verb(source), source.noun()
    description = ""
    if source.chance(0.85):
        description = source.phrase(DESCRIBED).format(
            verb=verb.capitalize(), lower=verb, noun=noun, other=source.noun()
        )

    def asked(source: Source) -> Asked:
        other = unknown_verb(source) if source.chance(0.35) else verb
        other = other if other.startswith("I ") else other.lower()
        text, given = ask(source, {"verb": other, "own": verb, "noun": noun})
        if source.chance(0.75) and not text.startswith(tuple(map(str, given.values()))):
            text = text[0].upper() + text[1:]
        return text, given

    return Tool(
        name=f"{verb}_{noun}",
        description=description,
        parameters=tuple(parameters),
        ask=asked,
        noun=noun,
        joins=False,
    )


def _described(source: Source, schema: dict[str, Any], key: str) -> dict[str, Any]:
    if not source.chance(0.3):
        return schema
    return {**schema, "description": f"The {spoken(key)}"}


def _sentence(text: str, *values: object) -> str:
    """Returns the text as a sentence; a value at its beginning stays unchanged."""
    if not text.startswith(tuple(map(str, values)) or ("\0",)):
        text = text[0].upper() + text[1:]
    return text + "."
