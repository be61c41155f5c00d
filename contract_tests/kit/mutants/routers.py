"""Servers of many models."""

from typing import Any

from contract_tests.kit import checks
from contract_tests.kit.mutants.exchange import Answer, Event, Mutation, PassOn, Request
from contract_tests.kit.mutants.http import ACCEPTED
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import (
    at,
    events,
    heard,
    plain,
    requests,
    together,
    without,
)

MUTANTS = Mutants("Many models", "router")

SUCCESS = {"success": True}


def _of_default_model(request: Request) -> Request:
    """The same without the name of a model."""
    document = request.json
    if isinstance(document, dict):
        request = request.with_json(without("model")(document))
    return request.with_query(model=None)


@MUTANTS.caught_by(checks.requests_reach_their_models, "model_alias|==")
def every_model_is_the_default_one() -> Mutation:
    """The name of a model means nothing."""
    names: list[str] = []

    def note(listed: dict[str, Any]) -> None:
        names[:] = [model["id"] for model in listed["data"]]

    def change(request: Request) -> Request:
        first = names[0] if names else None
        document = request.json
        if isinstance(document, dict) and "model" in document:
            request = request.with_json({**document, "model": first})
        return request.with_query(model=first) if "model" in request.query else request

    return together(heard(note, "list_models"), requests(change, "get_props", "create_completion"))


@MUTANTS.caught_by(checks.unknown_models_are_refused, ACCEPTED)
def unknown_models_are_the_default_one() -> Mutation:
    """A name that no model has means the default one."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if answer.status not in (400, 404):
            return answer
        return await pass_on(_of_default_model(request))

    return mutation


@MUTANTS.caught_by(checks.looking_for_models_needs_the_key, "expected 401")
def everybody_may_look_for_models_again() -> Mutation:
    """`reload` wants no key."""
    return requests(
        lambda request: (
            request.with_right_key()
            if "reload" in request.query and not request.has_right_key
            else request
        ),
        "list_models",
    )


def _pretend(name: str) -> Mutation:
    """Says that it is done, and does nothing."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        return Answer.of(200, SUCCESS) if request.operation == name else await pass_on(request)

    return mutation


@MUTANTS.caught_by(checks.what_is_no_download_stays, "expected 400")
def everything_can_be_removed() -> Mutation:
    """Models that were not downloaded are said to be removed."""
    return _pretend("remove_model")


@MUTANTS.caught_by(checks.what_is_there_is_not_downloaded, "expected 400")
def everything_can_be_downloaded() -> Mutation:
    """Models that are there are said to be downloaded."""
    return _pretend("download_model")


@MUTANTS.caught_by(checks.models_are_as_described, r"\$\.data\[0\]: ")
def a_status_forgets_its_failure() -> Mutation:
    """`failed` is missing in a model's status."""
    return plain(at("data.*.status", without("failed")), "list_models", "list_openai_models")


@MUTANTS.caught_by(checks.changes_of_models_are_told, "ready")
def events_tell_states_that_nobody_knows() -> Mutation:
    """A loaded model is `ready`."""

    def change(event: Event) -> list[Event]:
        data = (event.data or "").replace('"loaded"', '"ready"')
        return [event if data == event.data else Event(data, event.name)]

    return events(change, "stream_model_events")
