"""The completion of options in bash, as bash does it."""

import shutil
import subprocess
from pathlib import Path

import pytest

from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.handlers.options import NAMES
from specllama.handlers.options.completion import bash_completion

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash"),
]

COMMANDS = {"serve": (), "keys": ("add", "list", "revoke")}
ASK = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_specllama
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "specllama.bash"
    path.write_text(bash_completion(COMMANDS), "utf-8")
    return path


def completed(script: Path, *words: str) -> list[str]:
    """Returns bash's completions for the last of the words."""
    done = subprocess.run(
        ["bash", "--norc", "-c", ASK, "bash", str(script), "specllama", *words],
        capture_output=True,
        encoding="utf-8",
        cwd=script.parent,
        check=True,
    )
    assert not done.stderr
    return [line for line in done.stdout.splitlines() if line]


def test_every_option_is_offered(script: Path) -> None:
    known = NAMES.by_name.keys() | NAMES.by_negative.keys() | SHORTCUTS.keys()
    assert set(completed(script, "-")) == known


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--models-a"], ["--models-autoload"]),
        (["-m", "x", "--mlo"], ["--mlock"]),
        (["--split-mode", "ro"], ["row"]),
        (["--split-mode", "=", "ro"], ["row"]),
        (["-sm", "=", "unknown"], []),
        (["--ctx-size", ""], []),
        (["--hf-file", ""], []),
        (["nothing"], []),
        (["ke"], ["keys"]),
        (["keys", ""], ["add", "list", "revoke"]),
        (["keys", "re"], ["revoke"]),
        (["keys", "--keys-fi"], ["--keys-file"]),
    ],
)
def test_completions(script: Path, words: list[str], expected: list[str]) -> None:
    assert completed(script, *words) == expected


def test_choices_behind_the_equals_sign(script: Path) -> None:
    choices = [choice for choice in NAMES.fields["split_mode"].choices if choice]
    assert completed(script, "--split-mode", "=") == choices


def test_files_and_folders(script: Path) -> None:
    (script.parent / "a model.gguf").touch()
    (script.parent / "a folder").mkdir(exist_ok=True)
    assert sorted(completed(script, "--model", "a")) == ["a folder", "a model.gguf"]
    assert completed(script, "--models-dir", "a") == ["a folder"]
