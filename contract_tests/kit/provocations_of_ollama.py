"""Provokes statuses of Ollama's own operations."""

import httpx

from contract_tests.kit.bodies import (
    path,
)
from contract_tests.kit.server import Server
from contract_tests.kit.situations import N_CTX, Situations, send


def images(server: Server, name: str) -> list[httpx.Response]:
    return [send(server, name, stream=stream, images=["iVBORw0KGgo="]) for stream in (False, True)]


def template(server: Server, name: str) -> list[httpx.Response]:
    return [send(server, name, template="{{ .Prompt }}")]


def too_long_options(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends a prompt that is too long; errors in Ollama's format have no token counts."""
    return [
        send(situations.small, name, prompt="word " * N_CTX, stream=stream)
        for stream in (False, True)
    ]


def to_a_browser(server: Server, name: str) -> list[httpx.Response]:
    accepted = ("text/html", "text/html,application/xhtml+xml,*/*;q=0.8")
    return [server.get(path(name), headers={"Accept": each}) for each in accepted]


def pulled_lines(server: Server, name: str) -> list[httpx.Response]:
    return [send(server, name), send(server, name, stream=True), send(server, name, stream=None)]


def nothing_to_pull(situations: Situations, name: str) -> list[httpx.Response]:
    """Pulls from a hub that must not be used."""
    return [send(situations.offline, name, model="maker/nothing")]
