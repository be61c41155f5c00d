"""The description by itself: valid, complete, consistent, and in step with the code."""

import copy
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import openapi_spec_validator
import pytest
from connexion.spec import Specification

from contract_tests.kit import lint

ROOT = lint.DESCRIPTION.parent.parent


@pytest.fixture
def mutable(document: lint.Document) -> dict[str, Any]:
    """A copy to modify, without shared nodes."""
    mutable: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    return mutable


# ---- valid -------------------------------------------------------------------------------


def test_resolved_document_is_valid(document: lint.Document) -> None:
    # connexion checks only the root file, before its references are resolved.
    Specification.from_dict(copy.deepcopy(dict(document)))
    openapi_spec_validator.validate(document)


def test_no_file_is_left_out(document: lint.Document) -> None:
    tags = {tag["name"] for tag in document["tags"]}
    paths = {path.stem for path in (lint.DESCRIPTION.parent / "paths").glob("*.yaml")}
    assert paths == tags


def test_all_operations_are_reachable(document: lint.Document) -> None:
    for operation in lint.operations(document):
        declared = {
            parameter["name"]
            for parameter in operation.definition.get("parameters", ())
            if parameter["in"] == "path"
        }
        assert declared == {*re.findall(r"{(\w+)}", operation.path)}


# ---- lint --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", lint.RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: lint.Rule, document: lint.Document) -> None:
    assert not list(rule(document))


def test_conditional_alternatives_exist(document: lint.Document) -> None:
    titles = {node.schema.get("title") for node in lint.schema_nodes(document)}
    assert lint.ONLY_WITH.keys() <= titles


@pytest.mark.parametrize("rule", lint.FILE_RULES, ids=lambda rule: rule.__name__)
def test_file_rule(rule: Callable[[], Iterator[str]]) -> None:
    assert not list(rule())


def _operation(document: Any) -> Any:
    return document["paths"]["/completion"]["post"]


def _alias(document: Any) -> Any:
    return document["paths"]["/completions"]["post"]


def _request(document: Any) -> Any:
    return _operation(document)["requestBody"]["content"]["application/json"]


def _sampling(document: Any, name: str) -> Any:
    for part in _request(document)["schema"]["allOf"]:
        if name in part["properties"]:
            return part["properties"][name]
    raise KeyError(name)


def _error(document: Any, status: str) -> Any:
    content = _operation(document)["responses"][status]["content"]
    return content["application/json"]["schema"]["properties"]["error"]


def _messages(document: Any) -> Any:
    return document["paths"]["/v1/messages"]


def _stream(document: Any) -> Any:
    return _operation(document)["responses"]["200"]["content"][lint.EVENT_STREAM]


def _lines(document: Any) -> Any:
    return document["paths"]["/api/chat"]["post"]["responses"]["200"]["content"][lint.LINES]


def _ollama_errors(document: Any) -> Any:
    content = document["paths"]["/api/chat"]["post"]["responses"]["400"]["content"]
    return content["application/json"]["schema"]["anyOf"]


def _links(document: Any) -> Any:
    return document["paths"]["/models"]["get"]["responses"]["200"]["links"]


MUTANTS: list[tuple[lint.Rule, Callable[[Any], Any]]] = [
    (lint.operations_are_described, lambda d: _operation(d).pop("summary")),
    (lint.operations_are_described, lambda d: _operation(d).update(description=" ")),
    (lint.operations_are_described, lambda d: _operation(d).update(tags=["unheard-of"])),
    (lint.operations_are_described, lambda d: _operation(d)["responses"].pop("200")),
    (lint.properties_are_described, lambda d: _sampling(d, "top_k").pop("description")),
    (lint.properties_are_described, lambda d: _sampling(d, "top_k").update(description=" ")),
    (lint.operation_ids_are_good_names, lambda d: _operation(d).update(operationId="getX")),
    (lint.operation_ids_are_good_names, lambda d: _operation(d).update(operationId="tokenize")),
    (lint.aliases_are_the_same, lambda d: _alias(d).update(parameters=[])),
    (lint.aliases_are_the_same, lambda d: _alias(d).update({"x-option": "--slots"})),
    (lint.aliases_are_the_same, lambda d: _alias(d).update(summary="Alias of POST /nowhere")),
    (lint.request_bodies_have_examples, lambda d: _request(d).pop("examples")),
    (
        lint.examples_match_their_schemas,
        lambda d: _request(d)["examples"]["text"]["value"].update(top_k="many"),
    ),
    (lint.examples_match_their_schemas, lambda d: _sampling(d, "top_k").update(example="2")),
    (lint.examples_match_their_schemas, lambda d: _stream(d)["example"].update(data="{}")),
    (lint.examples_match_their_schemas, lambda d: _stream(d)["example"].update(data="[DONE]")),
    (
        lint.defaults_match_their_schemas,
        lambda d: _sampling(d, "top_p").update({"x-default": "1.5"}),
    ),
    (
        lint.supported_values_match_their_schemas,
        lambda d: _sampling(d, "n_probs").update({"x-supported-values": [0, "none"]}),
    ),
    (
        lint.supported_values_match_their_schemas,
        lambda d: _sampling(d, "n_probs").update({"x-supported-values": [1]}),
    ),
    (lint.clamped_ranges_make_sense, lambda d: _sampling(d, "top_k").update({"x-clamped": [1, 0]})),
    (lint.clamped_ranges_make_sense, lambda d: _sampling(d, "top_k").update({"x-default": -1})),
    (lint.clamped_ranges_make_sense, lambda d: _sampling(d, "top_k").update(type="integer")),
    (lint.requests_are_bounded, lambda d: _sampling(d, "top_k").pop("x-clamped")),
    (lint.requests_are_bounded, lambda d: _sampling(d, "n_keep").pop("maximum")),
    (lint.requests_are_bounded, lambda d: _sampling(d, "stop")["anyOf"][1].pop("maxItems")),
    (lint.optional_request_fields_are_nullable, lambda d: _sampling(d, "min_p").pop("nullable")),
    (
        lint.requests_take_unknown_fields,
        lambda d: _request(d)["schema"].update(additionalProperties=False),
    ),
    (lint.schemas_keep_to_what_works, lambda d: _sampling(d, "stop").update(nullable=True)),
    (lint.schemas_keep_to_what_works, lambda d: _sampling(d, "seed").update(const=1)),
    (lint.schemas_keep_to_what_works, lambda d: _request(d)["schema"]["required"].append("x")),
    (lint.errors_have_the_envelope, lambda d: _error(d, "401")["required"].remove("message")),
    (lint.errors_have_the_envelope, lambda d: _error(d, "413")["properties"]["code"].pop("enum")),
    (lint.errors_have_the_envelope, lambda d: _messages(d).update({"x-error-envelope": "other"})),
    (lint.errors_have_the_envelope, lambda d: _messages(d).pop("x-error-envelope")),
    (
        lint.errors_have_the_envelope,
        lambda d: _messages(d)["post"]["responses"].update(
            {"500": d["paths"]["/completion"]["post"]["responses"]["500"]}
        ),
    ),
    (lint.errors_have_the_envelope, lambda d: _ollama_errors(d).pop()),
    (lint.errors_have_the_envelope, lambda d: _ollama_errors(d)[0]["required"].remove("error")),
    (lint.security_is_consistent, lambda d: _operation(d).update(security=[])),
    (lint.security_is_consistent, lambda d: _operation(d)["responses"].pop("401")),
    (lint.operations_have_a_group, lambda d: _operation(d).pop("x-access")),
    (lint.operations_have_a_group, lambda d: _operation(d).update({"x-access": "public"})),
    (lint.operations_have_a_group, lambda d: _operation(d)["responses"].pop("403")),
    (
        lint.operations_have_a_group,
        lambda d: d["paths"]["/models/load"]["post"].update({"x-access": "read"}),
    ),
    (lint.streams_name_their_events, lambda d: _stream(d).pop("x-event-data-schema")),
    (lint.streams_name_their_events, lambda d: _stream(d).update(schema={"type": "string"})),
    (lint.lines_have_a_schema, lambda d: _lines(d).pop("x-line-schema")),
    (lint.lines_have_a_schema, lambda d: _lines(d)["schema"].update(type="object")),
    (
        lint.examples_match_their_schemas,
        lambda d: _lines(d)["examples"]["error"].update(value='{"error": {}}\n'),
    ),
    (lint.links_lead_somewhere, lambda d: _links(d)["Show"].update(operationId="show")),
    (lint.links_lead_somewhere, lambda d: _links(d)["Show"]["parameters"].update(id="1")),
    (lint.links_lead_somewhere, lambda d: _links(d)["Show"].update(requestBody={"model": "a"})),
    (
        lint.links_lead_somewhere,
        lambda d: _links(d)["Show"]["parameters"].update(model_id="$response.body#/models/7/id"),
    ),
    (lint.descriptions_use_plain_words, lambda d: _operation(d).update(summary="None\u0020of it")),
]


@pytest.mark.parametrize(("rule", "spoil"), MUTANTS)
def test_rule_catches(
    rule: lint.Rule, spoil: Callable[[Any], Any], mutable: dict[str, Any]
) -> None:
    before = len(list(rule(mutable)))
    spoil(mutable)
    assert len(list(rule(mutable))) > before


def test_every_rule_has_a_mutant() -> None:
    assert {rule for rule, _ in MUTANTS} == set(lint.RULES)


def test_file_rules_catch(tmp_path: Path) -> None:
    (tmp_path / "schemas").mkdir()
    root = tmp_path / "server.yaml"
    root.write_text("paths: {}\n")
    (tmp_path / "schemas" / "a.yaml").write_text('A: {$ref: "#/paths/x"}\nB: {}\n')
    (tmp_path / "schemas" / "b.yaml").write_text('B: {$ref: "a.yaml#/A", nullable: true}\n')
    assert len(list(lint.schema_names_are_unique(root))) == 1
    assert len(list(lint.references_resolve_as_written(root))) == 2
    assert not list(lint.keys_are_unique(root))
    (tmp_path / "schemas" / "b.yaml").write_text("B:\n  - type: string\n    type: string\n")
    assert list(lint.keys_are_unique(root)) == ["b.yaml, line 3: type is repeated"]


# ---- in step with the code ---------------------------------------------------------------
