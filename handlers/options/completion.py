"""The script with which bash completes the program's options: `--completion-bash`."""

from collections.abc import Iterable

from engine.options.declaration import Field
from engine.options.shortcuts import SHORTCUTS
from handlers.options.composition import NAMES

_SCRIPT = """\
# Completion of specllama's options in bash: source <(specllama --completion-bash)
_specllama() {{
    local IFS=$'\\n'
    local current=${{COMP_WORDS[COMP_CWORD]}} option=${{COMP_WORDS[COMP_CWORD-1]}}
    # --option=value is three words.
    if [[ $current == = ]]; then
        current=
    elif [[ $option == = ]]; then
        option=${{COMP_WORDS[COMP_CWORD-2]}}
    fi
    COMPREPLY=()
    case $option in
{cases}
    esac
    COMPREPLY=($(compgen -W '{words}' -- "$current"))
}}
complete -F _specllama specllama
"""

_FILES = 'compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen {} -- "$current"))'


def bash_completion() -> str:
    """The script: names of options, and values where they are files or one of few."""
    fields = NAMES.fields.values()
    cases = [
        f"        {'|'.join(field.names)}) {_values(field)}; return ;;"
        for field in fields
        if not field.is_flag
    ]
    words = [name for field in fields for name in (*field.names, *field.negative_names)]
    return _SCRIPT.format(cases="\n".join(cases), words=_lines((*words, *SHORTCUTS)))


def _values(field: Field) -> str:
    if field.choices:
        return f"COMPREPLY=($(compgen -W '{_lines(filter(None, field.choices))}' -- \"$current\"))"
    if field.opt.metavar.startswith("DIR"):
        return _FILES.format("-d")
    if field.opt.metavar.startswith("FILE") and field.name != "hf_file":  # that is on the hub
        return _FILES.format("-f")
    return ":"  # nothing that could be known


def _lines(words: Iterable[str]) -> str:
    return "\n".join(words)
