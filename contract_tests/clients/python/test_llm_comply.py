"""llm-comply, a conformance kit for APIs: its sets for chat, Responses and Messages."""

import json
import subprocess
import sys
from typing import Any

MODEL = "specllama-tiny"
EXPECTED = {
    "image-input": "the shipped model has no image input",
    "error-handling": "a request that names no model is served, as llama-server does",
    "compact-response": "answers are not compacted here",
    "compact-missing-model": "answers are not compacted here",
}
"""The cases that fail, with the reasons. Their ids begin with the name of the set."""
CUT_OFF = "max_tokens,'length','incomplete'"
"""The kit's message for an answer without an end; the shipped model isn't trained to end it."""


def _failures(url: str, form: str, *options: str) -> dict[str, Any]:
    """Returns the kit's message for each unexpected failure."""
    address = ("-u", f"{url}/v1", "-k", "none", "-m", MODEL)
    given = ("--json", "--format", form, "--ignore", CUT_OFF, *options)
    ran = subprocess.run(
        [sys.executable, "-m", "llm_comply.cli", *address, *given],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    results = json.loads(ran.stdout)["results"]
    assert len(results) >= 9
    return {
        each["id"]: each["errors"]
        for each in results
        if each["status"] == "failed" and not each["id"].endswith(tuple(EXPECTED))
    }


def test_conformance_chat(url: str) -> None:
    assert not _failures(url, "openai-chat")


def test_conformance_responses(url: str) -> None:
    assert not _failures(url, "open-responses")


def test_conformance_messages(url: str) -> None:
    header = ("--auth-header", "x-api-key", "--no-bearer", "-H", "anthropic-version:2023-06-01")
    assert not _failures(url, "anthropic", *header)
