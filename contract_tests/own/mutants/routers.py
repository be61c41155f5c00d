"""Servers of many models."""

from typing import Any

from starlette.types import Scope

import handlers.http.sse
import handlers.models
import handlers.running.served
from contract_tests.kit import checks
from contract_tests.own.mutants.http import ACCEPTED
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.catalog.entry import Entry
from engine.errors import ErrorType
from engine.pool.inventory import Inventory
from engine.pool.status import ModelStatus
from handlers.running.runtime import Runtime

MUTANTS = Mutants("Many models", "router")


@MUTANTS.caught_by(checks.requests_reach_their_models, "model_alias|==")
def every_model_is_the_default_one(replace: Replace) -> None:
    """The name of a model means nothing."""

    def find(current: Runtime, name: str | None, unknown: ErrorType) -> Entry:
        return current.catalog.entries[current.catalog.default]

    replace(handlers.running.served, "find", find)


@MUTANTS.caught_by(checks.unknown_models_are_refused, ACCEPTED)
def unknown_models_are_the_default_one(replace: Replace) -> None:
    """A name that no model has means the default one."""
    original = handlers.running.served.find

    def find(current: Runtime, name: str | None, unknown: ErrorType) -> Entry:
        return current.catalog.find(name or "") or original(current, None, unknown)

    replace(handlers.running.served, "find", find)


@MUTANTS.caught_by(checks.looking_for_models_needs_the_key, "expected 401")
def everybody_may_look_for_models_again(replace: Replace) -> None:
    """`reload` wants no key."""

    def require_key(scope: Scope) -> None:
        return None

    replace(handlers.models, "require_key", require_key)


@MUTANTS.caught_by(checks.what_is_no_download_stays, "expected 400")
def everything_can_be_removed(replace: Replace) -> None:
    """Models that were not downloaded are said to be removed."""

    async def remove(self: Inventory, name: str) -> None:
        return None

    replace(Inventory, "remove", remove)


@MUTANTS.caught_by(checks.what_is_there_is_not_downloaded, "expected 400")
def everything_can_be_downloaded(replace: Replace) -> None:
    """Models that are there are said to be downloaded."""

    async def download(self: Inventory, name: str) -> None:
        return None

    replace(Inventory, "download", download)


@MUTANTS.caught_by(checks.models_are_as_described, r"\$\.data\[0\]: ")
def a_status_forgets_its_failure(replace: Replace) -> None:
    """`failed` is missing in a model's status."""
    original = handlers.models._status_json

    def status_json(current: Runtime, entry: Entry, status: ModelStatus) -> dict[str, Any]:
        return {k: v for k, v in original(current, entry, status).items() if k != "failed"}

    replace(handlers.models, "_status_json", status_json)


@MUTANTS.caught_by(checks.changes_of_models_are_told, "ready")
def events_tell_states_that_nobody_knows(replace: Replace) -> None:
    """A loaded model is `ready`."""
    original = handlers.http.sse.sse_event

    def sse_event(data: Any, event: str | None = None) -> bytes:
        return original(data, event).replace(b'"loaded"', b'"ready"')

    replace(handlers.models, "sse_event", sse_event)
