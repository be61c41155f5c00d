"""Models in memory, as Ollama's `ps` shows them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from specllama.engine.catalog.entry import Entry
from specllama.handlers.apis.ollama.details import Facts, details, digest, timestamp
from specllama.handlers.running.runtime import Runtime

NEVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""The end of a model that stays."""


def process_json(current: Runtime, entry: Entry) -> dict[str, Any] | None:
    """None for a model that has been unloaded meanwhile."""
    supervisor, info = current.pool.supervisor(entry.name), current.pool.status(entry.name).info
    if supervisor is None or info is None:
        return None
    seconds = supervisor.seconds_awake
    ends = NEVER if seconds is None else datetime.now(UTC) + timedelta(seconds=seconds)
    return {
        "name": entry.name,
        "model": entry.name,
        "size": info.size_in_memory,
        "digest": digest(current, entry),
        "details": details(Facts.of_info(info)),
        "expires_at": timestamp(ends),
        "size_vram": info.size_on_devices,
        "context_length": info.n_ctx,
    }
