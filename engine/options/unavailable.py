"""llama-server's options that have no field in a table here. The server either ignores them with a
warning, if that is harmless, or rejects them with the reason.

An option leaves this table when it gets a field in a table.
"""

from collections.abc import Mapping
from typing import NamedTuple

from specllama.engine.options import values
from specllama.engine.options.values import OptionError


class Unavailable(NamedTuple):
    """One option with all its forms."""

    names: tuple[str, ...]
    negative_names: tuple[str, ...]  # never rejected, as they ask for nothing
    variables: tuple[str, ...]
    metavar: str  # "" if no value follows
    why: str
    refused: bool
    of_server: bool  # without effect among the options of a model

    @property
    def forms(self) -> tuple[str, ...]:
        return (*self.names, *self.negative_names)

    @property
    def negative_variables(self) -> tuple[str, ...]:
        """The variables whose mere presence disables the option."""
        if not self.negative_names:
            return ()
        return tuple(
            variable.replace("LLAMA_ARG_", "LLAMA_ARG_NO_", 1) for variable in self.variables
        )


def _read(line: str, why: str, *, refused: bool, of_server: bool) -> Unavailable:
    names, negative, variables, metavars = [], [], [], []
    for word in line.split():
        if word.startswith(("--no-", "-no-")):
            negative.append(word)
        elif word.startswith("-"):
            names.append(word)
        elif word.startswith("LLAMA_"):
            variables.append(word)
        else:
            metavars.append(word)
    return Unavailable(
        names=tuple(names),
        negative_names=tuple(negative),
        variables=tuple(variables),
        metavar=" ".join(metavars),
        why=why,
        refused=refused,
        of_server=of_server,
    )


def _options(
    why: str, table: str, *, refused: bool = False, of_server: bool = False
) -> list[Unavailable]:
    """Returns the options of `table`. Each line contains all forms of one option, the name of its
    value if it has one, and its variables."""
    lines = [line for line in table.splitlines() if line]
    return [_read(line, why, refused=refused, of_server=of_server) for line in lines]


_MODEL = [
    *_options(
        "a library decodes videos, and no program is started for them",
        """
--video-ffmpeg-dir DIR LLAMA_ARG_VIDEO_FFMPEG_DIR
""",
    ),
    *_options(
        "the server only generates text, like llama-server itself",
        """
-mv --model-vocoder FILE
-hfv -hfrv --hf-repo-v REPO LLAMA_ARG_HF_REPO_V
-hffv --hf-file-v FILE LLAMA_ARG_HF_FILE_V
--tts-use-guide-tokens
""",
    ),
    *_options(
        "removed: use the option of one type, such as --spec-ngram-simple-size-n",
        """
--spec-ngram-size-n N
""",
        refused=True,
    ),
    *_options(
        "removed: use the option of one type, such as --spec-ngram-simple-size-m",
        """
--spec-ngram-size-m N
""",
        refused=True,
    ),
    *_options(
        "removed: use the option of one type, such as --spec-ngram-simple-min-hits",
        """
--spec-ngram-min-hits N
""",
        refused=True,
    ),
]

_SERVER = [
    *_options(
        "one thread serves all connections",
        """
--threads-http N LLAMA_ARG_THREADS_HTTP
""",
        of_server=True,
    ),
    *_options(
        "the log contains no prompts; --log-prompts-dir writes them to files",
        """
--verbose-prompt
""",
        of_server=True,
    ),
    *_options(
        "tools run in this server's own sandbox, not in containers or on other machines",
        """
--tools-runtime RUNTIME LLAMA_ARG_TOOLS_RUNTIME
""",
        refused=True,
        of_server=True,
    ),
    *_options(
        "the server loads no URLs for web pages, which could reach the machine's network that way",
        """
--ui-mcp-proxy --webui-mcp-proxy --no-ui-mcp-proxy --no-webui-mcp-proxy LLAMA_ARG_UI_MCP_PROXY
""",
        refused=True,
        of_server=True,
    ),
]

OPTIONS = (*_MODEL, *_SERVER)
BY_NAME = {name: option for option in OPTIONS for name in option.forms}
BY_VARIABLE = {name: option for option in OPTIONS for name in option.variables}
BY_NEGATIVE_VARIABLE = {name: option for option in OPTIONS for name in option.negative_variables}

NAMES = frozenset(BY_NAME)
VARIABLES = frozenset(BY_VARIABLE) | frozenset(BY_NEGATIVE_VARIABLE)
KEYS = {name.lstrip("-"): option for name, option in BY_NAME.items()}
KEYS |= BY_VARIABLE | BY_NEGATIVE_VARIABLE
"""The options by their keys in files."""


def refusal(name: str) -> str | None:
    """Returns the reason why `name`, a form of an option, is rejected; None if it is accepted."""
    option = BY_NAME[name]
    if not option.refused or name in option.negative_names:
        return None
    return f"the option {name} is not available: {option.why}"


def given(environ: Mapping[str, str]) -> list[str]:
    """Returns the variables of these options that are not empty. Raises `OptionError` for a
    rejected option, unless its variable disables it."""
    found = [name for name in sorted(VARIABLES & environ.keys()) if environ[name]]
    for name in found:
        option = BY_VARIABLE.get(name)
        if option and option.refused and not _is_off(option, name, environ[name]):
            raise OptionError(f"the option of the variable {name} is not available: {option.why}")
    return found


def _is_off(option: Unavailable, variable: str, text: str) -> bool:
    if option.metavar or not option.negative_names:
        return False
    try:
        return not values.flag(text)
    except OptionError as error:
        raise OptionError(f"{variable}: {error}") from None


def warning(place: str, option: Unavailable) -> str:
    """Returns the warning for an ignored option that is given at `place`."""
    return f"{place} has no effect: {option.why}"
