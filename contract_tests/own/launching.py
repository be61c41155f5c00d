"""Helpers for tests of a server's start and end."""

import json
import os
import subprocess
from typing import Any

import psutil
import pytest

from contract_tests.kit import contract
from contract_tests.kit.server import OwnServer, Server, alive, wait_until

posix = pytest.mark.skipif(os.name != "posix", reason="signals and UNIX sockets")
VOLATILE = {
    "id", "responseId", "created", "timings", "id_slot", "id_task", "prompt_ms",
    "prompt_per_token_ms", "prompt_per_second", "predicted_ms", "predicted_per_token_ms",
    "predicted_per_second",
    "request_id", "input_tokens", "cache_read_input_tokens",
    "tokens_cached", "cached_tokens", "cachedContentTokenCount", "n_prompt_tokens_cache",
    "n_prompt_tokens_processed", "n_prompt_tokens_shared",
    "n_prompt_tokens_restored", "n_prompt_tokens_from_files", "cache_miss_reason", "cache_miss_at",
    "cached_ram_tokens", "cached_disk_tokens",
    "media_marker", "created_at", "completed_at", "item_id", "cache_write_tokens",
    "total_duration", "load_duration", "prompt_eval_duration", "eval_duration",
    "timestamp", "memory", "encrypted_content",
}  # fmt: skip
"""Fields that differ from one answer to the next."""


def settled(value: Any) -> Any:
    """Returns `value` without volatile fields."""
    if isinstance(value, dict):
        if value.get("object") == "response.compaction":
            value = {**value, "usage": None}  # of a summary, which the cache may change
        return {k: settled(v) for k, v in value.items() if k not in VOLATILE or k == "servers"}
    return [settled(each) for each in value] if isinstance(value, list) else value


def outcome(server: Server, method: str, where: str, options: dict[str, Any]) -> Any:
    response = server.http.request(method, where, **options)
    kind = contract.media_type(response)
    content: Any = response.content
    if kind == "application/json":
        content = settled(response.json()) if content else None
    elif kind == "text/event-stream":
        lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: ")]
        content = [settled(json.loads(line)) if line != "[DONE]" else line for line in lines]
    kept = ("content-type", "allow", "www-authenticate", "location", "vary", "cache-control",
            "access-control-allow-origin", "access-control-allow-methods")  # fmt: skip
    headers = {name: response.headers.get(name) for name in kept}
    return response.status_code, headers, content


def family(server: OwnServer) -> list[psutil.Process]:
    top = psutil.Process(server.process.pid)
    return [top, *top.children(recursive=True)]


def wait_until_ended(processes: list[psutil.Process]) -> None:
    wait_until(lambda: not any(map(alive, processes)), "all processes have ended")


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the only error line of a failed start, after checking its exit code."""
    said = f"code {done.returncode}: {done.stdout}{done.stderr}"
    assert done.returncode == 1, said
    lines = [line for line in done.stderr.splitlines() if line.startswith("specllama: error: ")]
    assert len(lines) == 1, said
    assert "Traceback" not in done.stderr, said
    return lines[0]
