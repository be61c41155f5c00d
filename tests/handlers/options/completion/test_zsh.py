"""The completion of commands and options in zsh, in a separate terminal, where the tab key's widget
prints its completions."""

import shutil
import subprocess
from pathlib import Path

import pytest

from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.handlers.options import NAMES
from specllama.handlers.options.completion import zsh_completion

KEYS = {"keys": ("add", "list")}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh"),
]

ASK = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell "PS1=; autoload -Uz compinit; compinit -u -D; source ${(q)1}
tell () {
    unfunction compadd 2>/dev/null
    compadd () {
        local -a found
        if [[ \${@[1,(i)(-|--)]} == *-(O|A|D)\ * ]]; then
            builtin compadd \"\$@\"
        else
            builtin compadd -A found \"\$@\"
            print
            print -rl -- OFFERED\$^found
        fi
    }
    _main_complete
    print THE''END
    exit
}
zle -C tell complete-word tell
bindkey '^I' tell
print IT''BEGINS"
while zpty -r shell line; do [[ $line == *ITBEGINS* ]] && break; done
zpty -w -n shell "$2"$'\t'
while zpty -r shell line; do
    print -r -- "$line"
    [[ $line == *THEEND* ]] && break
done
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "specllama.zsh"
    path.write_text(
        zsh_completion({"serve": (), "pull": (), "ps": (), "keys": ("add", "list")}), "utf-8"
    )
    return path


def completed(script: Path, line: str) -> set[str]:
    """The words that zsh offers for the last one of the line."""
    done = subprocess.run(
        ["zsh", "-f", "-c", ASK, "zsh", str(script), line],
        capture_output=True,
        encoding="utf-8",
        cwd=script.parent,
        check=True,
    )
    marked = (each.strip() for each in done.stdout.splitlines())
    return {each.removeprefix("OFFERED") for each in marked if each.startswith("OFFERED")}


def test_every_long_option_is_offered(script: Path) -> None:
    known = {*NAMES.by_name, *NAMES.by_negative, *SHORTCUTS}
    assert completed(script, "specllama --") >= {name for name in known if name.startswith("--")}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("specllama p", {"pull", "ps"}),
        ("specllama keys ", {"add", "list"}),
        ("specllama --models-a", {"--models-autoload"}),
        ("specllama -m x --mlo", {"--mlock"}),
        ("specllama --split-mode ro", {"row"}),
        ("specllama --split-mode=ro", {"row"}),
        ("specllama -sm ro", {"row"}),
        ("specllama --ctx-size ", set()),
    ],
)
def test_completions(script: Path, line: str, expected: set[str]) -> None:
    assert completed(script, line) == expected


def test_files(script: Path) -> None:
    (script.parent / "one.gguf").touch()
    assert completed(script, "specllama -m on") == {"one.gguf"}
