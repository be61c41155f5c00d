"""Tools: real ones that many programs have, and made-up ones with any name and parameters."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.models.lessons import phrasings, words
from tools.models.lessons.lesson import Message, listing
from tools.models.lessons.phrasings import several
from tools.models.lessons.source import PHRASINGS, Source

Value = Any


@dataclass(frozen=True, kw_only=True)
class Parameter:
    name: str
    schema: dict[str, Any]
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class Tool:
    """`ask` makes a sentence that requests a call, and the call's arguments. `number` is the tool's
    place in the request, from 1 on. If it `joins`, one request may have two values of its only
    argument."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    ask: Callable[[Source], tuple[str, dict[str, Value]]] = field(repr=False)
    verb: str | None = None
    noun: str | None = None
    number: int = 0
    joins: bool = True

    @property
    def listed(self) -> str:
        """Returns the tool as the template lists it."""
        return f"#{self.number} {self.name}"

    def definition(self, source: Source) -> Message:
        schema: dict[str, Any] = {
            "type": "object",
            "properties": {each.name: each.schema for each in self.parameters},
        }
        required = [each.name for each in self.parameters if each.required]
        if required or source.chance(0.3):
            schema["required"] = required
        if source.chance(0.15):
            schema["additionalProperties"] = False
        function: dict[str, Any] = {"name": self.name}
        if self.description:
            function["description"] = self.description
        function["parameters"] = schema
        return {"type": "function", "function": function}


VERBS: dict[str, tuple[str, ...]] = {
    "get": ("Get", "Give me", "Show me", "I need", "Fetch", "Tell me"),
    "find": ("Find", "Look for", "Please find", "I am looking for", "Can you find", "Locate"),
    "search": ("Search", "Search for", "Do a search of", "Please search", "I want to search"),
    "list": ("List", "Show", "Give me", "Which are", "Please list", "List all of"),
    "create": ("Create", "Make", "Please create", "I want", "Set up", "Add"),
    "add": ("Add", "Please add", "Put in", "I want to add", "Insert", "Enter"),
    "send": ("Send", "Please send", "Can you send", "I want to send", "Deliver"),
    "delete": ("Delete", "Remove", "Please delete", "Get rid of", "I want to delete", "Drop"),
    "update": ("Update", "Change", "Please update", "I want to change", "Edit"),
    "set": ("Set", "Please set", "Change", "I want to set", "Put"),
    "start": ("Start", "Please start", "Begin", "Can you start", "Launch"),
    "stop": ("Stop", "Please stop", "End", "Can you stop", "Halt"),
    "open": ("Open", "Please open", "Can you open", "I want to open", "Open up"),
    "close": ("Close", "Please close", "Can you close", "I want to close", "Shut"),
    "book": ("Book", "Reserve", "Please book", "I want to book", "Can you book"),
    "check": ("Check", "Please check", "Can you check", "I want to check", "Have a look at"),
    "read": ("Read", "Please read", "Can you read", "Read me", "Show me"),
    "play": ("Play", "Please play", "Can you play", "I want to hear", "Put on"),
    "count": ("Count", "Please count", "How many are", "Can you count", "Tell me the number of"),
    "convert": ("Convert", "Please convert", "Can you convert", "Turn", "Change"),
    "compute": ("Compute", "Calculate", "Please compute", "Work out", "What is"),
    "translate": (
        "Translate",
        "Please translate",
        "Can you translate",
        "I want to translate",
        "Put",
    ),
    "print": ("Print", "Please print", "Can you print", "I want to print", "Print out"),
    "order": ("Order", "Please order", "Can you order", "I would like to order", "Buy"),
    "cancel": ("Cancel", "Please cancel", "Can you cancel", "I want to cancel", "Call off"),
}

PARAMETERS = (
    "account address age amount author body brand category channel city code color comment company "
    "content count country currency customer date day days depth description destination device "
    "direction distance duration email end event field file filter folder format from genre group "
    "guests height hour id item key kind label language length level limit location max message min "
    "mode model month name note number offset options order origin owner page pages path person phone "
    "place position price priority product quantity query radius range rate reason region role room "
    "rows score season section seconds service sex shape size sort source speed start state status "
    "step street subject surname symbol tag target team temperature term text theme time title to "
    "topic total type unit units url user username value version volume website weight width word "
    "year zone"
).split()

SUFFIXES = "id name type code count date size level key value length hour".split()
PREFIXES = "max min new old first last is user start next body".split()
FLAGS = (
    "urgent verbose silent public private active enabled recursive force dry_run archived detailed "
    "fast exact draft repeat loud visible hidden shared locked safe anonymous compressed"
).split()


def parameter_name(source: Source) -> str:
    pick = source.random.random()
    if pick < 0.5:
        return source.listed(PARAMETERS)
    if pick < 0.75:
        return source.made_up()
    if pick < 0.85:
        return f"{source.made_up()}_{source.made_up()}"
    if pick < 0.92:
        return source.made_up() + "_" + source.listed(SUFFIXES)
    if pick < 0.97:
        return f"{source.listed(PREFIXES)}_{source.made_up()}"
    first, second = source.made_up(), source.made_up()
    return first + second.capitalize()


def spoken(name: str) -> str:
    """Returns a parameter's name as in a sentence."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).replace("_", " ")


def number(source: Source) -> int:
    pick = source.random.random()
    if pick < 0.55:
        return source.integer(0, 99)
    return source.integer(100, 9999) if pick < 0.85 else source.integer(10_000, 9_999_999)


def decimal(source: Source) -> float:
    if source.chance(0.2):
        return source.own(lambda: round(source.number(-9999, 9999) / 100, 2))
    return source.own(lambda: round(source.number(1, 9999) / source.one((10, 100)), 2))


PARAMETER_DESCRIBED = (
    "The {name}", "The {name} of the {noun}", "{upper} to use", "Which {name}", "What {name} it has",
    "The {noun} {name}", "Value of {name}", "{upper}", "The {noun}'s {name}", "Its {name}",
)  # fmt: skip


def parameter(source: Source, name: str) -> tuple[Parameter, Callable[[Source], Value]]:
    """Returns a parameter with this name, and a maker of values for it."""
    kind = source.random.choices(
        ("string", "integer", "number", "boolean", "enum", "strings", "integers"),
        (40, 20, 8, 10, 12, 7, 3),
    )[0]
    required = source.chance(0.7)
    schema: dict[str, Any]
    make: Callable[[Source], Value]
    if kind == "string":
        schema, make = {"type": "string"}, Source.value
    elif kind == "integer":
        schema, make = {"type": "integer"}, number
    elif kind == "number":
        schema, make = {"type": "number"}, decimal
    elif kind == "boolean":
        if source.chance(0.6):
            name = source.listed(FLAGS)
        schema, make = {"type": "boolean"}, lambda each: each.chance(0.5)
    elif kind == "enum":
        options = list(dict.fromkeys(source.word() for _ in range(source.number(2, 4))))
        schema, make = {"type": "string", "enum": options}, lambda each: each.one(options)
    elif kind == "strings":
        schema = {"type": "array", "items": {"type": "string"}}
        make = lambda each: [each.word() for _ in range(each.number(1, 4))]  # noqa: E731
    else:
        schema = {"type": "array", "items": {"type": "integer"}}
        make = lambda each: [each.integer(0, 999) for _ in range(each.number(1, 4))]  # noqa: E731
    if source.chance(0.35):
        schema["description"] = source.phrase(PARAMETER_DESCRIBED).format(
            name=spoken(name), upper=spoken(name).capitalize(), noun=source.noun()
        )
    return Parameter(name=name, schema=schema, required=required), make


SAID = (
    "{name} {value}", "{name}: {value}", "{name} = {value}", "the {name} {value}",
    "{name} is {value}", "{value} as {name}", "{name} set to {value}", "a {name} of {value}",
    "{value} for {name}", "the {name} should be {value}", "{name} must be {value}",
    "{value} as the {name}",
)  # fmt: skip
SAID_TRUE = (
    "{name}", "{name}: yes", "{name} on", "{name} = true", "{name} is true", "make it {name}",
    "with {name} on", "{name} enabled", "{name} set to true", "yes to {name}",
)  # fmt: skip
SAID_FALSE = (
    "not {name}", "{name}: no", "{name} off", "{name} = false", "{name} is false",
    "not with {name}", "{name} disabled", "no {name}", "{name} set to false", "without {name}",
)  # fmt: skip


def said_value(source: Source, value: Value) -> str:
    if isinstance(value, list):
        words_of = [str(each) for each in value]
        return listing(words_of) if source.chance(0.7) else ", ".join(words_of)
    if isinstance(value, str) and source.chance(0.25):
        return f'"{value}"' if source.chance(0.75) else f"'{value}'"
    return str(value)


def said(source: Source, name: str, value: Value) -> str:
    """Returns a clause that gives a parameter its value."""
    spoken_name = spoken(name) if source.chance(0.7) else name
    if isinstance(value, bool):
        forms = (SAID_TRUE, MORE_TRUE) if value else (SAID_FALSE, MORE_FALSE)
        return several(source, *forms).format(name=spoken_name)
    shown = said_value(source, value)
    if not source.held_out and source.chance(0.1):
        # In any words: the value is found by the name next to it.
        order = (spoken_name, shown) if source.chance(0.6) else (shown, spoken_name)
        return f" {source.link(0, 3)} ".join(order).replace("  ", " ")
    pattern = several(source, SAID, MORE_SAID, phrasings.SET, 0.3)
    return pattern.format(name=spoken_name, value=shown)


MORE_TRUE = (
    "say yes to {name}", "it is {name}", "{name} was true", "{name} should be true", "let it be {name}", "{name} must be on", "turn {name} on",
    "switch {name} on", "{name} as well", "{name}=true", "true for {name}", "I want it {name}", "yes for {name}", "{name} is on", "with {name}",
    "and {name}", "also {name}", "{name} too", "indeed {name}", "surely {name}", "with {name}, of course", "it has {name}", "{name} is wanted", "yes, {name}",
    "I say yes to {name}", "yes, please, to {name}", "{name} is what I want", "{name} is set", "a yes to {name}",
)  # fmt: skip
MORE_FALSE = (
    "say no to {name}", "it is not {name}", "{name} was false", "{name} should be false", "let it not be {name}", "{name} must be off", "turn {name} off",
    "switch {name} off", "do it without {name}", "{name}=false", "false for {name}", "I don't want it {name}", "no for {name}", "{name} is off", "never {name}",
    "skip {name}", "leave out {name}", "free of {name}", "no {name} at all", "except {name}", "without any {name}", "it lacks {name}", "{name} is not wanted",
    "forget about {name}", "and by no means {name}", "{name} must not be", "without being {name}",
    "but without {name}", "without the {name}", "{name} is not set", "a no to {name}", "and without {name}",
)  # fmt: skip
MORE_SAID = (
    "{name} being {value}", "{name} will be {value}", "its {name} is {value}", "{value} is the {name}", "use {value} as {name}",
    "{name}={value}", "{name} equal to {value}", "the {name}: {value}", "the {name} has to be {value}", "with {value} as {name}",
    "{value} as its {name}", "for {name} use {value}", "{name} shall be {value}", "let {name} be {value}", "{value} for the {name}",
    "{name} -> {value}", "where {name} equals {value}", "I want {value} as {name}", "its {name} must be {value}", "{value} ({name})",
    "{value} should be the {name}", "the {name} ought to be {value}", "{name} was {value}", "the {name} is now {value}", "its {name} should become {value}",
    "the {name} should equal {value}", "its {name} should be {value}", "{name} should become {value}", "the {name} should read {value}",
    "the {name} is {value}", "and the {name} is {value}", "{name} has to be {value}", "{name} should have the value {value}",
)  # fmt: skip
MORE_ONE_STRING = (
    "{what} by {value}", "{what} from {value}", "{what} at {value}", "{what}, namely {value}", "{what}: it is {value}", "{what}: it has to be {value}",
    "{what} - it is {value}", "{what} (it is {value})", "{what} which is {value}", "{what} that has {value}", "{what} known as {value}", "{what} as {value}",
    "{what} on {value}", "{what} using {value}", "{what}. It is {value}", "{what}, it is called {value}", "{what} by the name of {value}",
)  # fmt: skip
MORE_JOINED = (
    "{what} when {clauses}", "{what} so that {clauses}.", "{what}; I mean {clauses}", "{what} and note that {clauses}", "{what} [{clauses}]",
    "{what}\n{clauses}", "{what}. Note: {clauses}.", "{what}. Values: {clauses}", "{what} by {clauses}", "{what}, that is {clauses}.",
    "{what} in this way: {clauses}", "{what} for which {clauses}.", "{what} under these conditions: {clauses}", "{what} assuming {clauses}",
    "{what} whose data are: {clauses}", "{what} provided that {clauses}", "{what}, having {clauses}", "{what} for {clauses}",
    "{what} in which {clauses}", "{what} in case {clauses}", "{what} given that {clauses}", "{what}, given are {clauses}", "{what} if {clauses}",
    "{what} with the following given: {clauses}", "{what} where it holds that {clauses}",
)  # fmt: skip
MORE_POLITE = (
    "{text}", "I need your help. {text}", "Good morning. {text}", "Can you {lower}", "Would you please {lower}", "Now {lower}", "{text} Thank you!",
    "{text} as soon as you can", "Next, {lower}", "OK, {lower}", "It is urgent: {lower}", "My wish: {lower}", "{text} for me", "Kindly {lower}", "{lower}",
    "Hello! {text}", "hi, {lower}", "So, {lower}", "Dear assistant, {lower}", "I have a task for you: {lower}",
    "Hi there! {text}", "Hey! {text}", "Hey there, {lower}", "Hi. {text}", "Hey you, {lower}",
)  # fmt: skip
ONE_STRING = (
    "{what} for {value}", "{what} of {value}", "{what} {value}", "{what} in {value}",
    "{what}: {value}", "{what} with {value}", "{what} about {value}", "{what} to {value}",
    "{what} called {value}", "{what} named {value}",
)  # fmt: skip
JOINED = (
    "{what} with {clauses}.", "{what}, {clauses}.", "{what} ({clauses})", "{what}: {clauses}.",
    "{what} where {clauses}.", "{what} - {clauses}", "{what}; {clauses}.", "{what} using {clauses}",
    "{what}. {clauses}", "{what} given {clauses}.",
)  # fmt: skip
POLITE = (
    "{text}", "{text}", "{text}", "{text}, please", "Hi! {text}", "Hello, {lower}", "Could you {lower}",
    "{text}. Thanks!", "Please {lower}", "Hey, {lower}",
)  # fmt: skip
DESCRIBED = (
    "{verb} {noun}", "{verb} a {noun}", "{verb} the {noun}", "{verb}s the {noun} of a {other}",
    "{verb} the {noun} by its {other}", "{verb}s one {noun} or more", "{verb} {noun} and {other}",
    "Use this to {lower} a {noun}", "{verb}s a {noun} for the user", "Can {lower} the {noun}",
)  # fmt: skip


def unknown_verb(source: Source) -> str:
    """Returns a verb that doesn't fit the tool: made up, another word, or another tool's verb, with
    a verb's suffixes."""
    if source.chance(0.3):
        return source.phrase(VERBS[source.phrase(list(VERBS))])
    verb = source.made_up() if source.chance(0.4) else source.word()
    if source.chance(0.4):
        verb += " " + source.one(words.PARTICLES)
    if source.chance(0.3):
        verb = f"{source.one(('Please', 'Can you', 'I want to', 'Could you', 'I have to'))} {verb}"
    return verb[0].upper() + verb[1:] if source.chance(0.7) else verb


def any_verb(source: Source) -> str:
    """Returns the verb in a tool's name: in the training often any word or token, so that a name
    may begin with anything."""
    if source.chance(0.8 if source.held_out else 0.25):
        return source.phrase(list(VERBS))
    if source.held_out:
        return source.made_up()
    return source.one((source.made_up, source.piece, source.piece, source.word))()


SHARES = (1, 5, 5, 3, 1)
"""The frequencies of a made-up tool with no parameter, one, two ..."""


def made_up_tool(
    source: Source,
    verb: str | None = None,
    noun: str | None = None,
    shares: Sequence[int] = SHARES,
) -> Tool:
    """Returns a tool with an unknown name and unknown parameters, with this verb, or with this verb
    and noun, if given."""
    by_verb = noun is not None
    if not by_verb:
        verb = verb if verb and source.chance(0.8) else any_verb(source)
    assert verb is not None
    noun = noun or source.noun()
    name = source.one((f"{verb}_{noun}",) * 6 + (
        f"{verb}{noun.capitalize()}", f"{noun}_{verb}", f"{noun}.{verb}", f"{verb}-{noun}", noun,
    ))  # fmt: skip
    description = ""
    nameless = not by_verb and not source.held_out and source.chance(0.07)
    if nameless:
        # Only the description shows its purpose.
        name = f"{source.made_up()}_{source.made_up()}"
    if nameless or source.chance(0.85):
        description = source.phrase(DESCRIBED).format(
            verb=verb.capitalize(), lower=verb, noun=noun, other=source.noun()
        )
        description += source.one((".", ""))
    made = _parameters(source, shares)

    def ask(source: Source) -> tuple[str, dict[str, Value]]:
        verbs = VERBS.get(
            verb,
            (verb.capitalize(), f"Please {verb}", f"I want to {verb}", verb, f"Can you {verb}"),
        )
        if not by_verb and not source.held_out and source.chance(0.65):
            verbs = PHRASINGS * (unknown_verb(source),)  # an unknown verb leaves only the noun
        article = source.one(("the", "an" if noun[0] in "aeiou" else "a", "the", "my", ""))
        what = " ".join(f"{source.phrase(verbs)} {article} {noun}".split())
        return _request(source, what, made)

    return Tool(
        name=name,
        description=description,
        parameters=tuple(each for each, _ in made.values()),
        ask=ask,
        verb=verb,
        noun=noun,
    )


def verb_tool(source: Source) -> Tool:
    """Returns a made-up tool whose name is a verb, which the request contains."""
    verb = source.own(lambda: any_verb(source))
    made = _parameters(source, (0, 6, 3))

    def ask(source: Source) -> tuple[str, dict[str, Value]]:
        said = source.one((verb.capitalize(), verb.capitalize(), verb, f"Please {verb}"))
        return _request(source, said, made)

    return Tool(
        name=verb,
        description=source.one(("", f"{verb.capitalize()}s a {source.noun()}", verb.capitalize())),
        parameters=tuple(each for each, _ in made.values()),
        ask=ask,
        verb=verb,
    )


Made = dict[str, tuple[Parameter, Callable[[Source], Value]]]


def _parameters(source: Source, shares: Sequence[int]) -> Made:
    """Returns parameters by name, with makers of their values. `shares` are the frequencies of no
    parameter, one, or more."""
    made: Made = {}
    for _ in range(source.random.choices(range(len(shares)), shares)[0]):
        each, make = parameter(source, parameter_name(source))
        made[each.name] = (each, make)
    return made


def _request(source: Source, what: str, made: Made) -> tuple[str, dict[str, Value]]:
    """Returns a sentence that requests `what`, and the values in it."""
    given = {
        key: make(source)
        for key, (each, make) in made.items()
        if each.required or source.chance(0.55)
    }
    texts = [key for key, value in given.items() if isinstance(value, str)]
    if len(given) == 1 and texts and source.chance(0.7):
        value = said_value(source, given[texts[0]])
        text = several(source, ONE_STRING, MORE_ONE_STRING).format(what=what, value=value)
        if not source.held_out and source.chance(0.06):
            text = f"{what} {source.link(1, 3)} {value}"
    elif given:
        items = list(given.items())
        if source.chance(0.3):
            source.random.shuffle(items)
        clauses = [said(source, key, value) for key, value in items]
        joined = listing(clauses) if source.chance(0.6) else ", ".join(clauses)
        text = several(source, JOINED, MORE_JOINED).format(what=what, clauses=joined)
        if not source.held_out and source.chance(0.07):
            mark = source.one(("", "", ",", ":", ".", " -"))
            text = f"{what}{mark} {source.link(1, 2)} {joined}{source.one(('', '.'))}"
    else:
        text = what + source.one((".", "", "!"))
    lower = text[0].lower() + text[1:] if not text.startswith("I ") else text
    polite = several(source, POLITE, MORE_POLITE).format(text=text, lower=lower)
    return polite.replace("..", ".").replace(".,", ","), given
