"""The two servers, ours and the reference, with the same model and the same options."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from contract_tests.kit.events import read_events
from contract_tests.kit.server import SECONDS, OwnServer
from contract_tests.own import servers
from contract_tests.peer import genuine
from contract_tests.peer.request import Request

COMMON = (
    *("-np", "2", "-c", "2048", "-b", "512", "--jinja", "--threads", "1", "--no-warmup"),
    "--no-cache-prompt",
)
"""Options of both servers. A batch that is smaller than a context leaves room for other files in
`/infill`. Without the cache, both evaluate the whole prompt at once: caches differ, and with them
the rounding."""
OWN = ("--reproducible", "off")
"""An option of our server alone, because its default for the shipped model rounds differently from
llama.cpp."""
STAGES: dict[str, tuple[str, ...]] = {
    "default": ("--alias", "peer", "--metrics", "--props"),
    "recorded": ("--alias", "peer", "--reasoning", "off"),
    "bare": ("--no-slots",),
    "key": ("--api-key", "peer-key", "--alias", "second,first"),
    "router": ("--metrics",),
    "sensing": ("--alias", "peer"),
    "embedding": ("--alias", "peer", "--embeddings", "--pooling", "mean"),
}
"""More options by stage, which a request selects. Recorded requests have no limit for reasoning,
and the shipped model's reasoning has no end."""
MARKER = "<__media_of_the_peers__>"
"""The media marker of both servers; by default each would draw a random one."""
PRESETS = "version = 1\n[a-model]\nctx-size = 1024\nalias = first\ntags = small\n"
"""The presets of the routers' first model."""


def router_options(directory: Path, model: str) -> tuple[str, ...]:
    """Returns the options for a directory with two models, and presets."""
    models = directory / "models"
    models.mkdir(exist_ok=True)
    for name in ("a-model", "another"):
        if not (file := models / f"{name}.gguf").exists():
            file.symlink_to(model)
    (directory / "models.ini").write_text(PRESETS, "utf-8")
    return ("--models-dir", str(models), "--models-preset", str(directory / "models.ini"))


@dataclass(frozen=True)
class Answer:
    """An answer. `content` is JSON, text, or a list of (event, data) of a stream."""

    status: int
    headers: dict[str, str]
    content: Any


class Side:
    """One of the two servers, which is restarted after a request that ended it."""

    def __init__(self, directory: Path, model: str, stage: str, peer: Sequence[str] | None) -> None:
        self._directory = directory
        self._router = stage == "router"
        chosen = router_options(directory, model) if self._router else ("-m", model)
        if stage == "sensing":
            model, projector = map(servers.model_file, ("tiny-window", "tiny-mmproj-both"))
            chosen = ("-m", model, "--mmproj", projector)
        self._options = (*chosen, *COMMON, *STAGES[stage])
        self._variables = {
            "LLAMA_CACHE": str(directory / "cache"),  # empty
            "LLAMA_MEDIA_MARKER": MARKER,
        }
        self._peer = peer
        self._start()

    def _start(self) -> None:
        self._server: OwnServer = (
            servers.start(
                self._directory,
                *self._options,
                *OWN,
                named=True,
                router=self._router,
                variables=self._variables,
            )
            if self._peer is None
            else genuine.start(
                self._directory, self._peer, *self._options, variables=self._variables
            )
        )
        self._http = httpx.Client(base_url=self._server.url, timeout=SECONDS)

    def close(self) -> None:
        self._http.close()
        self._server.close()

    def ask(self, request: Request) -> Answer:
        """Returns the whole answer. The status is 0 if the connection broke or the time was up."""
        options: dict[str, Any] = {"headers": request.headers}
        if request.raw is not None:
            options["content"] = request.raw
            options["headers"] = {"Content-Type": "application/json", **request.headers}
        elif request.body is not None:
            options["json"] = request.body
        try:
            response = self._http.request(request.method, request.path, **options)
        except httpx.HTTPError as error:
            self.close()
            self._start()
            return Answer(0, {}, f"{type(error).__name__}: {error}")
        headers = {k.decode("latin-1"): v.decode("latin-1") for k, v in response.headers.raw}
        return Answer(response.status_code, headers, _content(response))


def _content(response: httpx.Response) -> Any:
    kind = response.headers.get("content-type", "").partition(";")[0]
    if kind == "text/event-stream":
        try:
            events = list(read_events([response.content]))
        except AssertionError as error:
            return f"not an event stream: {error}"
        return [(each.event, _parsed(each.data)) for each in events]
    return _parsed(response.text) if kind == "application/json" else response.text


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
