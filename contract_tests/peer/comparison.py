"""Finds the differences of two answers: in status, keys, values and events."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from contract_tests.peer.request import Request
from contract_tests.peer.servers import Answer

VOLATILE = {
    "id", "item_id", "created", "created_at", "completed_at", "modified_at", "id_slot", "id_task",
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
    "predicted_ms", "predicted_per_token_ms", "predicted_per_second", "time_ms",
    "cached_tokens", "cache_read_input_tokens", "total_duration",
    "cache", "processed", "media_marker", "build_info", "system_fingerprint", "obfuscation",
    "started_at", "total_bytes", "call_id", "tool_call_id", "signature", "n_decoded", "n_remain",
}  # fmt: skip
"""Names of values that always differ, so that only their types are compared."""
SEARCHED = (
    r"exceeds the available context size",
    r"This server does not support",
    r"Failed to parse grammar",
    r"Invalid API Key",
    r"Loading model",
)
"""Texts of errors that clients search for."""
HEADERS = ("content-type", "access-control-allow-origin", "allow", "process-start-time-unix")


@dataclass(frozen=True)
class Difference:
    """A difference. `kind` and `where` are the same for all differences of one cause."""

    kind: str
    where: str
    ours: str = ""
    theirs: str = ""

    @property
    def cause(self) -> str:
        """A key that is the same for the plain answer, each event of a stream, and copies of the
        settings."""
        place = re.sub(r"^event[^:]*:\.?(message\.|response\.)?|^__verbose\.", "", self.where)
        place = re.sub(r"^(.*\.)?(generation_settings|params)\.", "generation_settings.", place)
        return f"{self.kind} {place}".strip()


def differences(request: Request, ours: Answer, theirs: Answer) -> list[Difference]:
    """Returns the first difference of each cause."""
    if ours.status != theirs.status:
        said = (_short(_message(each)) for each in (ours, theirs))
        return [
            Difference("status", f"{ours.status} for {theirs.status}", *said)
        ]  # the rest of two answers with different statuses has nothing in common
    found = list(_headers(ours.headers, theirs.headers))
    pair = ours.content, theirs.content
    if request.path.startswith("/metrics") and theirs.status == 200:
        found += _metrics(*pair)
    elif "text/event-stream" in _header(theirs, "content-type"):
        found += (
            _events(request, *pair)
            if isinstance(pair[0], list)
            else [Difference("stream", "none", _short(pair[0]))]
        )
    else:
        found += _values("", *pair, exact=request.decided)
    return list({each.cause: each for each in reversed(found)}.values())[::-1]


def _header(answer: Answer, name: str) -> str:
    return next((v for k, v in answer.headers.items() if k.lower() == name), "")


def _headers(ours: dict[str, str], theirs: dict[str, str]) -> Iterator[Difference]:
    by_name = {name.lower(): name for name in ours}
    for name, value in theirs.items():
        lower = name.lower()
        if lower not in by_name:
            if lower in HEADERS and value:  # an empty value has no meaning
                yield Difference("header missing", name, "", value)
            continue
        if by_name[lower] != name:
            yield Difference("header spelt", name, by_name[lower], name)
        mine = ours[by_name[lower]]
        if lower in HEADERS[:3] and _plain(mine) != _plain(value):
            yield Difference("header value", name, mine, value)


def _plain(value: str) -> str:
    """Returns a media type without parameters: JSON is UTF-8 with or without a charset."""
    return value.partition(";")[0].strip().lower()


def _message(answer: Answer) -> str:
    content = answer.content
    if isinstance(content, dict) and isinstance(content.get("error"), dict):
        return str(content["error"].get("message", content))
    return str(content)


def _metrics(ours: str, theirs: str) -> Iterator[Difference]:
    here, there = (
        set(re.findall(r"^# TYPE (\S+ \S+)", each, re.MULTILINE)) for each in (ours, theirs)
    )
    for name in sorted(there - here):
        yield Difference("missing", name)
    for name in sorted(here - there):
        yield Difference("extra", name)


def _events(request: Request, ours: list[Any], theirs: list[Any]) -> Iterator[Difference]:
    # Keep-alive events may come at any place, or not at all.
    ours, theirs = ([each for each in side if each[0] != "ping"] for side in (ours, theirs))
    here, there = _texts(ours), _texts(theirs)
    same_text = _without_end(here) == _without_end(there)
    if request.decided and same_text and here != there:
        yield Difference("space", "stream", _short(here), _short(there))
    if same_text and _names(ours) == _names(theirs):
        ours, theirs = _without_cuts(ours), _without_cuts(theirs)
    if len(ours) != len(theirs):
        if request.decided or _names(ours) != _names(theirs):
            yield Difference("events", "count", _outline(ours), _outline(theirs))
        if ours and theirs:
            yield from _event(ours[0], theirs[0], request.decided)
            yield from _event(ours[-1], theirs[-1], request.decided)
        if request.decided and not same_text:
            yield Difference("text", "stream", _short(here), _short(there))
        return
    for mine, other in zip(ours, theirs, strict=True):
        places = {each.rpartition(".")[2] for each in _pieces(mine[1])} if same_text else set()
        for found in _event(mine, other, request.decided):
            if found.kind != "value" or found.where.rpartition(".")[2] not in places:
                yield found


def _event(ours: Any, theirs: Any, exact: bool) -> Iterator[Difference]:
    if ours[0] != theirs[0]:
        yield Difference("event", "name", ours[0], theirs[0])
    else:
        place = f"event{'' if ours[0] == 'message' else ' ' + ours[0]}:"
        yield from _values(place, ours[1], theirs[1], exact=exact)


def _names(events: list[Any]) -> list[str]:
    """Returns the names of the events; repeated names in a row count once."""
    return [name for name, _ in groupby(name for name, _ in events)]


def _without_cuts(events: list[Any]) -> list[Any]:
    """Returns the first of each run of events with pieces of the same text, because the places
    where a text is split have no meaning."""
    return [next(row) for _, row in groupby(events, _shape)]


def _shape(event: Any) -> Any:
    name, data = event
    if not (pieces := _pieces(data)):
        return name, json.dumps(data)
    ends = [each.get("finish_reason") for each in data.get("choices", ())]
    return name, sorted(data.keys() - {"timings"}), sorted(pieces), ends


def _texts(events: list[Any]) -> dict[str, str]:
    """Returns all text of a stream, by kind."""
    texts: dict[str, str] = {}
    for name, data in events:
        for kind, piece in _pieces(data).items():
            texts[f"{name} {kind}"] = texts.get(f"{name} {kind}", "") + piece
    return texts


def _without_end(texts: dict[str, str]) -> dict[str, str]:
    """Removes white space at the ends of texts, and empty texts."""
    return {kind: text.rstrip() for kind, text in texts.items() if text.rstrip()}


def _pieces(data: Any) -> dict[str, str]:
    """Returns the pieces of texts in an event, by their places."""
    if not isinstance(data, dict):
        return {}
    found = {"content": data.get("content"), "delta": data.get("delta")}
    for number, choice in enumerate(data.get("choices", ())):
        delta = choice.get("delta") or {}
        found[f"{number}.text"] = choice.get("text")
        found |= {f"{number}.{key}": delta.get(key) for key in ("content", "reasoning_content")}
        for call in delta.get("tool_calls") or ():
            arguments = call.get("function", {}).get("arguments")
            found[f"{number}.arguments"] = None if call.get("id") else arguments
    if isinstance(delta := data.get("delta"), dict):
        found |= {key: delta.get(key) for key in ("text", "thinking", "partial_json")}
    return {key: text for key, text in found.items() if isinstance(text, str)}


def _outline(events: list[Any]) -> str:
    names = [name for name, _ in events]
    runs: list[list[Any]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1][1] += 1
        else:
            runs.append([name, 1])
    return _short(", ".join(f"{name} x{n}" if n > 1 else name for name, n in runs))


def _values(where: str, ours: Any, theirs: Any, *, exact: bool) -> Iterator[Difference]:
    here, there = _kind(ours), _kind(theirs)
    if here != there:
        yield Difference("type", where, f"{here} {_short(ours)}", f"{there} {_short(theirs)}")
    elif isinstance(ours, dict):
        yield from _objects(where, ours, theirs, exact)
    elif isinstance(ours, list):
        if exact and len(ours) != len(theirs):
            yield Difference("length", where, str(len(ours)), str(len(theirs)))
        for mine, other in zip(ours, theirs, strict=False):
            yield from _values(f"{where}[]", mine, other, exact=exact)
    elif where.endswith("error.message"):
        for text in SEARCHED:
            if re.search(text, theirs) and not re.search(text, ours):
                yield Difference("searched", where, _short(ours), _short(theirs))
        if ours != theirs:
            yield Difference("wording", where, _short(ours), _short(theirs))
    elif (exact or "error." in where) and not _same(ours, theirs):
        texts = isinstance(ours, str) and isinstance(theirs, str)
        kind = "space" if texts and ours.rstrip() == theirs.rstrip() else "value"
        yield Difference(kind, where, _short(ours), _short(theirs))


def _objects(
    where: str, ours: dict[str, Any], theirs: dict[str, Any], exact: bool
) -> Iterator[Difference]:
    for key in dict.fromkeys((*theirs, *ours)):
        place = f"{where}.{key}".lstrip(".")
        if key not in ours:
            yield Difference("missing", place, "", _short(theirs[key]))
        elif key not in theirs:
            yield Difference("extra", place, _short(ours[key]))
        elif _is_volatile(key, theirs) and not isinstance(theirs[key], dict | list):
            if _kind(ours[key]) != _kind(theirs[key]):
                yield Difference("type", place, _short(ours[key]), _short(theirs[key]))
        else:
            yield from _values(place, ours[key], theirs[key], exact=exact)


def _is_volatile(key: str, siblings: dict[str, Any]) -> bool:
    # In Messages, `input_tokens` are the tokens that were not cached. A field requested by
    # `response_fields` has its whole path as its name.
    return key.rpartition("/")[2] in VOLATILE or (
        key == "input_tokens" and "cache_read_input_tokens" in siblings
    )


def _kind(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return str(type(value).__name__)
    return "number" if isinstance(value, int | float) else type(value).__name__


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, float) or isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=1e-3, abs_tol=1e-3)
    return bool(ours == theirs)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 160 else text[:110] + " ... " + text[-40:]
