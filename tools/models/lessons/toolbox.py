"""Tools: real ones that many programs have, and made-up ones of any name and parameters."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.models.lessons.lesson import Message, listing
from tools.models.lessons.source import Source

Value = Any


@dataclass(frozen=True, kw_only=True)
class Parameter:
    name: str
    schema: dict[str, Any]
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class Tool:
    """`ask` makes a sentence that asks for a call, and its arguments."""

    name: str
    description: str
    parameters: tuple[Parameter, ...]
    ask: Callable[[Source], tuple[str, dict[str, Value]]] = field(repr=False)

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
    """A parameter's name, as a sentence has it."""
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
    """A parameter of this name, and what makes values of it."""
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
    """A clause that gives a parameter its value."""
    spoken_name = spoken(name) if source.chance(0.7) else name
    if isinstance(value, bool):
        return source.phrase(SAID_TRUE if value else SAID_FALSE).format(name=spoken_name)
    return source.phrase(SAID).format(name=spoken_name, value=said_value(source, value))


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


def made_up_tool(source: Source) -> Tool:
    """A tool of a name and parameters that nobody has heard of."""
    verb = source.phrase(list(VERBS)) if source.chance(0.8) else source.made_up()
    noun = source.noun()
    name = source.one((f"{verb}_{noun}",) * 6 + (
        f"{verb}{noun.capitalize()}", f"{noun}_{verb}", f"{noun}.{verb}", f"{verb}-{noun}", noun,
    ))  # fmt: skip
    description = ""
    if source.chance(0.85):
        description = source.phrase(DESCRIBED).format(
            verb=verb.capitalize(), lower=verb, noun=noun, other=source.noun()
        )
        description += source.one((".", ""))
    made: dict[str, tuple[Parameter, Callable[[Source], Value]]] = {}
    for _ in range(source.random.choices((0, 1, 2, 3, 4), (1, 5, 5, 3, 1))[0]):
        each, make = parameter(source, parameter_name(source))
        made[each.name] = (each, make)

    def ask(source: Source) -> tuple[str, dict[str, Value]]:
        verbs = VERBS.get(
            verb,
            (verb.capitalize(), f"Please {verb}", f"I want to {verb}", verb, f"Can you {verb}"),
        )
        article = source.one(("the", "a", "the", "my", ""))
        what = " ".join(f"{source.phrase(verbs)} {article} {noun}".split())
        given = {
            key: make(source)
            for key, (each, make) in made.items()
            if each.required or source.chance(0.55)
        }
        texts = [key for key, value in given.items() if isinstance(value, str)]
        if len(given) == 1 and texts and source.chance(0.7):
            value = said_value(source, given[texts[0]])
            text = source.phrase(ONE_STRING).format(what=what, value=value)
        elif given:
            items = list(given.items())
            if source.chance(0.3):
                source.random.shuffle(items)
            clauses = [said(source, key, value) for key, value in items]
            joined = listing(clauses) if source.chance(0.6) else ", ".join(clauses)
            text = source.phrase(JOINED).format(what=what, clauses=joined)
        else:
            text = what + source.one((".", "", "!"))
        lower = text[0].lower() + text[1:] if not text.startswith("I ") else text
        polite = source.phrase(POLITE).format(text=text, lower=lower)
        return polite.replace("..", ".").replace(".,", ","), given

    return Tool(
        name=name,
        description=description,
        parameters=tuple(each for each, _ in made.values()),
        ask=ask,
    )
