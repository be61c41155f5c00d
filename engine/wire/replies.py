"""The messages from an engine process to the server process (`ToServer`).

They go as frames (`engine.wire.framing`) over the engine process's stdout, encoded as arrays.
All times are milliseconds.
"""

from typing import Literal

import msgspec

from specllama.engine.errors import ErrorInfo
from specllama.engine.options import Pooling
from specllama.engine.params import GenerationParams
from specllama.engine.wire.devices import CPU, DeviceUse
from specllama.engine.wire.stats import Stats

StopType = Literal["none", "eos", "limit", "word"]
Modality = Literal["vision", "audio"]


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

to_server_decoder = msgspec.msgpack.Decoder(ToServer)
