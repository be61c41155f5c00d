"""Records llama-server's prompts for the conversations of `shipped_templates`.

    python -m tests.support.record_templates LLAMA_SERVER LLAMA_CPP MODEL

LLAMA_SERVER is the program, LLAMA_CPP the folder with its sources, MODEL any model file. Writes the
digests of the prompts to tests/support/shipped_prompts.json, and keeps the recorded answers of that
file.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.shipped_templates import CONVERSATIONS, RECORD, digest

PORT = 9480
URL = f"http://127.0.0.1:{PORT}"


def answer(path: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(URL + path, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def prompt(body: Any) -> str | None:
    try:
        return digest(answer("/apply-template", body)["prompt"])
    except urllib.error.HTTPError:
        return None  # llama-server or the template rejects the conversation


def prompts(server: str, model: str, template: Path) -> dict[str, str | None]:
    """Returns the digests for all conversations, from a separate server."""
    options = ["--jinja", "--no-repack", "--no-warmup", "-c", "256", "--port", str(PORT)]
    command = [server, "-m", model, "--chat-template-file", str(template), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while process.poll() is None:
                try:
                    answer("/health")
                    break
                except OSError:
                    time.sleep(0.1)
            return {name: prompt(body) for name, body in CONVERSATIONS.items()}
        finally:
            process.terminate()


def main(server: str, sources: str, model: str) -> None:
    known = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    found = {}
    for template in sorted((Path(sources) / "models" / "templates").glob("*.jinja")):
        answers = known.get(template.stem, {}).get("answers", [])
        found[template.stem] = {"prompts": prompts(server, model, template), "answers": answers}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
