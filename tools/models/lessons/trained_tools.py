"""Tools that many programs have, for the training alone."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tools.models.lessons import words
from tools.models.lessons.known_tools import (
    INTEGER,
    Choice,
    Maker,
    currency,
    known,
    language,
    small,
    text_value,
)
from tools.models.lessons.phrasings import varied
from tools.models.lessons.source import Source, is_held_out
from tools.models.lessons.toolbox import Tool, Value, number, spoken, unknown_verb

Phrases = tuple[str, ...]
_WORD = re.compile(r"\b[a-z]{4,}\b")


def own(options: Sequence[str]) -> list[str]:
    """Returns the options that aren't only in the evaluation."""
    return [each for each in options if not is_held_out(each)]


def _of(*options: str) -> Choice:
    """Returns an enum of some of these."""
    kept = own(options)
    return Choice(options=lambda source: source.some(kept, source.number(2, len(kept))))


def _tool(
    name: str,
    description: str,
    parameters: dict[str, Maker | Choice],
    phrases: Phrases,
    required: int | None = None,
) -> Callable[[Source], Tool]:
    numbers = {key: INTEGER for key, make in parameters.items() if make in (small, number)}
    pick = partial(_picked, description, parameters)
    return known(name, description, parameters, numbers, phrases, required, pick=pick)


def _picked(
    description: str,
    makers: Mapping[str, Maker | Choice],
    source: Source,
    phrases: Sequence[str],
) -> str:
    """Returns one of the phrases, or sometimes its values among meaningless words."""
    phrase = source.one(phrases)
    keys = re.findall(r"{(\w+)}", phrase)
    if not keys or not source.chance(0.3):
        return phrase
    return unworded(source, description, {key: makers[key] for key in keys})


def unworded(source: Source, description: str, makers: Mapping[str, Maker | Choice]) -> str:
    """Returns a phrase whose verb says nothing. The form of its values, names next to them, and
    mostly a word of the description show what it requests."""
    what = source.one(OPENINGS) if source.chance(0.4) else unknown_verb(source)
    if source.chance(0.5) or not any(make in TELLING for make in makers.values()):
        article = source.one(("the ", "a ", "my ", "this ", ""))
        what += f" {article}{source.one(_WORD.findall(description))}"
    seen: set[Maker | Choice] = set()
    parts = []
    for key, make in source.some(list(makers.items()), len(makers)):
        value = f'"{{{key}}}"' if make is text_value and source.chance(0.6) else f"{{{key}}}"
        # Of two values with the same form, at least one has its name.
        if make in seen or source.chance(0.4):
            order = (spoken(key), value) if source.chance(0.7) else (value, spoken(key))
            value = f" {source.link(0, 2)} ".join(order).replace("  ", " ")
        seen.add(make)
        parts.append(value)
    joint = source.one((" ", ", ", " {} ", " {} ", ", {} "))
    text = what + source.one((" ", ": ", " {} ")).format(source.link(1, 1))
    for i, part in enumerate(parts):
        text += (joint.format(source.link(1, 1)) if i else "") + part
    return text + source.one(("", ".", "?"))


_ROOM: Maker = lambda source: source.listed(words.PLACES)  # noqa: E731
_THING: Maker = lambda source: source.listed(words.THINGS)  # noqa: E731
_COLOR: Maker = lambda source: source.listed(words.COLORS)  # noqa: E731
_SUM: Maker = lambda s: f"{number(s)} {s.one('+-*/')} {number(s)}"  # noqa: E731
_COMMAND: Maker = lambda s: f"{s.made_up(4)} -{s.made_up()[:1]} {s.made_up()}"  # noqa: E731
_URL: Maker = lambda s: f"https://{s.made_up()}.{s.listed(words.DOMAINS)}"  # noqa: E731
_CITY, _NAME, _TIME, _DATE = Source.city, Source.name, Source.time, Source.date
_SCALE = _of("celsius", "fahrenheit", "kelvin")
OPENINGS = (
    "What is", "What's", "How is", "How do I get", "Show me", "Say", "Give me", "Is", "Where is", "And", "What about",
    "Tell me", "I want", "May I have", "Do you have", "Which is", "Let us", "I need", "How about", "Do", "Make", "What are",
    "How much is", "Who is", "What was", "How do we say", "Is there", "Are", "Take", "Let me have", "Please", "Now", "Go",
)  # fmt: skip
"""Beginnings of requests that don't point to a tool."""
TELLING = {_SUM, _COMMAND, _URL, Source.address, Source.file, language, currency}
"""Forms of values that few tools have."""

USUAL: tuple[Callable[[Source], Tool], ...] = (
    _tool("compute_expression", "Evaluate a mathematical expression", {"expression": _SUM},
        ("What does {expression} make?", "Work out {expression}", "Solve {expression}", "How much would {expression} be?", "{expression}", "I need the result of {expression}", "Do the math: {expression}", "Can you calculate {expression} for me?", "{expression} = ?", "Evaluate this: {expression}", "Determine {expression}", "The value of {expression}, please", "Evaluate for me {expression}", "What's the result of {expression}?", "Tell me what {expression} is", "How much do I get for {expression}?", "What comes out of {expression}?", "Is it hard to say what {expression} is?", "I wonder what {expression} is", "{expression} is what?")),
    _tool("interpreter", "Say a phrase in another language", {"phrase": text_value, "language": language},
        ("Put \"{phrase}\" into {language}", "What does \"{phrase}\" mean in {language}?", "I want to say \"{phrase}\" in {language}", "In {language}, how would I say {phrase}?", "{language} for \"{phrase}\"?", "Turn \"{phrase}\" into {language}", "Give me the {language} version of: {phrase}", "Please say {phrase} the {language} way", "Make this {language}: {phrase}", "Tell me \"{phrase}\" in {language}", "Write \"{phrase}\" in {language}", "Say in {language}: \"{phrase}\"", "Read \"{phrase}\" to me in {language}", "How is \"{phrase}\" said in {language}?", "How does one say \"{phrase}\" in {language}?", "How would you put {phrase} in {language}?", "What's the {language} for \"{phrase}\"?", "\"{phrase}\" in {language}, please", "How do people say \"{phrase}\" in {language}?", "And \"{phrase}\" in {language}?", "How do the speakers of {language} say {phrase}?", "What's \"{phrase}\" called in {language}?", "I have to say {phrase} in {language}. How?")),
    _tool("post_letter", "Send a letter by electronic mail", {"receiver": Source.address, "subject": text_value, "letter": text_value},
        ("Write to {receiver} about \"{subject}\": \"{letter}\"", "Let {receiver} know that \"{letter}\", with the subject \"{subject}\"", "Subject \"{subject}\" for {receiver}: \"{letter}\"", "Tell {receiver} by mail \"{letter}\". The subject is \"{subject}\".", "Mail to {receiver}. Subject: {subject}. Text: {letter}", "\"{letter}\" goes to {receiver} with \"{subject}\" as its subject", "Draft a mail for {receiver} called \"{subject}\" with \"{letter}\"", "Mail the letter \"{letter}\" to {receiver} with the subject \"{subject}\"", "Post \"{letter}\" to {receiver}, subject \"{subject}\"", "Mail {receiver}: \"{letter}\" (subject \"{subject}\")", "Send {receiver} something on \"{subject}\": \"{letter}\"", "Send a letter about \"{subject}\" to {receiver}, and say \"{letter}\"", "A mail on \"{subject}\" for {receiver}, which says \"{letter}\"", "{receiver} should get a mail about \"{subject}\" with the words \"{letter}\"")),
    _tool("read_document", "Show what is in a document", {"document_path": Source.file}, ("Let me see {document_path}", "What does {document_path} say?", "Display {document_path}", "Cat {document_path}", "I want to see what's in {document_path}", "Give me the text of {document_path}", "Load {document_path}", "Please read {document_path} to me", "Print {document_path}", "Print what is in {document_path}", "Show the content of {document_path}", "The content of {document_path}, please", "Show {document_path} to me", "May I see {document_path}?", "I'd like to see {document_path}", "What stands in {document_path}?", "What is written in {document_path}?", "Is there anything in {document_path}?", "{document_path}: what is in it?", "Show us {document_path}", "Let me read {document_path}")),
    _tool("find_customer", "Find a customer by number", {"customer_number": number}, ("Which customer has the number {customer_number}?", "Show customer {customer_number}", "Who is customer {customer_number}?", "Customer number {customer_number}, please", "Load the data of customer {customer_number}", "Which customer has {customer_number} as number?")),
    _tool("find_member", "Get a member by key", {"member_key": number}, ("Who is member {member_key}?", "Get me member {member_key}", "Show the member with key {member_key}", "Member {member_key}?", "Look up the member {member_key}", "Which member has the key {member_key}?", "Which of the members has key {member_key}?")),
)  # fmt: skip
"""Kinds of tools that people try first."""

TRAINED: tuple[Callable[[Source], Tool], ...] = (
    *USUAL,
    _tool("weather_forecast", "Forecast the weather of a city for some days", {"city": _CITY, "days": small},
        ("What will the weather be like in {city} in the next {days} days?", "Forecast for {city}, {days} days", "How does the weather in {city} get over {days} days?", "Will it snow in {city}?", "Show me {days} days of weather in {city}", "I travel to {city}. How will the weather be?"), 1),
    _tool("current_temperature", "Measure how warm it is in a place", {"city": _CITY, "scale": _SCALE},
        ("How cold is it in {city} in {scale}?", "How many degrees {scale} are there in {city}?", "Temperature of {city} in {scale}", "In {scale}, how hot is {city}?", "{city}: degrees in {scale}?", "Is {city} warm? Use {scale}."), 2),
    _tool("subtract", "Subtract one number from another", {"minuend": number, "subtrahend": number},
        ("Subtract {subtrahend} from {minuend}", "{minuend} minus {subtrahend}", "Take {subtrahend} away from {minuend}", "What is {minuend} without {subtrahend}?", "How much is {minuend} - {subtrahend}?")),
    _tool("divide", "Divide a number", {"dividend": number, "divisor": number},
        ("Divide {dividend} by {divisor}", "What is {dividend} over {divisor}?", "{dividend} / {divisor}", "How often does {divisor} fit into {dividend}?", "Split {dividend} into {divisor} equal parts")),
    _tool("square_root", "Compute a square root", {"number": number}, ("What is the square root of {number}?", "Root of {number}", "Square root: {number}", "Find the root of {number}", "sqrt({number})")),
    _tool("detect_language", "Find out which language a phrase has", {"phrase": text_value},
        ("Which language is \"{phrase}\"?", "What language is this: {phrase}", "Detect the language of {phrase}", "Is \"{phrase}\" French or Spanish?", "Tell me the language of \"{phrase}\".")),
    _tool("unread_mails", "Show mails that are not read yet", {"limit": small}, ("Show my {limit} newest mails", "Do I have new mail?", "What is in my inbox?", "Any unread mail?", "Give me the last {limit} mails", "Check my mail"), 0),
    _tool("call_contact", "Make a phone call", {"contact": _NAME}, ("Call {contact}", "Phone {contact}", "Ring up {contact} please", "I want to talk to {contact}", "Dial {contact}", "Get {contact} on the phone")),
    _tool("add_appointment", "Put an appointment into the calendar", {"title": text_value, "day": _DATE, "time": _TIME},
        ("Add \"{title}\" to my calendar on {day} at {time}", "I have {title} on {day} at {time}", "Appointment: {title}, {day}, {time}", "On {day} at {time} I have \"{title}\"", "Plan \"{title}\" for {day}, {time}", "Schedule {title} at {time} on {day}", "Put {title} in the calendar for {day}"), 2),
    _tool("day_agenda", "Show the appointments of a day", {"day": _DATE}, ("What do I have on {day}?", "Show my calendar for {day}", "Am I free on {day}?", "Which appointments are there on {day}?", "Agenda for {day}")),
    _tool("weekday_of", "Find the weekday of a date", {"day": _DATE}, ("Which weekday is {day}?", "What day of the week is {day}?", "Is {day} a Sunday?", "Weekday of {day}?", "On what weekday does {day} fall?")),
    _tool("find_route", "Find a way between two places", {"start": _CITY, "end": _CITY, "mode": _of("car", "train", "bike", "walk", "bus", "foot")},
        ("How do I get from {start} to {end}?", "Route from {start} to {end} by {mode}", "Directions to {end} from {start}", "Lead me from {start} to {end}", "I am in {start} and want to go to {end} by {mode}", "By {mode} from {start} to {end}", "To {end}, starting in {start}, please"), 2),
    _tool("nearby_places", "Search for places around here", {"category": _ROOM, "radius": small}, ("Where is the next {category}?", "Find a {category} near me", "Is there a {category} within {radius} km?", "I am looking for a {category}", "Show each {category} in {radius} kilometers"), 1),
    _tool("distance_between", "Compute how far two cities are apart", {"first_city": _CITY, "second_city": _CITY}, ("How far is it from {first_city} to {second_city}?", "Distance between {first_city} and {second_city}", "How many kilometers are there between {first_city} and {second_city}?", "Is {first_city} far from {second_city}?", "{first_city} to {second_city}: how far?")),
    _tool("reserve_table", "Reserve a table at a restaurant", {"restaurant": _NAME, "people": small, "time": _TIME}, ("A table for {people} at {restaurant} at {time}", "Reserve a table at {restaurant} for {people} people at {time}", "We are {people} and want to eat at {restaurant} at {time}", "At {time}, {people} seats in {restaurant}", "Table at {restaurant}, {time}, {people} persons")),
    _tool("reserve_room", "Reserve a hotel room", {"city": _CITY, "nights": small, "arrival_day": _DATE}, ("I need a room in {city} for {nights} nights from {arrival_day}", "Hotel in {city}, {nights} nights, from {arrival_day}", "From {arrival_day} I stay {nights} nights in {city}", "Find a place to sleep in {city} for {nights} nights", "{nights} nights in {city} please"), 2),
    _tool("find_trains", "Search for trains", {"start": _CITY, "end": _CITY, "time": _TIME}, ("Trains from {start} to {end}", "When does a train go from {start} to {end} after {time}?", "I take a train to {end} from {start} at {time}", "Is there a train between {start} and {end}?", "At {time} from {start} to {end} by train"), 2),
    _tool("buy_product", "Buy something in the shop", {"product": _THING, "quantity": small}, ("Buy {quantity} of {product}", "I want {quantity} {product}", "Get me a {product}", "Put {quantity} {product} in my cart", "I'd like to have a {product}", "{quantity} x {product}, please"), 1),
    _tool("product_price", "Look up what a product costs", {"product": _THING}, ("How much does a {product} cost?", "Price of the {product}?", "What do you want for a {product}?", "Is the {product} expensive?", "What must I pay for a {product}?")),
    _tool("parcel_tracking", "Find out where a parcel is", {"parcel_number": number}, ("Where is my parcel {parcel_number}?", "Track {parcel_number}", "Has parcel {parcel_number} arrived?", "When does {parcel_number} come?", "Follow the parcel {parcel_number}")),
    _tool("exchange_money", "Tell what money is worth in another currency", {"sum_of_money": number, "old_currency": currency, "new_currency": currency}, ("What is {sum_of_money} {old_currency} worth in {new_currency}?", "{sum_of_money} {old_currency} to {new_currency}", "I have {sum_of_money} {old_currency}. How many {new_currency} are these?", "How many {new_currency} do I get for {sum_of_money} {old_currency}?", "Exchange {sum_of_money} {old_currency} for {new_currency}")),
    _tool("share_price", "Get what a share is worth", {"ticker": lambda s: s.made_up(4).upper()}, ("What does one share of {ticker} cost?", "{ticker} shares?", "Quote of {ticker}", "Where does {ticker} stand?", "How much is one {ticker} share now?")),
    _tool("pay_person", "Pay somebody", {"person": _NAME, "amount": number}, ("Pay {person} {amount} euros", "{person} gets {amount} dollars from me", "Transfer {amount} to {person}", "Give {person} {amount} euros", "I owe {person} {amount}, pay it", "Send {amount} dollars to {person}")),
    _tool("switch_lamp", "Switch a lamp on or off", {"room": _ROOM, "state": _of("on", "off", "dim", "bright")}, ("Lamp {state} in the {room}", "Turn the {room} lamp {state}", "Make the lamp in the {room} {state}", "In the {room}, lamp {state}", "The lamp of the {room} should be {state}")),
    _tool("lamp_color", "Change the color of a lamp", {"room": _ROOM, "color": _COLOR}, ("Make the {room} {color}", "{color} light in the {room}", "I want the {room} lamp in {color}", "Color the {room} light {color}", "Change the light of the {room} to {color}")),
    _tool("lock_door", "Lock a door", {"door": _ROOM}, ("Lock the {door}", "Lock the door of the {door}", "Is the {door} locked? If not, lock it.", "Nobody may enter the {door}", "Close the {door} with the key")),
    _tool("heat_room", "Heat a room", {"room": _ROOM, "temperature": small}, ("It should be {temperature} degrees in the {room}", "{temperature} degrees for the {room}", "Warm the {room} to {temperature}", "I am cold in the {room}, make it {temperature}", "Heating of the {room} to {temperature}")),
    _tool("set_loudness", "Change how loud the speaker is", {"percent": small}, ("Volume to {percent}", "Make it {percent} percent loud", "Loudness {percent}", "Turn the sound to {percent} percent", "Too loud, {percent} percent is enough")),
    _tool("play_radio", "Play a radio station", {"station": _NAME}, ("Radio {station}", "Turn on radio {station}", "I want to hear radio {station}", "Play the station {station}", "Switch to radio {station}")),
    _tool("find_songs", "Search for songs", {"artist": _NAME, "limit": small}, ("Songs by {artist}", "What did {artist} sing?", "Find {limit} songs by {artist}", "Show me music of {artist}", "Which songs are there of {artist}?"), 1),
    _tool("search_movies", "Search for movies", {"director": _NAME, "year": small}, ("Movies by {director}", "Which films did {director} make?", "Find films of {director} from year {year}", "Something to watch by {director}", "What did {director} film in year {year}?"), 1),
    _tool("search_books", "Search the library for books", {"topic": text_value}, ("Books about {topic}", "Do you have a book on {topic}?", "I want to read about {topic}", "Which books deal with {topic}?", "Find me something to read on {topic}")),
    _tool("define_term", "Explain what a term means", {"term": Source.word}, ("What does \"{term}\" mean?", "Define {term}", "Meaning of {term}", "Look up {term} in the dictionary", "What is meant by {term}?", "Explain the term {term}")),
    _tool("remove_document", "Delete a document", {"document_path": Source.file}, ("Delete {document_path}", "Throw away {document_path}", "I don't need {document_path} any more", "rm {document_path}", "Get rid of {document_path}")),
    _tool("move_document", "Move a document", {"old_path": Source.file, "new_path": Source.file}, ("Move {old_path} to {new_path}", "Rename {old_path} to {new_path}", "mv {old_path} {new_path}", "{old_path} should be called {new_path}", "Make {old_path} into {new_path}")),
    _tool("grep", "Search for a pattern in a folder", {"pattern": Source.made_up, "folder": lambda s: f"/{s.made_up()}"}, ("Where in {folder} does {pattern} occur?", "grep {pattern} {folder}", "Search {folder} for {pattern}", "Find \"{pattern}\" in {folder}", "Look through {folder} for {pattern}")),
    _tool("run_shell", "Run a shell command", {"shell_command": _COMMAND}, ("Run `{shell_command}`", "Execute the command {shell_command}", "In the shell: {shell_command}", "Type {shell_command} in the terminal", "Start {shell_command}")),
    _tool("fetch_page", "Fetch a web page", {"url": _URL}, ("Open {url}", "What is on {url}?", "Fetch {url}", "Download the page {url}", "Go to {url}", "Load the page at {url}")),
    _tool("latest_news", "Get the news about a topic", {"topic": Source.word}, ("News about {topic}", "What's new in {topic}?", "Anything new about {topic}?", "What happened in {topic}?", "Headlines on {topic}")),
    _tool("add_todo", "Add something to the list of things to do", {"task": text_value}, ("I have to {task}", "Add \"{task}\" to my list", "To do: {task}", "Don't let me forget to {task}", "Put {task} on the list")),
    _tool("random_number", "Draw a random number", {"low": small, "high": number}, ("A random number between {low} and {high}", "Draw a number from {low} to {high}", "Pick any number from {low} up to {high}", "Give me some number between {low} and {high}", "Random: {low} to {high}")),
    _tool("flip_coin", "Flip a coin", {}, ("Flip a coin", "Heads or tails?", "Toss a coin", "Let a coin decide", "Throw a coin for me")),
    _tool("find_recipe", "Find a recipe", {"ingredient": Source.word, "minutes": small}, ("What can I cook with {ingredient}?", "Recipe with {ingredient}", "I have {ingredient} and {minutes} minutes, what can I cook?", "A meal of {ingredient} in {minutes} minutes", "Cook something with {ingredient}"), 1),
    _tool("log_weight", "Store how heavy somebody is", {"kilos": lambda s: s.own(lambda: number(s) / 10)}, ("I weigh {kilos} kilos", "My weight is {kilos}", "Log {kilos} kg", "Store a weight of {kilos}", "The scale says {kilos}")),
)  # fmt: skip


ALIASES = {
    "receiver": ("mail", "recipient", "address", "mail_to", "mail_address"),
    "subject": ("title", "topic", "heading", "about", "subject_line"),
    "letter": ("text", "body", "content", "message", "letter_text"),
    "phrase": ("text", "words", "input", "phrase_text", "saying"),
    "language": ("to_language", "new_language", "tongue", "into", "goal_language"),
    "expression": ("term", "calculation", "sum", "math", "task"),
    "document_path": ("path", "document", "file", "name", "document_name"),
    "member_key": ("key", "id", "number", "member", "member_id"),
    "customer_number": ("number", "id", "key", "customer", "customer_id"),
}
"""Synonyms for the name of a parameter."""

SYNONYMS: dict[str, tuple[Phrases, Phrases]] = {
    "compute_expression": (
        ("compute", "evaluate", "math", "calc", "arithmetic", "do_math", "solve", "pocket_calc", "sums", "calculate_it", "calculation", "sum_up"),
        ("Do the math", "Compute a term", "Work out a calculation", "Arithmetic with numbers", "Tell what a sum makes", "Calculate", "Calculate something", "A calculation of numbers"),
    ),
    "interpreter": (
        ("interpret", "say_in", "to_language", "other_language", "speak_language", "put_into_language", "languages", "translate_phrase", "translator", "phrase_translation", "translate_words"),
        ("Put a phrase into another language", "Say something the way other countries do", "Speak other languages", "Interpret words", "Translate a phrase", "Translates words", "Translate what somebody says"),
    ),
    "post_letter": (
        ("mail", "post", "mail_letter", "write_mail", "deliver_mail", "mailer", "new_mail", "post_mail", "email_letter", "mail_sender", "send_letter", "email_to"),
        ("Mail a letter to an address", "Deliver a letter by mail", "Write a mail to somebody", "Mail something", "Post a mail", "Email a letter", "Send somebody a mail", "Send a letter"),
    ),
    "read_document": (
        ("open_document", "show_document", "cat", "load_text", "view", "content_of", "print_document", "read", "text_of", "show_file", "file_text", "read_text", "open_file"),
        ("Show the content of a document", "Load a text from the disk", "Read something from the disk", "Print a document", "Read the text of a file", "Show a file", "Read a document"),
    ),
    "find_customer": (
        ("customer", "show_customer", "customer_by_number", "load_customer", "who_is", "lookup_customer", "customer_info", "get_customer"),
        ("Show who a customer is", "Look up a customer", "Load the data of a customer", "Get a customer", "Get the customer of a number"),
    ),
    "find_member": (
        ("member", "show_member", "member_by_key", "load_member", "get_member", "lookup_member", "find_user_by_key", "user_by_key", "member_info"),
        ("Show who a member is", "Look up a member", "Load the data of a member", "Get a member", "Look up a user"),
    ),
}  # fmt: skip
"""Other names and descriptions of a tool: its purpose can be described in many ways."""


def renamed(source: Source, tool: Tool) -> Tool:
    """Returns the tool, sometimes with another name, and with any names and descriptions for some
    of its parameters: definitions matter, and no name shall be memorized."""
    names: dict[str, str] = {}
    parameters = []
    for each in tool.parameters:
        aliases = own(ALIASES.get(each.name, ())) if source.chance(0.6) else ()
        known_name = source.one(aliases or (each.name,))
        other = source.chance(0.3)
        names[each.name] = _other_name(source, each.name) if other else known_name
        schema = each.schema
        if other or source.chance(0.25):
            schema = {**schema, "description": f"The {spoken(each.name)}"}
        parameters.append(replace(each, name=names[each.name], schema=schema))
    name, description = tool.name, tool.description
    if name in SYNONYMS and source.chance(0.5):
        called, described = SYNONYMS[name]
        name = source.one(own(called))
        description = description and source.one(described)
    elif description and source.chance(0.5):
        said = _WORD.findall(description.lower())
        name = "_".join(source.some([*said, source.made_up()], 2))
    return replace(
        tool,
        name=name,
        description=description,
        parameters=tuple(parameters),
        ask=partial(_asked, tool, names),
    )


def _other_name(source: Source, name: str) -> str:
    made_up = source.made_up()
    return source.one((made_up, f"{made_up}_{name}", f"{name}_{made_up}"))


def _asked(tool: Tool, names: dict[str, str], source: Source) -> tuple[str, dict[str, Value]]:
    text, given = tool.ask(source)
    return varied(source, text), {names[key]: value for key, value in given.items()}


def trained_tool(source: Source) -> Tool:
    return renamed(source, source.one(USUAL if source.chance(0.5) else TRAINED)(source))
