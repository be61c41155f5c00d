"""Servers of many models."""

from typing import Any

from contract_tests.kit import checks
from contract_tests.kit.mutants.exchange import Answer, Event, Mutation, PassOn, Request
from contract_tests.kit.mutants.http import ACCEPTED
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import (
    at,
    events,
    observed,
    plain,
    requests,
    together,
    without,
)

MUTANTS = Mutants("Many models", "router")

SUCCESS = {"success": True}


def _of_default_model(request: Request) -> Request:
    """Returns the request without the name of a model."""
    document = request.json
    if isinstance(document, dict):
        request = request.with_json(without("model")(document))
    return request.with_query(model=None)


@MUTANTS.caught_by(checks.requests_reach_their_models, "model_alias|==")
def every_model_is_the_default_one() -> Mutation:
    """The model name in a request is ignored."""
    names: list[str] = []

    def note(listed: dict[str, Any]) -> None:
        names[:] = [model["id"] for model in listed["data"]]

    def change(request: Request) -> Request:
        first = names[0] if names else None
        document = request.json
        if isinstance(document, dict) and "model" in document:
            request = request.with_json({**document, "model": first})
        return request.with_query(model=first) if "model" in request.query else request

    return together(
        observed(note, "list_models"), requests(change, "get_props", "create_completion")
    )


@MUTANTS.caught_by(checks.unknown_models_are_refused, ACCEPTED)
def unknown_models_are_the_default_one() -> Mutation:
    """Unknown model names are answered by the default model."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if answer.status not in (400, 404):
            return answer
        return await pass_on(_of_default_model(request))

    return mutation


@MUTANTS.caught_by(checks.looking_for_models_needs_the_key, "expected 401")
def everybody_may_look_for_models_again() -> Mutation:
    """`reload` needs no key."""
    return requests(
        lambda request: (
            request.with_right_key()
            if "reload" in request.query and not request.has_right_key
            else request
        ),
        "list_models",
    )


def _pretend(name: str) -> Mutation:
    """Reports success without doing anything."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        return Answer.of(200, SUCCESS) if request.operation == name else await pass_on(request)

    return mutation


@MUTANTS.caught_by(checks.only_downloads_can_be_removed, "expected 400")
def everything_can_be_removed() -> Mutation:
    """Removing a model that was not downloaded reports success."""
    return _pretend("remove_model")


@MUTANTS.caught_by(checks.present_models_are_not_downloaded, "expected 400")
def everything_can_be_downloaded() -> Mutation:
    """Downloading a model that is present reports success."""
    return _pretend("download_model")


@MUTANTS.caught_by(checks.models_are_as_described, r"\$\.data\[0\]: ")
def a_status_forgets_its_failure() -> Mutation:
    """`failed` is missing in a model's status."""
    return plain(at("data.*.status", without("failed")), "list_models", "list_openai_models")


@MUTANTS.caught_by(checks.changes_of_models_are_announced, "ready")
def events_have_unknown_states() -> Mutation:
    """A loaded model is `ready`, which is no documented state."""

    def change(event: Event) -> list[Event]:
        data = (event.data or "").replace('"loaded"', '"ready"')
        return [event if data == event.data else Event(data, event.name)]

    return events(change, "stream_model_events")
