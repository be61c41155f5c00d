"""The completion script for bash: `--completion-bash`."""

from collections.abc import Iterable, Mapping, Sequence

from specllama.engine.options.declaration import Field
from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.handlers.options.completion.kinds import choices_of, kind_of
from specllama.handlers.options.composition import NAMES

_SCRIPT = """\
# Completion of specllama in bash: source <(specllama --completion-bash)
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
    if [[ $COMP_CWORD == 1 && $current != -* ]]; then
        COMPREPLY=($(compgen -W '{commands}' -- "$current")){actions}
    else
        COMPREPLY=($(compgen -W '{words}' -- "$current"))
    fi
}}
complete -F _specllama specllama
"""

_FILES = 'compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen {} -- "$current"))'


def bash_completion(commands: Mapping[str, Sequence[str]] | None = None) -> str:
    """Returns the script. It completes `commands`, the words after them, names of options, and
    values that are files or choices."""
    commands = commands or {}
    fields = NAMES.fields.values()
    cases = [
        f"        {'|'.join(field.names)}) {_values(field)}; return ;;"
        for field in fields
        if not field.is_flag
    ]
    words = [name for field in fields for name in (*field.names, *field.negative_names)]
    return _SCRIPT.format(
        cases="\n".join(cases),
        words=_lines((*words, *SHORTCUTS)),
        commands=_lines(commands),
        actions="".join(_actions(name, each) for name, each in commands.items() if each),
    )


def _actions(command: str, words: Iterable[str]) -> str:
    condition = f"$COMP_CWORD == 2 && $current != -* && ${{COMP_WORDS[1]}} == {command}"
    return (
        f"\n    elif [[ {condition} ]]; then\n"
        f"        COMPREPLY=($(compgen -W '{_lines(words)}' -- \"$current\"))"
    )


def _values(field: Field) -> str:
    match kind_of(field):
        case "choice":
            return f"COMPREPLY=($(compgen -W '{_lines(choices_of(field))}' -- \"$current\"))"
        case "folder":
            return _FILES.format("-d")
        case "file":
            return _FILES.format("-f")
        case _:
            return ":"


def _lines(words: Iterable[str]) -> str:
    return "\n".join(words)
