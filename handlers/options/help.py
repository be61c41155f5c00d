"""The documentation of all options: `--help`, and the reference page in Markdown."""

import textwrap
from collections.abc import Mapping

from specllama.engine.options import shortcuts, unavailable
from specllama.engine.options.declaration import Field
from specllama.handlers.options.composition import NAMES

_INDENT = 6

_INTRODUCTION = """\
# Options

This page is generated from the tables by `python -m specllama.handlers.options > docs/options.md`.

Every option can be written as `--option value` or `--option=value`. Most options can also be given
by an environment variable; the command line wins over it. The variable of a flag is `1`, `true`,
`on`, `enabled` or `0`, `false`, `off`, `disabled`. A flag with a negated form is also switched off
if its `LLAMA_ARG_NO_...` variable (for example `LLAMA_ARG_NO_MMAP`) is set to any value, even an
empty one. Any other empty variable counts as not set. If a value is invalid, the program prints one
line and ends with exit code 1 before it loads a model.

The fields of a request win over the sampling options. These win over the values in a model's file
(its `general.sampling.*`).
"""

_SHORTCUTS = "options for a downloaded model; other options win over them"

_WITHOUT_EFFECT = """\
## Without effect

These options of llama-server are accepted with a warning that they have no effect here:

| Option | Why |
|---|---|"""

_REFUSED = """
## Refused

With these options of llama-server, the server doesn't start, since it can't do what they ask for. A
form that switches such an option off is accepted:

| Option | Why |
|---|---|"""


def _groups() -> dict[str, list[Field]]:
    groups: dict[str, list[Field]] = {}
    for field in NAMES.fields.values():
        groups.setdefault(field.opt.group, []).append(field)
    return groups


def default(field: Field) -> str:
    """Returns the default value, as text for the documentation."""
    return field.opt.default or field.show(field.default)


def _choices(field: Field) -> str:
    choices = ", ".join(choice for choice in field.choices if choice)
    return f" One of {choices}." if choices and not field.opt.bare else ""


def _forms(field: Field) -> str:
    metavar = f" {field.opt.metavar}" if field.opt.metavar else ""
    return ", ".join([*field.names, *field.negative_names]) + metavar


def help_text(
    width: int = 100, bold: bool = False, commands: Mapping[str, tuple[str, str]] | None = None
) -> str:
    """Returns the text of `--help`, at most `width` columns wide. `commands` are (arguments,
    sentence) by name."""
    start, end = ("\x1b[1m", "\x1b[0m") if bold else ("", "")
    commands = commands or {}
    lines = ["Usage: specllama [serve] [-m FILE] [OPTION]..."]
    lines += [f"       specllama {name} {shape}" for name, (shape, _) in commands.items()]
    lines += ["", "Serves a GGUF model over HTTP with the API of llama-server."]
    lines += [f"{name} {sentence}." for name, (_, sentence) in commands.items()]
    for group, members in _groups().items():
        lines += ["", f"{start}{group}{end}"]
        for field in members:
            lines += [f"  {start}{line}{end}" for line in textwrap.wrap(_forms(field), width - 2)]
            lines += textwrap.wrap(
                _explanation(field),
                width,
                initial_indent=" " * _INDENT,
                subsequent_indent=" " * _INDENT,
                break_on_hyphens=False,
            )
    lines += ["", f"{start}{shortcuts.GROUP}{end} ({_SHORTCUTS})"]
    for name, shortcut in shortcuts.SHORTCUTS.items():
        lines += [f"  {start}{name}{end}", " " * _INDENT + shortcut.help]
    lines += ["", "A variable in brackets sets the option, too; the command line wins over it."]
    lines += ["Other options of llama-server have no effect or are refused: docs/options.md."]
    return "\n".join(lines) + "\n"


def _explanation(field: Field) -> str:
    text = field.opt.help + _choices(field)
    if not (field.is_flag and field.default is False):
        text += f" Default: {default(field)}."
    return f"{text} [{', '.join(field.variables)}]" if field.variables else text


def reference() -> str:
    """Returns the text of docs/options.md."""
    parts = [_INTRODUCTION]
    for group, members in _groups().items():
        parts.append(f"## {group}\n")
        parts.append("| Option | Meaning | Default | Variable |")
        parts.append("|---|---|---|---|")
        parts += [_row(field) for field in members]
        parts.append("")
    parts.append(f"## {shortcuts.GROUP}\n\nEach stands for {_SHORTCUTS}.\n")
    parts += ["| Option | Model | Stands for |", "|---|---|---|"]
    for name, shortcut in shortcuts.SHORTCUTS.items():
        settings = NAMES.fields
        stands_for = " ".join(
            settings[key].canonical
            if settings[key].is_flag
            else f"{settings[key].canonical} {text}"
            for key, text in shortcut.settings.items()
        )
        parts.append(f"| `{name}` | {shortcut.help} | `{stands_for}` |")
    parts.append("")
    for title, refused in ((_WITHOUT_EFFECT, False), (_REFUSED, True)):
        parts.append(title)
        parts += [_unavailable_row(o) for o in unavailable.OPTIONS if o.refused == refused]
    return "\n".join(parts) + "\n"


def _unavailable_row(option: unavailable.Unavailable) -> str:
    forms = ", ".join(f"`{name}`" for name in option.forms)
    variables = "".join(f", `{name}`" for name in option.variables)
    return f"| {_cell(forms + variables)} | {_cell(option.why)} |"


def _row(field: Field) -> str:
    forms = [f"`{name}`" for name in (*field.names, *field.negative_names)]
    if field.opt.metavar:
        forms[-1] = f"{forms[-1][:-1]} {field.opt.metavar}`"
    variable = ", ".join(f"`{name}`" for name in field.variables)
    cells = [", ".join(forms), field.opt.help + _choices(field), default(field), variable]
    return "| " + " | ".join(_cell(cell) for cell in cells) + " |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")
