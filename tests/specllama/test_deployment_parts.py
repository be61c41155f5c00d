"""The parts of a deployment's text: each process depends on its own part only."""

from typing import Any

import pytest
import yaml

from specllama.deployment import DeploymentError, part, read

FILE: dict[str, Any] = {
    "server": {"port": 9000, "metrics": True, "log_format": "json", "verbosity": 4},
    "ingress": {"replicas": 2},
    "models": {
        "small": {"replicas": 2, "options": {"model": "small.gguf", "ctx-size": 4096}},
        "large": {"gpus": 4, "options": {"model": "large.gguf"}},
    },
}


def text(**sections: Any) -> str:
    return yaml.safe_dump({**FILE, **sections}, sort_keys=False)


def parts(whole: str) -> dict[str, str]:
    return {"ingress": part(whole), "small": part(whole, "small"), "large": part(whole, "large")}


def changed(**sections: Any) -> set[str]:
    """Returns the processes whose part differs if sections are replaced."""
    before, after = parts(text()), parts(text(**sections))
    return {name for name in before if before[name] != after[name]}


def test_the_parts_describe_the_same() -> None:
    whole = read(text(), "whole")
    ingress = read(part(text()), "ingress")
    assert (ingress.server, ingress.options) == (whole.server, whole.options)
    small = read(part(text(), "small"), "small")
    assert small.options == {"small": whole.options["small"]}
    assert small.server.log == whole.server.log
    assert small.server.http.port != 9000


def test_a_file_without_sections_for_processes() -> None:
    short = "models: {specllama-tiny: }"
    assert read(part(short), "part").options == read(short, "file").options
    assert read(part(short, "specllama-tiny"), "part").options == read(short, "file").options


@pytest.mark.parametrize(
    ("sections", "processes"),
    [
        ({"server": {**FILE["server"], "port": 9001}}, {"ingress"}),
        ({"server": {**FILE["server"], "verbosity": 3}}, {"ingress", "small", "large"}),
        ({"ingress": {"replicas": 3, "cpus": 2}}, set()),
        (
            {"models": {**FILE["models"], "small": {**FILE["models"]["small"], "replicas": 9}}},
            set(),
        ),
        (
            {"models": {**FILE["models"], "large": {"options": {"model": "other.gguf"}}}},
            {"ingress", "large"},
        ),
    ],
)
def test_a_change_concerns_few_processes(sections: Any, processes: set[str]) -> None:
    assert changed(**sections) == processes


@pytest.mark.parametrize("value", ["101", "-1", "0.5", "yes"])
def test_a_surge_is_a_percentage(value: str) -> None:
    with pytest.raises(DeploymentError, match=r"^file:1: ingress\.surge has to be a"):
        read(f"{{ingress: {{surge: {value}}}, models: {{specllama-tiny: }}}}", "file")


def test_a_model_has_another_name_than_the_ingress() -> None:
    with pytest.raises(DeploymentError, match=r"^file:1: models\.ingress: this name is taken"):
        read("models: {ingress: {options: {model: x.gguf}}}", "file")
