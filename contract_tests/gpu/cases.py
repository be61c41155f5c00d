"""The configurations that are tried on a device."""

from collections.abc import Mapping
from dataclasses import dataclass, field

ONE, TWO = {"GGML_VK_VISIBLE_DEVICES": "0"}, {"GGML_VK_VISIBLE_DEVICES": "0,0"}
"""llama.cpp takes a software device only if it is named. Named twice, it is two devices."""


@dataclass(frozen=True)
class Case:
    """A server with `options`, and a `check` of `contract_tests.gpu.checks` by its name.

    `on_device` and `on_cpu` are what it must have there, of `layers`, `kv_cache`. `model` is one of
    the tests' models; "" is the shipped one. `kit` are files of the contract kit to be run."""

    name: str
    options: tuple[str, ...]
    check: str = "text"
    on_device: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()
    model: str = ""
    variables: Mapping[str, str] = field(default_factory=lambda: ONE)


ALL = ("-ngl", "all")
DEFAULT = Case("-ngl all", ALL, on_device=("layers", "kv_cache"))
CASES = (
    DEFAULT,
    Case("-ngl 0", ("-ngl", "0"), on_cpu=("layers", "kv_cache")),
    Case("-ngl 1", ("-ngl", "1"), on_device=("layers",), on_cpu=("layers", "kv_cache")),
    Case("-nkvo", (*ALL, "-nkvo"), on_device=("layers",), on_cpu=("kv_cache",)),
    Case("-dev", (*ALL, "-dev", "Vulkan0"), on_device=("layers", "kv_cache")),
    Case("-dev none", ("-dev", "none"), on_cpu=("layers", "kv_cache")),
    Case("-ot", (*ALL, "-ot", "ffn=CPU"), on_device=("layers", "kv_cache")),
    Case("--no-op-offload", ("-ngl", "1", "--no-op-offload"), on_device=("layers",)),
    Case("--no-host", (*ALL, "--no-host"), on_device=("layers", "kv_cache")),
    Case("-fa on", (*ALL, "-fa", "on"), on_device=("layers", "kv_cache")),
    Case("-fa off", (*ALL, "-fa", "off"), on_device=("layers", "kv_cache")),
    Case("-ctk q8_0", (*ALL, "-ctk", "q8_0"), check="rough"),
    Case("-ctk -ctv q8_0", (*ALL, "-fa", "on", "-ctk", "q8_0", "-ctv", "q8_0"), check="rough"),
    Case("unified cache", (*ALL, "--kv-unified"), on_device=("kv_cache",)),
    Case("separate caches", (*ALL, "--no-kv-unified"), on_device=("kv_cache",)),
    Case("--backend-sampling", (*ALL, "--backend-sampling"), on_device=("layers",)),
    Case("-sm layer, two devices", (*ALL, "-sm", "layer"), variables=TWO, on_device=("layers",)),
    Case("-sm none", (*ALL, "-sm", "none"), variables=TWO, on_device=("layers",)),
    Case("-ts 1,2", (*ALL, "-ts", "1,2"), variables=TWO, on_device=("layers",)),
    Case("embeddings", (*ALL, "--embeddings", "--pooling", "mean"), check="embeddings"),
    Case("rerank", (*ALL, "--reranking"), check="rerank", model="tiny-rerank"),
    Case("slot files", (*ALL, "--no-cache-prompt"), check="slot_files"),
    Case("--cache-ram", (*ALL, "-np", "1", "-c", "512", "--cache-ram", "64"), check="kept"),
    Case("--context-shift", (*ALL, "-np", "1", "-c", "256", "--context-shift"), check="shift"),
    Case("checkpoints", (*ALL, "-np", "1"), check="gone_back", model="tiny-hybrid"),
    Case("sleep", (*ALL, "--sleep-idle-seconds", "2"), check="sleep"),
)
