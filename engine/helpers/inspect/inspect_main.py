"""A process that reads the headers of model files, one after the other, until its stdin ends.

    python -m specllama.engine.helpers.inspect.inspect_main BYTES SECONDS       (started by
    engine.helpers.inspect.inspector)

BYTES is the limit of the address space, if the platform supports one. The server ends a process
that takes more than SECONDS for a file. If the server no longer exists, an alarm ends it.
"""

import os
import sys
from collections.abc import Mapping
from typing import Final, get_args

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError
from specllama.engine.formats.gguf_header import Array, Header, HeaderError, Value, read_header
from specllama.engine.formats.gguf_names import part
from specllama.engine.helpers.inspect.digest import model_digest
from specllama.engine.helpers.inspect.inspect_jobs import (
    FileMetadata,
    Outcome,
    ProjectorMetadata,
    Unreadable,
    path_decoder,
)
from specllama.engine.helpers.render.template.template import ChatTemplate
from specllama.engine.options import OptionError, Pooling
from specllama.engine.options.files import open_regular
from specllama.engine.wire.framing import JSON, Started, frame
from specllama.engine.wire.link import Link, do_jobs, take_over
from specllama.engine.wire.replies import Modality

MAX_NAME: Final = 200  # characters; longer names are cut
MAX_COUNT: Final = (1 << 32) - 1

_TOKENS: Final = "tokenizer.ggml.tokens"
_FIM_TEXTS: Final = {
    # Spellings by which llama.cpp recognizes these tokens in files that don't name them.
    "prefix": frozenset(
        text.encode()
        for text in (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        )
    ),
    "suffix": frozenset(
        text.encode()
        for text in (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        )
    ),
    "middle": frozenset(
        text.encode()
        for text in (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        )
    ),
}
_FIM_KEYS: Final = {"prefix": "fim_pre", "suffix": "fim_suf", "middle": "fim_mid"}
_VOCAB_TYPES: Final = {
    # llama.cpp's enum llama_vocab_type by the tokenizer's name in the file.
    "llama": 1,
    "gpt2": 2,
    "hybriddna": 2,
    "whitespace": 2,
    "gemma4": 2,
    "bert": 3,
    "t5": 4,
    "rwkv": 5,
    "plamo2": 6,
    "test": 7,
}
_POOLING: Final[Mapping[int, Pooling]] = dict(enumerate(get_args(Pooling)))


def inspect(path: str) -> Outcome:
    """Returns the metadata of the file `path`, or of the split model whose first part it is."""
    try:
        header = _open(path)
        if _text(header.values, "general.architecture") == "clip":
            return ProjectorMetadata(_modalities(header.values))
        metadata = _described(header, os.path.getsize(path))
        return _with_parts(metadata, header, path)
    except (HeaderError, OptionError) as e:
        return Unreadable(str(e))
    except OSError as e:
        return Unreadable(e.strerror or str(e))
    except MemoryError:
        return Unreadable("reading it needs too much memory")


def _open(path: str) -> Header:
    with open(open_regular(path), "rb") as file:
        return read_header(file, {_TOKENS: frozenset().union(*_FIM_TEXTS.values())})


def _described(header: Header, file_size: int) -> FileMetadata:
    values = header.values
    architecture = _text(values, "general.architecture")
    if not architecture:
        raise HeaderError("it doesn't name its architecture")
    kind = _text(values, "general.type") or "model"
    if kind != "model":
        raise HeaderError(f"it is not a complete model ({_short(kind)}, {_short(architecture)})")
    tokens = values.get(_TOKENS)
    if not isinstance(tokens, Array | None):
        raise HeaderError(f"{_TOKENS} is not a list")
    template = _text(values, "tokenizer.chat_template")
    return FileMetadata(
        architecture=_short(architecture),
        name=_short(_text(values, "general.name")),
        n_params=header.n_params,
        size=header.n_bytes,
        file_size=file_size,
        file_type=_count(values, "general.file_type"),
        n_ctx_train=_count(values, f"{architecture}.context_length") or 0,
        n_embd=_count(values, f"{architecture}.embedding_length") or 0,
        vocab_type=_VOCAB_TYPES.get(_text(values, "tokenizer.ggml.model"), 0),
        n_vocab=tokens.length if tokens else _count(values, f"{architecture}.vocab_size") or 0,
        pooling=_pooling(values, f"{architecture}.pooling_type"),
        causal=values.get(f"{architecture}.attention.causal") is not False,
        chat_template=bool(template),
        tools=bool(template) and _is_for_tools(template),
        fim=_has_fim(values, tokens),
    )


def _modalities(values: Mapping[str, Value]) -> list[Modality]:
    kinds: tuple[Modality, ...] = get_args(Modality)
    return [kind for kind in kinds if values.get(f"clip.has_{kind}_encoder") is True]


def _with_parts(metadata: FileMetadata, first: Header, path: str) -> FileMetadata:
    """Returns `metadata`, which is of the first part, with the sums of all parts."""
    split, count = part(path), _count(first.values, "split.count") or 1
    n_tensors, n_params, size = first.n_tensors, first.n_params, first.n_bytes
    file_size, paths = metadata.file_size, [path]
    if count > 1:
        if split is None or split.count != count:
            raise HeaderError(f"it is one of {count} parts, but its name isn't that of a part")
        if split.index != 1:
            raise HeaderError(f"it is part {split.index} of a model, not the first")
        for index in range(2, count + 1):
            header = _open(split.file_name(index))
            if _count(header.values, "split.no") != index - 1:
                raise HeaderError(f"part {index} of {count} has another number in its metadata")
            n_tensors += header.n_tensors
            n_params += header.n_params
            size += header.n_bytes
            file_size += os.path.getsize(split.file_name(index))
            paths.append(split.file_name(index))
        if n_tensors != _count(first.values, "split.tensors.count"):
            raise HeaderError(
                "its parts don't contain the number of tensors that the first one declares"
            )
    if not n_tensors:
        raise HeaderError("it contains no tensors")
    return msgspec.structs.replace(
        metadata,
        n_params=n_params,
        size=size,
        file_size=file_size,
        digest=model_digest(paths),
    )


def _text(values: Mapping[str, Value], key: str) -> str:
    value = values.get(key, "")
    if not isinstance(value, str):
        raise HeaderError(f"{_short(key)} is not a text")
    return value


def _count(values: Mapping[str, Value], key: str) -> int | None:
    value = values.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_COUNT:
        raise HeaderError(f"{_short(key)} is not a valid number")
    return value


def _pooling(values: Mapping[str, Value], key: str) -> Pooling | None:
    number = _count(values, key)
    if number is None:
        return None
    if number not in _POOLING:
        raise HeaderError(f"{_short(key)} is unknown: {number}")
    return _POOLING[number]


def _has_fim(values: Mapping[str, Value], tokens: Array | None) -> bool:
    found = tokens.found if tokens else frozenset()
    return all(
        f"tokenizer.ggml.{_FIM_KEYS[role]}_token_id" in values
        or f"tokenizer.ggml.{role}_token_id" in values
        or found & texts
        for role, texts in _FIM_TEXTS.items()
    )


def _is_for_tools(template: str) -> bool:
    try:
        return "tools" in ChatTemplate(template).variables
    except (EngineError, MemoryError):  # an invalid template doesn't support tools
        return False


def _short(text: str) -> str:
    """Returns `text` on one line, cut if it is long."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:MAX_NAME])


def main() -> None:
    link: Link[str, Started] = take_over(path_decoder, JSON)
    do_jobs(
        link,
        lambda path: frame(inspect(path), JSON),
        memory=int(sys.argv[1]),
        seconds=float(sys.argv[2]),
    )


if __name__ == "__main__":
    main()
    system.leave()
