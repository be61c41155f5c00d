"""The texts that calls begin with. They start a lazy grammar, and a grammar of answers without
calls excludes them."""

import re
from collections.abc import Collection

from specllama.engine.chat import harmony_markers as harmony
from specllama.engine.chat.grammar.lark import ANY, regex
from specllama.engine.chat.parse.call_shape import shape_of
from specllama.engine.chat.request import THOUGHTS_IN_CONTENT, ReasoningFormat
from specllama.engine.chat.syntax import HERMES_CALLS, CallSyntax, Fill, OutputSyntax, begun_by
from specllama.engine.params import Aside, GrammarTrigger, StopScope

_MARKER = re.compile(r"<[^<>\s]*[>=]|\[[A-Z_]+\]")  # a marker that never occurs in plain text
_TAG = re.compile(r"<[^<>\s]{2,}|\[[A-Z_]+\]")
_PLAIN_JSON = re.compile(r"[{\[]\s*[\[{\"]")


def is_plain_json(opening: str) -> bool:
    """Returns whether calls that begin with `opening` begin like JSON."""
    return _PLAIN_JSON.match(opening) is not None


def triggers(syntax: OutputSyntax, names: Collection[str], prompt: str) -> list[GrammarTrigger]:
    """Returns the texts that start the grammar of calls of the tools `names`. The grammar starts as
    soon as a call is certain, because models sometimes deviate from their templates after the
    marker. `prompt` is as in `engine.chat.grammar.answer.answer_grammar`."""
    if syntax.harmony:
        return [
            GrammarTrigger(text=f"{harmony.COMMENTARY} to={harmony.FUNCTIONS}"),
            GrammarTrigger(text=f"{harmony.NEXT} to={harmony.FUNCTIONS}"),
            GrammarTrigger(text=f"to={harmony.FUNCTIONS}", at_start=True),
        ]
    calls = syntax.calls or HERMES_CALLS
    opening = calls.opening.lstrip()
    begun = begun_by(prompt, opening)
    marker = _MARKER.match(opening)
    text = marker[0] if marker else opening
    found: list[GrammarTrigger] = []
    if begun or not text or syntax.content.begin.lstrip().startswith(text):
        named = [_named_opening(calls, name) for name in names]
        found += [GrammarTrigger(text=text) for text in named if opening]
        found += [
            GrammarTrigger(text=text.removeprefix(begun), at_start=True)
            for text in named
            if begun or not opening
        ]
        return found
    return [GrammarTrigger(text=text, at_start=is_plain_json(text))]


def tags(syntax: OutputSyntax) -> list[GrammarTrigger]:
    """Returns the tags that the parser treats as the beginning of a call at any place, as models
    sometimes omit the outer ones. Tags that are part of the markers of content or reasoning are
    excluded."""
    if syntax.harmony or (shape := shape_of(syntax.calls or HERMES_CALLS)) is None:
        return []
    others = [syntax.content.begin, syntax.content.end]
    others += [syntax.reasoning.begin, syntax.reasoning.end] if syntax.reasoning else []
    found = [tag for tag in shape.openings if _TAG.match(tag)]
    return [GrammarTrigger(tag) for tag in found if not any(tag in other for other in others)]


def without_calls(syntax: OutputSyntax, names: Collection[str], prompt: str) -> str:
    """Returns a terminal of all texts in which no call of the tools `names` begins; "" for a syntax
    whose calls begin like other JSON. The text may contain brackets and names that don't begin a
    call."""
    anywhere, at_start = _openings(syntax, names, prompt)
    if not anywhere and not at_start:
        return ""
    wrapper = syntax.reasoning
    thoughts = f"((?s:.*){regex(wrapper.end.strip())})?" if wrapper and wrapper.end.strip() else ""
    first = [rf"{thoughts}\s*({'|'.join(at_start)})(?s:.*)"] if at_start else []
    later = [f"(?s:.*)({'|'.join(anywhere)})(?s:.*)"] if anywhere else []
    return f"{ANY} & ~/{'|'.join(later + first)}/"


def _openings(
    syntax: OutputSyntax, names: Collection[str], prompt: str
) -> tuple[list[str], list[str]]:
    """Returns regular expressions of texts that begin a call anywhere, and at the beginning of the
    text."""
    if syntax.harmony:
        to = regex("to=")  # any recipient, as no calls are permitted
        return [f"({regex(harmony.CHANNEL)}|{regex(harmony.START)})[^<]*{to}"], [to]
    calls = syntax.calls or HERMES_CALLS
    anywhere = [each.text for each in tags(syntax)]
    at_start: list[str] = []
    found = triggers(syntax, names, prompt)
    if not anywhere or any(each.at_start for each in found):
        named = [_named_opening(calls, name) for name in names]
        begun = begun_by(prompt, calls.opening.lstrip())
        if calls.opening.strip():
            anywhere += named
        if begun or not calls.opening.strip():
            at_start = [text.removeprefix(begun) for text in named]
    return (
        [regex(text) for text in anywhere if text and not is_plain_json(text)],
        [regex(text) for text in at_start if text and not is_plain_json(text)],
    )


def _named_opening(calls: CallSyntax, name: str) -> str:
    """Returns all fixed text of a call of the tool `name` up to its arguments."""
    text = calls.begin
    for part in calls.parts:
        match part:
            case str():
                text += part
            case Fill("name"):
                text += name
            case Fill("index"):
                text += str(calls.first_index)
            case _:
                break
    return text.lstrip()


# ---- Where stop strings count: in the text of an answer, as `engine.chat.parse` finds it.
# The engine process searches for them by the same markers, so the text ends as soon as a stop
# string is complete.


_ENDS = [harmony.END, harmony.CALL]


def stop_scope(
    syntax: OutputSyntax,
    *,
    reasoning: ReasoningFormat,
    thinking: bool,
    tools: Collection[str],
    required: bool,
    prompt: str = "",
    continued: bool = False,
) -> StopScope:
    """Returns the scope of stop strings in one answer. `tools` are the names of tools whose calls
    are parsed. With `required`, the answer contains only calls. `reasoning`, `thinking`, `prompt`
    and `continued` are as in `engine.chat.parse.parser.answer_parser`. Reasoning in the content
    counts as text; after the first call nothing does."""
    shown = reasoning in THOUGHTS_IN_CONTENT
    asides = _harmony(shown) if syntax.harmony else _others(syntax, shown)
    if tools:
        begins = [*triggers(syntax, tools, prompt), *tags(syntax)]
        asides += [Aside(each.text, at_start=each.at_start) for each in begins if each.text]
    begun = None
    if required and tools and not shown:
        begun = Aside("")  # only reasoning and calls, no text
    elif thinking and not shown:
        begun = Aside("", _ENDS if syntax.harmony else _end(syntax))
    calls_after_space = bool(tools and syntax.calls and syntax.calls.opening[:1].isspace())
    return StopScope(
        asides,
        skips_space=not continued and not shown and (syntax.thinks or calls_after_space),
        begun=begun,
        continued=continued and begun is None,
    )


def _end(syntax: OutputSyntax) -> list[str]:
    end = syntax.reasoning.end.strip() if syntax.reasoning else ""
    return [end] if end else []


def _others(syntax: OutputSyntax, shown: bool) -> list[Aside]:
    begin, end = (text.strip() for text in (syntax.content.begin, syntax.content.end))
    asides = [Aside(text, alone=True) for text in (begin, end) if text]
    if ends := [] if shown else _end(syntax):
        # The end of reasoning that wasn't opened.
        asides.append(Aside(ends[0], at_start=True, alone=True))
        if syntax.reasoning and (begin := syntax.reasoning.begin.strip()):
            asides.append(Aside(begin, ends, at_start=True))
    return asides


def _harmony(shown: bool) -> list[Aside]:
    """Returns headers, ends, and the channel of reasoning as asides."""
    alone = [Aside(text, alone=True) for text in (*_ENDS, harmony.NEXT, harmony.MESSAGE)]
    asides = [*alone, Aside(harmony.CHANNEL, [harmony.MESSAGE])]
    return asides if shown else [*asides, Aside(f"{harmony.CHANNEL}analysis", _ENDS)]
