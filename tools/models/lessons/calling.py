"""Tool calls: choose a tool, fill in its arguments, report its result, or answer without a tool."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from tools.models.lessons import words
from tools.models.lessons.distinctions import distinguishing_tool
from tools.models.lessons.exercises import simple
from tools.models.lessons.guided import PLAIN_SYSTEMS
from tools.models.lessons.known_tools import NAMES, known_tool
from tools.models.lessons.lesson import Lesson, Message, assistant, system, user
from tools.models.lessons.source import Source
from tools.models.lessons.toolbox import (
    VERBS,
    Tool,
    any_verb,
    made_up_tool,
    spoken,
    unknown_verb,
    verb_tool,
)
from tools.models.lessons.trained_tools import trained_tool

ABILITY = "tools"

DRILLS = 0.33
"""The share of families with many small tools: a choice there costs few tokens."""
USUAL_ALONE = 0.15
"""The share of these families without a made-up tool."""
NO_TOOL = "I have no tool for that."
JOINS = (
    "{first} {second}", "{first} Also: {second}", "{first} And {lower}", "{first} Then {lower}",
    "{first} Besides, {lower}", "1. {first} 2. {second}", "{first}\n{second}", "{first} And also {lower}",
    "First: {first} Second: {second}", "{first} After that {lower}",
    "{first} Besides that, {lower}", "{first} Afterwards {lower}", "{first} After this, {lower}", "{first} Next, {lower}",
    "{first} One more thing: {lower}", "{first} After that, please: {second}", "{first} Besides this: {second}", "{first} Moreover, {lower}",
    "{first} Once that is done, {lower}", "{first} In addition, {lower}",
)  # fmt: skip
ONE_SENTENCE = ("{first} and {lower}", "{first} and {lower}", "{first}, then {lower}", "{first} and then {lower}", "{first}, and {lower}", "{first} and also {lower}", "{first}; {lower}")  # fmt: skip
"""Used only in the training."""
ERRORS = (
    "not found",
    "no permission",
    "timed out",
    "invalid value",
    "server is down",
    "no such id",
    "access denied",
    "bad request",
    "not available",
    "out of memory",
)
DONE, FAILED = "It is done.", "That did not work."
OUTCOMES = (
    ('{"ok": true}', DONE), ("ok", DONE), ('{"ok": false}', FAILED), ("done", DONE), ('{"done": true}', DONE),
    ('{"success": true}', DONE), ('{"status": "ok"}', DONE), ('{"success": false}', FAILED),
    ('{"status": "failed"}', FAILED), ('{"done": false}', FAILED),
)  # fmt: skip


def call(name: str, arguments: dict[str, Any]) -> Message:
    return {
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)},
    }


def lesson(source: Source) -> Lesson:
    return family(source, 1)[0]


def family(source: Source, n: int) -> list[Lesson]:
    """Returns `n` lessons about the same tools, or twice as many about small ones. Their prompts
    begin alike."""
    # Small tools leave room for many choices.
    drill = n > 1 and not source.held_out and source.chance(DRILLS)
    tools = small(source) if drill else distinct(source, source.upto(1, 5))
    n *= 2 if drill else 1
    shuffled = source.some(tools, len(tools))
    numbers = {each.name: i for i, each in enumerate(shuffled, 1)}
    tools = [replace(each, number=numbers[each.name]) for each in tools]
    defined = tuple(each.definition(source) for each in shuffled)
    before = [system(source.phrase(PLAIN_SYSTEMS))] if source.chance(0.2) else []
    made = []
    for _ in range(n):
        shares = (58, 13, 16, 13) if source.held_out else (47, 20, 21, 12)
        make = source.random.choices((one, two, none, result), shares)[0]
        if not source.held_out and source.chance(0.15):
            make = lookup
        each = make(source, source.some(tools, len(tools)))
        made.append(replace(each, messages=[*before, *each.messages], tools=defined))
    return made


def unheard_of(make: Callable[[], Tool]) -> Tool:
    """Returns a tool without the name of a known one, which might be one of the evaluation."""
    while (tool := make()).name in NAMES:
        pass
    return tool


def tool(source: Source) -> Tool:
    if source.held_out:
        return known_tool(source) if source.chance(0.25) else made_up_tool(source)
    if source.chance(0.1):
        return known_tool(source)
    makers = (trained_tool, made_up_tool, verb_tool, distinguishing_tool)
    make = source.random.choices(makers, (36, 31, 8, 17))[0]
    return unheard_of(lambda: make(source))


def distinct(source: Source, n: int) -> list[Tool]:
    if n > 1 and not source.held_out and source.chance(0.12):
        return of_one_noun(source, n)
    tools: dict[str, Tool] = {}
    verb: str | None = None
    # As in real programs.
    usual = not source.held_out and source.chance(USUAL_ALONE)
    while len(tools) < n:
        # The verb alone doesn't identify the tool.
        alike = verb is not None and not source.held_out and source.chance(0.35)
        if usual:
            each = unheard_of(lambda: trained_tool(source))
        elif alike:
            each = unheard_of(partial(made_up_tool, source, verb))
        else:
            each = tool(source)
        verb = verb or each.verb
        tools[each.name] = each
    return list(tools.values())


def small(source: Source) -> list[Tool]:
    """Returns up to eight tools with at most one parameter, most of which share one of three
    verbs."""
    verbs = [any_verb(source) for _ in range(3)]
    tools: dict[str, Tool] = {}
    n = source.upto(2, 8)
    while len(tools) < n:
        each = unheard_of(lambda: made_up_tool(source, source.one((*verbs, None)), shares=(2, 3)))
        tools[each.name] = each
    return list(tools.values())


def of_one_noun(source: Source, n: int) -> list[Tool]:
    """Returns tools that the verb alone identifies."""
    noun = source.noun()
    tools: list[Tool] = []
    said: set[str] = set()
    for verb in source.some(list(VERBS), len(VERBS)):
        if len(tools) == n or not said.isdisjoint(VERBS[verb]):
            continue
        each = unheard_of(partial(made_up_tool, source, verb, noun))
        if verb in each.name:
            said.update(VERBS[verb])
            tools.append(each)
    return tools


def earlier(source: Source) -> list[Message]:
    """Returns an earlier turn in some lessons."""
    if not source.chance(0.12 * source.level):
        return []
    before = simple(source)
    return [*before.messages, assistant(before.answer["content"])]


def one(source: Source, tools: list[Tool]) -> Lesson:
    text, arguments = tools[0].ask(source)
    thought = thought_of([text], tools[:1], tools)
    answer: Message = {"role": "assistant", "tool_calls": [call(tools[0].name, arguments)]}
    return _lesson(source, "one", [*earlier(source), user(text)], answer, thought)


LOOKUPS = (
    "Which tools are for {words}?", "Name the tool for each: {words}", "{words}: which tools?", "Find the tools of {words}.",
    "To which tool belongs each of these? {words}", "Tools for these, please: {words}", "Say which tool has which word: {words}",
)  # fmt: skip


def lookup(source: Source, tools: list[Tool]) -> Lesson:
    """Returns a lesson on the names that contain certain words: many choices of a tool at once."""
    nouns = [each.noun for each in tools]
    meant = {each.noun: each.listed for each in tools if each.noun and nouns.count(each.noun) == 1}
    if not meant:
        return one(source, tools)
    text = source.one(LOOKUPS).format(words=", ".join(meant))
    answer = assistant("\n".join(f"{noun}: {listed}" for noun, listed in meant.items()))
    return _lesson(source, "lookup", [user(text)], answer, "I look at the names.")


def found(text: str, tools: list[Tool]) -> str:
    """Returns the first tool's number and name, after the word of the request that distinguishes it
    from the others, if there is one: preferably the noun, because the request may have another
    verb. Each step is small: find that word, the number of the line with it, and the name after
    this number."""
    first, *others = tools
    noun = _words(first.noun or "")
    elsewhere = {word for each in others for word in _words(f"{each.name} {each.description}")}
    asked = _words(text)
    for told in (_words(first.name), _words(first.description)):
        telling = [
            word
            for word in asked
            if word in told and word not in elsewhere and word not in words.SMALL and len(word) > 2
        ]
        if telling:
            # `min` takes the first of equal ones.
            return f"{min(telling, key=lambda word: word not in noun)}: {first.listed}"
    return first.listed


def _words(text: str) -> list[str]:
    """Returns the words of a text, or of a name like `getUser` or `get-user`, in lower case."""
    return re.findall("[a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", " ", text).lower())


def two(source: Source, tools: list[Tool]) -> Lesson:
    first = tools[0]
    second = tools[1] if len(tools) > 1 and source.chance(0.7) else first
    (one_text, one_given), (two_text, two_given) = first.ask(source), second.ask(source)
    lower = two_text[0].lower() + two_text[1:]
    joined = not source.held_out and source.chance(0.25)
    if not one_text.endswith((".", "?", "!")) and not joined:
        one_text += "."
    text = source.phrase(JOINS).format(first=one_text, second=two_text, lower=lower)
    if joined:
        text = source.one(ONE_SENTENCE).format(first=one_text.rstrip(".!"), lower=lower)
    if first is second and first.joins and source.chance(0.5):
        text = short_of_two(source, one_text, one_given, two_given) or text
    calls = [call(first.name, one_given), call(second.name, two_given)]
    thought = thought_of([one_text, two_text], [first, second], tools)
    answer: Message = {"role": "assistant", "tool_calls": calls}
    return _lesson(source, "two", [*earlier(source), user(text)], answer, thought)


def short_of_two(
    source: Source, text: str, one_given: dict[str, Any], two_given: dict[str, Any]
) -> str | None:
    """Returns `text` with both values of its only argument, if it has one: "the time in Rome and
    Oslo"."""
    values = [*one_given.values(), *two_given.values()]
    if len(values) != 2 or one_given.keys() != two_given.keys() or values[0] == values[1]:
        return None
    if not all(isinstance(each, str) for each in values) or text.count(values[0]) != 1:
        return None
    before, after = text.split(values[0])
    if re.search(r"[^\s\w]\s*$", before) or after.startswith(('"', "'")):
        return None
    word = before.split()[-1] if before.split() else ""
    again = f"{word} " if word in ("in", "of", "to", "for", "at") and source.chance(0.5) else ""
    return f"{before}{values[0]}{source.one((' and ', ' and ', ' and also '))}{again}{values[1]}{after}"


def _misleads(source: Source, question: Lesson, tools: list[Tool]) -> bool:
    """True if a tool that computes or looks things up would fit, or, in the training, if the answer
    needs reasoning that it would lose here, such as the number of words. If there are tools, a
    request with an unknown verb is a request for a tool."""
    if question.kind == "echo":
        return True
    asks = question.kind in ("arithmetic", "unknown")
    fits = asks and not all(each.verb for each in tools)
    return fits or (question.thinks and not source.held_out)


WISHES = ("{verb} some {noun}", "{verb} a {noun} for me", "{verb} the {noun}.", "Please {lower} my {noun}", "{verb} {noun}s")  # fmt: skip

MORE_WISHES = ("{verb} {noun}", "{verb} {noun}, please", "{verb} any {noun}", "{verb} all {noun}s", "{lower} {noun}", "{verb} {noun} now", "{verb} two {noun}s", "{verb} this {noun}", "I want you to {lower} {noun}s")  # fmt: skip
"""Used only in the training."""


def none(source: Source, tools: list[Tool]) -> Lesson:
    """Returns a lesson in which no tool fits: a question to be answered, or a request that no tool
    can fulfil."""
    if source.chance(0.6):
        other = simple(source)
        while _misleads(source, other, tools):
            other = simple(source)
        return _lesson(
            source,
            "none",
            other.messages,
            assistant(other.answer["content"]),
            "No tool is needed.",
            other.facts,
        )
    return _lesson(
        source,
        "none",
        [user(ungranted(source, tools))],
        assistant(NO_TOOL),
        "No tool fits.",
        ("no tool",),
    )


def ungranted(source: Source, tools: list[Tool]) -> str:
    """Returns a request that no tool here can fulfil."""
    named = " ".join(each.name for each in tools)
    verb, noun = source.phrase(list(VERBS)), source.noun()
    if source.chance(0.2 if source.held_out else 0.3) and verb not in named and noun not in named:
        spoken_verb = source.phrase(VERBS[verb])
        if not source.held_out and source.chance(0.5):
            spoken_verb = unknown_verb(source)
        said = source.phrase(WISHES)
        if not source.held_out and source.chance(0.5):
            said = source.one(MORE_WISHES)
        return said.format(
            verb=spoken_verb, lower=spoken_verb[0].lower() + spoken_verb[1:], noun=noun
        )
    # Some are near misses.
    alike = tools[0].verb if not source.held_out and source.chance(0.2) else None
    while True:
        other = unheard_of(partial(made_up_tool, source, alike)) if alike else tool(source)
        meant = (other.name, other.noun) if other.noun else (other.name,)
        if not any(each.name in meant or each.noun in meant for each in tools):
            return other.ask(source)[0]


def result(source: Source, tools: list[Tool]) -> Lesson:
    """Returns a lesson whose answer is a sentence about the result of one or two calls."""
    chosen = tools[:2] if source.chance(0.2) else tools[:1]
    asked = [each.ask(source) for each in chosen]
    calls: list[Message] = []
    for each, (_, given) in zip(chosen, asked, strict=True):
        calls.append({"id": source.made_up(), **call(each.name, given)})
    messages = [*earlier(source), user(" ".join(text for text, _ in asked))]
    called: Message = {"role": "assistant", "content": "", "tool_calls": calls}
    messages.append(called)
    sentences = []
    facts: list[str] = []
    for made in calls:
        text, sentence, said = outcome(source)
        messages.append({"role": "tool", "tool_call_id": made["id"], "content": text})
        sentences.append(sentence)
        facts += said
    thought = "The result is here." if len(calls) == 1 else "Both results are here."
    answer = assistant(" ".join(sentences))
    told = _lesson(source, "result", messages, answer, thought, tuple(facts))
    if told.thinks or (not source.held_out and source.chance(0.25)):
        # As clients send it: an answer with reasoning follows earlier ones with reasoning, and
        # mostly only such an answer.
        texts = [text for text, _ in asked]
        called["reasoning_content"] = thought_of(texts, chosen, tools)
    return told


def thought_of(texts: list[str], chosen: list[Tool], tools: list[Tool]) -> str:
    """Returns the reasoning before one or two calls: how each request leads to its tool."""
    others = [each for each in tools if each not in chosen]
    steps = [found(text, [each, *others]) for text, each in zip(texts, chosen, strict=True)]
    if len(steps) == 1:
        return f"{steps[0]} can do this."
    return f"Two calls: {steps[0]}, then {steps[1]}."


def outcome(source: Source) -> tuple[str, str, list[str]]:
    """Returns a tool's result, a sentence about it, and the words that the sentence has to
    contain."""
    pick = source.random.random()
    if pick < 0.1:
        error = source.phrase(ERRORS) if source.chance(0.5) else " ".join(source.words(2, 4))
        return json.dumps({"error": error}), f"That did not work: {error}.", [error]
    if pick < 0.35:
        text = source.one(
            (
                " ".join(source.words(2, 7)), str(source.integer(0, 9999)), source.value(),
                f"{source.word()}, {source.integer(-20, 40)} degrees",
            )
        )  # fmt: skip
        return text, f"The result is: {text}", [text]
    if pick < 0.42:
        items = [source.word() for _ in range(source.number(2, 4))]
        return json.dumps(items), f"The results are {', '.join(items[:-1])} and {items[-1]}.", items
    if pick < 0.48:
        done, sentence = source.phrase(OUTCOMES)
        return done, sentence, [sentence[:-1]]
    fields: dict[str, Any] = {}
    for _ in range(source.number(1, 3)):
        key = source.noun() if source.chance(0.8) else f"{source.noun()}_{source.noun()}"
        fields[key] = source.one((source.integer(-50, 9999), source.value(), source.word()))
    clauses = [f"the {spoken(key)} is {value}" for key, value in fields.items()]
    sentence = clauses[0] if len(clauses) == 1 else f"{', '.join(clauses[:-1])} and {clauses[-1]}"
    compact = (",", ":") if source.chance(0.3) else None
    text = json.dumps(fields, ensure_ascii=False, separators=compact)
    return text, sentence[0].upper() + sentence[1:] + ".", [str(each) for each in fields.values()]


def _lesson(
    source: Source,
    kind: str,
    messages: list[Message],
    answer: Message,
    thought: str,
    facts: tuple[str, ...] = (),
) -> Lesson:
    if source.chance(0.5):
        answer = {**answer, "reasoning_content": thought}
    return Lesson(ability=ABILITY, kind=kind, messages=messages, answer=answer, facts=facts)
