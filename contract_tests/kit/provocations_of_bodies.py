"""Provokes statuses of every operation that has a body."""

from typing import Any

import httpx

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import (
    BODIES,
    STREAMING,
    path,
)
from contract_tests.kit.server import Server
from contract_tests.kit.situations import send


def bad_request(server: Server, name: str) -> list[httpx.Response]:
    """Sends malformed and empty bodies, wrong types, missing required fields, unknown tokens."""
    where = path(name)
    headers = {"Content-Type": "application/json"}
    malformed = (b"{", b"", b"\xff\xfe", b'"\\ud800"', b"NaN", b'{"a": 1}}')
    responses = [server.post(where, content=raw, headers=headers) for raw in malformed]
    responses += [server.post(where, content=b"null", headers=headers)]
    of_wrong_type: list[Any] = [[], "text", 7]
    definition = contract.operations()[name].definition
    body = definition["requestBody"]["content"]["application/json"]
    if any(lint.errors(body["schema"], {})):  # some bodies may be empty
        of_wrong_type.append({})
    responses += [server.post(where, wrong) for wrong in of_wrong_type]
    objects = ("options", "chat_template_kwargs", "generationConfig")  # fields that are objects
    fields = [field for field in BODIES[name] if field not in objects]
    responses += [send(server, name, **{field: {"a": 1}}) for field in fields]
    if {"ollama", "ollama_models"} & {*definition["tags"]}:
        responses += [send(server, name, model=5)]
    n_vocab = server.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    if name in STREAMING:
        responses += [
            send(server, name, **change)
            for change in (
                {"id_slot": "first"},
                {"n_predict": "many"},
                {"n_predict": -2},
                {"stream": 1},
                {"samplers": [7]},
                {"logit_bias": "word"},
                {"repeat_penalty": 0, "stream": True},
            )
        ]
    if "prompt" in BODIES[name]:
        prompts: tuple[list[Any], ...] = ([], [n_vocab], [-1], [[]])
        responses += [send(server, name, prompt=prompt) for prompt in prompts]
    if name == "detokenize":
        responses += [send(server, name, tokens=tokens) for tokens in ([n_vocab], [-1], ["a"])]
    return responses
