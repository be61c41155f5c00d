"""The completion of commands and options in fish, as fish does it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.handlers.options import NAMES
from specllama.handlers.options.completion import fish_completion

KEYS = {"keys": ("add", "list")}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish"),
]


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "specllama.fish"
    path.write_text(
        fish_completion({"serve": (), "pull": (), "ps": (), "keys": ("add", "list")}), "utf-8"
    )
    return path


def completed(script: Path, line: str) -> set[str]:
    """The words that fish offers for the last one of the line."""
    done = subprocess.run(
        ["fish", "--no-config", "-c", "source $argv[1]; complete -C $argv[2]", str(script), line],
        capture_output=True,
        encoding="utf-8",
        cwd=script.parent,
        check=True,
    )
    assert not done.stderr
    return {found.partition("\t")[0] for found in done.stdout.splitlines()}


def test_every_long_option_is_offered(script: Path) -> None:
    known = {*NAMES.by_name, *NAMES.by_negative, *SHORTCUTS}
    assert completed(script, "specllama --") == {name for name in known if name.startswith("--")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("specllama p", {"pull", "ps"}),
        ("specllama keys ", {"add", "list"}),
        ("specllama --models-a", {"--models-autoload"}),
        ("specllama -m x --mlo", {"--mlock"}),
        ("specllama --split-mode ro", {"row"}),
        ("specllama -sm ro", {"row"}),
        ("specllama --ctx-size ", set()),
    ],
)
def test_completions(script: Path, line: str, expected: set[str]) -> None:
    assert completed(script, line) == expected


def test_files(script: Path) -> None:
    (script.parent / "one.gguf").touch()
    assert completed(script, "specllama -m on") == {"one.gguf"}
