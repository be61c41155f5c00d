"""The edges of every sampling field: below, at and above its range, a wrong type, null."""

from typing import Any

from contract_tests.peer.request import PROMPT, Request, post

NUMBERS: dict[str, tuple[Any, ...]] = {
    "temperature": (-1, 0, 2.5, 1e9),
    "dynatemp_range": (-1, 0, 0.5),
    "dynatemp_exponent": (-1, 0, 2),
    "top_k": (-5, 0, 1, 1_000_000, 2**31, 2.7),
    "top_p": (-0.5, 0, 1, 1.5),
    "min_p": (-1, 0, 1, 1.5),
    "typical_p": (-1, 0, 0.5, 1.5),
    "top_n_sigma": (-5, 0, 1.5),
    "xtc_probability": (-0.5, 0, 0.5, 1.5),
    "xtc_threshold": (-0.5, 0, 0.3, 1.5),
    "min_keep": (-1, 0, 3),
    "repeat_last_n": (-2, -1, 0, 100_000),
    "repeat_penalty": (-1, 0, 1.3, 2e6),
    "presence_penalty": (-3, 0, 3),
    "frequency_penalty": (-3, 0, 3),
    "dry_multiplier": (-1, 0, 0.8),
    "dry_base": (-1, 0.5, 2),
    "dry_allowed_length": (-1, 0, 4),
    "dry_penalty_last_n": (-2, -1, 0, 100),
    "mirostat": (-1, 1, 2, 3),
    "mirostat_tau": (-1, 0, 4),
    "mirostat_eta": (-1, 0, 0.2),
    "adaptive_target": (-2, 0.5, 1.5),
    "adaptive_decay": (-0.1, 0.5, 0.99, 1),
    "n_probs": (-1, 0, 2, 100_000),
    "n_predict": (-2, 0, 3),
    "max_tokens": (-2, 0, 3),
    "n_keep": (-2, -1, 4),
    "n_discard": (-1, 0, 5),
    "n_indent": (-1, 0, 2),
    "n_cache_reuse": (-1, 0, 5),
    "t_max_predict_ms": (-2, -1, 60_000),
    "id_slot": (-2, -1, 1, 7, 1000),
    "n": (0, 1, 2, 3),
    "seed": (-2, -1, 0, 2**32 - 1, 2**32, 2**63, -(2**40), 1.0),
}
FLAGS = (
    "ignore_eos", "cache_prompt", "return_tokens", "timings_per_token", "post_sampling_probs",
    "stream", "return_progress", "backend_sampling",
)  # fmt: skip
OTHERS: dict[str, tuple[Any, ...]] = {
    "samplers": (
        [], ["top_k", "top_p", "infill"], ["tfs_z", "top_k"], ["top_k", "temperature"], "kpi",
        "kt", "", ["top-k", "nucleus", "temp"], [5], {"top_k": True}, None, 7,
    ),
    "stop": (
        ["\n"], "time", [], "", [""], None, [None], 5, ["a"] * 50, {"a": "b"}, [5],
    ),
    "logit_bias": (
        [], {}, None, [[5, -1.5]], [["a", 2]], [[5, False]], {"5": -100}, {"a": False}, [[5, True]],
        [[5]], [[99999, 1]], [[-1, 1]], [5], "a", [{"token": 5, "bias": 1}], [["", 1]],
    ),
    "dry_sequence_breakers": ([], ["\n"], [""], None, "a", [5]),
    "grammar": ('root ::= "a"', "", None, "root ::= ", "no grammar (", 'root ::= missing', 5),
    "json_schema": (
        {}, {"type": "object"}, {"type": "string"}, None, True, "a", {"type": "nothing"},
        {"$ref": "#/missing"}, {"enum": ["a", 1]}, {"const": 5}, {"items": {"type": "integer"}},
        {"properties": {"a": {"type": "integer"}}, "required": ["a"]},
    ),
    "response_fields": (
        ["content"], ["generation_settings/n_predict", "content"], [], ["missing"], None, "content",
        [5],
    ),
    "lora": ([], [{"id": 0, "scale": 1}], [{"id": 5, "scale": 0.5}], None, {}, [5], [{}]),
    "prompt": (
        "", [], None, 5, ["Once"], ["Once", "Twice"], [1, 5, 6], [1, "Once"], [[1, 5], "Once"],
        [99999], [-1], {"prompt_string": "Once"}, [{"prompt_string": "Once"}],
        {"prompt_string": "Once", "multimodal_data": []}, {}, [[]], True, "a" * 5000,
        [1] * 1500,
    ),
    "stream_options": ({"include_usage": True}, {}, None, 5),
    "sse_ping_interval": (-2, -1, 0, 5, None, "a"),
    "unknown_field": (5, None, {"a": [1]}),
    "verbose": (True, None, "a"),
    "echo": (True, False),
    "reasoning_format": ("none", "deepseek", "wrong", 5),
    "speculative.n_max": (0, 5),
    "grammar_lazy": (True, False),
    "grammar_triggers": ([],),
    "preserved_tokens": ([], ["<|im_start|>"]),
}  # fmt: skip
WRONG: tuple[Any, ...] = ("a", "5", None, True, [], {})


def _ask(field: str, value: Any) -> Request:
    body = {"prompt": PROMPT, "n_predict": 6, "temperature": 0, "seed": 7, field: value}
    if field in ("max_tokens", "n"):
        body.pop("n_predict")
        body.setdefault("max_tokens", 6)
    if field == "n_probs" and isinstance(value, int) and value > 10:
        body["n_predict"] = 1
    return post(f"{field} {value!r:.60}", "/completion", body)


REQUESTS = [
    *(_ask(field, value) for field, values in NUMBERS.items() for value in values),
    *(_ask(field, value) for field in NUMBERS for value in WRONG[:3]),
    *(
        _ask(field, value)
        for field in ("temperature", "top_k", "n_predict", "seed")
        for value in WRONG[3:]
    ),
    *(_ask(field, value) for field in FLAGS for value in (True, False, None, "true", 1)),
    *(_ask(field, value) for field, values in OTHERS.items() for value in values),
]
