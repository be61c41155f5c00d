"""Numbers of requests: brought into the range in which they mean something, and made whole.

llama-server clamps most sampling values rather than refusing them. The ranges are the `x-clamped`
of the description; a test holds the two together. They also keep what reaches llama.cpp within
what its arithmetic can take.
"""

from collections.abc import Mapping

from specllama.engine.params import RANDOM_SEED

INT32_MAX = 0x7FFFFFFF
_MUCH = 1e6

CLAMPED: Mapping[str, tuple[float, float]] = {
    "temperature": (0, _MUCH),
    "dynatemp_range": (0, _MUCH),
    "dynatemp_exponent": (0, 1000),
    "top_k": (0, INT32_MAX),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "top_n_sigma": (-1, _MUCH),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "min_keep": (0, INT32_MAX),
    "repeat_last_n": (-1, INT32_MAX),
    "repeat_penalty": (1e-6, _MUCH),
    "presence_penalty": (-_MUCH, _MUCH),
    "frequency_penalty": (-_MUCH, _MUCH),
    "dry_multiplier": (0, _MUCH),
    "dry_base": (0, _MUCH),
    "dry_allowed_length": (0, INT32_MAX),
    "dry_penalty_last_n": (-1, INT32_MAX),
    "mirostat": (0, 2),
    "mirostat_tau": (0, 50),
    "mirostat_eta": (0, 50),
    "adaptive_target": (-1, 1),
    "id_slot": (-1, INT32_MAX),
    "n_probs": (0, 1024),
    "t_max_predict_ms": (-1, INT32_MAX),
}
LORA_ID = (-1, INT32_MAX)
LORA_SCALE = (-_MUCH, _MUCH)
BIAS = (-1e9, 1e9)


def clamp(value: float, limits: tuple[float, float]) -> float:
    """The number nearest to `value` within `limits`."""
    return min(max(value, limits[0]), limits[1])


def real(name: str, value: float) -> float:
    """The value of the field `name` as a float."""
    return float(clamp(value, CLAMPED[name]) if name in CLAMPED else value)


def whole(name: str, value: float) -> int:
    """The value of the field `name` without its fraction."""
    return int(clamp(value, CLAMPED[name]) if name in CLAMPED else value)


def seed(value: float) -> int:
    """The lowest 32 bits; -1 becomes `RANDOM_SEED`."""
    return int(value) & RANDOM_SEED
