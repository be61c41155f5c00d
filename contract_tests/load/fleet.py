"""The router of the campaigns, with a tiny model for each purpose, and its processes."""

import contextlib
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from contract_tests.load.asks import EMBEDDER, SEER, SLEEPER, SPARE, TALKER
from specllama.engine.shipped import model_path
from tools.models import build

MIB = 1 << 20
IDLE = 2  # s until the idle sleeper is unloaded
WORKER = "specllama.engine.worker"
FILES = {
    "specllama-tiny.gguf": TALKER, "tiny-bert.gguf": EMBEDDER, "tiny-window.gguf": SEER,
    "sleeper.gguf": SLEEPER,
}  # fmt: skip
"""The models by the names of the files that their processes have mapped."""
HELPERS = ("render", "decode", "check", "inspect", "trial", "fetch", "download")


def presets(directory: Path, disk: Path, spare: Path) -> Path:
    """Writes a file of presets. `disk` is where the server writes, `spare` a model that isn't
    loaded."""
    shutil.copy(build.ensure("tiny-embed"), spare)
    shutil.copy(model_path(), directory / "sleeper.gguf")
    adapter = build.ensure_adapter("lora-a")
    for name in ("slots", "cache"):
        (disk / name).mkdir(exist_ok=True)
    sections = {
        TALKER: [
            "parallel = 6", "ctx-size = 6144", f"slot-save-path = {disk / 'slots'}",
            f"cache-disk = {disk / 'cache'}", "cache-disk-size = 8", "cache-ram = 4",
            f"lora = {adapter}", "lora-init-without-apply = true", "spec-default = true",
        ],
        EMBEDDER: [f"model = {build.ensure('tiny-bert')}", "embedding = true"],
        SEER: [
            f"model = {build.ensure('tiny-window')}",
            f"mmproj = {build.ensure('tiny-mmproj-both')}",
            "ctx-size = 4096", "parallel = 2", "reproducible = on", "media-urls = true",
            "media-private-addresses = true",
        ],
        SLEEPER: [
            f"model = {directory / 'sleeper.gguf'}",
            "ctx-size = 2048", "parallel = 1", "reproducible = on",
            f"sleep-idle-seconds = {IDLE}",
        ],
        SPARE: [f"model = {spare}", "embedding = true"],
    }  # fmt: skip
    path = directory / "models.ini"
    lines = [line for name, said in sections.items() for line in (f"[{name}]", *said)]
    path.write_text("\n".join(["version = 1", *lines, ""]), "utf-8")
    return path


def command(directory: Path, disk: Path, spare: Path) -> list[str]:
    """Returns the server's command line without its port."""
    return [
        sys.executable, "-m", "specllama", "--models-preset", str(presets(directory, disk, spare)),
        "--models-shipped", "--models-max", "0", "--threads", "1", "--metrics",
        "--responses-db", str(disk / "responses.db"),
    ]  # fmt: skip


def genuine_command(path: Path, options: Sequence[str], disk: Path) -> list[str]:
    """Returns the command line of a genuine llama-server, which has one model."""
    (disk / "slots").mkdir(exist_ok=True)
    return [
        str(path), "--model", str(model_path()), "--threads", "1", "--parallel", "6",
        "--ctx-size", "6144", "--no-kv-unified", "--cache-type-v", "bf16", "--metrics", "--slots",
        "--slot-save-path", str(disk / "slots"), "--cache-ram", "4", *options,
    ]  # fmt: skip


def kind(process: psutil.Process) -> str:
    """Returns the kind of a process of the server: `server`, `engine`, or the folder of its
    helper."""
    for word in process.cmdline():
        if word == WORKER:
            return "engine"
        for helper in HELPERS:
            if word == f"specllama.engine.helpers.{helper}.{helper}_main":
                return helper
    return "server"


def family(pid: int) -> list[tuple[str, psutil.Process]]:
    """Returns the living processes of a server with their kinds."""
    found: list[tuple[str, psutil.Process]] = []
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in (root, *root.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(("server" if process.pid == pid else kind(process), process))
    return found


def model_of(engine: psutil.Process) -> str:
    """Returns the model of an engine process; empty while it has none."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError):
        for each in engine.memory_maps():
            if name := FILES.get(Path(each.path).name):
                return name
    return ""
