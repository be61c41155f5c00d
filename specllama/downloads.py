"""Lets downloads be shown."""

from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

from engine.pool import ModelPool

if TYPE_CHECKING:
    from specllama.progress import DownloadProgress


async def show_downloads(pool: ModelPool) -> None:
    """Shows what the pool downloads, until it is stopped."""
    display: DownloadProgress | None = None
    with ExitStack() as stack, closing(pool.subscribe()) as news:
        async for event in news:
            if event.event == "download_progress":
                transfer = pool.status(event.model).transfer
                if transfer is None:
                    continue
                if display is None:  # most servers never need what draws it
                    from specllama import progress

                    display = stack.enter_context(progress.DownloadProgress())
                display.update(event.model, transfer)
            elif event.event in ("download_finished", "download_failed") and display is not None:
                display.finish(event.model)
