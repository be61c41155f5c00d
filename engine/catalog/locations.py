"""The directories of downloaded models: the hub's cache, and those for models from other places."""

import os
from collections.abc import Mapping
from pathlib import Path

from specllama.engine.host import user_cache


def hub_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables that have huggingface_hub use what llama.cpp's variables name: LLAMA_CACHE is
    the directory of its cache, MODEL_ENDPOINT the hub's address."""
    names = {"LLAMA_CACHE": "HF_HUB_CACHE", "MODEL_ENDPOINT": "HF_ENDPOINT"}
    return {theirs: environ[ours] for ours, theirs in names.items() if environ.get(ours)}


def hub_cache(environ: Mapping[str, str]) -> Path:
    """The directory of huggingface_hub's cache, found in the same variables as it does."""
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
    """The directory of models downloaded from plain URLs."""
    if environ.get("LLAMA_CACHE"):
        return Path(os.path.expandvars(environ["LLAMA_CACHE"])).expanduser()
    return user_cache(environ) / "downloads"


def registry_cache(environ: Mapping[str, str]) -> Path:
    """The directory of models downloaded from registries of containers."""
    return url_cache(environ) / "registries"


# ---- Sizes in words.


_UNITS = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def shown_size(n: int) -> str:
    """`n` bytes, as "4.7 GiB"."""
    for unit, name in _UNITS:
        if n >= unit:
            return f"{n / unit:.1f} {name}"
    return f"{n} bytes"
