"""Downloads from the hub of tests/support/hub.py, and their failures."""

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from specllama.engine.helpers.download.downloader import FetchError, Transfer, fetch
from specllama.engine.options import Options
from tests.support.models import random_model
from tests.support.options_support import model_options

MODEL = random_model().read_bytes()
PROJECTOR = MODEL[:20_000]  # any file that begins like a GGUF file
REPOSITORY = "maker/tiny-GGUF"


def variant(number: int, size: int = len(MODEL)) -> bytes:
    """Returns different contents that begin like a GGUF file."""
    return MODEL[: size - 1] + bytes([number])


def run(options: Options | None = None, /, **fields: Any) -> tuple[Options, list[Transfer]]:
    seen: list[Transfer] = []
    wanted = options or model_options(**{"hf_repo": REPOSITORY, **fields})
    found = asyncio.run(fetch(wanted, seen.append))
    return found, seen


def failure(**fields: Any) -> str:
    with pytest.raises(FetchError) as caught:
        run(**fields)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def blobs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "huggingface" / "hub").glob("models--*/blobs/*"))


async def cancelled_when_stalled(options: Options, folder: Path, n_there: int) -> Path:
    """Cancels a download after `n_there` bytes, and returns the partial file with these bytes."""

    async def partial() -> Path:
        while True:
            for path in folder.rglob("*"):
                unfinished = path.suffix in (".incomplete", ".part")
                if unfinished and path.stat().st_size == n_there:
                    return path
            await asyncio.sleep(0.02)

    task = asyncio.create_task(fetch(options, lambda _: None))
    found = await partial()
    assert children()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children()
    return found


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "specllama.engine.helpers.download.download_main" in " ".join(child.cmdline())
    ]
