"""Random models with random options, and a simulated projector for images."""

import hashlib
import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from specllama.engine.errors import BackendError
from specllama.engine.options import Options
from specllama.engine.wire.media import Media, MediaKind
from specllama.engine.wire.replies import Modality
from specllama.engine.worker.backend import PreparedChunk, Rows
from specllama.engine.worker.tokens import TokenArray
from tests.simulation.library import ModelShape
from tests.simulation.memory import Kind
from tests.support.models import random_model
from tests.support.options_support import model_options
from tools.models.build import ensure_adapter

ADAPTERS = ("lora-random-a", "lora-random-b")
SLOT_CONTEXT = 256
TYPES = ("radix", "ngram-simple", "ngram-map-k", "ngram-map-k4v", "ngram-mod", "ngram-cache")
DRAFT, PROJECTOR = "draft.gguf", "projector.gguf"


@dataclass(frozen=True)
class Choice:
    """A model of a history, with the options of its engine."""

    shape: ModelShape
    options: dict[str, Any]

    @property
    def slot_context(self) -> int:
        """The largest number of tokens of one text."""
        n: int = self.options["ctx_size"]
        return n if self.options["kv_unified"] or self.embeds else SLOT_CONTEXT

    @property
    def many(self) -> int:
        """The number of tokens of a long text. Several don't fit into a small, shared context."""
        return 120 if self.options["kv_unified"] and self.slot_context == SLOT_CONTEXT else 40

    @property
    def embeds(self) -> bool:
        return bool(self.options["embedding"])

    @property
    def sees(self) -> bool:
        return bool(self.options["mmproj"])

    @property
    def has_adapters(self) -> bool:
        return bool(self.options["lora"])

    @property
    def types(self) -> list[str]:
        """The values of `speculative.types` that requests may choose."""
        types = [*self.options["spec_type"]]
        types += ["draft-simple"] if self.options["model_draft"] else []
        return [*types, ",".join(types)] if types else ["none"]

    def with_number(self, number: int) -> "Choice":
        """Returns the model with other weights."""
        return replace(self, shape=replace(self.shape, number=number))

    def all_options(self, name: str, path: Path) -> Options:
        return model_options(alias=name, model=str(path), threads=1, **self.options)


def any_model(random: random.Random, number: int, folder: Path, *, shifts: bool) -> Choice:
    """Returns a model of any kind with any options; its files are in `folder`. With `shifts`, its
    context may shift, and texts after a shift can't be checked."""
    choose = random.choice
    # Only a memory that can be cut has proposals.
    kind: Kind = choose(["dense", "dense", *get_args(Kind)])
    window = choose([16, 48]) if kind == "window" else 0
    shape = ModelShape(kind, n_ctx_train=2048, window=window, number=number)
    n_slots, unified = choose([1, 2, 2, 3, 4]), choose([True, False])
    lora = tuple((str(ensure_adapter(name)), choose([1.0, 0.0])) for name in ADAPTERS)
    batch = choose([16, 64, 256])
    options = {
        "parallel": n_slots,
        "kv_unified": unified,
        "ctx_size": choose([SLOT_CONTEXT, SLOT_CONTEXT, 1024])
        if unified
        else SLOT_CONTEXT * n_slots,
        "batch_size": batch,
        "ubatch_size": choose([16, batch]),
        "cache_ram": choose([0, 1, -1, -1]),
        "cache_idle_slots": choose([None, None, True, False]),
        "cache_type_k": choose(["f16", "f16", "q8_0"]),
        "cache_disk": str(folder) if choose([True, False]) else "",
        "cache_disk_size": choose([1, 100]),
        "slot_save_path": str(folder) if choose([True, True, False]) else "",
        "ctx_checkpoints": choose([0, 2, 8]),
        "context_shift": kind == "dense" and choose([True, False]) and shifts,
        "spec_type": tuple(random.sample(TYPES, 2)) if choose([True, True, False]) else (),
        "model_draft": str(folder / DRAFT) if choose([True, False, False]) else "",
        "mmproj": str(folder / PROJECTOR) if choose([True, False, False]) else "",
        "lora": lora if choose([True, False, False]) else (),
        "target_itl_ms": choose([0, 20, 100]),
        "warmup": choose([True, False]),
        "sleep_idle_seconds": choose([-1, -1, -1, 2]),
        "embedding": False,
    }
    if random.random() < 0.15:
        options |= {"embedding": True, "pooling": "last", "spec_type": (), "model_draft": ""}
        options |= {"mmproj": "", "context_shift": False, "slot_save_path": "", "cache_disk": ""}
    return Choice(shape, options)


def model_files(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Writes a file for each name, all with different contents, and returns their paths."""
    paths = {name: folder / f"{name}.gguf" for name in names}
    for name, path in paths.items():
        shutil.copyfile(random_model(), path)
        with path.open("ab") as file:
            file.write(name.encode())
    return paths


def image(number: int) -> Media:
    """Returns one of several images, of different sizes."""
    data = bytes([number]) * 3
    return Media("image", hashlib.sha256(data).digest(), data, 2 + number, 1)


class SimulatedProjector:
    """Replaces `Projector`: an image has as many tokens as its width, and its embeddings follow
    from its bytes. `compute` takes the time of a slice, and may fail."""

    def __init__(self, path: str, shape: ModelShape, compute: Callable[[], None]) -> None:
        self.path = path
        self.kinds = ("simulated",)
        self.size = 1 << 20
        self.batch_tokens = 16
        self.vision, self.audio = True, False
        self.sample_rate = 0
        self.uses_mrope = False
        self.n_embd = shape.n_embd
        self.modalities: list[Modality] = ["vision"]
        self._compute = compute

    def hears_or_sees(self, kind: MediaKind) -> bool:
        return kind == "image"

    def pieces(self, media: Media) -> list[TokenArray | PreparedChunk]:
        is_whole = media.width % 2 == 0
        return [PreparedChunk(media, 0, media.width, media.width, is_whole)]

    def encode(self, chunks: Sequence[PreparedChunk], next_slice: Callable[[], int]) -> list[Rows]:
        """Returns the embeddings of the chunks. Raises `BackendError` if the computation fails."""
        for _ in range(2):
            next_slice()
            self._compute()
        if not chunks:
            raise BackendError("there is nothing to encode")
        return [self._rows(chunk) for chunk in chunks]

    def _rows(self, chunk: PreparedChunk) -> Rows:
        size = 4 * chunk.n_tokens * self.n_embd
        digest = hashlib.shake_256(chunk.media.digest).digest(size)
        numbers = np.frombuffer(digest, "<u4").astype(np.float32)
        return numbers.reshape(chunk.n_tokens, self.n_embd)

    def rest(self) -> None:
        """Does nothing, because no memory is in use."""

    def close(self) -> None:
        """Does nothing, because there is no native object."""
