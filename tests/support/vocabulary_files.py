"""Copies of a model with another vocabulary."""

from collections.abc import Callable, Mapping
from pathlib import Path

import gguf
import numpy as np

TOKENS = "tokenizer.ggml.tokens"
TYPES = "tokenizer.ggml.token_type"


def with_vocabulary(
    source: Path,
    target: Path,
    change: Callable[[list[str]], list[str]] | None,
    values: Mapping[str, bool],
) -> Path:
    """Writes a copy of the model `source` with other metadata `values`. `change` gets the texts of
    the tokens and returns the new texts, which may be more."""
    reader = gguf.GGUFReader(source)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    tokens = [str(text) for text in fields[TOKENS].contents()]
    changed = change([*tokens]) if change else tokens
    n_more = len(changed) - len(tokens)
    writer = gguf.GGUFWriter(target, str(fields["general.architecture"].contents()))
    for name, field in fields.items():
        if name in ("general.architecture", *values):
            continue
        value = field.contents()
        if name == TOKENS:
            value = changed
        elif name == TYPES:
            value = [*value, *[gguf.TokenType.USER_DEFINED] * n_more]
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_key_value(name, value, kind, field.types[-1])
        else:
            writer.add_key_value(name, value, kind)
    for name, flag in values.items():
        writer.add_bool(name, flag)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight"):
            data = np.concatenate([data, np.repeat(data[-1:], n_more, axis=0)])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
