"""The messages between the server process and an engine process.

They go as frames (`engine.processes.framing`) over the child's stdin (server to engine,
`ToEngine`) and stdout (engine to server, `ToServer`). Ids are chosen by the server and unique
within one engine process. All times are milliseconds. Messages are encoded as arrays, which is
shorter and faster: both ends are always the same version.
"""

from typing import Literal

import msgspec

from specllama.engine.errors import ErrorInfo
from specllama.engine.options import EngineOptions, Pooling
from specllama.engine.params import GenerationParams
from specllama.engine.protocol.devices import CPU, DeviceUse
from specllama.engine.protocol.media import Media
from specllama.engine.protocol.stats import Stats

StopType = Literal["none", "eos", "limit", "word"]
Modality = Literal["vision", "audio"]

# ---- server -> engine --------------------------------------------------------------------


class Load(msgspec.Struct, tag="load", frozen=True, array_like=True):
    """The first message: which model to load, how, and from which level of Python's logging on
    to log."""

    options: EngineOptions
    log_level: int


class Infill(msgspec.Struct, frozen=True):
    """A gap between `prefix` and `suffix`, each a sequence of token ids and texts.

    `middle` is how the text in the gap begins; `extra` has (file name, text) pairs. The engine
    makes the prompt (`engine.worker.generation.infill`). Special-token syntax inside of the texts
    means nothing.
    """

    prefix: list[int | str]
    suffix: list[int | str]
    middle: str = ""
    extra: list[tuple[str, str]] = []


PromptParts = list[int | str | Media]
"""A prompt as token ids, texts to be tokenized, images and sounds, in their order."""
Prompt = PromptParts | Infill


class Submit(msgspec.Struct, tag="submit", frozen=True, array_like=True):
    """Generate from `prompt`, or fill the gap that it is.

    The model's special start and end tokens are added when the first element is text (and
    the vocabulary asks for them); special-token syntax inside texts is parsed. With
    `echo_prompt` the answer carries the prompt as text, special tokens included. With
    `confirm` an `Accepted` comes before everything else, or else a `Failed`. Texts with the same
    `group` are one client's request: they share its turn. `others` are (id, seed) of further
    texts of that group, which have everything else in common but `params.id_slot`. Nothing is
    proposed to a text that only those of another `owner` suggest; if it is `private`, it shares no
    cached prefix with these, either. With `prompt_probs` and `params.n_probs`, the first event with
    text, or the end, has the probabilities of the prompt's tokens; none of these is taken from the
    cache then.
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


class Embed(msgspec.Struct, tag="embed", frozen=True, array_like=True):
    """Turn each of `inputs`, in the form of `Submit.prompt`, into `Vectors`.

    Pooled vectors are cut to their first `dimensions` numbers (0: all), then divided by their
    `normalize`-norm, as `POST /embedding` describes it.
    """

    id: int
    inputs: list[PromptParts]
    normalize: int
    dimensions: int = 0


class Rerank(msgspec.Struct, tag="rerank", frozen=True, array_like=True):
    """Judge how well each document answers the query: `Vectors` whose first number is the
    score."""

    id: int
    query: str
    documents: list[str]


class Cancel(msgspec.Struct, tag="cancel", frozen=True, array_like=True):
    """Forget a submitted request. No further event comes for it."""

    id: int


class EndThoughts(msgspec.Struct, tag="end_thoughts", frozen=True, array_like=True):
    """Let a running request with `ThinkingRules.control` come to its answer. Nothing happens if it
    isn't thinking."""

    id: int


class Pause(msgspec.Struct, tag="pause", frozen=True, array_like=True):
    """Nobody reads the events of a submitted request: it gives its slot to others until `Resume`.
    Those of the step that runs still come."""

    id: int


class Resume(msgspec.Struct, tag="resume", frozen=True, array_like=True):
    """The events of a paused request are read again: it waits for a slot, and goes on."""

    id: int


class Tokenize(msgspec.Struct, tag="tokenize", frozen=True, array_like=True):
    """The tokens of `content`, those of images and sounds as negative numbers. With `add_special`,
    the model's special start and end tokens are added to a text that it begins with."""

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
    """Save, restore or erase the text of a slot, as soon as it is idle. `filename` is a plain
    name, and of no meaning to `erase`. `Cancel` withdraws it while it waits."""

    id: int
    slot: int
    action: Literal["save", "restore", "erase"]
    filename: str = ""


class GetAdapters(msgspec.Struct, tag="get_adapters", frozen=True, array_like=True):
    id: int


class SetAdapters(msgspec.Struct, tag="set_adapters", frozen=True, array_like=True):
    """The scales of LoRA adapters, by id, for requests that name none; 0 for all others."""

    id: int
    scales: list[tuple[int, float]]


class GetStats(msgspec.Struct, tag="get_stats", frozen=True, array_like=True):
    id: int


ToEngine = (
    Load
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
)

# ---- engine -> server --------------------------------------------------------------------


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's facts about the loaded model and its context."""

    vocab_type: int
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int  # bytes
    devices: list[DeviceUse] = []
    description: str
    ftype: str = ""  # of most weights, in llama.cpp's words
    bos_token: str
    eos_token: str
    add_bos: bool
    add_eos: bool
    chat_template: str  # "" if the model has none
    tool_template: str = ""  # the one for requests with tools, of models that have two
    metadata: dict[str, str] = {}  # of the file: single values, no lists, no templates
    n_slots: int
    n_ctx: int  # of one slot, in tokens
    pooling: Pooling | None = None  # of a process that embeds; None: it generates
    n_vector: int = 0  # numbers in one embedding
    n_input: int = 0  # tokens of the longest input that can be embedded
    modalities: list[Modality] = []  # what the projector lets in beside text
    sample_rate: int = 0  # of the sounds that it takes, in Hz
    projector: str = ""  # its file's name
    projector_size: int = 0  # bytes

    @property
    def size_in_memory(self) -> int:
        """Bytes of the weights where they are: devices align them."""
        return max(self.size, sum(each.model for each in self.devices))

    @property
    def size_on_devices(self) -> int:
        """Bytes of the weights that other devices than the CPU hold."""
        return sum(each.model for each in self.devices if each.name != CPU)


class Progress(msgspec.Struct, tag="progress", frozen=True, array_like=True):
    """The progress of loading the model, from 0 to 1."""

    fraction: float


class Ready(msgspec.Struct, tag="ready", frozen=True, array_like=True):
    info: ModelInfo


class LoadFailed(msgspec.Struct, tag="load_failed", frozen=True, array_like=True):
    """The model can't be served; the process ends. Loading it again would fail again."""

    message: str


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True, array_like=True):
    """Sent every second, by a thread of its own, from the first moment on."""


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """`cache_n` prompt tokens came from the KV cache, `prompt_n` were computed. Of `draft_n`
    proposed tokens, `draft_n_accepted` are a part of the text."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int = 0
    draft_n_accepted: int = 0


class TokenProbs(msgspec.Struct, frozen=True, array_like=True):
    """The probability of a generated token, and its rivals, the likeliest first.

    `value` is the natural logarithm of the model's probability, or, with
    `post_sampling_probs`, the probability that the samplers left it. `piece` are the token's
    bytes. A rival is (id, piece, value).
    """

    id: int
    piece: bytes
    value: float
    top: list[tuple[int, bytes, float]]


class PromptProgress(msgspec.Struct, frozen=True, array_like=True):
    """`processed` of `total` prompt tokens are in the KV cache, `cache` of them from before."""

    total: int
    cache: int
    processed: int
    time_ms: float


class Accepted(msgspec.Struct, tag="a", frozen=True, array_like=True):
    """The request is without fault and waits for a slot."""

    id: int


class Relaxed(msgspec.Struct, tag="x", frozen=True, array_like=True):
    """Comes before everything else of a request, whose schemas have keywords that are not in
    force: where they stand, as in `engine.params.NamedSchema.at`."""

    id: int
    keywords: list[str]


class Begun(msgspec.Struct, tag="b", frozen=True, array_like=True):
    """The request has a slot, and its prompt begins to be evaluated: the first event of each
    request that doesn't fail before. Until then nothing of it has been done."""

    id: int


class Delta(msgspec.Struct, tag="d", frozen=True, array_like=True):
    """New text of a streamed request: whole characters, nothing of a stop string.

    There is one for each token that ends a character; its text may be held back, or none.
    `probs` are those of the tokens that `text` comes from (if the request wants any); where
    a token's text is spread over events, those of the first of them. With `progress`, the
    event reports on the prompt, and has no text. `prompt_probs` have an entry for each token of the
    prompt, once; nothing stands before the first one, so that its value is 0.
    """

    id: int
    text: str
    tokens: list[int]
    id_slot: int
    timings: Timings
    probs: list[TokenProbs] = []
    progress: PromptProgress | None = None
    prompt_probs: list[TokenProbs] = []


class Finished(msgspec.Struct, tag="f", frozen=True, array_like=True, kw_only=True):
    """The end of a request.

    `text` and `tokens` are everything for a plain request, and nothing for a streamed one, of
    which `Delta`s have carried it all. `n_prompt` counts the whole prompt, cached tokens included.
    `params` are the parameters as they were applied (biased texts turned into token ids).
    `probs` has an entry for every token that a part of the text comes from, or none at all;
    like `text`, only what no `Delta` has carried. So it is with `prompt_probs`.
    """

    id: int
    text: str
    tokens: list[int]
    stop_type: StopType
    stopping_word: str
    truncated: bool
    has_new_line: bool
    id_slot: int
    prompt: str
    n_prompt: int
    n_decoded: int
    timings: Timings
    params: GenerationParams
    probs: list[TokenProbs] = []
    prompt_probs: list[TokenProbs] = []


class Failed(msgspec.Struct, tag="e", frozen=True, array_like=True):
    """The request `id`, of whatever kind, ends with an error."""

    id: int
    error: ErrorInfo


class Vectors(msgspec.Struct, tag="v", frozen=True, array_like=True):
    """The vectors of all inputs of one request, in their order.

    `values` are 32-bit floats, little-endian, row by row; input i has `n_rows[i]` rows: one, or
    without pooling one for each token. `n_tokens` counts the tokens of all inputs.
    """

    id: int
    values: bytes
    n_rows: list[int]
    n_tokens: int


Event = Accepted | Relaxed | Begun | Delta | Finished | Failed


class Step(msgspec.Struct, tag="step", frozen=True, array_like=True):
    """The events of all sequences in one step of the engine."""

    events: list[Event | Vectors]


Piece = str | list[int]
"""The text of a token; a list of bytes where those are not valid UTF-8 by themselves."""


class Tokens(msgspec.Struct, tag="tokens", frozen=True, array_like=True):
    """The tokens of a text. `pieces` has the text of each that is among them."""

    id: int
    tokens: list[int]
    pieces: dict[int, Piece] | None = None


class Text(msgspec.Struct, tag="text", frozen=True, array_like=True):
    id: int
    text: str


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one slot. The defaults are those of one that was never used."""

    id: int
    n_ctx: int  # tokens
    id_task: int = -1
    is_processing: bool = False
    params: GenerationParams | None = None
    prompt: str = ""
    has_next_token: bool = False
    has_new_line: bool = False
    n_remain: int = -1
    n_decoded: int = 0
    stopping_word: str = ""
    n_prompt_tokens: int = 0  # in the slot: read of the prompt, or generated and decoded
    n_prompt_tokens_processed: int = 0
    n_prompt_tokens_cache: int = 0
    n_prompt_tokens_shared: int = 0
    n_prompt_tokens_restored: int = 0
    generated: str = ""


class Slots(msgspec.Struct, tag="slots", frozen=True, array_like=True):
    id: int
    slots: list[SlotState]


class SlotDone(msgspec.Struct, tag="slot_done", frozen=True, array_like=True):
    """A slot's text was saved, restored or erased: its tokens, the file's bytes."""

    id: int
    n_tokens: int
    n_bytes: int
    ms: float


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter. `scale` is that of requests which name no adapters themselves."""

    id: int
    path: str
    scale: float
    task_name: str
    prompt_prefix: str


class Adapters(msgspec.Struct, tag="adapters", frozen=True, array_like=True):
    id: int
    adapters: list[Adapter]


class StatsReply(msgspec.Struct, tag="stats", frozen=True, array_like=True):
    id: int
    stats: Stats


Reply = Tokens | Text | Slots | SlotDone | Adapters | StatsReply
ToServer = Progress | Ready | LoadFailed | Heartbeat | Step | Failed | Reply

to_engine_decoder = msgspec.msgpack.Decoder(ToEngine)
to_server_decoder = msgspec.msgpack.Decoder(ToServer)
