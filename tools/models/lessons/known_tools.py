"""Tools that many programs have."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tools.models.lessons import words
from tools.models.lessons.source import Source
from tools.models.lessons.toolbox import Parameter, Tool, Value, number

Maker = Callable[[Source], Value]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An enum; `options` makes its values."""

    options: Callable[[Source], Sequence[str]]


def _one(options: Sequence[str], source: Source) -> str:
    return source.one(options)


def known(
    name: str,
    description: str,
    parameters: dict[str, Maker | Choice],
    schemas: dict[str, dict[str, Any]],
    phrases: tuple[str, ...],
    required: int | None = None,
    pick: Callable[[Source, Sequence[str]], str] = Source.phrase,
) -> Callable[[Source], Tool]:
    """Returns a tool that many programs have. Its parameters are in `phrases` by name; a phrase may
    leave some out, which are then not given."""

    def build(source: Source) -> Tool:
        makers: dict[str, Maker] = {}
        made: list[Parameter] = []
        n = len(parameters) if required is None else required
        for i, (key, make) in enumerate(parameters.items()):
            schema = schemas.get(key, {"type": "string"})
            if isinstance(make, Choice):
                options = list(make.options(source))
                schema = {"type": "string", "enum": options}
                makers[key] = partial(_one, options)
            else:
                makers[key] = make
            made.append(Parameter(name=key, schema=schema, required=i < n))

        def ask(source: Source) -> tuple[str, dict[str, Value]]:
            # No phrase of a tool of the evaluation is in the training.
            text = source.one(phrases) if source.held_out else pick(source, phrases)
            given = {key: make(source) for key, make in makers.items() if f"{{{key}}}" in text}
            return text.format(**given), given

        return Tool(
            name=name,
            description=description if source.chance(0.85) else "",
            parameters=tuple(made),
            ask=ask,
        )

    return build


INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
UNITS = (
    ("celsius", "fahrenheit"),
    ("metric", "imperial"),
    ("C", "F"),
    ("degrees_c", "degrees_f"),
    ("kelvin", "rankine"),
)

_UNIT = Choice(options=lambda source: source.phrase(UNITS))
_ROOM = Choice(options=lambda source: source.listed_some(words.PLACES, source.number(3, 4)))


def text_value(source: Source) -> str:
    """Returns an utterance; in some lessons it has small words, as real sentences do."""
    if source.held_out or source.chance(0.6):
        return " ".join(source.words(2, 6))
    return " ".join(source.running_word() for _ in range(source.number(2, 7)))


def small(source: Source) -> int:
    return source.integer(1, 60)


def _expression(source: Source) -> str:
    return f"{number(source)} {source.one('+-*/')} {number(source)}"


def language(source: Source) -> str:
    """Returns a language. In the training it may be made up, because the evaluation's are as
    unknown."""
    if not source.held_out and source.chance(0.35):
        return source.made_up().capitalize()
    return source.listed(words.LANGUAGES)


def currency(source: Source) -> str:
    return source.listed(words.CURRENCIES)


def _symbol(source: Source) -> str:
    return source.made_up(4).upper()


KNOWN: tuple[Callable[[Source], Tool], ...] = (
    known("get_weather", "Get the current weather in a city", {"city": Source.city, "unit": _UNIT}, {},
        ("What's the weather in {city}?", "How is the weather in {city}?", "Weather in {city} in {unit}", "Is it raining in {city}?",
         "What is the weather like in {city}?", "Tell me the weather in {city}.", "How warm is it in {city} in {unit}?", "Is it cold in {city} today?",
         "Do I need an umbrella in {city}?", "Weather for {city} please"), 1),
    known("get_current_weather", "Get the weather of a location", {"location": Source.city}, {},
        ("What's the weather in {location}?", "How is the weather in {location} today?", "Will it rain in {location}?", "Weather {location}",
         "What about the weather in {location}?", "Is it sunny in {location}?")),
    known("get_time", "Get the current time in a city", {"city": Source.city}, {},
        ("What time is it in {city}?", "Tell me the time in {city}.", "Time in {city}?", "How late is it in {city}?", "What is the time in {city}?")),
    known("get_current_time", "Get the current time", {}, {},
        ("What time is it?", "What's the time?", "Tell me the time.", "How late is it?", "What is the current time?", "Do you know what time it is now?")),
    known("calculator", "Evaluate an arithmetic expression", {"formula": _expression}, {},
        ("Calculate {formula}", "What is {formula}?", "Compute {formula}", "How much is this: {formula}?", "Evaluate {formula}")),
    known("add", "Add two numbers", {"a": number, "b": number}, {"a": INTEGER, "b": INTEGER},
        ("Add {a} and {b}", "What is {a} + {b}?", "How much is {a} plus {b}?", "Sum up {a} and {b}", "What is {a} plus {b}?")),
    known("multiply", "Multiply two numbers", {"a": number, "b": number}, {"a": INTEGER, "b": INTEGER},
        ("Multiply {a} by {b}", "What is {a} * {b}?", "How much is {a} times {b}?", "Multiply {a} and {b}.", "What is {a} times {b}?")),
    known("web_search", "Search the web", {"query": text_value}, {},
        ("Search the web for {query}", "Google {query}", "Look up {query} on the web", "Find {query} online", "Search for {query} on the internet", "Search: {query}")),
    known("search", "Search documents", {"query": text_value, "limit": small}, {"limit": INTEGER},
        ("Search for {query}", "Search for {query}, at most {limit} results", "Find documents about {query}", "Look for {query}", "Give me {limit} results for {query}", "Show documents on {query}"), 1),
    known("send_email", "Send an email", {"email_address": Source.address, "headline": text_value, "mail_text": text_value}, {},
        ("Send an email to {email_address} with the subject \"{headline}\" and the text \"{mail_text}\"", "Email {email_address}: subject {headline}, body {mail_text}", "Write an email to {email_address} with subject \"{headline}\" and body \"{mail_text}\"",
         "Send {email_address} a mail about \"{headline}\" that says \"{mail_text}\"", "Mail \"{mail_text}\" to {email_address}, subject \"{headline}\"")),
    known("send_message", "Send a message to a person", {"recipient": Source.name, "message": text_value}, {},
        ("Send {recipient} the message \"{message}\"", "Tell {recipient} \"{message}\"", "Message {recipient}: {message}", "Write to {recipient}: {message}", "Text {recipient} that \"{message}\"")),
    known("set_timer", "Set a timer", {"minutes": small}, {"minutes": INTEGER},
        ("Set a timer for {minutes} minutes", "Timer {minutes} minutes", "Start a timer of {minutes} minutes.", "Wake me in {minutes} minutes", "Set the timer to {minutes} minutes please")),
    known("set_alarm", "Set an alarm", {"time": Source.time}, {},
        ("Set an alarm for {time}", "Wake me up at {time}", "Alarm at {time} please", "I have to get up at {time}", "Please wake me at {time}.")),
    known("create_reminder", "Create a reminder", {"text": text_value, "time": Source.time}, {},
        ("Remind me at {time} to {text}", "Create a reminder \"{text}\" at {time}", "Reminder: {text} at {time}", "Remind me of \"{text}\" at {time}", "Set a reminder for {time}: {text}")),
    known("translate", "Translate a text", {"sentence": text_value, "target_language": language}, {},
        ("Translate \"{sentence}\" to {target_language}", "Translate {sentence} into {target_language}", "What is \"{sentence}\" in {target_language}?", "How do you say \"{sentence}\" in {target_language}?", "Say \"{sentence}\" in {target_language}.")),
    known("turn_on_light", "Turn on the light in a room", {"room": _ROOM}, {},
        ("Turn on the light in the {room}", "Light on in the {room}", "Switch on the {room} light.", "It's dark in the {room}", "Please turn the {room} light on")),
    known("turn_off_light", "Turn off the light in a room", {"room": _ROOM}, {},
        ("Turn off the light in the {room}", "Light off in the {room}", "Switch off the {room} light.", "Make the {room} dark", "Please turn the {room} light off")),
    known("set_temperature", "Set the temperature of a room", {"room": _ROOM, "degrees": small}, {"degrees": INTEGER},
        ("Set the temperature in the {room} to {degrees}", "Make it {degrees} degrees in the {room}", "Heat the {room} to {degrees} degrees.", "{room} {degrees} degrees", "I want {degrees} degrees in the {room}")),
    known("play_music", "Play a song", {"song": text_value, "artist": Source.name}, {},
        ("Play {song}", "Play {song} by {artist}", "I want to hear {song} by {artist}", "Put on {song}", "Play the song {song} by {artist}", "Please play {song}."), 1),
    known("read_file", "Read a file", {"file_path": Source.file}, {},
        ("Read the file {file_path}", "What is in {file_path}?", "Show me {file_path}", "Open the file {file_path}", "Print the content of {file_path}")),
    known("write_file", "Write a text into a file", {"path": Source.file, "content": text_value}, {},
        ("Write \"{content}\" to {path}", "Save \"{content}\" in the file {path}", "Put \"{content}\" into {path}", "Create the file {path} with the content \"{content}\"", "Make a file {path} that says \"{content}\"")),
    known("list_files", "List the files of a directory", {"directory": lambda s: f"/{s.made_up()}"}, {},
        ("List the files in {directory}", "What files are in {directory}?", "Show the files of {directory}", "ls {directory}", "Which files does {directory} have?")),
    known("get_stock_price", "Get the price of a stock", {"symbol": _symbol}, {},
        ("What is the stock price of {symbol}?", "How much is {symbol}?", "Price of {symbol}", "Get the stock price for {symbol}", "How is {symbol} doing?")),
    known("buy_flight", "Book a flight", {"departure": Source.city, "arrival": Source.city, "passengers": small}, {"passengers": INTEGER},
        ("Book a flight from {departure} to {arrival}", "I want to fly from {departure} to {arrival}", "Flight from {departure} to {arrival} for {passengers}", "Book {passengers} seats from {departure} to {arrival}.", "Fly me from {departure} to {arrival}"), 2),
    known("get_user", "Get a user by id", {"user_id": number}, {"user_id": INTEGER},
        ("Get user {user_id}", "Show me the user {user_id}", "Who is user {user_id}?", "Find the user with the id {user_id}", "Which user has id {user_id}?")),
    known("roll_dice", "Roll dice", {"times": small, "sides": small}, {"times": INTEGER, "sides": INTEGER},
        ("Roll {times} dice", "Roll {times} dice with {sides} sides", "Throw {times} dice", "Give me {times} dice rolls with {sides} sides", "Roll the dice {times} times"), 1),
    known("run_sql", "Run a query on the database", {"query": lambda s: f"SELECT {s.made_up()} FROM {s.made_up()}"}, {},
        ("Run {query}", "Execute {query}", "Query the database: {query}", "Please run the query {query}", "Do {query}")),
    known("convert_currency", "Convert an amount of money", {"amount": number, "source_currency": currency, "target_currency": currency}, {"amount": NUMBER},
        ("Convert {amount} {source_currency} to {target_currency}", "How much is {amount} {source_currency} in {target_currency}?", "{amount} {source_currency} in {target_currency}", "Change {amount} {source_currency} into {target_currency}.", "What are {amount} {source_currency} in {target_currency}?")),
)  # fmt: skip
"""Every fifth of them is only in the evaluation."""


NAMES = frozenset(make(Source(0)).name for make in KNOWN)


def known_tool(source: Source) -> Tool:
    return source.phrase(KNOWN)(source)
