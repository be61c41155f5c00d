"""Results and events with default values for tests."""

from collections.abc import Sequence
from typing import Any

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Delta, Finished, ModelInfo, StopType, Timings, TokenProbs

TIMINGS = Timings(cache_n=4, prompt_n=3, prompt_ms=6.5, predicted_n=2, predicted_ms=5.25)


def finished(text: str = "", stop_type: StopType = "eos", **changes: Any) -> Finished:
    fields: dict[str, Any] = {
        "id": 1,
        "text": text,
        "tokens": [],
        "stop_type": stop_type,
        "stopping_word": "",
        "truncated": False,
        "has_new_line": False,
        "id_slot": 0,
        "prompt": "",
        "n_prompt": 7,
        "n_decoded": 2,
        "timings": TIMINGS,
        "params": GenerationParams(),
    }
    return Finished(**{**fields, **changes})


def delta(text: str = "", probs: Sequence[TokenProbs] = ()) -> Delta:
    return Delta(id=1, text=text, tokens=[5], id_slot=0, timings=TIMINGS, probs=list(probs))


def model_info(**changes: Any) -> ModelInfo:
    fields: dict[str, Any] = {
        "vocab_type": 2,
        "n_vocab": 300,
        "n_ctx_train": 64,
        "n_embd": 8,
        "n_params": 1000,
        "size": 4000,
        "description": "paper",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "add_bos": True,
        "add_eos": False,
        "chat_template": "",
        "n_slots": 2,
        "n_ctx": 64,
    }
    return ModelInfo(**{**fields, **changes})
