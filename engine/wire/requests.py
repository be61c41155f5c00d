"""The messages from the server process to an engine process (`ToEngine`).

They are sent as frames (`engine.wire.framing`) over the engine process's stdin. The server chooses
ids, which are unique within one engine process. Messages are encoded as arrays, which is shorter
and faster, and possible because both ends always have the same version."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from specllama.engine.errors import invalid_request
from specllama.engine.options import EngineOptions
from specllama.engine.params import GenerationParams
from specllama.engine.wire.media import Media


class Load(msgspec.Struct, tag="load", frozen=True, array_like=True):
    """The first message: the options for loading the model, and the lowest level of Python's
    logging that the engine process logs."""

    options: EngineOptions
    log_level: int


class MeasureMemory(msgspec.Struct, tag="measure", frozen=True, array_like=True):
    """The first message to a process that loads no model: it determines the memory that a model
    will take, sends `Measured` (or `LoadFailed`) and ends. `limits` has the bytes that models may
    take on each device, to which the options are adapted (`--fit`). Without `options`, the process
    only reports the memory of the devices."""

    options: EngineOptions | None
    limits: dict[str, int]
    log_level: int


class Infill(msgspec.Struct, frozen=True):
    """A gap between `prefix` and `suffix`, each a sequence of token ids and texts.

    `middle` is the known beginning of the text in the gap; `extra` has (file name, text) pairs. The
    engine makes the prompt (`engine.worker.generation.prompts`). Special-token syntax in the texts
    is treated as plain text.
    """

    prefix: list[int | str]
    suffix: list[int | str]
    middle: str = ""
    extra: list[tuple[str, str]] = []


PromptParts = list[int | str | Media]
"""A prompt as token ids, texts to be tokenized, images and sounds, in their order."""
Prompt = PromptParts | Infill


class Terms(msgspec.Struct, frozen=True, array_like=True):
    """How the scheduler treats a request, by its API key and its fields.

    The waiting requests of a key get a share of the work in proportion to `weight`. A request with
    a lower `priority` is admitted first. Its prompt must be evaluated within `prompt_ms`, and its
    text ends after `timeout_ms`, both from the moment at which the message is sent (0: no limit).
    `allowance` is the number of tokens that all texts of the message may use (-1: any number): if
    they need more, the text that exceeds it fails with `rate_limit_error`. With `is_metered`, an
    `Accepted` reports how many tokens each text may use, and an `Ended` answers its `Cancel`. With
    `shows_queue`, `Queued` events report its place while it waits. `key_name` is the name of the
    key, for `GetSlots`. The limits of the queue and `allowance` don't apply to a request that
    `is_accepted`: an earlier process has accepted it. The limits of the queue don't apply to one
    that `is_only`: its key had no other call on this server when it came.
    """

    weight: float = 1.0
    priority: int = 0
    prompt_ms: int = 0
    timeout_ms: int = 0
    allowance: int = -1
    is_metered: bool = False
    shows_queue: bool = False
    key_name: str = ""
    cache_bytes: int = 0  # limit of the key's cached texts; 0: no limit
    is_accepted: bool = False
    is_only: bool = False


NO_TERMS = Terms()
"""The terms of a server without keys and limits."""


class Submit(msgspec.Struct, tag="submit", frozen=True, array_like=True):
    """Generate from `prompt`, or fill its gap.

    The model's special start and end tokens are added if the first element is text (and the
    vocabulary requires them); special-token syntax in texts is parsed. With `echo_prompt`, the
    answer contains the prompt as text, including special tokens. With `confirm`, an `Accepted` or a
    `Failed` comes first, only after a `Relaxed` if there is one. Texts with the same `group` belong
    to one call of a client; the calls of an owner get equal shares of the work. `others` are
    (id, seed) of further texts of that group, which are equal except for the seed and
    `params.id_slot`. `is_repeated`: its prompt is that of an earlier text of its call. Proposals
    for a text never come from texts of another `owner`; a `private` text doesn't share cached
    prefixes with texts of another owner, either. With `prompt_probs` and `params.n_probs`, the
    first event with text, or the last event, has the probabilities of the prompt's tokens; then no
    prompt token is taken from the cache.
    """

    id: int
    prompt: Prompt
    params: GenerationParams
    echo_prompt: bool = False
    confirm: bool = False
    group: int = 0
    others: list[tuple[int, int]] = []
    owner: int = 0
    private: bool = False
    prompt_probs: bool = False
    terms: Terms = NO_TERMS
    is_repeated: bool = False


class Embed(msgspec.Struct, tag="embed", frozen=True, array_like=True):
    """Turn each of `inputs`, in the form of `Submit.prompt`, into `Vectors`.

    Pooled vectors are cut to their first `dimensions` numbers (0: all), then divided by their
    `normalize`-norm, as `POST /embedding` describes it. Messages with the same `group` belong to
    one call of a client (0: this one alone); the limits of the queue apply to the first one, whose
    `id` is the group.
    """

    id: int
    inputs: list[PromptParts]
    normalize: int
    dimensions: int = 0
    owner: int = 0
    group: int = 0
    terms: Terms = NO_TERMS


class Rerank(msgspec.Struct, tag="rerank", frozen=True, array_like=True):
    """Score how well each document answers the query. The answer is `Vectors`, whose first number
    is the score. `owner`, `group` and `terms` are as in `Embed`."""

    id: int
    query: str
    documents: list[str]
    owner: int = 0
    group: int = 0
    terms: Terms = NO_TERMS


class Cancel(msgspec.Struct, tag="cancel", frozen=True, array_like=True):
    """Cancel a submitted request. It gets no further events, except for the `Ended` of a metered
    request that hasn't ended yet."""

    id: int


class EndThoughts(msgspec.Struct, tag="end_thoughts", frozen=True, array_like=True):
    """End the thoughts of a running request with `ThinkingRules.control`. No effect if it isn't
    thinking."""

    id: int


class Pause(msgspec.Struct, tag="pause", frozen=True, array_like=True):
    """Pause a submitted request whose client doesn't read: it leaves its slot until `Resume`.
    Events of the running step are still sent."""

    id: int


class Resume(msgspec.Struct, tag="resume", frozen=True, array_like=True):
    """Resume a paused request: it waits for a slot, and continues."""

    id: int


class Tokenize(msgspec.Struct, tag="tokenize", frozen=True, array_like=True):
    """Tokenize `content`; tokens of images and sounds are negative numbers. With `add_special`, the
    model's special start and end tokens are added if `content` begins with a text."""

    id: int
    content: PromptParts
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class Detokenize(msgspec.Struct, tag="detokenize", frozen=True, array_like=True):
    id: int
    tokens: list[int]


class FormatChat(msgspec.Struct, tag="format_chat", frozen=True, array_like=True):
    """Render (role, content) pairs with llama.cpp's own template engine (`--no-jinja`, or a
    built-in template's name)."""

    id: int
    template: str
    messages: list[tuple[str, str]]
    add_generation_prompt: bool = True


class GetSlots(msgspec.Struct, tag="get_slots", frozen=True, array_like=True):
    id: int


class SlotAction(msgspec.Struct, tag="slot_action", frozen=True, array_like=True):
    """Save, restore or erase the text of a slot as soon as it is idle. `filename` is a plain file
    name, unused by `erase`. `Cancel` withdraws a waiting action."""

    id: int
    slot: int
    action: Literal["save", "restore", "erase"]
    filename: str = ""


class GetAdapters(msgspec.Struct, tag="get_adapters", frozen=True, array_like=True):
    id: int


class SetAdapters(msgspec.Struct, tag="set_adapters", frozen=True, array_like=True):
    """Set the scales of LoRA adapters, by id, for requests without scales of their own; 0 for all
    adapters that are not named."""

    id: int
    scales: list[tuple[int, float]]


class GetStats(msgspec.Struct, tag="get_stats", frozen=True, array_like=True):
    id: int


class GetDigest(msgspec.Struct, tag="get_digest", frozen=True, array_like=True):
    """Report the hashes of at most `max_blocks` blocks of cached texts, and the load."""

    id: int
    max_blocks: int


class GetBlocks(msgspec.Struct, tag="get_blocks", frozen=True, array_like=True):
    """Report the hashes that the blocks of a `Submit` with these fields would have. Only the scales
    of the adapters (`params.lora`) and, for a gap, `params.n_predict` matter. Media are prepared,
    but not encoded."""

    id: int
    prompt: Prompt
    params: GenerationParams
    owner: int = 0
    private: bool = False


ToEngine = (
    Load
    | MeasureMemory
    | Submit
    | Embed
    | Rerank
    | Cancel
    | EndThoughts
    | Pause
    | Resume
    | Tokenize
    | Detokenize
    | FormatChat
    | GetSlots
    | SlotAction
    | GetAdapters
    | SetAdapters
    | GetStats
    | GetDigest
    | GetBlocks
)

to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)


def joined(requests: Iterable[Submit]) -> Iterator[Submit]:
    """The same requests in fewer messages: consecutive ones of one group with the same prompt
    object are merged. Their parameters must be equal except for the seed and for `id_slot`, which
    only the first request of a group may set."""
    for _, run in groupby(requests, _kind):
        first, *others = run
        pairs = [(each.id, each.params.seed) for each in others]
        yield msgspec.structs.replace(first, others=pairs) if pairs else first


def _kind(submit: Submit) -> tuple[object, ...]:
    return submit.group, id(submit.prompt), submit.confirm, submit.terms


def apart(submit: Submit, prompt: Prompt) -> Iterator[Submit]:
    """The separate requests of a merged `submit`, with `prompt` instead of its own."""
    first = msgspec.structs.replace(submit, prompt=prompt, others=[])
    yield first
    for id, seed in submit.others:
        params = msgspec.structs.replace(submit.params, seed=seed, id_slot=-1)
        yield msgspec.structs.replace(first, id=id, params=params, is_repeated=True)


def ids(submit: Submit) -> Sequence[int]:
    """The ids of all texts of `submit`."""
    return [submit.id, *(id for id, _ in submit.others)]


# Separators, characters that Windows forbids, control characters, look-alikes of dot and slash, and
# code points that aren't characters.
_FORBIDDEN = re.compile(
    '[/\\\\:*?"<>|\x00-\x1f\x7f-\x9f\u2215\u2216\uff0e\ufffd\ufeff\ud800-\udfff]'
)
_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
MAX_NAME = 255  # bytes; the limit of all common file systems


def check_name(name: str) -> None:
    """Checks that `name` is a plain file name on every system, without a path.

    Raises EngineError (invalid_request_error).
    """
    shown = name if len(name) <= 60 else name[:57] + "..."
    if not name:
        raise invalid_request("filename: the name is empty")
    if _FORBIDDEN.search(name):
        raise invalid_request(f"filename: {shown!r} has a character that no file name may have")
    if ".." in name or name == "." or name[0] == " " or name[-1] in " .":
        raise invalid_request(f"filename: {shown!r} is not a plain file name")
    if len(name.encode()) > MAX_NAME:
        raise invalid_request(f"filename: {shown!r} is longer than {MAX_NAME} bytes")
    if _DEVICE.fullmatch(name):
        raise invalid_request(f"filename: {shown!r} is the name of a device on some systems")
