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

SUFFIXES = ("_id", "_name", "_type", "_code", "_count", "_date", "_size", "_level", "_key")
PREFIXES = ("max_", "min_", "new_", "old_", "first_", "last_", "is_", "user_", "start_")
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
        return source.made_up() + source.one(SUFFIXES)
    if pick < 0.97:
        return source.one(PREFIXES) + source.made_up()
    first, second = source.made_up(), source.made_up()
    return first + second.capitalize()


def spoken(name: str) -> str:
    """A parameter's name, as a sentence has it."""
    return "".join(f" {c.lower()}" if c.isupper() else c for c in name).replace("_", " ")


def number(source: Source) -> int:
    pick = source.random.random()
    if pick < 0.55:
        return source.number(0, 99)
    return source.number(100, 9999) if pick < 0.85 else source.number(10_000, 9_999_999)


def decimal(source: Source) -> float:
    if source.chance(0.2):
        return round(source.number(-9999, 9999) / 100, 2)
    return round(source.number(1, 9999) / source.one((10, 100)), 2)


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
        make = lambda each: [each.number(0, 999) for _ in range(each.number(1, 4))]  # noqa: E731
    if source.chance(0.35):
        schema["description"] = source.one(
            (
                f"The {spoken(name)}", f"The {spoken(name)} of the {source.noun()}",
                f"{spoken(name).capitalize()} to use", f"Which {spoken(name)}",
                f"The {source.noun()} {spoken(name)}", f"Value of {spoken(name)}",
            )
        )  # fmt: skip
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
    verb = source.one(list(VERBS)) if source.chance(0.8) else source.made_up()
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


def _known(
    name: str,
    description: str,
    parameters: dict[str, Callable[[Source], Value]],
    schemas: dict[str, dict[str, Any]],
    phrases: tuple[str, ...],
    required: int | None = None,
) -> Callable[[Source], Tool]:
    """A tool that many programs have. Its parameters appear in `phrases` by name; those that a
    phrase leaves out are not given."""

    def build(source: Source) -> Tool:
        def ask(source: Source) -> tuple[str, dict[str, Value]]:
            text = source.phrase(phrases)
            given = {key: make(source) for key, make in parameters.items() if f"{{{key}}}" in text}
            return text.format(**{k: _plain(v) for k, v in given.items()}), given

        n = len(parameters) if required is None else required
        return Tool(
            name=name,
            description=description if source.chance(0.85) else "",
            parameters=tuple(
                Parameter(name=key, schema=schemas.get(key, {"type": "string"}), required=i < n)
                for i, key in enumerate(parameters)
            ),
            ask=ask,
        )

    return build


def _plain(value: Value) -> str:
    return listing([str(each) for each in value]) if isinstance(value, list) else str(value)


INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}


def _enum(*options: str) -> tuple[Callable[[Source], Value], dict[str, Any]]:
    return lambda source: source.one(options), {"type": "string", "enum": list(options)}


_UNIT, _UNIT_SCHEMA = _enum("celsius", "fahrenheit")
_ROOM, _ROOM_SCHEMA = _enum("kitchen", "bedroom", "bathroom", "garage")


def _text(source: Source) -> str:
    return " ".join(source.words(2, 6))


def _small(source: Source) -> int:
    return source.number(1, 60)


def _hour(source: Source) -> str:
    return f"{source.number(0, 23):02}:{source.number(0, 59):02}"


def _expression(source: Source) -> str:
    return f"{number(source)} {source.one('+-*/')} {number(source)}"


def _language(source: Source) -> str:
    return source.one(("French", "German", "Spanish", "Italian", "Polish", "Danish", "Dutch"))


KNOWN: tuple[Callable[[Source], Tool], ...] = (
    _known("get_weather", "Get the current weather in a city", {"city": Source.city, "unit": _UNIT}, {"unit": _UNIT_SCHEMA},
        ("What's the weather in {city}?", "How is the weather in {city}?", "Weather in {city} in {unit}", "Is it raining in {city}?",
         "What is the weather like in {city}?", "Tell me the weather in {city}.", "How warm is it in {city} in {unit}?", "Is it cold in {city} today?",
         "Do I need an umbrella in {city}?", "Weather for {city} please"), 1),
    _known("get_current_weather", "Get the weather of a location", {"location": Source.city}, {},
        ("What's the weather in {location}?", "How is the weather in {location} today?", "Will it rain in {location}?", "Weather {location}",
         "What about the weather in {location}?", "Is it sunny in {location}?")),
    _known("get_time", "Get the current time in a city", {"city": Source.city}, {},
        ("What time is it in {city}?", "Tell me the time in {city}.", "Time in {city}?", "How late is it in {city}?", "What is the time in {city}?")),
    _known("get_current_time", "Get the current time", {}, {},
        ("What time is it?", "What's the time?", "Tell me the time.", "How late is it?", "What is the current time?", "Do you know what time it is now?")),
    _known("calculator", "Evaluate an arithmetic expression", {"expression": _expression}, {},
        ("Calculate {expression}", "What is {expression}?", "Compute {expression}", "How much is {expression}?", "Evaluate {expression}")),
    _known("add", "Add two numbers", {"a": number, "b": number}, {"a": INTEGER, "b": INTEGER},
        ("Add {a} and {b}", "What is {a} + {b}?", "How much is {a} plus {b}?", "Sum up {a} and {b}", "What is {a} plus {b}?")),
    _known("multiply", "Multiply two numbers", {"a": number, "b": number}, {"a": INTEGER, "b": INTEGER},
        ("Multiply {a} by {b}", "What is {a} * {b}?", "How much is {a} times {b}?", "Multiply {a} and {b}.", "What is {a} times {b}?")),
    _known("web_search", "Search the web", {"query": _text}, {},
        ("Search the web for {query}", "Google {query}", "Look up {query} on the web", "Find {query} online", "Search for {query} on the internet", "Search: {query}")),
    _known("search", "Search documents", {"query": _text, "limit": _small}, {"limit": INTEGER},
        ("Search for {query}", "Search for {query}, at most {limit} results", "Find documents about {query}", "Look for {query}", "Give me {limit} results for {query}", "Show documents on {query}"), 1),
    _known("send_email", "Send an email", {"to": lambda s: f"{s.made_up()}@{s.made_up()}.com", "subject": _text, "body": _text}, {},
        ("Send an email to {to} with the subject \"{subject}\" and the text \"{body}\"", "Email {to}: subject {subject}, body {body}", "Write an email to {to} with subject \"{subject}\" and body \"{body}\"",
         "Send {to} a mail about \"{subject}\" that says \"{body}\"", "Mail \"{body}\" to {to}, subject \"{subject}\"")),
    _known("send_message", "Send a message to a person", {"recipient": Source.name, "message": _text}, {},
        ("Send {recipient} the message \"{message}\"", "Tell {recipient} \"{message}\"", "Message {recipient}: {message}", "Write to {recipient}: {message}", "Text {recipient} that \"{message}\"")),
    _known("set_timer", "Set a timer", {"minutes": _small}, {"minutes": INTEGER},
        ("Set a timer for {minutes} minutes", "Timer {minutes} minutes", "Start a timer of {minutes} minutes.", "Wake me in {minutes} minutes", "Set the timer to {minutes} minutes please")),
    _known("set_alarm", "Set an alarm", {"time": _hour}, {},
        ("Set an alarm for {time}", "Wake me up at {time}", "Alarm at {time} please", "I have to get up at {time}", "Please wake me at {time}.")),
    _known("create_reminder", "Create a reminder", {"text": _text, "time": _hour}, {},
        ("Remind me at {time} to {text}", "Create a reminder \"{text}\" at {time}", "Reminder: {text} at {time}", "Remind me of \"{text}\" at {time}", "Set a reminder for {time}: {text}")),
    _known("translate", "Translate a text", {"text": _text, "target_language": _language}, {},
        ("Translate \"{text}\" to {target_language}", "Translate {text} into {target_language}", "What is \"{text}\" in {target_language}?", "How do you say \"{text}\" in {target_language}?", "Say \"{text}\" in {target_language}.")),
    _known("turn_on_light", "Turn on the light in a room", {"room": _ROOM}, {"room": _ROOM_SCHEMA},
        ("Turn on the light in the {room}", "Light on in the {room}", "Switch on the {room} light.", "It's dark in the {room}", "Please turn the {room} light on")),
    _known("turn_off_light", "Turn off the light in a room", {"room": _ROOM}, {"room": _ROOM_SCHEMA},
        ("Turn off the light in the {room}", "Light off in the {room}", "Switch off the {room} light.", "Make the {room} dark", "Please turn the {room} light off")),
    _known("set_temperature", "Set the temperature of a room", {"room": _ROOM, "degrees": _small}, {"room": _ROOM_SCHEMA, "degrees": INTEGER},
        ("Set the temperature in the {room} to {degrees}", "Make it {degrees} degrees in the {room}", "Heat the {room} to {degrees} degrees.", "{room} {degrees} degrees", "I want {degrees} degrees in the {room}")),
    _known("play_music", "Play a song", {"song": _text, "artist": Source.name}, {},
        ("Play {song}", "Play {song} by {artist}", "I want to hear {song} by {artist}", "Put on {song}", "Play the song {song} by {artist}", "Please play {song}."), 1),
    _known("read_file", "Read a file", {"path": lambda s: f"{s.made_up()}.{s.one(('txt', 'py', 'md'))}"}, {},
        ("Read the file {path}", "What is in {path}?", "Show me {path}", "Open {path}", "Print the content of {path}")),
    _known("write_file", "Write a text into a file", {"path": lambda s: f"{s.made_up()}.{s.one(('txt', 'py', 'md'))}", "content": _text}, {},
        ("Write \"{content}\" to {path}", "Save \"{content}\" in the file {path}", "Put \"{content}\" into {path}", "Create the file {path} with the content \"{content}\"", "Make a file {path} that says \"{content}\"")),
    _known("list_files", "List the files of a directory", {"directory": lambda s: f"/{s.made_up()}"}, {},
        ("List the files in {directory}", "What files are in {directory}?", "Show the files of {directory}", "ls {directory}", "Which files does {directory} have?")),
    _known("get_stock_price", "Get the price of a stock", {"symbol": lambda s: s.made_up()[:4].upper()}, {},
        ("What is the stock price of {symbol}?", "How much is {symbol}?", "Price of {symbol}", "Get the stock price for {symbol}", "How is {symbol} doing?")),
    _known("book_flight", "Book a flight", {"origin": Source.city, "destination": Source.city, "passengers": _small}, {"passengers": INTEGER},
        ("Book a flight from {origin} to {destination}", "I want to fly from {origin} to {destination}", "Flight from {origin} to {destination} for {passengers}", "Book {passengers} seats from {origin} to {destination}.", "Fly me from {origin} to {destination}"), 2),
    _known("get_user", "Get a user by id", {"user_id": number}, {"user_id": INTEGER},
        ("Get user {user_id}", "Show me the user {user_id}", "Who is user {user_id}?", "Find the user with the id {user_id}", "Which user has id {user_id}?")),
    _known("roll_dice", "Roll dice", {"count": _small, "sides": _small}, {"count": INTEGER, "sides": INTEGER},
        ("Roll {count} dice", "Roll {count} dice with {sides} sides", "Throw {count} dice", "Give me {count} dice rolls with {sides} sides", "Roll the dice {count} times"), 1),
    _known("run_sql", "Run a query on the database", {"query": lambda s: f"SELECT {s.made_up()} FROM {s.made_up()}"}, {},
        ("Run {query}", "Execute {query}", "Query the database: {query}", "Please run the query {query}", "Do {query}")),
    _known("convert_currency", "Convert an amount of money", {"amount": number, "from": lambda s: s.one(("USD", "EUR", "GBP", "JPY")), "to": lambda s: s.one(("USD", "EUR", "GBP", "CHF"))}, {"amount": NUMBER},
        ("Convert {amount} {from} to {to}", "How much is {amount} {from} in {to}?", "{amount} {from} in {to}", "Change {amount} {from} into {to}.", "What are {amount} {from} in {to}?")),
)  # fmt: skip
"""Every fifth of them is for the evaluation alone."""


def known_tool(source: Source) -> Tool:
    return source.phrase(KNOWN)(source)


def tool(source: Source) -> Tool:
    return known_tool(source) if source.chance(0.25) else made_up_tool(source)
