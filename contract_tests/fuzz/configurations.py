"""The eight servers that are fuzzed, and the frequency of each story there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from contract_tests.kit.server import API_KEY, OwnServer
from contract_tests.own import servers
from specllama.engine.shipped import model_path
from tests.support.media_files import IMAGES
from tools.models.build import ensure, ensure_adapter
from tools.models.zoo import write_zoo

COMMON = ("--offline", "--cache-ram", "64", "--timeout", "20")
"""Options of all servers: no hub is used, and a short run reaches the bound of cached texts."""
MIX: Mapping[str, float] = {
    **{"generated": 10, "malformed": 5, "responses": 1.5, "of_others": 1, "tools": 1.5},
    **{"tokens": 1, "templates": 1, "infill": 0.5, "slots": 0.5, "adapters": 0.5},
    **{"administration": 0.5, "kept_streams": 1, "left": 1, "constrained": 2, "settings": 2},
    **{"edges": 0.5, "seeing": 0.3, "conversations": 1},
}
"""The frequency of each story at a server whose model generates."""


@dataclass(frozen=True)
class Configuration:
    """A server. `options` returns its options for a folder that it may fill. `rests` is the pause
    in seconds between two rounds. With `unready`, 503 is a right answer. With `lasting`, the engine
    process has to stay the same."""

    name: str
    what: str
    options: Callable[[Path], Sequence[str]] = lambda _: ()
    mix: Mapping[str, float] = field(default_factory=lambda: MIX)
    key: str | None = None
    is_router: bool = False
    unready: bool = False
    lasting: bool = True
    rests: float = 0.0

    def start(self, directory: Path) -> OwnServer:
        own = self.options(directory)
        return servers.start(
            directory,
            *COMMON,
            *own,
            api_key=self.key,
            named="--model" in own,
            router=self.is_router,
            variables={"HF_HUB_CACHE": str(directory / "hub"), "HF_HUB_OFFLINE": "1"},
        )


def _router(directory: Path) -> Sequence[str]:
    zoo = write_zoo(directory / "zoo")
    return (*zoo.arguments(), "--models-max", "1", "--metrics")


def _embedding(_: Path) -> Sequence[str]:
    return ("--model", str(ensure("tiny-embed")), "--embeddings", "--pooling", "mean")


def _reranking(_: Path) -> Sequence[str]:
    return ("--model", str(ensure("tiny-rerank")), "--reranking")


def _media(directory: Path) -> Sequence[str]:
    (directory / "a.png").write_bytes(IMAGES["PNG"])
    projector = ("--mmproj", str(ensure("tiny-mmproj-both")), "--media-cache", "16")
    return ("--model", str(ensure("tiny-window")), *projector, "--media-path", str(directory))


def _keys(directory: Path) -> Sequence[str]:
    kept = ("--slot-save-path", str(directory), "--responses-db", str(directory / "responses.db"))
    shown = ("--metrics", "--props", "--slots-text")
    return (*kept, *shown, "--cache-per-key", "--max-body-size", "1", "--api-prefix", "/llm")


def _tight(_: Path) -> Sequence[str]:
    cache = ("--parallel", "4", "--kv-unified", "--ctx-size", "512", "--context-shift")
    proposals = ("--model-draft", str(model_path()), "--spec-type", "draft-simple,radix,ngram-mod")
    return (*cache, *proposals, "--batch-size", "64", "--ubatch-size", "32", "--cache-ram", "4")


def _sleeping(directory: Path) -> Sequence[str]:
    lora = ",".join(str(ensure_adapter(name)) for name in ("lora-a", "lora-b"))
    (directory / "texts").mkdir()
    disk = ("--cache-disk", str(directory / "texts"), "--cache-disk-size", "32")
    slots = ("--slot-save-path", str(directory), "--parallel", "4", "--ctx-size", "2048")
    more = ("--lora", lora, "--lora-init-without-apply", "--strict-schemas")
    return (*disk, *slots, *more, "--cache-ram", "1", "--sleep-idle-seconds", "1")


VECTORS: Mapping[str, float] = {
    "generated": 8,
    "malformed": 4,
    "administration": 0.5,
    "tokens": 0.5,
}

CONFIGURATIONS: Mapping[str, Configuration] = {
    each.name: each
    for each in (
        Configuration("plain", "the shipped model, without further options"),
        Configuration(
            "router",
            "five models of different kinds, one in memory at a time",
            _router,
            {**MIX, "router": 0.3},
            is_router=True,
            unready=True,
            lasting=False,
        ),
        Configuration(
            "embeddings",
            "a model for embeddings",
            _embedding,
            {**VECTORS, "embeddings": 6},
        ),
        Configuration(
            "reranking", "a model for reranking", _reranking, {**VECTORS, "reranking": 6}
        ),
        Configuration(
            "media",
            "a model with a sliding window and image and audio input",
            _media,
            {**MIX, "seeing": 4},
        ),
        Configuration(
            "keys",
            "keys, a prefix of all paths, saved slots, responses in a database",
            _keys,
            {**MIX, "slots": 2},
            key=API_KEY,
        ),
        Configuration(
            "tight",
            "512 tokens for four slots, with context shift, a draft model and small batches",
            _tight,
            {**MIX, "edges": 5},
        ),
        Configuration(
            "sleeping",
            "a model that is unloaded between two rounds, texts on disk, adapters, strict schemas",
            _sleeping,
            {**MIX, "adapters": 2, "slots": 2},
            unready=True,
            lasting=False,
            rests=2.5,
        ),
    )
}
"""All configurations by name, in the order in which they are fuzzed."""
