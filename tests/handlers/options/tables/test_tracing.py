"""The options of traces."""

from importlib import util
from typing import Any

import pytest

from specllama.engine.options import OptionError
from specllama.handlers.options import parse


@pytest.mark.parametrize(
    ("argv", "endpoint", "is_on"),
    [
        ([], "", False),
        (["--otel"], "", True),
        (["--otel-endpoint", "http://localhost:4318"], "http://localhost:4318", True),
        (["--otel-endpoint", "https://[::1]:4318/otlp/"], "https://[::1]:4318/otlp", True),
    ],
)
def test_an_address_switches_traces_on(argv: list[str], endpoint: str, is_on: bool) -> None:
    tracing = parse(argv, {}).tracing
    assert (tracing.otel_endpoint, tracing.is_on()) == (endpoint, is_on)


def test_the_standard_variable_alone_exports_nothing() -> None:
    assert not parse([], {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://a:4318"}).tracing.is_on()


@pytest.mark.parametrize("text", ["localhost:4318", "grpc://a:4317", "http://a b", "http://u:p@a"])
def test_an_address_must_be_one_of_http(text: str) -> None:
    with pytest.raises(OptionError, match="is not an address such as http://localhost:4318"):
        parse(["--otel-endpoint", text], {})


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.exporter"])
def test_without_the_library_the_sentence_says_what_to_install(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = util.find_spec

    def find_spec(name: str, package: str | None = None) -> Any:
        if name == missing:
            return None
        if name.startswith(missing + "."):
            raise ModuleNotFoundError(name)
        return found(name, package)

    monkeypatch.setattr("specllama.handlers.options.tables.tracing.find_spec", find_spec)
    for argv in (["--otel"], ["--otel-endpoint", "http://localhost:4318"]):
        with pytest.raises(OptionError, match=r"pip install 'specllama\[otel\]'"):
            parse(argv, {})
    assert parse([], {})
