"""The files of the description follow the rules for generated clients."""

from pathlib import Path

import pytest

from contract_tests.kit import generator_rules as rules

GOOD = """
Text:
  title: Text
  type: object
  description: A text and its language.
  properties:
    text: {type: string, description: The text as it was sent.}
    kind: {type: string, enum: [text], description: "Always `text`, the kind of part."}
    language: {$ref: "#/Language"}
    labels: {type: array, x-default: [], description: Whatever the client likes.}
    other:
      description: The same in another language.
      allOf: [{$ref: "#/Language"}]
Language:
  title: Language
  type: string
  nullable: true
  description: A language that the server knows.
  enum: [en, de, null]
"""

BAD = [
    (rules.nothing_has_a_default, "text: {type: string", "text: {default: a, type: string"),
    (rules.nothing_has_a_default, "nullable: true", "nullable: true\n  default: en"),
    (
        rules.defaults_are_written_once,
        "text: {type: string, description: The text as it was sent.",
        "text: {x-default: a, description: The text as it was sent. The default is `a`.",
    ),
    (rules.types_have_names, "kind: {type: string, enum: [text]", "kind: {enum: [text, more]"),
    (rules.types_have_names, "labels: {type: array", "labels: {type: object"),
    (rules.types_have_names, "labels: {type: array", "labels: {anyOf: [{type: string}]"),
    (rules.types_have_names, "labels: {", "labels: {additionalProperties: {enum: [1, 2]}, "),
    (rules.types_have_names, "labels: {type: array", "labels: {items: {enum: [1, 2]}"),
    (rules.types_have_names, "[en, de, null]", "[en]\n  anyOf: [{type: object}]"),
    (rules.types_have_names, "allOf: [{$ref", "allOf: [{type: object}, {$ref"),
    (
        rules.fields_are_not_dropped,
        "  properties:",
        "  anyOf: [{required: [text]}, {required: [kind]}]\n  properties:",
    ),
    (
        rules.fields_are_not_dropped,
        "  properties:",
        "  allOf: [{$ref: '#/Language'}]\n  properties:",
    ),
    (rules.names_are_titles, "title: Language", "title: Text"),
    (rules.names_are_titles, "  title: Language\n", ""),
    (rules.names_are_titles, "labels: {", "labels: {title: Labels, "),
    (rules.names_are_titles, "Text:\n  title: Text", "Old_text:\n  title: Old_text"),
    (rules.objects_are_not_named_like_their_fields, "text: {type", "text: {nullable: true, type"),
    (rules.all_is_described, "description: The text as it was sent.", "description: The text."),
    (rules.all_is_described, "  description: A text and its language.\n", ""),
    (rules.objects_say_what_they_hold, "[en, de, null]", "[en]\nOther:\n  type: object"),
    (rules.numbers_have_formats, "labels: {type: array", "labels: {type: number"),
    (rules.numbers_have_formats, "labels: {type: array", "labels: {type: integer"),
    (rules.unions_have_one_list, "[en, de, null]", "[en]\n  anyOf: [{type: array}, {type: array}]"),
]


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_rule(rule: rules.Rule) -> None:
    assert not list(rule(rules.FOLDER))


def description(folder: Path, schemas: str = GOOD, paths: str = "{}") -> Path:
    for name, text in (("schemas", schemas), ("paths", paths)):
        (folder / name).mkdir()
        (folder / name / "a.yaml").write_text(text)
    return folder


def test_a_good_description_passes(tmp_path: Path) -> None:
    folder = description(tmp_path)
    assert not [problem for rule in rules.RULES for problem in rule(folder)]


@pytest.mark.parametrize(("rule", "old", "new"), BAD)
def test_rule_catches(rule: rules.Rule, old: str, new: str, tmp_path: Path) -> None:
    assert old in GOOD
    [problem] = rule(description(tmp_path, GOOD.replace(old, new)))
    assert problem.file == "schemas/a.yaml"


@pytest.mark.parametrize("name", ["create_text_v1", "create_text_plural", "list_unversioned"])
def test_a_method_is_not_named_after_its_path(name: str, tmp_path: Path) -> None:
    paths = f"bodies: []\ntext: {{get: {{operationId: {name}}}}}\n"
    assert len(list(rules.methods_have_good_names(description(tmp_path, paths=paths)))) == 1


def test_schemas_of_operations_count(tmp_path: Path) -> None:
    text = """
text:
  get:
    parameters:
      - name: kind
        schema: {type: string, enum: [a, b], default: a}
    responses:
      "200":
        content:
          application/json:
            schema: {type: object, properties: {}}
            example: {schema: {enum: [1, 2]}}
          text/event-stream:
            schema: {type: string}
            x-event-data-schema: {anyOf: [{type: string}]}
"""
    folder = description(tmp_path, paths=text)
    assert len(list(rules.types_have_names(folder))) == 3
    assert len(list(rules.nothing_has_a_default(folder))) == 1


def test_every_rule_is_broken_once() -> None:
    broken = {rule for rule, _, _ in BAD} | {rules.methods_have_good_names}
    assert broken == set(rules.RULES)
