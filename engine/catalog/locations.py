"""The directories of downloaded models: the Hub's cache, and those for models from other
sources."""

import os
from collections.abc import Mapping
from pathlib import Path

from specllama.engine.host import user_cache


def hub_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns variables of huggingface_hub with the values of llama.cpp's variables: LLAMA_CACHE is
    the directory of its cache, MODEL_ENDPOINT the Hub's address."""
    names = {"LLAMA_CACHE": "HF_HUB_CACHE", "MODEL_ENDPOINT": "HF_ENDPOINT"}
    return {theirs: environ[ours] for ours, theirs in names.items() if environ.get(ours)}


def hub_cache(environ: Mapping[str, str]) -> Path:
    """Returns the directory of huggingface_hub's cache, from the same variables as that library."""
    for name, below in (
        ("LLAMA_CACHE", ""),
        ("HF_HUB_CACHE", ""),
        ("HUGGINGFACE_HUB_CACHE", ""),
        ("HF_HOME", "hub"),
        ("XDG_CACHE_HOME", "huggingface/hub"),
    ):
        if environ.get(name):
            return Path(os.path.expandvars(environ[name])).expanduser() / below
    return Path.home() / ".cache" / "huggingface" / "hub"


def url_cache(environ: Mapping[str, str]) -> Path:
    """Returns the directory of models downloaded from URLs."""
    if environ.get("LLAMA_CACHE"):
        return Path(os.path.expandvars(environ["LLAMA_CACHE"])).expanduser()
    return user_cache(environ) / "downloads"


def registry_cache(environ: Mapping[str, str]) -> Path:
    """Returns the directory of models downloaded from container registries."""
    return url_cache(environ) / "registries"


# ---- Sizes as text.


_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def shown_size(n: int) -> str:
    """Returns `n` bytes as text, such as "4.7 GiB"."""
    for unit, name in _UNITS:
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n} bytes"
