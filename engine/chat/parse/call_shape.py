"""A `CallSyntax` prepared for parsing with tolerance.

A template shows one way to write a call; models vary it. White space is never significant, JSON may
have any format and order of keys, and models often omit the brackets around a list of calls. So
fixed texts become lists of tokens, and a JSON object around name and arguments becomes an
`Envelope`: the keys to search in it.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from specllama.engine.chat.syntax import HOLES_BY_PLACEHOLDER, PLACEHOLDERS, CallSyntax, Fill, Hole

_TOKEN = re.compile(
    r'\][\]\[<>]+\w+[\]\[<>]{2,}(?:/?[^<>\s"]*>?)?'  # a name between brackets before a tag
    r"|\[[A-Za-z_]+\]"  # [TOOL_CALLS]
    r'|<[^<>\s\[\]{}"]*>?'  # <tool_call>, <function=
    r'|[\[\]{},:"]'
    r'|[^\s\[\]{},:"<]+'
)
_PUNCTUATION = frozenset('[]{},:"')
_BARE_MARK = re.compile('(?<!")([\ue000-\ue003])')

ALIASES = {"arguments": "parameters", "parameters": "arguments"}
"""Keys that models confuse."""


class Envelope(msgspec.Struct, frozen=True):
    """A JSON object: the `paths` of all its members, and the `roles` of its variable parts by their
    paths, such as {("function", "name"): "name"}."""

    paths: frozenset[tuple[str, ...]]
    roles: dict[tuple[str, ...], Hole]


class MarkerTokens(msgspec.Struct, frozen=True):
    """A fixed text: its tokens, and the white space at its ends."""

    tokens: tuple[str, ...]
    leading: str = ""
    trailing: str = ""

    @property
    def first(self) -> str:
        return self.tokens[0] if self.tokens else ""

    @property
    def marker(self) -> str:
        """The first token that can't be a piece of JSON."""
        return next((t for t in self.tokens if _is_marker(t)), "")


Item = MarkerTokens | Fill | Envelope


class CallShape(msgspec.Struct, frozen=True):
    """`openings` are the markers that begin calls, each with the tokens that follow up to the first
    hole; empty if calls begin with plain JSON. `head` are the tokens that begin each call, `items`
    the parts after them. `spelled_id`: an id consists of name and index, with these texts before
    and between."""

    openings: dict[str, tuple[str, ...]]
    begin: tuple[str, ...]
    head: tuple[str, ...]
    items: tuple[Item, ...]
    separator: tuple[str, ...]
    end: MarkerTokens
    has_id: bool
    spelled_id: tuple[str, str] | None

    @property
    def after_arguments(self) -> str:
        """The marker that ends arguments without an end of their own."""
        rest: list[Item] = []
        for item in reversed(self.items):
            if isinstance(item, Envelope) or item == Fill("arguments"):
                break
            rest.insert(0, item)
        markers = [item.marker for item in rest if isinstance(item, MarkerTokens)]
        return next((m for m in [*markers, self.end.marker] if m), "")


def shape_of(calls: CallSyntax) -> CallShape | None:
    """Returns the shape of `calls`. Returns None for a syntax that can't be parsed: without a name
    or arguments, or with tags that consist of white space."""
    tagged = calls.tagged
    if tagged:
        # A quoted value needs no end tag.
        needed = (tagged.middle,) if tagged.quote else (tagged.begin, tagged.middle, tagged.end)
        if not all(map(split, needed)):
            return None
    holes = {part.hole for part in calls.parts if isinstance(part, Fill)}
    if not {"name", "arguments"} <= holes:
        return None
    parts = calls.parts if tagged else _with_envelope(calls.parts)
    items = [tokens_of(part) if isinstance(part, str) else part for part in parts]
    head: tuple[str, ...] = ()
    if isinstance(items[0], MarkerTokens):
        head = items[0].tokens
        items = items[1:]
    begin = split(calls.begin)
    return CallShape(
        openings=_openings(begin, head),
        begin=begin,
        head=head,
        items=tuple(items),
        separator=split(calls.separator),
        end=tokens_of(calls.end),
        has_id="id" in holes,
        spelled_id=_spelled_id(head, items),
    )


def split(text: str) -> tuple[str, ...]:
    return tuple(_TOKEN.findall(text))


def tokens_of(text: str) -> MarkerTokens:
    leading = text[: len(text) - len(text.lstrip())]
    return MarkerTokens(split(text), leading, text[len(text.rstrip()) :] if text.strip() else "")


def _is_marker(token: str) -> bool:
    return len(token) > 1 and token not in _PUNCTUATION


def _spelled_id(head: tuple[str, ...], items: list[Item]) -> tuple[str, str] | None:
    match items:
        case [Fill("name"), MarkerTokens((between,)), Fill("index"), *_]:
            before = head[-1] if head and not head[-1].endswith((">", "]")) else ""
            return before, between
    return None


def _openings(begin: tuple[str, ...], head: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    openings: dict[str, tuple[str, ...]] = {}
    for tokens in (begin + head, head):
        # Inner tags count, too, as models sometimes omit the outer ones.
        for index, token in enumerate(tokens):
            if _is_marker(token) and (index == 0 or token.startswith("<")):
                openings.setdefault(token, tokens[index + 1 :])
    return openings


def _with_envelope(parts: tuple[str | Fill, ...]) -> list[str | Fill | Envelope]:
    """Returns `parts`, in which the JSON object that contains name and arguments, if any, is one
    part."""
    flat = "".join(p if isinstance(p, str) else PLACEHOLDERS[p.hole] for p in parts)
    for start in (match.start() for match in re.finditer(r"\{", flat)):
        quoted = _BARE_MARK.sub(r'"\1"', flat[start:])
        try:
            value, length = json.JSONDecoder().raw_decode(quoted)
        except ValueError:
            continue
        members = dict(_members(value, ()))
        roles = {path: hole for path, hole in members.items() if hole}
        if not {"name", "arguments"} <= set(roles.values()):
            continue
        # Convert `length` to a length in `flat`, which has no quotes around bare holes.
        end = len(flat)
        for cut in range(start, len(flat) + 1):
            if len(_BARE_MARK.sub(r'"\1"', flat[start:cut])) >= length:
                end = cut
                break
        return [*_parts(flat[:start]), Envelope(frozenset(members), roles), *_parts(flat[end:])]
    return list(parts)


def _members(
    value: dict[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Hole | None]]:
    """Yields all members of an object and of its inner objects, with the hole of a member."""
    for key, inner in value.items():
        here = (*path, key)
        yield here, HOLES_BY_PLACEHOLDER.get(inner) if isinstance(inner, str) else None
        if isinstance(inner, dict):
            yield from _members(inner, here)


def _parts(flat: str) -> Iterator[str | Fill]:
    for piece in re.split("([\ue000-\ue003])", flat):
        if piece in HOLES_BY_PLACEHOLDER:
            yield Fill(HOLES_BY_PLACEHOLDER[piece])
        elif piece:
            yield piece
