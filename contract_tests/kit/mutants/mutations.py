"""The usual mutations: of requests, of whole answers, of events and lines as they come.

Each takes the operations that it changes (`operationId`s; aliases are meant as well) and leaves all
others alone; without any, it changes all. Unless it says so, it leaves errors alone.
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
"""Makes another document of one, and leaves the one that it gets alone."""


def requests(change: Callable[[Request], Request], *names: str) -> Mutation:
    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        return await pass_on(change(request) if _is_meant(request, names) else request)

    return mutation


def bodies(change: Change, *names: str) -> Mutation:
    """The documents of requests that are objects."""

    def changed(request: Request) -> Request:
        document = request.json
        return request.with_json(change(document)) if isinstance(document, dict) else request

    return requests(changed, *names)


def answers(change: Callable[[Request, Answer], Answer], *names: str) -> Mutation:
    """The heads of answers, errors included."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        return change(request, answer) if _is_meant(request, names) else answer

    return mutation


def errors(change: Callable[[int, Any], Any], *names: str) -> Mutation:
    """The documents of errors; the change gets the status as well."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if answer.is_success or not _is_meant(request, names):
            return answer
        return await answer.changed_json(lambda document: change(answer.status, document))

    return mutation


def contents(change: Callable[[bytes], bytes], *names: str) -> Mutation:
    """Answers of any kind, whole."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        is_meant = answer.is_success and _is_meant(request, names)
        return await answer.changed(change) if is_meant else answer

    return mutation


def plain(change: Change, *names: str) -> Mutation:
    """The documents of answers that are no streams."""
    return _of_kinds({JSON: lambda answer: answer.changed_json(change)}, names)


def heard(note: Callable[[Any], None], *names: str) -> Mutation:
    """Tells `note` the documents of answers that are no streams, and changes nothing."""

    def noted(document: Any) -> Any:
        note(document)
        return document

    return plain(noted, *names)


def streams(
    change: Callable[[AsyncIterator[Event]], AsyncIterator[Event]], *names: str
) -> Mutation:
    """The events of streams: the change is called once for each stream."""

    async def encoded(events: AsyncIterator[Event]) -> AsyncIterator[bytes]:
        async for event in events:
            yield bytes(event)

    async def changed(answer: Answer) -> Answer:
        return answer.with_stream(encoded(change(read_events(answer.body))))

    return _of_kinds({lint.EVENT_STREAM: changed}, names)


def events(change: Callable[[Event], Iterable[Event]], *names: str) -> Mutation:
    """The events of streams, one by one; comments stay."""

    async def changed(events: AsyncIterator[Event]) -> AsyncIterator[Event]:
        async for event in events:
            for each in [event] if event.data is None else change(event):
                yield each

    return streams(changed, *names)


def lines(change: Callable[[Any], Iterable[Any]], *names: str) -> Mutation:
    """The documents of lines, one by one."""

    async def changed(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for line in read_lines(pieces):
            document = parsed(line)
            for each in change(document):
                yield line if each == document else f"{dumps(each)}\n".encode()

    async def of_answer(answer: Answer) -> Answer:
        return answer.with_stream(changed(answer.body))

    return _of_kinds({lint.LINES: of_answer}, names)


def documents(change: Change, *names: str) -> Mutation:
    """The documents of answers: of plain ones, of events and of lines."""

    def of_event(event: Event) -> list[Event]:
        document = event.json
        return [event if document is None else event.with_json(change(document))]

    return together(
        plain(change, *names),
        events(of_event, *names),
        lines(lambda document: [change(document)], *names),
    )


def together(*mutations: Mutation) -> Mutation:
    """All of them; the last is the one that the server is nearest to."""

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
    """Changes the value at `path`, such as `choices.*.index`, where there is one. `*` is each
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
    """Takes fields out of an object."""
    return lambda document: {k: v for k, v in document.items() if k not in names}


def renamed(old: str, new: str) -> Change:
    return lambda document: {(new if k == old else k): v for k, v in document.items()}


def instead(right: Any, wrong: Any) -> Change:
    """Another value in the place of one."""
    return lambda value: wrong if value == right else value
