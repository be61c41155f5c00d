"""`specllama spec`."""

import json

import pytest
import yaml

from specllama.cli import main
from specllama.handlers.description import served_description

pytestmark = pytest.mark.slow


def test_it_writes_the_served_description(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == served_description()
    assert main(["spec", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == served_description()


def test_texts_stay_readable(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "--tag", "tokenize"]) == 0
    written = capsys.readouterr().out
    assert "description: |\n" in written
    assert "&id" not in written


@pytest.mark.parametrize("version", ["3.1", "3.2"])
def test_versions(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--openapi", version, "--format", "json", "--tag", "chat", "--tag", "tokenize"]
    assert main(["spec", *arguments]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["openapi"].startswith(version)
    assert [tag["name"] for tag in document["tags"]] == ["chat", "tokenize"]


def test_nothing_of_the_implementation(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec"]) == 0
    written = capsys.readouterr().out
    for private in ("x-openapi-router-controller", "InfoFunc", "handlers."):
        assert private not in written


def test_an_unknown_tag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spec", "--tag", "chats"]) == 1
    assert "there is no tag chats; the tags are page, health" in capsys.readouterr().err
