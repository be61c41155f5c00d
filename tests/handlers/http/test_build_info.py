"""The server's identification in answers."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from specllama.handlers.http import build_info as module
from specllama.handlers.http.build_info import BUILDS, build_info


@pytest.fixture(autouse=True)
def forgetful() -> Iterator[None]:
    build_info.cache_clear()
    yield
    build_info.cache_clear()


def test_the_pinned_llama_cpp_has_a_commit() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text("utf-8"))
    [pin] = (
        each for each in project["project"]["dependencies"] if each.startswith("llama-cpp-python==")
    )
    assert pin.partition("==")[2] in BUILDS


def test_clients_can_read_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH", raising=False)
    assert re.match(r"b(\d+)-([0-9a-f]{7,})-specllama", build_info())


def test_another_library_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "/elsewhere")
    assert build_info().startswith("b0-unknown-specllama")
    monkeypatch.delenv("LLAMA_CPP_LIB_PATH")
    build_info.cache_clear()
    monkeypatch.setattr(module, "version", lambda _: "9.9.9")
    assert build_info() == "b0-unknown-specllama-9.9.9"
