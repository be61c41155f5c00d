"""One document made from many files, and the served part of it."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from specllama.handlers.description import description_path
from specllama.handlers.http.description import bundle, public, with_body_examples


def keys(node: Any) -> set[str]:
    if isinstance(node, list):
        return {key for child in node for key in keys(child)}
    if not isinstance(node, dict):
        return set()
    return set(node) | {key for child in node.values() for key in keys(child)}


def test_responses_are_ordered_by_status(tmp_path: Path) -> None:
    root = tmp_path / "root.yaml"
    root.write_text('paths: {/a: {$ref: "more.yaml#/a"}}\n')
    (tmp_path / "more.yaml").write_text(
        'group: &group {"500": {description: e}, "400": {description: b}}\n'
        'a: {get: {responses: {"200": {description: y}, <<: *group, "400": {description: z}}}}\n'
    )
    responses = bundle(root)["paths"]["/a"]["get"]["responses"]
    assert list(responses.items()) == [
        ("200", {"description": "y"}),
        ("400", {"description": "z"}),
        ("500", {"description": "e"}),
    ]


def test_properties_named_responses_keep_their_order(tmp_path: Path) -> None:
    root = tmp_path / "root.yaml"
    root.write_text("components: {schemas: {A: {properties: {responses: {type: a, b: 1}}}}}\n")
    schema = bundle(root)["components"]["schemas"]["A"]["properties"]["responses"]
    assert list(schema) == ["type", "b"]


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (0.8, "Default: `0.8`."),
        (1.0, "Default: `1`."),
        (-1, "Default: `-1`."),
        (False, "Default: `false`."),
        ("float", "Default: `float`."),
        (["\n", ":"], 'Default: `["\\n", ":"]`.'),
        ("", "Default: empty."),
        ([], "Default: empty."),
        (None, "Default: none."),
    ],
)
def test_descriptions_end_with_the_default(value: Any, sentence: str, tmp_path: Path) -> None:
    root = tmp_path / "root.yaml"
    field = {"x-default": value, "description": "A field.\n"}
    parameter = {"in": "query", "description": "A parameter.", "schema": {"x-default": value}}
    named = parameter | {"schema": {"$ref": "#/components/schemas/B"}}
    schemas = {
        "A": {"properties": {"schema": field, "x-default": {"description": "Another."}}},
        "B": {"x-default": value, "description": "A named one."},
    }
    paths = {"/a": {"parameters": [parameter, named]}}
    root.write_text(yaml.safe_dump({"paths": paths, "components": {"schemas": schemas}}))
    document = bundle(root)
    for each in document["paths"]["/a"]["parameters"]:
        assert each["description"] == f"A parameter.\n{sentence}"
    assert document["components"]["schemas"]["B"]["description"] == f"A named one.\n{sentence}"
    properties = document["components"]["schemas"]["A"]["properties"]
    assert properties["schema"]["description"] == f"A field.\n{sentence}"
    assert properties["x-default"] == {"description": "Another."}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return bundle(description_path())


def test_connexions_own_keys_are_not_public(document: dict[str, Any]) -> None:
    private = {"x-openapi-router-controller", "x-bearerInfoFunc", "x-apikeyInfoFunc"}
    assert keys(document) - keys(public(document)) == private
    assert private <= keys(document), "the original is left as it is"


def test_nothing_else_is_taken_away(document: dict[str, Any]) -> None:
    for item in document["paths"].values():
        for operation in item.values():
            if isinstance(operation, dict):
                operation.pop("x-openapi-router-controller", None)
    for scheme in document["components"]["securitySchemes"].values():
        scheme.pop("x-bearerInfoFunc", None)
        scheme.pop("x-apikeyInfoFunc", None)
    assert public(document) == document


def test_nothing_public_names_a_module_of_ours(document: dict[str, Any]) -> None:
    assert "handlers." not in repr(public(document))


def test_schemas_of_bodies_get_the_first_example() -> None:
    def operation(**media: Any) -> dict[str, Any]:
        schema = {"$ref": "#/components/schemas/A"}
        return {"requestBody": {"content": {"application/json": {"schema": schema, **media}}}}

    several = operation(examples={"a": {"value": {"n": 1}}, "b": {"value": {"n": 2}}})
    document = {
        "paths": {
            "/several": {"post": several, "x-error-envelope": "anthropic"},
            "/later": {"post": operation(example={"n": 3}), "get": {}},
        },
        "components": {"schemas": {"A": {"type": "object"}, "B": {"type": "object"}}},
    }
    schemas = with_body_examples(document)["components"]["schemas"]
    assert schemas == {"A": {"type": "object", "example": {"n": 1}}, "B": {"type": "object"}}
