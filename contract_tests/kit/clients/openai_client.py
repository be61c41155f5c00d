"""Creates OpenAI's client for a server under test."""

from openai import OpenAI

from contract_tests.kit.bodies import MODEL as MODEL
from contract_tests.kit.server import SECONDS, Server


def client_of(server: Server, api_key: str | None = None) -> OpenAI:
    key = api_key or server.api_key or "none"
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=SECONDS)
