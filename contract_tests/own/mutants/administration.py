"""What a server says of itself: slots, properties, models, metrics, adapters."""

from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import Response

import handlers.models
import handlers.props
import handlers.slots
from contract_tests.kit import checks
from contract_tests.kit.checks import servers
from contract_tests.own.mutants.mutant import Mutants, Replace
from engine.pool.client import EngineClient
from engine.protocol.messages import Adapter, ModelInfo, SlotState
from engine.protocol.stats import Stats
from handlers.http.json_answer import JSONAnswer
from handlers.running.metrics import Metrics
from handlers.running.runtime import Runtime, runtime
from handlers.running.served import Served

MUTANTS = Mutants("Slots, properties, metrics, adapters")


@MUTANTS.caught_by(checks.slots_keep_texts, "a client has written: .*5518", lies=True)
def slots_show_texts(replace: Replace) -> None:
    """Slots tell what clients have written."""

    def without_texts(slot: dict[str, Any]) -> dict[str, Any]:
        return slot

    replace(handlers.slots, "without_texts", without_texts)


@MUTANTS.caught_by(checks.slots_count_what_they_hold, "==", lies=True)
def slots_count_the_prompt_alone(replace: Replace) -> None:
    """`n_prompt_tokens` is without what was generated."""
    original = handlers.slots.slot_json

    def slot_json(slot: SlotState, model: Served) -> dict[str, Any]:
        n_prompt = slot.n_prompt_tokens_processed + slot.n_prompt_tokens_cache
        return {**original(slot, model), "n_prompt_tokens": n_prompt}

    replace(handlers.slots, "slot_json", slot_json)


def _change_slots(replace: Replace, change: Callable[[list[SlotState]], list[SlotState]]) -> None:
    original = EngineClient.slots

    async def slots(self: EngineClient) -> list[SlotState]:
        return change(await original(self))

    replace(EngineClient, "slots", slots)


@MUTANTS.caught_by(servers.slots_come_to_rest, "work, though", lies=True)
def slots_never_rest(replace: Replace) -> None:
    """A slot that was used once is busy for ever."""

    def busy(slot: SlotState) -> SlotState:
        return msgspec.structs.replace(slot, is_processing=slot.id_task >= 0)

    _change_slots(replace, lambda slots: [busy(slot) for slot in slots])


@MUTANTS.caught_by(servers.properties_agree, "total_slots", lies=True)
def a_slot_is_not_told(replace: Replace) -> None:
    """The first slot is not in the list."""
    _change_slots(replace, lambda slots: slots[1:])


def _change_props(replace: Replace, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    original = handlers.props._props_json

    async def props_json(model: Served, info: ModelInfo | None) -> dict[str, Any]:
        return change(await original(model, info))

    replace(handlers.props, "_props_json", props_json)


@MUTANTS.caught_by(servers.properties_agree, "model_alias", lies=True)
def properties_name_another_model(replace: Replace) -> None:
    """`model_alias` is no model's name."""
    _change_props(replace, lambda props: {**props, "model_alias": "another"})


@MUTANTS.caught_by(servers.properties_agree, "n_ctx", lies=True)
def the_context_is_another(replace: Replace) -> None:
    """`n_ctx` is not that of the slots."""

    def change(props: dict[str, Any]) -> dict[str, Any]:
        settings = props["default_generation_settings"]
        return {**props, "default_generation_settings": {**settings, "n_ctx": 17}}

    _change_props(replace, change)


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "/props")
def the_number_of_slots_is_null(replace: Replace) -> None:
    """`total_slots` is null."""
    _change_props(replace, lambda props: {**props, "total_slots": None})


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "/models")
def models_have_no_owner(replace: Replace) -> None:
    """`owned_by` is missing in the list of models."""
    original = handlers.models._named

    def named(current: Runtime, entry: Any) -> dict[str, Any]:
        return {k: v for k, v in original(current, entry).items() if k != "owned_by"}

    replace(handlers.models, "_named", named)


@MUTANTS.caught_by(servers.properties_agree, "expected 404, got .* 200", lies=True)
def every_name_is_a_model(replace: Replace) -> None:
    """Whoever looks up a name finds a model."""

    async def get_model(model_id: str) -> Response:
        current = runtime()
        [entry, *_] = current.catalog.entries.values()
        return JSONAnswer({**handlers.models._model(current, entry), "id": model_id})

    replace(handlers.models, "get_model", get_model)


# ---- metrics ---------------------------------------------------------------------------------


def _change_stats(replace: Replace, change: Callable[[Stats], Stats]) -> None:
    original = EngineClient.stats

    async def stats(self: EngineClient) -> Stats:
        return change(await original(self))

    replace(EngineClient, "stats", stats)


@MUTANTS.caught_by(servers.counters_never_go_down, "went down", lies=True)
def counters_go_down(replace: Replace) -> None:
    """The counter of predicted tokens goes backwards."""
    _change_stats(
        replace, lambda stats: msgspec.structs.replace(stats, n_predicted=-stats.n_predicted)
    )


@MUTANTS.caught_by(servers.counters_never_go_down, "tokens_predicted_total", lies=True)
def counters_stand_still(replace: Replace) -> None:
    """Nothing is counted."""
    _change_stats(replace, lambda stats: Stats())


@MUTANTS.caught_by(servers.counters_never_go_down, "is not a documented content type", lies=True)
def metrics_are_announced_as_json(replace: Replace) -> None:
    """The content type of metrics is application/json."""
    original = Metrics.render

    def render(self: Metrics, model: str, stats: Stats) -> tuple[bytes, str]:
        return original(self, model, stats)[0], "application/json"

    replace(Metrics, "render", render)


# ---- adapters --------------------------------------------------------------------------------


@MUTANTS.caught_by(servers.adapters_keep_their_scales, "in the place of", lies=True)
def scales_are_forgotten(replace: Replace) -> None:
    """New scales of adapters are not set."""

    async def set_adapters(self: EngineClient, scales: list[tuple[int, float]]) -> list[Adapter]:
        return await self.adapters()

    replace(EngineClient, "set_adapters", set_adapters)
