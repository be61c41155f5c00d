"""llama-server's options that have no field in a table here: each is taken with a remark, as it
harms nobody that it has no effect, or refused with the reason.

An option leaves this table when it gets its field in a table.
"""

from collections.abc import Mapping
from typing import NamedTuple

from specllama.engine.options import values
from specllama.engine.options.values import OptionError


class Unavailable(NamedTuple):
    """One option with all its forms."""

    names: tuple[str, ...]
    negative_names: tuple[str, ...]  # these ask for nothing, and are never refused
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
        """The variables whose mere presence switches the option off."""
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
        elif word.startswith(("LLAMA_", "MTMD_")):
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
    """The options of `table`: one a line, with all its forms, the name of its value if it takes
    one, and its variables."""
    lines = [line for line in table.splitlines() if line]
    return [_read(line, why, refused=refused, of_server=of_server) for line in lines]


_MODEL = [
    *_options(
        "the projector runs on the first GPU, or on none with --no-mmproj-offload",
        """
-mmdev --mmproj-device NAME MTMD_BACKEND_DEVICE
""",
    ),
    *_options(
        "how many images are encoded together follows from who waits for them",
        """
--mtmd-batch-max-tokens N LLAMA_ARG_MTMD_BATCH_MAX_TOKENS
""",
    ),
    *_options(
        "images and sound are the only media",
        """
--video-fps N LLAMA_ARG_VIDEO_FPS
--video-timestamp-interval SECONDS LLAMA_ARG_VIDEO_TIMESTAMP_INTERVAL
--video-ffmpeg-dir DIR LLAMA_ARG_VIDEO_FFMPEG_DIR
""",
    ),
    *_options(
        "text is the only output, as of llama-server itself",
        """
-mv --model-vocoder FILE
-hfv -hfrv --hf-repo-v REPO LLAMA_ARG_HF_REPO_V
-hffv --hf-file-v FILE LLAMA_ARG_HF_FILE_V
--tts-use-guide-tokens
""",
    ),
    *_options(
        "the cache decides by itself when it copies texts and makes checkpoints",
        """
--cache-idle-slots --no-cache-idle-slots LLAMA_ARG_CACHE_IDLE_SLOTS
-cms --checkpoint-min-step TOKENS LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT
""",
    ),
    *_options(
        "slots of a unified cache have no limits of their own: "
        "--no-kv-unified gives each an equal part",
        """
--kv-unified-per-slot TOKENS LLAMA_ARG_KV_UNIFIED_PER_SLOT
""",
        refused=True,
    ),
    *_options(
        "removed: the options of one kind took its place, such as --spec-ngram-simple-size-n",
        """
--spec-ngram-size-n N
""",
        refused=True,
    ),
    *_options(
        "removed: the options of one kind took its place, such as --spec-ngram-simple-size-m",
        """
--spec-ngram-size-m N
""",
        refused=True,
    ),
    *_options(
        "removed: the options of one kind took its place, such as --spec-ngram-simple-min-hits",
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
        "prompts are never logged",
        """
--verbose-prompt
--log-prompts-dir DIR
""",
        of_server=True,
    ),
    *_options(
        "the server runs no tools and no commands for clients, and fetches nothing for pages",
        """
-ag --agent -no-ag --no-agent LLAMA_ARG_AGENT
--tools TOOL,... LLAMA_ARG_TOOLS
--tools-runtime RUNTIME LLAMA_ARG_TOOLS_RUNTIME
--mcp-servers-config FILE LLAMA_ARG_MCP_SERVERS_CONFIG
--mcp-servers-json JSON LLAMA_ARG_MCP_SERVERS_JSON
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
"""Options as a file may name them."""


def refusal(name: str) -> str | None:
    """The reason why `name`, a form of an option, is refused; None if it isn't."""
    option = BY_NAME[name]
    if not option.refused or name in option.negative_names:
        return None
    return f"the option {name} is not available: {option.why}"


def given(environ: Mapping[str, str]) -> list[str]:
    """The variables of these options that say something. Raises `OptionError` for one that is
    refused; one that only switches its option off isn't."""
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


def remark(place: str, option: Unavailable) -> str:
    """What to tell whoever gives an option in vain, at `place`."""
    return f"{place} has no effect: {option.why}"
