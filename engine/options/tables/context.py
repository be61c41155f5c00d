"""Options of a model's context: slots, KV cache, batches."""

from functools import partial
from typing import Annotated, Literal, get_args

import msgspec

from specllama.engine.options import files, values
from specllama.engine.options.declaration import INT32_MAX, Opt, Switch

AUTO_SLOTS = 4

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]

_cache_type = partial(values.choice, choices=get_args(CacheType))
_context = partial(Opt, group="Context and slots")


class ContextOptions(msgspec.Struct, kw_only=True, frozen=True):
    """The size of a model's context, and how its slots share it."""

    ctx_size: Annotated[
        int,
        _context(
            names="-c -ctx --ctx-size",
            env="LLAMA_ARG_CTX_SIZE",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Context size in tokens, shared by all slots. 0: the size the model was trained "
            "with (for each slot, if it is the shipped model); -1: the same, reduced if "
            "memory is too small (see --fit).",
        ),
    ] = -1
    parallel: Annotated[
        int,
        _context(
            names="-np --parallel",
            env="LLAMA_ARG_N_PARALLEL",
            metavar="N",
            help="Number of slots, which is the number of requests processed at the same time (1 "
            "to 256).",
            read=values.slots,
            default=f"-1 ({AUTO_SLOTS}, with a unified KV cache unless --reproducible)",
        ),
    ] = -1
    max_queue: Annotated[
        int,
        _context(
            names="--max-queue",
            env="LLAMA_ARG_MAX_QUEUE",
            metavar="N",
            min=0,
            max=INT32_MAX,
            help="Maximum number of requests that wait for a slot; a request with several texts "
            "or inputs counts once. Further ones are refused with 503 and Retry-After; the only "
            "request of an API key is never refused. A server of several models also limits their "
            "sum to the command line's value. 0: no limit.",
        ),
    ] = 4096
    max_queue_tokens: Annotated[
        int,
        _context(
            names="--max-queue-tokens",
            env="LLAMA_ARG_MAX_QUEUE_TOKENS",
            metavar="TOKENS",
            min=0,
            max=INT32_MAX,
            help="Maximum number of prompt tokens that wait for a slot, without cached ones. "
            "Requests beyond it are refused as with --max-queue; the sum over several models is an "
            "estimate. 0: no limit.",
        ),
    ] = 67_108_864
    batch_size: Annotated[
        int,
        _context(
            names="-b --batch-size",
            env="LLAMA_ARG_BATCH",
            metavar="TOKENS",
            min=1,
            max=INT32_MAX,
            help="Maximum number of tokens in one step (logical batch size). Limited to "
            "--ubatch-size for models with a sliding window without --swa-full.",
        ),
    ] = 2048
    ubatch_size: Annotated[
        int,
        _context(
            names="-ub --ubatch-size",
            env="LLAMA_ARG_UBATCH",
            metavar="TOKENS",
            min=1,
            max=INT32_MAX,
            help="Maximum number of tokens computed at once on a device (physical batch size). "
            "Limited to --batch-size.",
        ),
    ] = 512
    cont_batching: Annotated[
        bool,
        _context(
            names="-cb --cont-batching",
            negative="-nocb --no-cont-batching",
            env="LLAMA_ARG_CONT_BATCHING",
            help="Process the prompts of new requests while other slots generate (continuous "
            "batching).",
        ),
    ] = True
    target_itl_ms: Annotated[
        int,
        _context(
            names="--target-itl-ms",
            env="LLAMA_ARG_TARGET_ITL_MS",
            metavar="MS",
            min=0,
            max=60_000,
            help="Target inter-token latency in ms. While a slot generates, the prompts of other "
            "slots are split so that a step takes about this long; images and sounds are "
            "encoded in the remaining time. 0: no limit.",
        ),
    ] = 100
    kv_unified: Annotated[
        bool | None,
        _context(
            names="-kvu --kv-unified",
            negative="-no-kvu --no-kv-unified",
            env="LLAMA_ARG_KV_UNIFIED",
            help="Use one KV cache for all slots instead of an equal part for each.",
            default="on if the number of slots is automatic, unless --reproducible",
        ),
    ] = None
    kv_unified_per_slot: Annotated[
        int,
        _context(
            names="--kv-unified-per-slot",
            env="LLAMA_ARG_KV_UNIFIED_PER_SLOT",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Maximum context of each slot, in tokens. Without --ctx-size, the KV cache has "
            "this size for each slot, and --fit doesn't reduce it.",
            default="0 (that of the model, or of the cache if it is smaller)",
        ),
    ] = 0
    reproducible: Annotated[
        Switch,
        _context(
            names="--reproducible",
            env="LLAMA_ARG_REPRODUCIBLE",
            metavar="[on|off|auto]",
            help="Make generated text depend only on its request (on the CPU), not on cached "
            "prompts or concurrent requests. Sets --no-kv-unified --cache-type-k bf16 "
            "--cache-type-v f16 unless these are given. Long prompts take longer.",
            default="auto (on for the shipped model, unless a GPU has layers)",
            bare="on",
            read=values.switch,
        ),
    ] = "auto"
    defrag_thold: Annotated[
        float,
        _context(
            names="-dt --defrag-thold",
            env="LLAMA_ARG_DEFRAG_THOLD",
            metavar="SHARE",
            help="Without effect, as in current llama-server versions: the KV cache needs no "
            "defragmentation.",
        ),
    ] = -1.0
    cache_type_k: Annotated[
        Literal["", CacheType],
        _context(
            names="-ctk --cache-type-k",
            env="LLAMA_ARG_CACHE_TYPE_K",
            metavar="TYPE",
            help="KV cache data type of the keys. bf16 cannot be combined with --context-shift "
            "or --cache-reuse.",
            default="f16; with --reproducible bf16, or f16 for --context-shift and --cache-reuse",
            read=_cache_type,
        ),
    ] = ""
    cache_type_v: Annotated[
        Literal["", CacheType],
        _context(
            names="-ctv --cache-type-v",
            env="LLAMA_ARG_CACHE_TYPE_V",
            metavar="TYPE",
            help="KV cache data type of the values. Quantized types need Flash Attention.",
            default="f16; with --reproducible bf16 if the keys are f16 or f32",
            read=_cache_type,
        ),
    ] = ""
    swa_full: Annotated[
        bool,
        _context(
            names="--swa-full",
            env="LLAMA_ARG_SWA_FULL",
            help="Use a full-size KV cache for layers with a sliding window.",
        ),
    ] = False
    ctx_checkpoints: Annotated[
        int,
        _context(
            names="-ctxcp --ctx-checkpoints --swa-checkpoints",
            env="LLAMA_ARG_CTX_CHECKPOINTS",
            metavar="N",
            min=0,
            max=INT32_MAX,
            help="Maximum number of checkpoints for each cached text, for models whose memory "
            "can't be truncated (recurrent layers, sliding windows). They are kept in host "
            "memory and follow their text to --cache-ram, --cache-disk and saved slots. 0: "
            "process such texts again from the start.",
        ),
    ] = 8
    checkpoint_min_step: Annotated[
        int,
        _context(
            names="-cms --checkpoint-min-step",
            env="LLAMA_ARG_CHECKPOINT_MIN_SPACING_NT",
            metavar="TOKENS",
            min=0,
            max=INT32_MAX,
            help="Minimum distance in tokens between checkpoints in the middle of a prompt. These "
            "are made every 4096 tokens, and where texts diverge. Those near the end of a prompt "
            "are always made.",
            default="0 (no minimum)",
        ),
    ] = 0
    cache_prompt: Annotated[
        bool,
        _context(
            names="--cache-prompt",
            negative="--no-cache-prompt",
            env="LLAMA_ARG_CACHE_PROMPT",
            help="Keep the KV cache of finished requests, and reuse it for prompts with the same "
            "beginning.",
        ),
    ] = True
    cache_reuse: Annotated[
        int,
        _context(
            names="--cache-reuse",
            env="LLAMA_ARG_CACHE_REUSE",
            metavar="TOKENS",
            min=0,
            max=INT32_MAX,
            help="Minimum size of a cached chunk to reuse at another position of a prompt, after "
            "the common prefix. The result is an approximation.",
            default="0 (never)",
        ),
    ] = 0
    cache_ram: Annotated[
        int,
        _context(
            names="-cram --cache-ram",
            env="LLAMA_ARG_CACHE_RAM",
            metavar="MIB",
            min=-1,
            max=INT32_MAX,
            help="Maximum host memory in MiB for cached texts that are evicted from the KV cache "
            "(-1: no limit, 0: disable). They are restored when that is faster than "
            "processing them again.",
        ),
    ] = 8192
    cache_idle_slots: Annotated[
        bool | None,
        _context(
            names="--cache-idle-slots",
            negative="--no-cache-idle-slots",
            env="LLAMA_ARG_CACHE_IDLE_SLOTS",
            help="Whenever a request gets a slot, copy the texts of idle slots to --cache-ram and, "
            "with --kv-unified, remove them from the KV cache. With the negative form, they stay "
            "there until their cells are needed.",
            default="move texts from a unified KV cache once they have delayed other requests for "
            "as long as the copy takes",
        ),
    ] = None
    cache_disk: Annotated[
        str,
        _context(
            names="--cache-disk",
            env="LLAMA_ARG_CACHE_DISK",
            metavar="DIR",
            help="Directory for cached texts that are evicted from host memory, and for those in "
            "use when the server stops. Several servers may share it.",
            default="none",
            file=files.check_directory,
        ),
    ] = ""
    cache_disk_size: Annotated[
        int,
        _context(
            names="--cache-disk-size",
            env="LLAMA_ARG_CACHE_DISK_SIZE",
            metavar="MIB",
            min=1,
            max=INT32_MAX,
            help="Maximum size of all files in --cache-disk, in MiB. The least recently used "
            "ones are deleted first.",
        ),
    ] = 8192
    context_shift: Annotated[
        bool,
        _context(
            names="--context-shift",
            negative="--no-context-shift",
            env="LLAMA_ARG_CONTEXT_SHIFT",
            help="Discard part of the oldest tokens when the context is full, and continue "
            "generating.",
        ),
    ] = False
    max_predict: Annotated[
        int,
        _context(
            names="--max-predict",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Maximum number of tokens of a text with --context-shift if n_predict is not "
            "set (-1: no limit).",
            default="0 (four times the context size)",
        ),
    ] = 0
    spm_infill: Annotated[
        bool,
        _context(
            names="--spm-infill",
            help="Use the order suffix, prefix, middle in prompts of /infill, as some models "
            "require.",
        ),
    ] = False
    slot_prompt_similarity: Annotated[
        float,
        _context(
            names="-sps --slot-prompt-similarity",
            metavar="SHARE",
            min=0,
            max=1,
            help="Minimum share of a prompt that a slot must have cached to be preferred for it "
            "(0: disabled).",
        ),
    ] = 0.1

    def n_slots(self) -> int:
        """Returns the number of slots to create."""
        return AUTO_SLOTS if self.parallel < 0 else self.parallel

    def is_sized_by_slot(self) -> bool:
        """Returns whether --kv-unified-per-slot decides the size of the KV cache."""
        return self.ctx_size < 0 and self.kv_unified_per_slot > 0
