"""Parses the name of a GGUF file: its number among the parts of a model, its quantization, and its
kind (a model, or a file that accompanies one).

The conventions are those of llama.cpp's tools and of the model repositories on Hugging Face:
`NAME-QUANT.gguf`, `NAME-QUANT-00001-of-00003.gguf`, `mmproj-NAME-QUANT.gguf`.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

SUFFIX = ".gguf"

_PART = re.compile(r"(.*[^/\\])-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"[-.]([A-Za-z0-9_]+)$")
_BITS = re.compile(r"\d+")

_PROJECTOR = "mmproj"
_DRAFTS = ("mtp-", "eagle3-", "dflash-", "dspark-")
_MEASUREMENTS = "imatrix"


@dataclass(frozen=True, slots=True)
class FilePart:
    """File number `index` (from 1) of a model in `count` files; `prefix` is the common beginning of
    the files' names."""

    prefix: str
    index: int
    count: int

    def file_name(self, index: int) -> str:
        """Returns the name of part number `index`."""
        return f"{self.prefix}-{index:05}-of-{self.count:05}{SUFFIX}"

    def file_names(self) -> list[str]:
        """Returns the names of all parts."""
        return [self.file_name(index) for index in range(1, self.count + 1)]


def is_gguf(name: str) -> bool:
    return name.lower().endswith(SUFFIX)


def part(path: str) -> FilePart | None:
    """Returns which part of a model a file is, by its name or path; None if the file is not one of
    several parts. A path's directory is included in the prefix."""
    match = _PART.fullmatch(path)
    if match is None:
        return None
    index, count = int(match[2]), int(match[3])
    return FilePart(match[1], index, count) if 1 <= index <= count else None


def stem(path: str) -> str:
    """Returns `path` without the number of the part and the suffix."""
    split = part(path)
    if split is not None:
        return split.prefix
    return path[: -len(SUFFIX)] if is_gguf(path) else path


def quantization(path: str) -> str:
    """Returns the tag at the end of a name, in capitals: "Q4_K_M" for `x-Q4_K_M.gguf`; "" without
    one.

    The last word counts, as in llama.cpp, whether or not it is a quantization.
    """
    match = _TAG.search(stem(path).rpartition("/")[2])
    return match[1].upper() if match else ""


def is_projector(path: str) -> bool:
    """Returns whether the file is a multimodal projector (llama.cpp's mmproj)."""
    return _PROJECTOR in path.rpartition("/")[2].lower()


def is_model(path: str) -> bool:
    """Returns whether the file is a model or a part of one, instead of a projector, a draft head
    for speculative decoding, or an importance matrix."""
    name = path.rpartition("/")[2].lower()
    return (
        is_gguf(name)
        and not is_projector(name)
        and _MEASUREMENTS not in name
        and not name.startswith(_DRAFTS)
    )


def best_projector(model: str, paths: Iterable[str]) -> str | None:
    """Returns the projector among `paths` whose precision is the most similar to that of `model`;
    None if there is none. Only the names are compared."""
    wanted = _bits(model)
    projectors = sorted(path for path in paths if is_gguf(path) and is_projector(path))
    return min(projectors, key=lambda path: abs(_bits(path) - wanted), default=None)


def _bits(path: str) -> int:
    """Returns the approximate bits per weight: 4 for Q4_K_M, 16 for BF16; 0 if the name doesn't
    contain them."""
    match = _BITS.search(quantization(path))
    return min(int(match[0]), 64) if match else 0


# ---- Chooses a model's files in a repository, by llama.cpp's rules.
#
# Files are given by their paths in the repository, with "/" between components.


PRESET = "preset.ini"
"""The name of a preset file. A repository with one serves the models that the file names."""

MAX_PRESET = 1 << 20
"""Maximum size of a preset file, in bytes."""

DEFAULT_QUANTS = ("Q4_K_M", "Q8_0")
"""The quantizations to use, in this order, if the user names none."""


def pick_model(files: Sequence[str], quant: str = "") -> str | None:
    """Returns the file, or the first part, of the model with the quantization `quant` (in any
    letter case). Without `quant`, it is the model with the first of `DEFAULT_QUANTS` that exists,
    else the first model."""
    models = _models(files)
    for wanted in [quant] if quant else DEFAULT_QUANTS:
        # At any place: before a suffix such as -imat, or as the name of the directory of a split
        # model.
        pattern = re.compile(rf"(?<![a-z0-9]){re.escape(wanted)}[./-]", re.IGNORECASE | re.ASCII)
        for name in models:
            if pattern.search(name):
                return name
    return models[0] if models and not quant else None


def parts_of(model: str) -> list[str]:
    """Returns all files of the model that the file `model` belongs to."""
    split = part(model)
    return split.file_names() if split else [model]


def pick_projector(files: Sequence[str], model: str) -> str | None:
    """Returns the projector of a model: one in the model's directory, else in the nearest parent
    with one."""
    for directory in PurePosixPath(model).parents:
        beside = [name for name in files if PurePosixPath(name).parent == directory]
        if projector := best_projector(model, beside):
            return projector
    return None


def quants(files: Sequence[str]) -> list[str]:
    """Returns the quantizations of the models, for messages."""
    return list(dict.fromkeys(filter(None, map(quantization, _models(files)))))


def _models(files: Sequence[str]) -> list[str]:
    """Returns single-file models, and the first parts of split ones."""
    return [
        name
        for name in files
        if is_model(name) and ((split := part(name)) is None or split.index == 1)
    ]
