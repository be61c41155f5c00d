"""The configurations that run on a device."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from contract_tests.gpu.named import (
    ADAPTER,
    DEVICE,
    DIRECTORY,
    EYES,
    LENT,
    SHIPPED,
    VECTOR,
    ZOO,
)

ONE, TWO = {"GGML_VK_VISIBLE_DEVICES": "0"}, {"GGML_VK_VISIBLE_DEVICES": "0,0"}
"""llama.cpp uses a software device only if it is named. Named twice, it is two devices."""


@dataclass(frozen=True)
class Case:
    """A server with `options`, and the name of a `check` in `contract_tests.gpu.checks`, or in
    `contract_tests.gpu.memory` for a single server.

    `on_device` and `on_cpu` are the parts (`layers`, `kv_cache`, `draft`) that must be there, and
    `n_devices` the number of devices with layers. `model` is one of the tests' models; "" is the
    shipped one. With a `refusal`, the server has to end instead, with words in its last line that
    match this regular expression. With `n_left`, another process first fills the device, except for
    this number of MiB."""

    name: str
    options: tuple[str, ...]
    check: str = "text"
    on_device: tuple[str, ...] = ()
    on_cpu: tuple[str, ...] = ()
    n_devices: int = 0
    model: str = ""
    refusal: str = ""
    n_left: int = 0
    variables: Mapping[str, str] = field(default_factory=lambda: ONE)

    @property
    def is_for_software(self) -> bool:
        """True for cases that a single GPU can't run: two devices, a limit for each tensor."""
        return self.variables is TWO or self.refusal == TOO_LARGE or LENT in self.options

    @property
    def is_router(self) -> bool:
        return ZOO in self.options

    @property
    def is_full(self) -> bool:
        """True for cases in which another process fills the device."""
        return self.n_left > 0 or self.check == "crowded"

    @property
    def is_alone(self) -> bool:
        """True for cases that fill or measure the device's memory: no other one runs meanwhile."""
        return self.is_full or self.check in ("sleep", "several")


ALL = ("-ngl", "all")
SMALL = ("-np", "1", "-c", "256")
SLEEPY = ("--sleep-idle-seconds", "15")
DRAFT = ("-md", SHIPPED, "--spec-draft-n-max", "3", "--spec-draft-p-min", "0")
TOO_LARGE = "1048576 tokens were asked for: -c 349440 would fit"
"""The software device supports tensors up to 128 MiB, other devices larger ones."""
FAR_TOO_LARGE = "60000000 tokens .*-c"
"""No device has the 400 GB for this cache."""
WIDE = ("-c", "1048576", "-np", "1", "--fit", "off")
"""A cache of 3.6 GB."""
ROOM = 1536
"""MiB that are left in a full device: enough for a process's own data there (CUDA's context has
about 500 MiB), and too little for the cache."""
DEFAULT = Case("-ngl all", ALL, on_device=("layers", "kv_cache"))
CASES = (
    DEFAULT,
    Case("-ngl 0", ("-ngl", "0"), on_cpu=("layers", "kv_cache")),
    Case("-ngl 1", ("-ngl", "1"), on_device=("layers",), on_cpu=("layers", "kv_cache")),
    Case("-nkvo", (*ALL, "-nkvo"), on_device=("layers",), on_cpu=("kv_cache",)),
    Case("-dev", (*ALL, "-dev", DEVICE), on_device=("layers", "kv_cache")),
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
    Case("-sm layer, two devices", (*ALL, "-sm", "layer"), variables=TWO, n_devices=2),
    Case("-sm row", (*ALL, "-sm", "row"), variables=TWO, refusal="does not support split buffers"),
    Case("-sm none", (*ALL, "-sm", "none"), variables=TWO, n_devices=1),
    Case("-ts 1,2", (*ALL, "-ts", "1,2"), variables=TWO, n_devices=2),
    Case("-c 1048576", (*ALL, "-c", "1048576", "-np", "1"), refusal=TOO_LARGE),
    Case("-c 60000000", (*ALL, "-c", "60000000", "-np", "1"), refusal=FAR_TOO_LARGE),
    Case("--rpc", (*ALL, "--rpc", LENT, "-ts", "1,1"), n_devices=2),
    Case("--lora", (*ALL, "--lora", ADAPTER), check="adapted"),
    Case("--control-vector", (*ALL, "--control-vector", VECTOR), on_device=("layers",)),
    Case("embeddings", (*ALL, "--embeddings", "--pooling", "mean"), check="embeddings"),
    Case("rerank", (*ALL, "--reranking"), check="rerank", model="tiny-rerank"),
    Case("slot files", (*ALL, "--no-cache-prompt"), check="slot_files"),
    Case("--cache-ram", (*ALL, *SMALL, "--cache-ram", "64"), check="kept"),
    Case("--cache-disk", (*ALL, *SMALL, "--cache-ram", "0", "--cache-disk", DIRECTORY), "kept"),
    Case("--context-shift", (*ALL, "-np", "1", "-c", "256", "--context-shift"), check="shift"),
    Case("checkpoints", (*ALL, "-np", "1"), check="gone_back", model="tiny-hybrid"),
    Case("sleep", (*ALL, "-c", "65536", "--sleep-idle-seconds", "2"), check="sleep"),
    Case("several models", (*ALL, "--models-dir", ZOO, "-c", "65536", *SLEEPY), check="several"),
    Case("full device, at load", (*ALL, *WIDE), refusal="1048576 tokens were asked", n_left=ROOM),
    Case("full device, while it runs", ALL, check="crowded"),
    Case("--model-draft", (*ALL, *DRAFT, "-ngld", "all"), check="drafted", on_device=("draft",)),
    Case("--model-draft on the CPU", (*ALL, *DRAFT, "-devd", "none"), "drafted", (), ("draft",)),
    Case("--mmproj", (*ALL, "--mmproj", EYES), check="seen", model="tiny-window"),
    Case(
        "--no-mmproj-offload",
        (*ALL, "--mmproj", EYES, "--no-mmproj-offload"),
        "seen",
        model="tiny-window",
    ),
)
