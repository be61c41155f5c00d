"""The description agrees with the code."""

import importlib
import inspect
import re
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import openapi_spec_validator
import pytest

from contract_tests.kit import lint
from specllama import __version__
from specllama.engine.params import RANDOM_SEED, SAMPLER_LETTERS, GenerationParams, SamplerName
from specllama.handlers.apis.results import NOT_SHOWN
from specllama.handlers.http.description import bundle
from specllama.handlers.slots import TEXT_SETTINGS


def test_bundled_document_is_valid() -> None:
    bundled = bundle(lint.DESCRIPTION)
    openapi_spec_validator.validate(bundled)
    names = bundled["components"]["schemas"].keys()
    assert {"CompletionRequest", "ChatMessage", "Timings"} <= names


def test_its_version_is_that_of_the_package(document: lint.Document) -> None:
    assert document["info"]["version"] == __version__


def test_the_readme_explains_every_extension() -> None:
    readme = (lint.DESCRIPTION.parent / "README.md").read_text("utf-8")
    rows = re.findall(r"^\| (`x-.*?) \|", readme, re.MULTILINE)
    explained = {name for row in rows for name in re.findall(r"`(x-[A-Za-z-]+)`", row)}
    used = set(_extensions(bundle(lint.DESCRIPTION)))
    assert explained == used


def _extensions(node: Any) -> Iterator[str]:
    if isinstance(node, list):
        for child in node:
            yield from _extensions(child)
    elif isinstance(node, dict):
        for key, child in node.items():
            if key.startswith("x-"):
                yield key
            # The name of a header may begin with x-, too.
            headers = key == "headers" and isinstance(child, dict)
            yield from _extensions(list(child.values()) if headers else child)


def test_every_operation_has_a_handler_and_every_handler_an_operation(
    document: lint.Document,
) -> None:
    described: dict[str, set[str]] = {}
    for operation in lint.operations(document):
        controller = operation.definition["x-openapi-router-controller"]
        assert controller == f"specllama.handlers.{operation.definition['tags'][0]}"
        described.setdefault(controller, set()).add(operation.definition["operationId"])
    for controller, operation_ids in described.items():
        module = importlib.import_module(controller)
        written = {
            name
            for name, value in vars(module).items()
            if inspect.iscoroutinefunction(value)
            and value.__module__ == controller
            and not name.startswith("_")
        }
        assert written == operation_ids, controller


@pytest.mark.parametrize("path", ["/completion", "/v1/completions", "/v1/chat/completions"])
def test_defaults_are_those_of_the_engine(document: lint.Document, path: str) -> None:
    schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    described = {
        name: field["x-default"]
        for node in lint.walk(schema, "")
        for name, field in node.schema.get("properties", {}).items()
        if "x-default" in field
    }
    described["seed"] &= RANDOM_SEED  # -1 stands for it
    defaults = msgspec.to_builtins(GenerationParams())
    # Fields that no request has, or several fields have.
    del defaults["answer"], defaults["unset"], defaults["speculative"]
    assert {name: described.get(name) for name in defaults} == defaults


def test_settings_echo_every_parameter(document: lint.Document) -> None:
    slots = _answer(document["paths"]["/slots"]["get"])
    slot, _ = slots["items"]["anyOf"]
    [shown] = slot["properties"]["params"]["allOf"]
    result, *_ = _answer(document["paths"]["/completion"]["post"])["anyOf"]
    settings = result["properties"]["generation_settings"]
    assert shown["properties"] == settings["properties"]
    assert set(settings["required"]) - set(shown["required"]) == set(TEXT_SETTINGS)
    assert set(settings["required"]) == settings["properties"].keys()
    parameters = {field.name for field in msgspec.structs.fields(GenerationParams)}
    assert parameters - {*NOT_SHOWN} <= settings["properties"].keys()
    samplers = set(get_args(SamplerName))
    assert set(settings["properties"]["samplers"]["items"]["enum"]) == samplers


def _answer(operation: Any) -> Any:
    return operation["responses"]["200"]["content"]["application/json"]["schema"]


def test_every_sampler_can_be_asked_for(document: lint.Document) -> None:
    operation = document["paths"]["/completion"]["post"]
    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    [described] = [
        node.schema["properties"]["samplers"]
        for node in lint.walk(schema, "")
        if "samplers" in node.schema.get("properties", {})
    ]
    names, letters = described["anyOf"]
    samplers = list(get_args(SamplerName))
    known, unknown = names["items"]["anyOf"]
    assert set(samplers) <= set(known["enum"])
    assert not list(lint.errors(unknown, "of-another-server"))
    text = " ".join(described["description"].split())
    for letter, sampler in SAMPLER_LETTERS.items():
        assert f"`{letter}` {sampler}" in text
        assert not list(lint.errors(letters, letter + "?"))
