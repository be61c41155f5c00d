"""Finds the syntax of calls: renders answers with one call and with two, replaces names, arguments
and ids by placeholders, and derives the role of each fixed text from the repetitions."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import msgspec

from specllama.engine.chat.syntax import (
    HOLES_BY_PLACEHOLDER,
    KEY,
    PLACEHOLDERS,
    CallSyntax,
    Fill,
    TaggedArguments,
    Wrapper,
)
from specllama.engine.helpers.render.detect.matching import (
    closings,
    common_prefix,
    common_suffix,
    end_of_calls,
    inside,
    objects_in,
    same,
    tags,
)
from specllama.engine.helpers.render.detect.probing import (
    Answer,
    Call,
    Json,
    Prober,
    Style,
    call_id,
    json_type,
)

ONE = Call("zqfirst_tool", {"zqkey_a": "Zqvalue_a", "zqkey_b": "Zqvalue_b"}, "zqfirst11")
TWO = Call("zqsecond_tool", {"zqkey_c": "Zqvalue_c", "zqkey_d": "Zqvalue_d"}, "zqsecond2")
_NONE = Call("zqthird_tool", {}, "zqthird33")
_CHECKS = (
    Call(
        "check_strings",
        {"text": 'it\'s "so": <a> & {b}\nünd \\ more', "other": "x"},
        "chkabcde1",
    ),
    Call("check_scalars", {"whole": 42, "real": 2.5, "truth": True, "nothing": None}, "chkfghij2"),
    Call(
        "check_nested",
        {"list": [1, "two", False], "object": {"inner": {"deep": "yes"}}, "last": "end"},
        "chkklmno3",
    ),
)

_OTHERS: tuple[Json, ...] = (4242, 4242.5, True, None, [4242, 4242], {"zqkey_b": 4242})

_MARK = re.compile("([\ue000-\ue003])")
_INDEX_GUESSES = 8

Body = Callable[[str], str]
"""Removes the text before the calls from a rendered answer: the turn's header, empty reasoning."""


def shows_calls(prober: Prober, style: Style) -> str | None:
    """Returns the answer with one call, if the template shows the call in this style; else None."""
    text = prober.answer(Answer(calls=[ONE]), style)
    if text is None or ONE.name not in text:
        return None
    shown = all(key in text and str(value) in text for key, value in ONE.arguments.items())
    return text if shown else None


def find_calls(prober: Prober, style: Style, body: Body, end_of_turn: str) -> CallSyntax | None:
    """Returns the syntax of calls, if there is one that also matches further probes.

    `end_of_turn` is the end of a plain text answer.
    """

    def render(*calls: Call, content: str = "") -> str | None:
        text = prober.answer(Answer(content=content, calls=calls), style)
        return None if text is None else body(text)

    single = render(ONE)
    if single is None:
        return None
    spans, tagged = _json_spans(single, [ONE]), None
    if spans is None:
        tagged = _tagged(single, render(_NONE), end_of_turn)
        if tagged is None:
            return None
        tagged = _refined(tagged, render)
    double = render(ONE, TWO)
    parallel = double is not None and TWO.name in double and ONE.name in double
    text, calls = (double, [ONE, TWO]) if parallel and double else (single, [ONE])
    for first_index, pattern in _patterns(text, calls, style, tagged):
        syntax = _solve(pattern, len(calls), tagged, end_of_turn, first_index)
        if syntax is not None and _holds(syntax, render, style, end_of_turn):
            return syntax
    return None


def _json_spans(text: str, calls: Sequence[Call]) -> list[tuple[int, int]] | None:
    found = list(objects_in(text))
    spans = [
        next(((start, end) for start, end, value in found if same(value, call.arguments)), None)
        for call in calls
    ]
    whole = [span for span in spans if span is not None]
    return whole if len(whole) == len(calls) else None


def _tagged_spans(
    text: str, calls: Sequence[Call], tagged: TaggedArguments
) -> list[tuple[int, int]] | None:
    spans = []
    for call in calls:
        keys, values = list(call.arguments), list(call.arguments.values())
        start, last = text.find(keys[0]), text.find(str(values[-1]))
        quote = tagged.quote or ('"' if tagged.json_strings else "")
        end = last + len(str(values[-1]) + quote + tagged.after(keys[-1]))
        spans.append((start - len(tagged.begin), end))
        if start < 0 or last < start or spans[-1][0] < 0:
            return None
    return spans


def _tagged(one: str, none: str | None, end_of_turn: str) -> TaggedArguments | None:
    """Returns the syntax of arguments written one by one; `none` is the answer with a call without
    arguments."""
    words = ("zqkey_a", "Zqvalue_a", "zqkey_b", "Zqvalue_b")
    for key, value in (words[:2], words[2:]):
        before, found, after = one.partition(value)
        one = before + found + after.replace(key, KEY, 1)  # the tag that ends an argument
    # If the name occurs twice, the arguments follow the last one.
    head, _, rest = one.rpartition(ONE.name)
    pieces = _between(rest, *words)
    if pieces is None or pieces[1] != pieces[3]:
        return None
    first, middle, second, _, tail = pieces
    opening = head
    tail = _cut(tail, end_of_turn, opening)
    without = none.rpartition(_NONE.name) if none is not None else None
    empty = None if not (without and without[1]) else _cut(without[2], end_of_turn, opening)
    split = _split_arguments(first, second, tail, empty)
    if split is None:
        return None
    begin, end, separator = split
    sizes = range(min(len(middle), len(end)), 0, -1)
    quote = next((end[:size] for size in sizes if middle.endswith(end[:size])), "")
    if quote.strip():
        middle, end = middle.removesuffix(quote), end.removeprefix(quote)
    if not middle:
        return None
    if quote == '"':
        return TaggedArguments(begin, middle, end, separator, json_strings=True)
    return TaggedArguments(begin, middle, end, separator, quote=quote.strip())


def _refined(tagged: TaggedArguments, render: Callable[..., str | None]) -> TaggedArguments:
    """Returns `tagged` with the texts around values other than plain words."""
    if tagged.quote or tagged.json_strings:
        return tagged
    before, found, after = (render(_CHECKS[0]) or "").partition(str(_CHECKS[0].arguments["text"]))
    begin = before.rpartition("text" + tagged.middle)[2]
    end = after.partition(tagged.after("text"))[0]
    if found and begin and end:
        tagged = msgspec.structs.replace(tagged, wrapper=Wrapper(begin, end))
    middles: dict[str, str] = {}
    for value in _OTHERS:
        text = render(Call(_NONE.name, {"zqkey_a": value}, _NONE.id)) or ""
        rest = text.partition("zqkey_a")[2]
        if not rest.startswith(tagged.middle):
            end = tagged.after("zqkey_a")
            at = max(rest.find(json.dumps(value) + end), rest.find(_compact(value) + end))
            if at > 0:
                middles[json_type(value)] = rest[:at]
        elif isinstance(value, list):
            # The tag of an item replaces JSON before an element.
            inner, found, _ = rest.removeprefix(tagged.middle).partition(tagged.middle + "4242")
            if found and KEY in tagged.end:
                tagged = msgspec.structs.replace(tagged, item=inner.removeprefix(tagged.begin))
    if "number" in middles:
        middles["integer"] = middles["number"]
    return msgspec.structs.replace(tagged, middles=tuple(middles.items()))


def _compact(value: Json) -> str:
    return json.dumps(value, separators=(",", ":"))


def _split_arguments(
    first: str, second: str, tail: str, empty: str | None
) -> tuple[str, str, str] | None:
    """Returns (begin, end, separator) such that, with some `before` and `after`, `first` is
    before + begin, `second` is end + separator + begin, `tail` is end + after, and `empty`
    before + after."""
    for cut in range(len(empty or ""), -1, -1):
        if empty is None:
            break
        before, after = empty[:cut], empty[cut:]
        if not (first.startswith(before) and tail.endswith(after)) or inside(first, cut):
            continue
        begin, end = first[cut:], tail[: len(tail) - len(after)]
        middle = len(second) - len(begin) - len(end)
        if inside(tail, len(end)) or inside(empty, cut) or middle < 0:
            continue
        if second.startswith(end) and second.endswith(begin):
            return begin, end, second[len(end) : len(end) + middle]
    begin, end = common_suffix(first, second).lstrip(), common_prefix(second, tail).rstrip()
    middle = len(second) - len(begin) - len(end)
    return (begin, end, second[len(end) : len(end) + middle]) if middle >= 0 else None


def _between(text: str, *words: str) -> list[str] | None:
    """Returns the texts before, between and after the words, which must occur in this order, once
    each."""
    pieces = []
    for word in words:
        if text.count(word) != 1:
            return None
        before, _, text = text.partition(word)
        pieces.append(before)
    return [*pieces, text]


def _patterns(
    text: str, calls: Sequence[Call], style: Style, tagged: TaggedArguments | None
) -> Iterator[tuple[int, str]]:
    """Yields the number of the first call, and `text` with placeholders for all variable parts; the
    most likely one first. There are several, as a digit may be a call's number or fixed text."""
    spans = _json_spans(text, calls) if tagged is None else _tagged_spans(text, calls, tagged)
    if spans is None or any(a[1] > b[0] for a, b in pairwise(spans)):
        return
    for start, end in reversed(spans):
        text = text[:start] + PLACEHOLDERS["arguments"] + text[end:]
    for index, call in enumerate(calls):
        id = call_id(call, index, style)
        if not style.named_ids:
            text = text.replace(id, PLACEHOLDERS["id"])
        text = text.replace(call.name, PLACEHOLDERS["name"])
    guesses = 0
    if len(calls) == 2:
        for first in (0, 1):
            for a, b in _counted(text, first):
                if guesses < _INDEX_GUESSES:
                    guesses += 1
                    filler = PLACEHOLDERS["index"]
                    yield first, text[:a] + filler + text[a + 1 : b] + filler + text[b + 1 :]
    yield 0, text


def _counted(text: str, first: int) -> Iterator[tuple[int, int]]:
    """Yields the places where `first` and the next number occur between the same characters."""
    for one in re.finditer(rf"(?<!\d){first}(?!\d)", text):
        for two in re.finditer(rf"(?<!\d){first + 1}(?!\d)", text):
            a, b = one.start(), two.start()
            alike = text[a - 1] == text[b - 1] and text[a + 1 : a + 2] == text[b + 1 : b + 2]
            if 0 < a < b and alike:
                yield a, b


def _solve(
    pattern: str, count: int, tagged: TaggedArguments | None, end_of_turn: str, first_index: int
) -> CallSyntax | None:
    """Returns the syntax that writes `pattern`, an answer of `count` calls (1 or 2)."""
    pieces = _MARK.split(pattern)
    texts, holes = pieces[::2], [HOLES_BY_PLACEHOLDER[each] for each in pieces[1::2]]
    size = len(holes) // count
    own = holes[:size]
    if len(holes) != size * count or own * count != holes or not {"name", "arguments"} <= set(own):
        return None
    before = own[: own.index("arguments")]
    if len(set(own)) != size - max(before.count("name") - 1, 0):
        return None  # only the name may occur twice, before the arguments
    inner = texts[1:size]
    if count == 2 and texts[size + 1 : -1] != inner:
        return None
    opening, closing = texts[0], _cut(texts[-1], end_of_turn, texts[0])
    begin = separator = end = ""
    if count == 2:
        middle = texts[size]
        head = common_suffix(opening, middle).lstrip()
        tail = common_prefix(middle, closing).rstrip()
        if len(head) + len(tail) > len(middle):
            head = middle[len(tail) :]  # a marker that ends both belongs to the first call
        begin = opening[: len(opening) - len(head)].lstrip()
        separator = middle[len(tail) : len(middle) - len(head)]
        end = closing[len(tail) :].rstrip()
    else:
        head, tail = opening.lstrip(), closing.rstrip()
    if not (begin + head).strip():
        return None  # without fixed text, calls can't be recognized
    fixed = [head, *inner, tail]
    parts: list[str | Fill] = []
    for text, hole in zip(fixed, own, strict=False):
        parts += [text, Fill(hole)] if text else [Fill(hole)]
    if tail:
        parts.append(tail)
    return CallSyntax(
        tuple(parts), begin, separator, end, tagged, count == 2, first_index=first_index
    )


def _cut(tail: str, end_of_turn: str, opening: str) -> str:
    """Returns `tail` up to the end of the turn."""
    ending = end_of_turn.strip()
    if not ending:
        return tail
    if tail.rstrip().endswith(ending):
        return tail.rstrip().removesuffix(ending)
    marker = next((tag for tag in tags(ending) if ending.startswith(tag)), ending)
    ends = [tail.index(marker)] if marker in tail else []
    shared = common_suffix(tail.rstrip(), ending)
    if shared:
        ends.append(tail.rindex(shared))
    if ends:
        return tail[: min(ends)]
    # Some models end an answer with calls with another token than a text answer.
    last = (tags(tail) or [""])[-1]
    closes = any(last in closings(tag) for tag in tags(opening))
    if last and not closes and tail.rstrip().endswith(last):
        return tail.rstrip().removesuffix(last)
    return tail


def _holds(
    syntax: CallSyntax,
    render: Callable[..., str | None],
    style: Style,
    end_of_turn: str,
) -> bool:
    """Returns whether `syntax` matches the template's output for other calls."""
    # Some templates can't describe tools with arguments of all types.
    checks = [call for call in _CHECKS if render(call) is not None]
    groups = [[call] for call in checks]
    if syntax.parallel:
        groups += [checks[:2], [*checks, TWO, ONE]]
    if _CHECKS[0] not in checks:
        return False
    for calls in groups:
        text = render(*calls)
        if text is None:
            return False
        text = text.lstrip()
        end = end_of_calls(syntax, text, calls, style)
        if end is None or _cut(text[end:], end_of_turn, syntax.opening).strip():
            return False
    with_text = render(_CHECKS[0], content="Some words")
    if with_text is None or _CHECKS[0].name not in with_text or "Some words" not in with_text:
        return True  # the template shows only one of the two
    starts = [found.start() for found in re.finditer(re.escape(syntax.opening), with_text)]
    return any(end_of_calls(syntax, with_text, _CHECKS[:1], style, at) is not None for at in starts)
