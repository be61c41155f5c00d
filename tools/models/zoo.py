"""Small models of different kinds for a router, built in less than a second, and equal on every
machine."""

from dataclasses import dataclass, replace
from pathlib import Path

from gguf import GGUFReader, GGUFWriter

from specllama.engine.formats.gguf_names import FilePart
from tools.models.gguf_file import write_model
from tools.models.recipes import RECIPES, Recipe

CHAT, OTHER_CHAT, FIM, EMBEDDER, RERANKER = "chat", "other-chat", "fim", "embedding", "reranking"
NAMES = (CHAT, OTHER_CHAT, FIM, EMBEDDER, RERANKER)

OTHER_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}[reply] "
)
"""The chat template of `OTHER_CHAT`; the other models have the shipped model's template, or no
template."""

PRESETS = f"""\
version = 1

[*]
ctx-size = 512
parallel = 1

[{EMBEDDER}]
embedding = true

[{RERANKER}]
reranking = true
"""


@dataclass(frozen=True)
class Zoo:
    """A directory for --models-dir and a file for --models-preset, which together list all of
    `NAMES`."""

    directory: Path
    presets: Path

    def path(self, name: str) -> Path:
        """Returns the path of a model."""
        return self.directory / f"{name}.gguf"

    def arguments(self) -> list[str]:
        """Returns the command line of a server for all these models."""
        return ["--models-dir", str(self.directory), "--models-preset", str(self.presets)]


def write_zoo(directory: Path) -> Zoo:
    """Writes models that chat (two, with different answers to the same question), fill in the
    middle, embed and rerank, into `directory`."""
    zoo = Zoo(directory / "models", directory / "models.ini")
    zoo.directory.mkdir(parents=True)
    template = directory / "other.jinja"
    template.write_text(OTHER_TEMPLATE, "utf-8")
    for name, recipe in (
        (CHAT, _seeded("random", 1)),
        (OTHER_CHAT, replace(_seeded("random", 2), chat_template=template)),
        (FIM, replace(_seeded("random", 3), chat_template=None)),
        (EMBEDDER, RECIPES["tiny-bert"]),
        (RERANKER, RECIPES["tiny-rerank"]),
    ):
        write_model(replace(recipe, file_name=name), zoo.path(name))
    zoo.presets.write_text(PRESETS, "utf-8")
    return zoo


def _seeded(name: str, seed: int) -> Recipe:
    recipe = RECIPES[name]
    assert isinstance(recipe, Recipe)
    return replace(recipe, seed=seed)


def split_model(model: Path, directory: Path, prefix: str, count: int) -> list[Path]:
    """Writes `model` in `count` files with about equally many tensors, all metadata in the first
    one, and returns their paths."""
    reader = GGUFReader(model)
    n_tensors = len(reader.tensors)
    architecture = reader.fields["general.architecture"].contents()
    paths = [directory / name for name in FilePart(prefix, 1, count).file_names()]
    for index, path in enumerate(paths):
        writer = GGUFWriter(path, architecture)
        if index == 0:
            for key, field in reader.fields.items():
                if not key.startswith("GGUF.") and key != "general.architecture":
                    sub_type = field.types[1] if len(field.types) > 1 else None
                    writer.add_key_value(key, field.contents(), field.types[0], sub_type)
        writer.add_uint16("split.no", index)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", n_tensors)
        for tensor in reader.tensors[index * n_tensors // count : (index + 1) * n_tensors // count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths
