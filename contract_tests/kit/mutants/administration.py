"""Slots, properties, models, metrics, adapters."""

import re
from collections.abc import Callable
from typing import Any

from contract_tests.kit import checks
from contract_tests.kit.checks import servers
from contract_tests.kit.mutants.exchange import Answer, Mutation, PassOn, Request, parsed
from contract_tests.kit.mutants.mutant import Mutants
from contract_tests.kit.mutants.mutations import answers, at, contents, plain, without

MUTANTS = Mutants("Slots, properties, metrics, adapters")

METRICS = "get_metrics"


def _change_slots(change: Callable[[Any], Any]) -> Mutation:
    """Changes each slot that has served something."""
    return plain(at("*", lambda slot: change(slot) if "id_task" in slot else slot), "list_slots")


@MUTANTS.caught_by(checks.slots_keep_texts, "a client has written: .*5518", as_described=True)
def slots_show_texts() -> Mutation:
    """Slots show what clients have written."""
    last = ""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        nonlocal last
        if request.operation == "create_completion":
            last = str((request.json or {}).get("prompt", ""))
        return await _change_slots(lambda slot: {**slot, "prompt": last})(request, pass_on)

    return mutation


@MUTANTS.caught_by(checks.slots_count_what_they_hold, "==", as_described=True)
def slots_count_the_prompt_alone() -> Mutation:
    """`n_prompt_tokens` leaves out the generated tokens."""

    def change(slot: dict[str, Any]) -> dict[str, Any]:
        n = slot["n_prompt_tokens_processed"] + slot["n_prompt_tokens_cache"]
        return {**slot, "n_prompt_tokens": n}

    return _change_slots(change)


@MUTANTS.caught_by(servers.slots_come_to_rest, "work, though", as_described=True)
def slots_never_rest() -> Mutation:
    """A slot that was used once is busy for ever."""
    return _change_slots(lambda slot: {**slot, "is_processing": slot["id_task"] >= 0})


@MUTANTS.caught_by(servers.properties_agree, "total_slots", as_described=True)
def a_slot_is_not_listed() -> Mutation:
    """The first slot is not in the list."""
    return plain(lambda slots: slots[1:], "list_slots")


def _change_props(change: Callable[[Any], Any]) -> Mutation:
    return plain(change, "get_props")


@MUTANTS.caught_by(servers.properties_agree, "model_alias", as_described=True)
def properties_name_another_model() -> Mutation:
    """`model_alias` is not the name of a model."""
    return _change_props(at("model_alias", lambda name: "another"))


@MUTANTS.caught_by(servers.properties_agree, "n_ctx", as_described=True)
def the_context_is_another() -> Mutation:
    """`n_ctx` differs from the slots' context."""
    return _change_props(at("default_generation_settings.n_ctx", lambda n: 17))


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "/props")
def the_number_of_slots_is_null() -> Mutation:
    """`total_slots` is null."""
    return _change_props(at("total_slots", lambda n: None))


@MUTANTS.caught_by(checks.plain_answers_are_as_described, "/models")
def models_have_no_owner() -> Mutation:
    """`owned_by` is missing in the list of models."""
    return plain(at("data.*", without("owned_by")), "list_models", "list_openai_models")


@MUTANTS.caught_by(servers.properties_agree, "expected 404, got .* 200", as_described=True)
def every_name_is_a_model() -> Mutation:
    """A lookup of any name answers with a model."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        answer = await pass_on(request)
        if request.operation != "get_model" or answer.status != 404:
            return answer
        listed = parsed(await (await pass_on(request.to("GET", "/v1/models"))).read())
        found = await pass_on(request.to("GET", f"/v1/models/{listed['data'][0]['id']}"))
        name = request.path.removeprefix("/v1/models/")
        return await found.changed_json(lambda model: {**model, "id": name})

    return mutation


# ---- metrics ---------------------------------------------------------------------------------


@MUTANTS.caught_by(servers.counters_never_go_down, "went down", as_described=True)
def counters_go_down() -> Mutation:
    """The counter of predicted tokens goes backwards."""
    counter = re.compile(rb"^(llamacpp:tokens_predicted_total) ", re.MULTILINE)
    return contents(lambda text: counter.sub(rb"\1 -", text), METRICS)


@MUTANTS.caught_by(servers.counters_never_go_down, "tokens_predicted_total", as_described=True)
def counters_stand_still() -> Mutation:
    """Nothing is counted."""
    first: list[bytes] = []

    def change(text: bytes) -> bytes:
        first.append(text)
        return first[0]

    return contents(change, METRICS)


@MUTANTS.caught_by(servers.counters_never_go_down, "is not a documented content type")
def metrics_are_announced_as_json() -> Mutation:
    """The content type of metrics is application/json."""
    return answers(
        lambda request, answer: answer.with_header("Content-Type", "application/json"), METRICS
    )


# ---- adapters --------------------------------------------------------------------------------


@MUTANTS.caught_by(servers.adapters_keep_their_scales, "in the place of", as_described=True)
def scales_are_forgotten() -> Mutation:
    """Setting the scales of adapters has no effect."""

    async def mutation(request: Request, pass_on: PassOn) -> Answer:
        if request.operation != "set_lora_adapters":
            return await pass_on(request)
        listed = parsed(await (await pass_on(request.to("GET", "/lora-adapters"))).read())
        old = [{"id": each["id"], "scale": each["scale"]} for each in listed]
        return await pass_on(request.with_json(old))

    return mutation


# ---- tools -----------------------------------------------------------------------------------


@MUTANTS.caught_by(servers.tools_run_in_their_directory, "is called", as_described=True)
def definitions_of_tools_have_other_names() -> Mutation:
    """The name in a tool's definition, which a model calls, isn't the tool's."""
    renamed = at("*.definition.function.name", lambda name: f"{name}_tool")
    return plain(renamed, "list_server_tools")


@MUTANTS.caught_by(
    servers.tools_run_in_their_directory, "expected 404, got .* 200", as_described=True
)
def unknown_tools_succeed() -> Mutation:
    """A call of a tool that doesn't exist has an empty result."""

    def change(request: Request, answer: Answer) -> Answer:
        if answer.status != 404:
            return answer
        return Answer.of(200, {"plain_text_response": ""})

    return answers(change, "run_server_tool")


@MUTANTS.caught_by(servers.tools_run_in_their_directory, "shows /etc/hosts", as_described=True)
def failed_tools_succeed() -> Mutation:
    """The reason of a tool's failure is sent as its result."""

    def change(result: dict[str, Any]) -> dict[str, Any]:
        return {"plain_text_response": result["error"]} if "error" in result else result

    return plain(change, "run_server_tool")
