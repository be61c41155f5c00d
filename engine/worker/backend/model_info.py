"""Describes an engine's model to the server process."""

from pathlib import Path
from typing import Any

from specllama.engine.wire.replies import ModelInfo
from specllama.engine.worker.backend import Model, Projector, device_uses


def model_info(model: Model, *, n_slots: int, n_ctx: int, **rest: Any) -> ModelInfo:
    """`n_ctx`: tokens of one slot; `rest`: the optional fields of `ModelInfo`."""
    return ModelInfo(
        vocab_type=model.vocab_type,
        n_vocab=model.n_vocab,
        n_ctx_train=model.n_ctx_train,
        n_embd=model.n_embd,
        n_params=model.n_params,
        size=model.size,
        devices=device_uses(),
        description=model.description,
        ftype=model.ftype,
        bos_token=model.token_text(model.bos),
        eos_token=model.token_text(model.eos),
        add_bos=model.add_bos,
        add_eos=model.add_eos,
        chat_template=model.chat_template,
        tool_template=model.tool_template,
        metadata=_without_templates(model.metadata),
        n_slots=n_slots,
        n_ctx=n_ctx,
        **rest,
    )


def projector_info(projector: Projector | None) -> dict[str, Any]:
    """The fields of `ModelInfo` about input other than text."""
    if projector is None:
        return {}
    return {
        "modalities": projector.modalities,
        "sample_rate": projector.sample_rate,
        "projector": Path(projector.path).name,
        "projector_size": projector.size,
    }


def _without_templates(metadata: dict[str, str]) -> dict[str, str]:
    """`metadata` without the long templates, as `ModelInfo.chat_template` has the relevant one."""
    return {
        key: value
        for key, value in metadata.items()
        if not key.startswith("tokenizer.chat_template")
    }
