"""The usual mutations: of requests, of whole answers, of events and of lines in a stream.

Each changes only the operations that it names (`operationId`s, aliases included), or all operations
if it names none. Mutations leave errors unchanged unless their docstring mentions errors.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from contract_tests.kit import lint
from contract_tests.kit.contract import JSON
from contract_tests.kit.mutants.exchange import (
    Answer,
    Event,
    Mutation,
    PassOn,
    Request,
    dumps,
    parsed,
    read_events,
    read_lines,
)

Change: TypeAlias = Callable[[Any], Any]
"""Returns a changed document, without modifying its argument."""


def requests(change: Callable[[Request], Request], *names: str) -> Mutation:
    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        return await pass_on(change(request) if _is_meant(request, names) else request)

    return mutation


def bodies(change: Change, *names: str) -> Mutation:
    """Changes the documents of requests that are objects."""

    def changed(request: Request) -> Request:
        document = request.json
        return request.with_json(change(document)) if isinstance(document, dict) else request

    return requests(changed, *names)


def answers(change: Callable[[Request, Answer], Answer], *names: str) -> Mutation:
    """Changes the heads of answers, errors included."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        return change(request, answer) if _is_meant(request, names) else answer

    return mutation


def errors(change: Callable[[int, Any], Any], *names: str) -> Mutation:
    """Changes the documents of errors; `change` also gets the status."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if answer.is_success or not _is_meant(request, names):
            return answer
        return await answer.changed_json(lambda document: change(answer.status, document))

    return mutation


def contents(change: Callable[[bytes], bytes], *names: str) -> Mutation:
    """Changes the whole bodies of answers of any kind."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        is_meant = answer.is_success and _is_meant(request, names)
        return await answer.changed(change) if is_meant else answer

    return mutation


def plain(change: Change, *names: str) -> Mutation:
    """Changes the documents of answers that are not streams."""
    return _of_kinds({JSON: lambda answer: answer.changed_json(change)}, names)


def observed(note: Callable[[Any], None], *names: str) -> Mutation:
    """Passes the documents of answers that are not streams to `note`, without changing them."""

    def noted(document: Any) -> Any:
        note(document)
        return document

    return plain(noted, *names)


def streams(
    change: Callable[[AsyncIterator[Event]], AsyncIterator[Event]], *names: str
) -> Mutation:
    """Changes the events of streams; `change` is called once per stream."""

    async def encoded(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        async for event in events:
            yield bytes(event)

    async def changed(answer: Answer) -> Answer:
        return answer.with_stream(encoded(change(read_events(answer.body))))

    return _of_kinds({lint.EVENT_STREAM: changed}, names)


def events(change: Callable[[Event], Iterable[Event]], *names: str) -> Mutation:
    """Changes the events of streams one by one, without comments."""

    async def changed(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        async for event in events:
            for each in [event] if event.data is None else change(event):
                yield each

    return streams(changed, *names)


def lines(change: Callable[[Any], Iterable[Any]], *names: str) -> Mutation:
    """Changes the documents of lines one by one."""

    async def changed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in read_lines(pieces):
            document = parsed(line)
            for each in change(document):
                yield line if each == document else f"{dumps(each)}\n".encode()

    async def of_answer(answer: Answer) -> Answer:
        return answer.with_stream(changed(answer.body))

    return _of_kinds({lint.LINES: of_answer}, names)


def documents(change: Change, *names: str) -> Mutation:
    """Changes the documents of plain answers, of events and of lines."""

    def of_event(event: Event) -> list[Event]:
        document = event.json
        return [event if document is None else event.with_json(change(document))]

    return together(
        plain(change, *names),
        events(of_event, *names),
        lines(lambda document: [change(document)], *names),
    )


def together(*mutations: Mutation) -> Mutation:
    """Combines mutations; the last one is nearest to the server."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        for each in reversed(mutations):
            pass_on = _behind(each, pass_on)
        return await pass_on(request)

    return mutation


def _behind(mutation: Mutation, pass_on: PassOn) -> PassOn:
    async def passing(request: Request) -> Answer:
        return await mutation(request, pass_on)

    return passing


def _of_kinds(changes: Mapping[str, Callable[[Answer], Any]], names: tuple[str, ...]) -> Mutation:
    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if answer.kind not in changes or not answer.is_success or not _is_meant(request, names):
            return answer
        changed: Answer = await changes[answer.kind](answer)
        return changed

    return mutation


def _is_meant(request: Request, names: tuple[str, ...]) -> bool:
    return not names or request.operation in names


# ---- changes of documents ----------------------------------------------------------------------


def at(path: str, change: Change) -> Change:
    """Changes the value at `path`, such as `choices.*.index`, if it exists. `*` stands for each
    entry of a list."""

    def changed(document: Any) -> Any:
        return _changed(document, path.split("."), change)

    return changed


def _changed(document: Any, path: list[str], change: Change) -> Any:
    if not path:
        return change(document)
    name, *rest = path
    if name == "*" and isinstance(document, list):
        return [_changed(each, rest, change) for each in document]
    if isinstance(document, dict) and document.get(name) is not None:
        return {**document, name: _changed(document[name], rest, change)}
    return document


def without(*names: str) -> Change:
    """Removes fields from an object."""
    return lambda document: {k: v for k, v in document.items() if k not in names}


def renamed(old: str, new: str) -> Change:
    return lambda document: {(new if k == old else k): v for k, v in document.items()}


def instead(right: Any, wrong: Any) -> Change:
    """Replaces the value `right` by `wrong`."""
    return lambda value: wrong if value == right else value
