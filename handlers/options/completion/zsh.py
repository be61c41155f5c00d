"""The completion script for zsh: `--completion-zsh`."""

from collections.abc import Iterable, Mapping, Sequence

from specllama.engine.options.declaration import Field
from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.handlers.options.completion.kinds import choices_of, kind_of
from specllama.handlers.options.composition import NAMES

_SCRIPT = """\
#compdef specllama
# Completion of specllama in zsh: source <(specllama --completion-zsh), once compinit has run.
_specllama() {{
    if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
        compadd -- {commands}
        return
    fi
{actions}    _arguments -S \\
{options}
}}
compdef _specllama specllama
"""


def zsh_completion(commands: Mapping[str, Sequence[str]] | None = None) -> str:
    """Returns the script. It completes `commands`, the words after them, names of options with
    their descriptions, and values that are files or choices."""
    commands = commands or {}
    options = [line for field in NAMES.fields.values() for line in _options(field)]
    options += [_quoted(f"{name}[{_plain(s.help)}]") for name, s in SHORTCUTS.items()]
    lines = " \\\n".join(f"        {line}" for line in options)
    actions = "".join(_actions(name, each) for name, each in commands.items() if each)
    return _SCRIPT.format(commands=" ".join(commands), actions=actions, options=lines)


def _actions(command: str, words: Iterable[str]) -> str:
    return (
        f"    if (( CURRENT == 3 )) && [[ $words[2] == {command} ]]; then\n"
        f"        compadd -- {' '.join(words)}\n"
        "        return\n"
        "    fi\n"
    )


def _options(field: Field) -> list[str]:
    """Returns an argument of `_arguments` for each name."""
    meaning = f"[{_plain(field.opt.help)}]"
    names = [
        _quoted(f"*{name}{_form(field, name)}{meaning}{_value(field)}") for name in field.names
    ]
    return names + [_quoted(f"*{name}{meaning}") for name in field.negative_names]


def _form(field: Field, name: str) -> str:
    """Returns `=` if the value may also follow an equals sign."""
    return "" if field.is_flag or not name.startswith("--") else "="


def _value(field: Field) -> str:
    about = ":" + _plain(field.opt.metavar or "value") + ":"
    match kind_of(field):
        case "none":
            return ""
        case "choice":
            return f"{about}({' '.join(choices_of(field))})"
        case "folder":
            return f"{about}_files -/"
        case "file":
            return f"{about}_files"
        case "other":
            return about + " "


def _plain(text: str) -> str:
    """Returns the first sentence of `text` on one line, with the special characters of `_arguments`
    escaped."""
    short = text.split(". ")[0].rstrip(".").replace("\n", " ")
    for special in "\\[]:":
        short = short.replace(special, "\\" + special)
    return short


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
