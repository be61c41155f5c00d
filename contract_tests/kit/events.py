"""Reads server-sent events strictly, and validates them against the description.

The reader follows the WHATWG standard (section 9.2.6), but accepts no errors: each event has to be
valid UTF-8 by itself, and a stream has to end after a complete event.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from contract_tests.kit import lint


class Event(NamedTuple):
    """One event. Comments are not events."""

    data: str
    event: str = "message"

    @property
    def json(self) -> Any:
        return json.loads(self.data)


def read_events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Yields the events of a body that arrives in `chunks`. Fails if the body isn't an event
    stream."""
    rest = b""
    for chunk in chunks:
        rest = (rest + chunk).replace(b"\r\n", b"\n")
        *blocks, rest = rest.split(b"\n\n")
        for block in blocks:
            if (event := _event(block)) is not None:
                yield event
    assert not rest.strip(b"\n"), f"the stream ended inside of an event: {rest!r:.300}"


def _event(block: bytes) -> Event | None:
    try:
        text = block.decode("utf-8")
    except UnicodeDecodeError as error:
        raise AssertionError(f"an event is not valid UTF-8: {block!r:.300}") from error
    data: list[str] = []
    kind = "message"
    for line in text.split("\n"):
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                data.append(value)
            case "event":
                kind = value
            case "" | "id" | "retry":
                pass  # a comment, an empty line, or a field without meaning for us
            case _:
                raise AssertionError(f"not a line of an event stream: {line!r:.300}{colon}")
    return Event("\n".join(data), kind) if data else None


def check_events(
    media: Mapping[str, Any], events: Sequence[Event], request: Any = None
) -> list[Any]:
    """Returns the documents of all events of one whole stream, which answers a body `request`. The
    literal end event has no document.

    Fails unless every event matches `media` (the description's media type object), an error
    event is the last one, and the stream ends with `x-event-end` exactly if it has no error.
    """
    assert events, "the stream has no events"
    documents: list[Any] = []
    end = media.get("x-event-end")
    for i, event in enumerate(events):
        as_object = {"event": event.event, "data": event.data}
        problems = [*lint.errors(media["schema"], as_object)]
        problems += lint.event_errors(media, event.data, request)
        assert not problems, f"event {i}, {event.data!r:.500}: {problems}"
        if event.data == end:
            assert i == len(events) - 1, f"{end} is not the last event: {events[i:]!r:.500}"
        else:
            documents.append(event.json)
    failed = [i for i, document in enumerate(documents) if "error" in document]
    if failed:
        last = events[failed[0] :]
        assert len(last) == 1, f"there are events after an error: {last!r:.500}"
    elif end is not None:
        assert events[-1].data == end, f"the stream doesn't end with {end}: {events[-1]!r:.500}"
    return documents


def text_of(document: Any, index: int = 0) -> str:
    """Returns the text that one event has for the prompt `index`, in any format."""
    if "choices" not in document:
        return str(document.get("content", "")) if document.get("index", 0) == index else ""
    for choice in document["choices"]:
        if choice["index"] == index:
            return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return ""
