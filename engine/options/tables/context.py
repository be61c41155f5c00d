"""Options of a model's context: its slots, its cache, its batches."""

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
    """How much room a model has, and how its slots share it."""

    ctx_size: Annotated[
        int,
        _context(
            names="-c -ctx --ctx-size",
            env="LLAMA_ARG_CTX_SIZE",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Size of the context, shared by all slots. 0 is what the model was trained with "
            "(so much for each slot of the shipped one); -1 is the same, but less where memory is "
            "too small for it: see --fit.",
        ),
    ] = -1
    parallel: Annotated[
        int,
        _context(
            names="-np --parallel",
            env="LLAMA_ARG_N_PARALLEL",
            metavar="N",
            help="Number of slots: how many requests are worked on at the same time, up to 256.",
            read=values.slots,
            default=f"-1 ({AUTO_SLOTS}, with a unified KV cache unless --reproducible)",
        ),
    ] = -1
    batch_size: Annotated[
        int,
        _context(
            names="-b --batch-size",
            env="LLAMA_ARG_BATCH",
            metavar="TOKENS",
            min=1,
            max=INT32_MAX,
            help="Most tokens given to the model in one step; with a sliding window and without "
            "--swa-full no more than --ubatch-size.",
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
            help="Most tokens that a device computes at once; never more than --batch-size.",
        ),
    ] = 512
    cont_batching: Annotated[
        bool,
        _context(
            names="-cb --cont-batching",
            negative="-nocb --no-cont-batching",
            env="LLAMA_ARG_CONT_BATCHING",
            help="Begin new requests while others are generating (continuous batching).",
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
            help="While a request generates, cut the prompts of others into pieces, so that a "
            "step takes about this long (target of the inter-token latency; 0: no limit). Media "
            "are encoded in what a step leaves of it.",
        ),
    ] = 100
    kv_unified: Annotated[
        bool | None,
        _context(
            names="-kvu --kv-unified",
            negative="-no-kvu --no-kv-unified",
            env="LLAMA_ARG_KV_UNIFIED",
            help="One KV cache that all slots share, rather than an equal part for each.",
            default="on if the number of slots is automatic, unless --reproducible",
        ),
    ] = None
    reproducible: Annotated[
        Switch,
        _context(
            names="--reproducible",
            env="LLAMA_ARG_REPRODUCIBLE",
            metavar="[on|off|auto]",
            help="Make a text depend on its request alone (on the CPU), not on what is cached or "
            "who else is served: --no-kv-unified --cache-type-k bf16 --cache-type-v f16, as far as "
            "these are not given. Long prompts take longer to evaluate.",
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
            help="Without effect, as in llama-server by now: the KV cache needs no defragmenting.",
        ),
    ] = -1.0
    cache_type_k: Annotated[
        Literal["", CacheType],
        _context(
            names="-ctk --cache-type-k",
            env="LLAMA_ARG_CACHE_TYPE_K",
            metavar="TYPE",
            help="Data type of the keys in the KV cache; bf16 excludes --context-shift and "
            "--cache-reuse.",
            default="f16; bf16 if --reproducible without these",
            read=_cache_type,
        ),
    ] = ""
    cache_type_v: Annotated[
        Literal["", CacheType],
        _context(
            names="-ctv --cache-type-v",
            env="LLAMA_ARG_CACHE_TYPE_V",
            metavar="TYPE",
            help="Data type of the values in the KV cache; a quantized one needs --flash-attn.",
            default="f16; bf16 if --reproducible has other keys",
            read=_cache_type,
        ),
    ] = ""
    swa_full: Annotated[
        bool,
        _context(
            names="--swa-full",
            env="LLAMA_ARG_SWA_FULL",
            help="Give sliding-window layers a cache of the full size.",
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
            help="Keep so many checkpoints of each text, in host memory, where a model's memory "
            "can't be cut (recurrent layers, sliding windows). They go along with it to "
            "--cache-ram, --cache-disk and files of slots. 0: evaluate such texts again.",
        ),
    ] = 8
    cache_prompt: Annotated[
        bool,
        _context(
            names="--cache-prompt",
            negative="--no-cache-prompt",
            env="LLAMA_ARG_CACHE_PROMPT",
            help="Keep the KV cache of a finished request for one that begins alike.",
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
            help="Behind the part of a prompt that begins as the cached text does, reuse cached "
            "chunks of at least so many tokens at other positions, which is an approximation.",
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
            help="Keep texts that have to leave the KV cache in host memory of up to this size "
            "(-1: no limit, 0: don't), and put them back when that is faster than to compute "
            "them again.",
        ),
    ] = 8192
    cache_disk: Annotated[
        str,
        _context(
            names="--cache-disk",
            env="LLAMA_ARG_CACHE_DISK",
            metavar="DIR",
            help="Keep texts that have to leave host memory, and at the end of the server those "
            "in use, in files in this directory. Several servers may share it.",
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
            help="Size of all files in --cache-disk; the least recently used ones go first.",
        ),
    ] = 8192
    context_shift: Annotated[
        bool,
        _context(
            names="--context-shift",
            negative="--no-context-shift",
            env="LLAMA_ARG_CONTEXT_SHIFT",
            help="Where the context is full, go on generating: drop a part of its oldest tokens.",
        ),
    ] = False
    max_predict: Annotated[
        int,
        _context(
            names="--max-predict",
            metavar="TOKENS",
            min=-1,
            max=INT32_MAX,
            help="Most tokens of a text without n_predict, with --context-shift (-1: no limit).",
            default="0 (four contexts)",
        ),
    ] = 0
    spm_infill: Annotated[
        bool,
        _context(
            names="--spm-infill",
            help="Put the suffix before the prefix in prompts of /infill, as some models want it.",
        ),
    ] = False
    slot_prompt_similarity: Annotated[
        float,
        _context(
            names="-sps --slot-prompt-similarity",
            metavar="SHARE",
            min=0,
            max=1,
            help="Share of a prompt that a slot must hold already to be preferred for it "
            "(0: never preferred).",
        ),
    ] = 0.1

    def n_slots(self) -> int:
        """How many slots to make."""
        return AUTO_SLOTS if self.parallel < 0 else self.parallel
