"""Chooses the files of a repository that make up a model, by llama.cpp's rules.

Files are given by their paths in the repository, with "/" between components.
"""

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

from specllama.engine.formats.gguf_names import best_projector, is_model, part, quantization

PRESET = "preset.ini"
"""A repository with this file is one of presets: its models are those that the file names."""

MAX_PRESET = 1 << 20
"""Bytes of a preset file, wherever it lies."""

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
"""Looked for, in this order, when no quantization is asked for."""


def pick_model(files: Sequence[str], quant: str = "") -> str | None:
    """The model of a quantization (in any case of letters), or the first part of it; without
    one: of the first of `DEFAULT_QUANTS` that there is, else the first model."""
    models = _models(files)
    for wanted in [quant] if quant else DEFAULT_QUANTS:
        # Anywhere: before a suffix such as -imat, or as the name of the directory of a split.
        pattern = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}[./-]", re.IGNORECASE | re.ASCII)
        for name in models:
            if pattern.search(name):
                return name
    return models[0] if models and not quant else None


def parts_of(model: str) -> list[str]:
    """All files of the model that `model` is one part of."""
    split = part(model)
    return split.file_names() if split else [model]


def pick_projector(files: Sequence[str], model: str) -> str | None:
    """The projector of a model: in the nearest directory of those that hold it."""
    for directory in PurePosixPath(model).parents:
        beside = [name for name in files if PurePosixPath(name).parent == directory]
        if projector := best_projector(model, beside):
            return projector
    return None


def quants(files: Sequence[str]) -> list[str]:
    """The quantizations of the models there are, to be shown to a user."""
    return list(dict.fromkeys(filter(None, map(quantization, _models(files)))))


def _models(files: Sequence[str]) -> list[str]:
    """Whole models, and the first parts of split ones."""
    return [
        name
        for name in files
        if is_model(name) and ((split := part(name)) is None or split.index == 1)
    ]
