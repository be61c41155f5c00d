"""`specllama ps`: shows the models of a running server, and their slots in use."""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import httpx2

from specllama.engine.catalog.locations import shown_size
from specllama.engine.options import OptionError
from specllama.handlers.options import parse

SECONDS = 10.0
"""The time limit for an answer."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


class AskError(Exception):
    """The server can't be reached, or its answer is unusable. The message is one line for the
    user."""


def main(argv: Sequence[str]) -> int:
    """Prints a line for each model. Returns 0, or 1 after one line about an error."""
    parser = argparse.ArgumentParser(
        prog="specllama ps",
        description="Shows the models of a running server: state, slots in use, context, size of "
        "the weights, memory.",
    )
    parser.add_argument(
        "--url",
        help="URL of the server (default: the address where `specllama` would listen; see "
        "LLAMA_ARG_HOST and LLAMA_ARG_PORT)",
    )
    parser.add_argument("--api-key", help="API key of the server (default: LLAMA_API_KEY)")
    parser.add_argument("-a", "--all", action="store_true", help="show unloaded models, too")
    given = parser.parse_args(argv)
    try:
        url = (given.url or own_url(os.environ)).rstrip("/")
        key = given.api_key or os.environ.get("LLAMA_API_KEY", "").partition(",")[0]
        rows = ask(url, key, everything=given.all)
    except (AskError, OptionError) as error:
        print(f"specllama ps: error: {error}", file=sys.stderr)
        return 1
    head = ("NAME", "STATE", "SLOTS", "CONTEXT", "SIZE", "MEMORY")
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        print("  ".join(f"{cell:<{n}}" for cell, n in zip(row, widths, strict=True)).rstrip())
    return 0


def own_url(environ: Mapping[str, str]) -> str:
    """Returns the URL of a server that is started with options from variables only. Raises
    OptionError."""
    options = parse([], environ)
    http = options.http
    host = next((host for host in http.hosts() if not host.endswith(".sock")), "127.0.0.1")
    scheme = "https" if http.ssl_cert_file else "http"
    return f"{scheme}://{EVERYWHERE.get(host, host)}:{options.port()}{http.api_prefix}"


def ask(url: str, key: str, *, everything: bool) -> list[tuple[str, ...]]:
    """Returns the rows: name, state, slots in use, tokens of a slot's context, size, memory. Raises
    AskError."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with httpx2.Client(base_url=url, headers=headers, timeout=SECONDS) as client:
            models = _get(client, "/models")["data"]
            loaded = [m for m in models if everything or _state(m) != "unloaded"]
            return [_row(client, model) for model in loaded]
    except (httpx2.TransportError, httpx2.InvalidURL) as error:
        raise AskError(f"no server answers at {url}: {error}") from None
    except (KeyError, TypeError, ValueError):
        raise AskError(f"{url} is not a server with this API") from None


def _row(client: httpx2.Client, model: dict[str, Any]) -> tuple[str, ...]:
    name, meta = str(model["id"]), model.get("meta") or {}
    slots = "-"
    if _state(model) == "loaded":
        response = client.get("/slots", params={"model": name})
        if response.status_code == 200:  # otherwise the server has --no-slots
            found = response.json()
            slots = f"{sum(slot['is_processing'] for slot in found)}/{len(found)}"
    state = _state(model)
    if state in ("loading", "downloading"):
        state += f" {100 * model['status'].get('progress', 0):.0f} %"
    context = f"{meta['n_ctx']:,}" if "n_ctx" in meta else "-"
    size = shown_size(meta["size"]) if "size" in meta else "-"
    return name, state, slots, context, size, _memory(model)


def _memory(model: dict[str, Any]) -> str:
    """Returns the memory that the model takes on each device or, in brackets, will take."""
    memory = model.get("memory") or {}
    for sizes, form in ((memory.get("use"), "{}"), (memory.get("need"), "({})")):
        if sizes:
            shown = (f"{shown_size(each['n_bytes'])} {each['device']}" for each in sizes)
            return form.format(" + ".join(shown))
    return "-"


def _state(model: dict[str, Any]) -> str:
    """Returns the model's state; "loaded" if it is missing, as in llama-server with one model."""
    return str((model.get("status") or {"value": "loaded"})["value"])


def _get(client: httpx2.Client, path: str) -> Any:
    response = client.get(path)
    if response.status_code != 200:
        try:
            message = response.json()["error"]["message"]
        except (KeyError, TypeError, ValueError):
            message = response.reason_phrase
        raise AskError(f"{response.status_code}: {message}")
    return response.json()
