"""The messages from an engine process to the server process (`ToServer`).

They are sent as frames (`engine.wire.framing`) over the engine process's stdout, encoded as arrays.
All times are in milliseconds.
"""

from typing import Literal

import msgspec

from specllama.engine.errors import ErrorInfo
from specllama.engine.options import Pooling
from specllama.engine.params import GenerationParams
from specllama.engine.wire.devices import CPU, Bytes, DeviceMemory, DeviceUse
from specllama.engine.wire.stats import MissReason, ReplicaLoad, Stats

StopType = Literal["none", "eos", "limit", "word"]
Deadline = Literal["", "prompt", "total"]
"""The deadline that ended a text: that of its prompt, that of the whole request, or none (""), as
in `engine.wire.requests.Terms`."""
Modality = Literal["vision", "audio"]
MAX_WAITING_SHOWN = 100


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of the loaded model and its context."""

    vocab_type: int
    n_vocab: int
    n_ctx_train: int
    n_embd: int
    n_params: int
    size: int  # bytes
    devices: list[DeviceUse] = []
    description: str
    ftype: str = ""  # type of most weights, named by llama.cpp
    bos_token: str
    eos_token: str
    add_bos: bool
    add_eos: bool
    chat_template: str  # "" if the model has none
    tool_template: str = ""  # for requests with tools; "" without a separate one
    metadata: dict[str, str] = {}  # of the file: scalar values, without templates
    n_slots: int
    n_ctx: int  # of one slot, in tokens
    pooling: Pooling | None = None  # None for a process that generates
    n_vector: int = 0  # size of an embedding
    n_input: int = 0  # tokens of the longest input that can be embedded
    modalities: list[Modality] = []  # kinds of input that the projector supports
    sample_rate: int = 0  # of the projector's sounds, in Hz
    projector: str = ""  # file name
    projector_size: int = 0  # bytes

    @property
    def size_in_memory(self) -> int:
        """The size of the weights in memory, including alignment by devices, in bytes."""
        return max(self.size, sum(each.model for each in self.devices))

    @property
    def size_on_devices(self) -> int:
        """The size of the weights on devices other than the CPU, in bytes."""
        return sum(each.model for each in self.devices if each.name != CPU)


class Progress(msgspec.Struct, tag="progress", frozen=True, array_like=True):
    """The progress of loading the model, from 0 to 1."""

    fraction: float


class Ready(msgspec.Struct, tag="ready", frozen=True, array_like=True):
    info: ModelInfo


class LoadFailed(msgspec.Struct, tag="load_failed", frozen=True, array_like=True):
    """The model can't be loaded, and the process ends. Another attempt would fail as well."""

    message: str


class Measured(msgspec.Struct, tag="measured", frozen=True, array_like=True):
    """The reply to `MeasureMemory`: the memory of the machine, and what the model will take.

    `memory` begins with the host's. `uses` are of the model with its draft model and its projector,
    if it is loaded with a context of `ctx_size` tokens and `n_gpu_layers` on devices (-1: as many
    as llama.cpp chooses). `n_mapped` bytes of the weights in the host's memory are mapped from the
    file. In addition, the process takes `n_base` bytes. `is_cache_16_bit` is true if the KV cache
    has numbers of 16 bits or more.
    """

    memory: list[DeviceMemory]
    uses: list[DeviceUse] = []
    ctx_size: int = 0
    n_gpu_layers: int = -1
    n_mapped: Bytes = 0
    n_base: Bytes = 0
    is_cache_16_bit: bool = False


class Heartbeat(msgspec.Struct, tag="heartbeat", frozen=True, array_like=True):
    """Sent every second from the start on, by a separate thread. `n_private` is the memory of the
    process that it shares with no file and no other process, in bytes; 0 if it is unknown."""

    n_private: Bytes = 0


class Timings(msgspec.Struct, frozen=True, array_like=True):
    """Counts and times of a request. `cache_n` prompt tokens were cached, `cache_ram_n` of these in
    host memory and `cache_disk_n` in files; `prompt_n` were computed. `cache_miss_reason` is why
    the first of these wasn't cached (None: only the tokens that are always computed weren't). Of
    `draft_n` proposed tokens, `draft_n_accepted` were confirmed."""

    cache_n: int
    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int = 0
    draft_n_accepted: int = 0
    cache_ram_n: int = 0
    cache_disk_n: int = 0
    cache_miss_reason: MissReason | None = None


class TokenProbs(msgspec.Struct, frozen=True, array_like=True):
    """The probability of a generated token, and its rivals, the most probable first.

    `value` is the natural logarithm of the model's probability or, with `post_sampling_probs`, the
    probability after the samplers. `piece` has the token's bytes. A rival is (id, piece, value).
    """

    id: int
    piece: bytes
    value: float
    top: list[tuple[int, bytes, float]]


class PromptProgress(msgspec.Struct, frozen=True, array_like=True):
    """The progress of a prompt: `processed` of `total` tokens are in the KV cache, `cache` of them
    since before the request."""

    total: int
    cache: int
    processed: int
    time_ms: float


class Accepted(msgspec.Struct, tag="a", frozen=True, array_like=True):
    """The request is valid, and waits for a slot. `n_tokens` is the number of tokens that
    are reserved for it: the prompt's tokens that aren't cached now, and `n_predict` tokens or a
    default for the answer. It is set if the request is metered."""

    id: int
    n_tokens: int = 0


class Queued(msgspec.Struct, tag="w", frozen=True, array_like=True):
    """The place of a request in the queue (1: the next one), and the estimated wait for a slot."""

    id: int
    place: int
    wait_ms: float


class Ended(msgspec.Struct, tag="n", frozen=True, array_like=True):
    """The reply to `Cancel` of a metered request that hasn't ended yet: the tokens that it has
    used. A metered request ends with exactly one of `Finished`, `Vectors`, `Failed` and `Ended`.
    """

    id: int
    timings: Timings


class Relaxed(msgspec.Struct, tag="x", frozen=True, array_like=True):
    """The first event of a request whose schemas have keywords that are not enforced: their places,
    in the form of `engine.params.NamedSchema.at`."""

    id: int
    keywords: list[str]


class Begun(msgspec.Struct, tag="b", frozen=True, array_like=True):
    """The request has got a slot, and the evaluation of its prompt begins; before, the request was
    only prepared. Each request that doesn't fail earlier has this event, after `Relaxed` and
    `Accepted`."""

    id: int


class Delta(msgspec.Struct, tag="d", frozen=True, array_like=True):
    """New text of a streamed request: whole characters, no part of a stop string.

    Each token that completes a character has one; `text` is empty if all new text is held back.
    `probs` has the entries of the tokens whose text begins in `text` (if requested). With
    `progress`, the event reports the progress of the prompt, and has no text. `prompt_probs` has an
    entry for each token of the prompt, in a single event; the value of the first token is 0, since
    it has no context.
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

    `text` and `tokens` are complete for a plain request, and empty for a streamed one, whose
    `Delta`s have contained them. `n_prompt` counts the whole prompt, including cached tokens.
    `params` are the effective parameters (biased texts are replaced by token ids). `probs` and
    `prompt_probs` contain the entries that no `Delta` has contained, or are empty if not requested.
    With a `deadline`, the text ends where it was when that passed (`stop_type` is `limit`); it is
    empty if the prompt wasn't evaluated by then.
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
    deadline: Deadline = ""


class Failed(msgspec.Struct, tag="e", frozen=True, array_like=True):
    """The request `id`, of any kind, ends with an error. `timings` has the tokens that it has used;
    None for a request without tokens."""

    id: int
    error: ErrorInfo
    timings: Timings | None = None


class Vectors(msgspec.Struct, tag="v", frozen=True, array_like=True):
    """The vectors of all inputs of one request, in their order.

    `values` has 32-bit floats, little-endian, row by row; input i has `n_rows[i]` rows: one, or
    without pooling one for each token. `n_tokens` is the number of tokens of all inputs, `ms` their
    part of the time of the steps.
    """

    id: int
    values: bytes
    n_rows: list[int]
    n_tokens: int
    ms: float = 0.0


class Resized(msgspec.Struct, tag="resized", frozen=True, array_like=True):
    """The number of slots has changed, as the number of replicas has (`engine.fleet`)."""

    n_slots: int


class NoReplicas(msgspec.Struct, tag="no_replicas", frozen=True, array_like=True):
    """The last replica has ended, as there were no requests (`engine.fleet`): the model sleeps."""


class Lost(msgspec.Struct, tag="lost", frozen=True, array_like=True):
    """The requests `ids` are gone, as the replica that had them has ended (`engine.fleet`).
    Requests that had not begun may be sent again, the others have failed with `error`."""

    ids: list[int]
    error: ErrorInfo


Event = Accepted | Queued | Relaxed | Begun | Delta | Finished | Failed | Ended


class Step(msgspec.Struct, tag="step", frozen=True, array_like=True):
    """The events of all sequences in one step of the engine."""

    events: list[Event | Vectors]


Piece = str | list[int]
"""The text of a token, or a list of its bytes if they aren't valid UTF-8."""


class Tokens(msgspec.Struct, tag="tokens", frozen=True, array_like=True):
    """The tokens of a text. `pieces` has the text of each different token, if requested."""

    id: int
    tokens: list[int]
    pieces: dict[int, Piece] | None = None


class Text(msgspec.Struct, tag="text", frozen=True, array_like=True):
    id: int
    text: str


class SlotState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one slot. The defaults describe an unused slot."""

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
    n_prompt_tokens: int = 0  # evaluated tokens in the slot, of prompt and generated text
    n_prompt_tokens_processed: int = 0
    n_prompt_tokens_cache: int = 0
    n_prompt_tokens_shared: int = 0
    n_prompt_tokens_restored: int = 0
    n_prompt_tokens_from_files: int = 0
    cache_miss_reason: MissReason | None = None
    generated: str = ""
    key_name: str = ""
    priority: int = 0


class WaitingState(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of one request that waits for a slot: its `place` in the queue (1: the next one),
    the number of its tokens, those of them that aren't cached, its age and the estimated wait."""

    id: int
    place: int
    key_name: str = ""
    n_tokens: int
    n_uncached: int
    priority: int = 0
    age_ms: float
    wait_ms: float


class Slots(msgspec.Struct, tag="slots", frozen=True, array_like=True):
    """All slots, the first `MAX_WAITING_SHOWN` waiting requests, and the number of all that
    wait."""

    id: int
    slots: list[SlotState]
    waiting: list[WaitingState] = []
    n_waiting: int = 0


class SlotDone(msgspec.Struct, tag="slot_done", frozen=True, array_like=True):
    """A slot's text was saved, restored or erased: the numbers of its tokens and of the file's
    bytes."""

    id: int
    n_tokens: int
    n_bytes: int
    ms: float


class Adapter(msgspec.Struct, frozen=True):
    """A LoRA adapter. `scale` is its default, for requests that don't name adapters."""

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


class Digest(msgspec.Struct, tag="digest", frozen=True, array_like=True):
    """The blocks of the cached texts that a new request could use, and the present load.

    `blocks` has a hash of 8 bytes for each block, in the format of
    `engine.worker.cache.block_hashes`, without duplicates: first those of encoded media
    (`PromptMedium.hash`), then those of the most recently used text, from its start on. It covers
    running and finished texts in the KV cache, and texts in host memory that are restored faster
    than they are computed; a process that embeds has no blocks. If there were more than 32,768 new
    tokens since the last digest, the hashes of further ones follow in the next digests. Memory that
    can't be cut anywhere may only have a shorter beginning of a text whose blocks are reported: up
    to a checkpoint.
    """

    id: int
    blocks: bytes
    load: ReplicaLoad


class PromptMedium(msgspec.Struct, frozen=True, array_like=True):
    """A chunk of a medium in a prompt, which has to be encoded unless it is encoded already, or the
    first `stop` tokens of the prompt are cached. `hash` identifies it in `Digest.blocks`."""

    hash: int
    n_tokens: int
    stop: int


class Blocks(msgspec.Struct, tag="blocks", frozen=True, array_like=True):
    """A prompt has `n_tokens` tokens, its whole blocks have the hashes `blocks`, in the form of
    `Digest.blocks`, in their order, and it contains `media`."""

    id: int
    n_tokens: int
    blocks: bytes
    media: list[PromptMedium] = []


Reply = Tokens | Text | Slots | SlotDone | Adapters | StatsReply | Digest | Blocks
AboutModel = Progress | Ready | LoadFailed | Step | Failed | Lost | Resized | NoReplicas | Reply
"""The messages of a process that loads a model, except for heartbeats."""
ToServer = AboutModel | Measured | Heartbeat

to_server_decoder = msgspec.msgpack.Decoder(ToServer)
