"""The completion script for fish: `--completion-fish`."""

from collections.abc import Iterable, Mapping, Sequence

from specllama.engine.options.declaration import Field
from specllama.engine.options.shortcuts import SHORTCUTS
from specllama.handlers.options.completion.kinds import choices_of, kind_of
from specllama.handlers.options.composition import NAMES

_HEAD = """\
# Completion of specllama in fish: specllama --completion-fish | source
complete -c specllama -f
"""


def fish_completion(commands: Mapping[str, Sequence[str]] | None = None) -> str:
    """Returns the script. It completes `commands`, the words after them, names of options with
    their descriptions, and values that are files or choices."""
    commands = commands or {}
    lines = [f"complete -c specllama -n __fish_use_subcommand -a {name}" for name in commands]
    lines += [
        f"complete -c specllama -n '__fish_seen_subcommand_from {name}' "
        f"-a {_quoted(' '.join(each))}"
        for name, each in commands.items()
        if each
    ]
    for field in NAMES.fields.values():
        lines.append(_line(field.names, field.opt.help, _value(field)))
        if field.negative_names:
            lines.append(_line(field.negative_names, field.opt.help))
    lines += [_line([name], shortcut.help) for name, shortcut in SHORTCUTS.items()]
    return _HEAD + "\n".join(lines) + "\n"


def _line(names: Iterable[str], meaning: str, value: str = "") -> str:
    forms = " ".join(_form(name) for name in names)
    short = meaning.split(". ")[0].rstrip(".").replace("\n", " ")
    return f"complete -c specllama {forms}{value} -d {_quoted(short)}"


def _form(name: str) -> str:
    """Returns the form of a name in fish, which distinguishes --long, -s and -old."""
    if name.startswith("--"):
        return f"-l {name[2:]}"
    return f"-s {name[1:]}" if len(name) == 2 else f"-o {name[1:]}"


def _value(field: Field) -> str:
    match kind_of(field):
        case "none":
            return ""
        case "choice":
            return f" -x -a {_quoted(' '.join(choices_of(field)))}"
        case "folder":
            return " -x -a '(__fish_complete_directories)'"
        case "file":
            return " -r -F"
        case "other":
            return " -x"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
