"""GET /slots: the state of each slot. POST /slots/{id_slot}: saves, restores or erases its text.
GET /queue: the requests that wait for a slot."""

from typing import cast

from starlette.responses import Response

from specllama.engine.errors import invalid_request, not_supported, unavailable
from specllama.engine.wire.replies import SlotDone, Slots, SlotState, WaitingState
from specllama.engine.wire.requests import check_name
from specllama.handlers.apis.results import miss_at, settings_json
from specllama.handlers.http import schemas
from specllama.handlers.http.api_keys import current_key, sees_other_keys
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model


async def list_slots(fail_on_no_slot: int = 0) -> Response:
    """All slots of a model. The model is loaded for that, but neither woken nor kept awake: for a
    sleeping model, the slots have their last state. They have texts only with `--slots-text`, and
    only for administrators. Raises EngineError: not_supported_error with
    `--no-slots`, and unavailable_error if `fail_on_no_slot` is set and all slots are busy."""
    model = resolve_model()
    slots = (await _state(model)).slots
    if fail_on_no_slot and all(slot.is_processing for slot in slots):
        raise unavailable("no slot available")
    key = current_key()
    is_admin = key is None or "admin" in key.access
    with_texts = model.options.operations.slots_text and is_admin
    return JSONAnswer([_shown(slot, model, with_texts) for slot in slots])


async def _state(model: ResolvedModel) -> Slots:
    """Returns the slots and the queue of a model, without waking it. Raises EngineError."""
    if not model.options.operations.slots:
        raise not_supported("This server does not support slots endpoint. Start it with `--slots`")
    supervisor = model.current.pool.supervisor(model.name)
    if supervisor and (asleep := supervisor.sleeping_snapshot()):
        return Slots(0, asleep.slots)
    awake = supervisor.awake_engine() if supervisor else None
    return await (awake or await model.engine()).slots_and_queue()


async def list_queue() -> Response:
    """The waiting requests of a model. Raises EngineError as `list_slots` does."""
    model = resolve_model()
    state = await _state(model)
    answer: schemas.Queue = {
        "model": model.name,
        "n_waiting": state.n_waiting,
        "waiting": [_waiting(each) for each in state.waiting],
    }
    return JSONAnswer(answer)


def _waiting(state: WaitingState) -> schemas.WaitingRequest:
    return {
        "id_task": state.id,
        "place": state.place,
        "key_name": state.key_name,
        "priority": state.priority,
        "n_tokens": state.n_tokens,
        "n_uncached_tokens": state.n_uncached,
        "age_ms": state.age_ms,
        "wait_ms": state.wait_ms,
    }


def _shown(slot: SlotState, model: ResolvedModel, with_texts: bool) -> schemas.ListedSlot:
    whole = slot_json(slot, model)
    if slot.id_task < 0:
        return {
            "id": whole["id"],
            "n_ctx": whole["n_ctx"],
            "speculative": whole["speculative"],
            "is_processing": whole["is_processing"],
        }
    return whole if with_texts else without_texts(whole)


async def act_on_slot(
    id_slot: int, action: schemas.SlotAction, body: schemas.SlotActionRequest | None = None
) -> Response:
    """Saves, restores or erases the text of a slot. Raises EngineError: not_supported_error without
    `--slot-save-path`, invalid_request_error for a slot or a file that can't be used."""
    model = resolve_model(body)
    if not model.options.engine.slot_files.slot_save_path:
        raise not_supported(
            "This server does not support slots action. Start it with `--slot-save-path`"
        )
    name = (body.get("filename") if body else None) or ""
    if action != "erase":
        if not name:
            raise invalid_request(f"filename: {action} needs the name of a file")
        check_name(name)
    engine = await model.engine()
    done = await until_disconnect(engine.slot_action(id_slot, action, name))
    return JSONAnswer(_result(id_slot, action, name, done))


def _result(
    id_slot: int, action: schemas.SlotAction, name: str, done: SlotDone
) -> schemas.SlotActionResult:
    match action:
        case "erase":
            return {"id_slot": id_slot, "n_erased": done.n_tokens}
        case "save":
            return {
                "id_slot": id_slot,
                "filename": name,
                "n_saved": done.n_tokens,
                "n_written": done.n_bytes,
                "timings": {"save_ms": done.ms},
            }
        case "restore":
            return {
                "id_slot": id_slot,
                "filename": name,
                "n_restored": done.n_tokens,
                "n_read": done.n_bytes,
                "timings": {"restore_ms": done.ms},
            }


def slot_json(slot: SlotState, model: ResolvedModel) -> schemas.Slot:
    """Returns one slot of `model`. A slot that was never used has the server's settings."""
    metadata = model.info.metadata if model.info else {}
    params = slot.params or model.options.engine.generation_defaults(metadata)
    form = model.options.chat.reasoning_format
    settings = settings_json(params, slot.n_ctx, model.name, form)
    reason = slot.cache_miss_reason
    if reason == "key" and not sees_other_keys():
        reason = "new"
    return {
        "id": slot.id,
        "id_task": slot.id_task,
        "n_ctx": slot.n_ctx,
        "speculative": params.speculative.types != "none",
        "is_processing": slot.is_processing,
        "params": cast(schemas.SlotSettings, settings),
        "prompt": slot.prompt,
        "generated": slot.generated,
        "next_token": {
            "has_next_token": slot.has_next_token,
            "has_new_line": slot.has_new_line,
            "n_remain": slot.n_remain,
            "n_decoded": slot.n_decoded,
            "stopping_word": slot.stopping_word,
        },
        "n_prompt_tokens": slot.n_prompt_tokens,
        "n_prompt_tokens_processed": slot.n_prompt_tokens_processed,
        "n_prompt_tokens_cache": slot.n_prompt_tokens_cache,
        "n_prompt_tokens_shared": slot.n_prompt_tokens_shared,
        "n_prompt_tokens_restored": slot.n_prompt_tokens_restored,
        "key_name": slot.key_name,
        "priority": slot.priority,
        "n_prompt_tokens_from_files": slot.n_prompt_tokens_from_files,
        "cache_miss_reason": reason,
        "cache_miss_at": miss_at(slot.n_prompt_tokens_cache, reason),
    }


TEXT_SETTINGS = (
    "stop",
    "grammar",
    "json_schema",
    "grammar_triggers",
    "preserved_tokens",
    "logit_bias",
    "dry_sequence_breakers",
)


def without_texts(slot: schemas.Slot) -> schemas.Slot:
    """Returns `slot` without texts from requests and answers."""
    kept = slot.copy()
    del kept["prompt"], kept["generated"]
    settings = {name: each for name, each in slot["params"].items() if name not in TEXT_SETTINGS}
    kept["params"] = cast(schemas.SlotSettings, settings | {"generation_prompt": ""})
    kept["next_token"] = slot["next_token"].copy()
    kept["next_token"]["stopping_word"] = ""
    return kept


def unused_slot(n_ctx: int) -> SlotState:
    """Returns the state of a slot before its first request; `n_ctx` in tokens."""
    return SlotState(id=0, n_ctx=n_ctx)
