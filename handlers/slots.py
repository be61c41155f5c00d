"""GET /slots: what each slot is doing. POST /slots/{id_slot}: what it remembers."""

from typing import Any, Literal

from starlette.responses import Response

from specllama.engine.errors import invalid_request, not_supported, unavailable
from specllama.engine.wire.replies import SlotState
from specllama.engine.wire.requests import check_name
from specllama.handlers.apis.native.results import settings_json
from specllama.handlers.http.current import until_disconnect
from specllama.handlers.http.json_answer import JSONAnswer
from specllama.handlers.running.resolve_model import ResolvedModel, resolve_model


async def list_slots(fail_on_no_slot: int = 0) -> Response:
    """All slots. A model is loaded for that, but neither woken nor kept awake: of a sleeping one
    they are as they were last. Raises EngineError: not_supported_error with `--no-slots`, and
    unavailable_error if `fail_on_no_slot` is set and all are busy."""
    model = resolve_model()
    if not model.options.operations.slots:
        raise not_supported("This server does not support slots endpoint. Start it with `--slots`")
    supervisor = model.current.pool.supervisor(model.name)
    if supervisor and (asleep := supervisor.look_asleep()):
        slots = asleep.slots
    else:
        awake = supervisor.awake_engine() if supervisor else None
        slots = await (awake or await model.engine()).slots()
    if fail_on_no_slot and all(slot.is_processing for slot in slots):
        raise unavailable("no slot available")
    with_texts = model.options.operations.slots_text
    return JSONAnswer([_shown(slot, model, with_texts) for slot in slots])


def _shown(slot: SlotState, model: ResolvedModel, with_texts: bool) -> dict[str, Any]:
    whole = slot_json(slot, model)
    if slot.id_task < 0:
        return {key: whole[key] for key in _BEFORE_THE_FIRST_REQUEST}
    return whole if with_texts else without_texts(whole)


_BEFORE_THE_FIRST_REQUEST = ("id", "n_ctx", "speculative", "is_processing")


async def act_on_slot(
    id_slot: int, action: Literal["save", "restore", "erase"], body: dict[str, Any] | None = None
) -> Response:
    """The result of saving, restoring or erasing. Raises EngineError: not_supported_error without
    `--slot-save-path`, invalid_request_error for a slot or a file that can't be used."""
    model = resolve_model(body)
    if not model.options.engine.slot_files.slot_save_path:
        raise not_supported(
            "This server does not support slots action. Start it with `--slot-save-path`"
        )
    name = (body or {}).get("filename") or ""
    if action != "erase":
        if not name:
            raise invalid_request(f"filename: {action} needs the name of a file")
        check_name(name)
    engine = await model.engine()
    done = await until_disconnect(engine.slot_action(id_slot, action, name))
    if action == "erase":
        return JSONAnswer({"id_slot": id_slot, "n_erased": done.n_tokens})
    n_tokens, n_bytes = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    return JSONAnswer(
        {
            "id_slot": id_slot,
            "filename": name,
            n_tokens: done.n_tokens,
            n_bytes: done.n_bytes,
            "timings": {f"{action}_ms": done.ms},
        }
    )


def slot_json(slot: SlotState, model: ResolvedModel) -> dict[str, Any]:
    """One slot of `model`, which has the settings of the server if it was never used."""
    params = slot.params or model.options.engine.generation_defaults()
    form = model.options.chat.reasoning_format
    return {
        "id": slot.id,
        "id_task": slot.id_task,
        "n_ctx": slot.n_ctx,
        "speculative": params.speculative.types != "none",
        "is_processing": slot.is_processing,
        "params": settings_json(params, slot.n_ctx, model.name, form),
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
    }


_TEXTS = ("prompt", "generated")
TEXT_SETTINGS = (
    "stop",
    "grammar",
    "json_schema",
    "grammar_triggers",
    "preserved_tokens",
    "logit_bias",
    "dry_sequence_breakers",
)


def without_texts(slot: dict[str, Any]) -> dict[str, Any]:
    """`slot` without what clients have written, or got."""
    kept = {key: value for key, value in slot.items() if key not in _TEXTS}
    settings = slot["params"].items()
    kept["params"] = {key: value for key, value in settings if key not in TEXT_SETTINGS}
    kept["params"]["generation_prompt"] = ""
    kept["next_token"] = {**slot["next_token"], "stopping_word": ""}
    return kept


def unused_slot(n_ctx: int) -> SlotState:
    """The state of a slot before its first request; `n_ctx` in tokens."""
    return SlotState(id=0, n_ctx=n_ctx)
