"""Details of a model in answers to Ollama's clients: its file, its family, its quantization."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec

from specllama.engine.catalog.entry import CatalogEntry, wants_fetch
from specllama.engine.helpers.inspect.digest import digest_in_cache
from specllama.engine.helpers.inspect.inspect_jobs import FileMetadata, ProjectorMetadata
from specllama.engine.shipped import model_file
from specllama.engine.wire.replies import Modality, ModelInfo
from specllama.handlers.http import schemas
from specllama.handlers.running.runtime import Runtime

# llama.cpp's numbers in `general.file_type` (its enum llama_ftype) as Ollama's clients spell them.
_QUANTIZATIONS = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    19: "IQ2_XXS",
    20: "IQ2_XS",
    21: "Q2_K_S",
    22: "IQ3_XS",
    23: "IQ3_XXS",
    24: "IQ1_S",
    25: "IQ4_NL",
    26: "IQ3_S",
    27: "IQ3_M",
    28: "IQ2_S",
    29: "IQ2_M",
    30: "IQ4_XS",
    31: "IQ1_M",
    32: "BF16",
    36: "TQ1_0",
    37: "TQ2_0",
    38: "MXFP4_MOE",
    39: "NVFP4",
    40: "Q1_0",
}
MAX_CHARACTERS = 1000
"""The limit for a description in the list of models; that in a file may have any length."""
_UNITS = ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K"))


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts about a model: from the engine once the model has been loaded, before that from its
    file."""

    vocab_type: int
    n_vocab: int
    n_ctx: int | None  # of one slot, if the model was loaded
    ftype: str = ""  # llama.cpp's description of the weights, if the model was loaded
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int  # bytes of all weights
    family: str
    quantization: str  # of most weights; "" if unknown
    description: str = ""  # from the file, if the model was loaded
    license: str = ""  # from the file, if the model was loaded

    @classmethod
    def of_info(cls, info: ModelInfo) -> "Facts":
        return cls(
            vocab_type=info.vocab_type,
            n_vocab=info.n_vocab,
            n_ctx=info.n_ctx,
            ftype=info.ftype,
            n_ctx_train=info.n_ctx_train,
            n_embd=info.n_embd,
            n_params=info.n_params,
            size=info.size,
            family=info.metadata.get("general.architecture", ""),
            quantization=quantization(info.metadata.get("general.file_type", "")),
            description=info.metadata.get("general.description", "")[:MAX_CHARACTERS],
            license=info.metadata.get("general.license", "")[:MAX_CHARACTERS],
        )

    @classmethod
    def of_file(cls, metadata: FileMetadata) -> "Facts":
        return cls(
            vocab_type=metadata.vocab_type,
            n_vocab=metadata.n_vocab,
            n_ctx=None,
            n_ctx_train=metadata.n_ctx_train,
            n_embd=metadata.n_embd,
            n_params=metadata.n_params,
            size=metadata.size,
            family=metadata.architecture,
            quantization=quantization(str(metadata.file_type)),
        )

    def meta(self) -> schemas.ModelMeta:
        """Returns `meta` in the list of models."""
        known: schemas.ModelMeta = {
            "vocab_type": self.vocab_type,
            "n_vocab": self.n_vocab,
            "n_ctx_train": self.n_ctx_train,
            "n_embd": self.n_embd,
            "n_params": self.n_params,
            "size": self.size,
        }
        if self.n_ctx is not None:
            known["n_ctx"], known["ftype"] = self.n_ctx, self.ftype
            if self.description:
                known["description"] = self.description
            if self.license:
                known["license"] = self.license
        return known


def facts(current: Runtime, entry: CatalogEntry) -> Facts | None:
    """Returns the facts; None until the model has been loaded or its file has been read."""
    if (info := current.pool.status(entry.name).info) is not None:
        return Facts.of_info(info)
    metadata = file_facts(current, entry)
    return None if metadata is None else Facts.of_file(metadata)


def file_facts(current: Runtime, entry: CatalogEntry) -> FileMetadata | None:
    """Returns the metadata of the model's file, if it has been read."""
    path = model_path(current, entry)
    metadata = current.files.known(path) if path else None
    return metadata if isinstance(metadata, FileMetadata) else None


def modalities(current: Runtime, entry: CatalogEntry) -> Sequence[Modality]:
    """Returns the model's kinds of input besides text: from the loaded model, or from its
    projector's file."""
    if (info := current.pool.status(entry.name).info) is not None:
        return info.modalities
    path = current.pool.options(entry).engine.media.mmproj
    metadata = current.files.known(path) if path else None
    return metadata.modalities if isinstance(metadata, ProjectorMetadata) else []


def model_path(current: Runtime, entry: CatalogEntry) -> str:
    """Returns the path of the model's (first) file; "" before it has been downloaded."""
    options = current.pool.options(entry)
    return "" if wants_fetch(options) else model_file(options.engine.model.model)


def digest(current: Runtime, entry: CatalogEntry) -> str:
    """Returns the digest of the model's files; "" until the files exist and have been read."""
    if (metadata := file_facts(current, entry)) is not None:
        return metadata.digest
    return digest_in_cache(model_path(current, entry))


def modified_at(path: str, otherwise: float) -> str:
    """Returns the time of the file's last change, in RFC 3339; if there is no such file, the time
    `otherwise` (seconds since 1970)."""
    try:
        seconds = os.stat(path).st_mtime
    except OSError:
        seconds = otherwise
    return timestamp(datetime.fromtimestamp(seconds, UTC))


def timestamp(time: datetime) -> str:
    """Returns a time in UTC in RFC 3339, to the microsecond."""
    return time.isoformat(timespec="microseconds").removesuffix("+00:00") + "Z"


def details(known: Facts | None) -> schemas.ModelDetails:
    """Returns Ollama's `details`. Without `known` facts, most texts are empty."""
    family = known.family if known else ""
    return {
        "parent_model": "",
        "format": "gguf",
        "family": family,
        "families": [family],
        "parameter_size": short_number(known.n_params) if known else "",
        "quantization_level": known.quantization if known else "",
    }


def quantization(file_type: str) -> str:
    """Returns the name for a number in `general.file_type`; "" if it is unknown."""
    return _QUANTIZATIONS.get(int(file_type), "") if file_type.isdecimal() else ""


def short_number(value: int) -> str:
    """Returns three digits or more with a unit: 1442048 is "1.44M", 8030261248 is "8.03B"."""
    for unit, letter in _UNITS:
        if value >= unit:
            return f"{value / unit:.2f}{letter}"
    return str(value)


def model_info_json(info: ModelInfo) -> schemas.OllamaModelInfo:
    """Returns the file's metadata, with numbers and booleans as such, and the number of weights.

    `ARCHITECTURE.context_length` is the number of tokens that one request can have here.
    `llama.context_length` has the same value, because clients read it for every architecture.
    """
    values = {key: _value(key, text) for key, text in sorted(info.metadata.items())}
    architecture = info.metadata.get("general.architecture", "llama")
    values |= {
        "general.parameter_count": info.n_params,
        f"{architecture}.context_length": info.n_ctx,
        "llama.context_length": info.n_ctx,
    }
    return cast(schemas.OllamaModelInfo, values)  # it has the keys of the file, too


_GENERAL_NUMBERS = ("general.file_type", "general.quantization_version", "general.alignment")


def _value(key: str, text: str) -> schemas.OllamaModelInfoValue:
    """Returns the value of metadata, which llama.cpp returns as text. Most keys under `general.`
    stay texts, because they are names or versions, which may look like numbers."""
    if key.startswith("general.") and key not in _GENERAL_NUMBERS:
        return text
    if text in ("true", "false"):
        return text == "true"
    for number in (int, float):
        try:
            value = number(text)
        except ValueError:
            continue
        return value if abs(value) < float("inf") else text  # JSON has no infinity and no NaN
    return text


def memory_json(current: Runtime, entry: CatalogEntry) -> schemas.ModelMemory:
    """Returns the memory of a model on each device."""
    memory = current.pool.memory(entry.name)
    return {"need": _on_devices(memory.need), "use": _on_devices(memory.use)}


def _on_devices(sizes: Mapping[str, int]) -> list[schemas.MemoryOnDevice]:
    return [{"device": device, "n_bytes": n_bytes} for device, n_bytes in sizes.items()]


# ---- models in memory, for `ollama ps` ----------------------------------------------------


NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The expiration time of a model that stays loaded."""


def process_json(current: Runtime, entry: CatalogEntry) -> schemas.OllamaProcess | None:
    """Returns a loaded model's entry; None if it has been unloaded meanwhile."""
    supervisor, info = current.pool.supervisor(entry.name), current.pool.status(entry.name).info
    if supervisor is None or info is None:
        return None
    seconds = supervisor.seconds_awake
    if seconds is not None:
        seconds += current.pool.memory(entry.name).seconds_kept
    ends = NEVER if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)
    return {
        "name": entry.name,
        "model": entry.name,
        "size": info.size_in_memory,
        "digest": digest(current, entry),
        "details": details(Facts.of_info(info)),
        "expires_at": timestamp(ends),
        "size_vram": info.size_on_devices,
        "context_length": info.n_ctx,
        "memory": memory_json(current, entry),
    }
