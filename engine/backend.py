"""llama.cpp behind a small typed surface: the only module that touches its C API (what lies
below, ggml's own functions, is in `engine.ggml`).

`Model` owns weights and vocabulary, `Context` the KV cache and the batch, `Sampler` one
sampler chain. Each frees what it allocated in `close()`. Every bound that the C code asserts
on is the caller's to keep, and is named in the docstrings: a failed assertion ends the
process. Signatures and struct layouts are those of the pinned llama-cpp-python release.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C

from engine import control_vector
from engine.errors import BackendError as BackendError
from engine.ggml import ThreadPool, tensor_overrides
from engine.ggml import function as _ggml
from engine.infill import FimTokens
from engine.options import Options, Pooling
from engine.params import GenerationParams
from engine.sampling import plan, window

log = logging.getLogger("engine.llama")
perf_log = logging.getLogger("engine.perf")
perf_log.setLevel(logging.INFO)  # who asked for the figures wants to see them

TokenArray = npt.NDArray[np.int32]
StateArray = npt.NDArray[np.uint8]
Vectors = npt.NDArray[np.float32]
"""Rows of numbers, one row for each token or text."""

MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ

_KV_TYPES = {
    "f32": C.GGML_TYPE_F32,
    "f16": C.GGML_TYPE_F16,
    "bf16": 30,  # GGML_TYPE_BF16, which the bindings do not name
    "q8_0": C.GGML_TYPE_Q8_0,
    "q4_0": C.GGML_TYPE_Q4_0,
    "q4_1": C.GGML_TYPE_Q4_1,
    "iq4_nl": C.GGML_TYPE_IQ4_NL,
    "q5_0": C.GGML_TYPE_Q5_0,
    "q5_1": C.GGML_TYPE_Q5_1,
}
_SPLIT_MODES = {
    "none": C.LLAMA_SPLIT_MODE_NONE,
    "layer": C.LLAMA_SPLIT_MODE_LAYER,
    "row": C.LLAMA_SPLIT_MODE_ROW,
}
_ROPE_SCALING = {
    "": C.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED,
    "none": C.LLAMA_ROPE_SCALING_TYPE_NONE,
    "linear": C.LLAMA_ROPE_SCALING_TYPE_LINEAR,
    "yarn": C.LLAMA_ROPE_SCALING_TYPE_YARN,
}
_POOLING: dict[Pooling | Literal[""], int] = {
    "": C.LLAMA_POOLING_TYPE_UNSPECIFIED,
    "none": C.LLAMA_POOLING_TYPE_NONE,
    "mean": C.LLAMA_POOLING_TYPE_MEAN,
    "cls": C.LLAMA_POOLING_TYPE_CLS,
    "last": C.LLAMA_POOLING_TYPE_LAST,
    "rank": C.LLAMA_POOLING_TYPE_RANK,
}
_FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
_NUMA = {"distribute": 1, "isolate": 2, "numactl": 3}
_LOG_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}


class OutOfCellsError(Exception):
    """The KV cache has no room for the batch; nothing of it was evaluated."""


class NoTokenError(Exception):
    """The samplers leave no token that is allowed."""


# ---- process-wide state ------------------------------------------------------------------

_errors: list[str] = []
_level = logging.INFO


def _on_log(level: int, text: bytes, _user: Any) -> None:
    global _level
    if level != 5:  # 5 continues the line before
        _level = _LOG_LEVELS.get(level, logging.DEBUG)
    line = text.decode("utf-8", "replace").rstrip()
    if not line or line == ".":
        return
    if _level >= logging.ERROR:
        _errors.append(line)
        del _errors[:-8]
    log.log(_level, "%s", line)


_log_callback = C.llama_log_callback(_on_log)


def initialize(numa: str = "") -> None:
    """Once per process, before anything else."""
    C.llama_log_set(_log_callback, ctypes.c_void_p(0))
    C.llama_backend_init()
    if numa:
        C.llama_numa_init(_NUMA[numa])


def _fail(message: str) -> BackendError:
    detail = _errors[0] if _errors else ""
    _errors.clear()
    return BackendError(f"{message}: {detail}" if detail else message)


def physical_cores() -> int:
    """How many threads compute best: a core's second hardware thread adds nothing."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if usable is None:
        return max(1, (os.cpu_count() or 1) // 2)
    siblings = set()
    for cpu in usable:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings"
        try:
            with open(path, encoding="ascii") as file:
                siblings.add(file.read().strip())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))


def _devices() -> list[tuple[str, str, int, int]]:
    """(handle's name, description, free bytes, total bytes) of every offloading device."""
    count = _ggml("ggml_backend_dev_count", ctypes.c_size_t)
    get = _ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t)
    kind = _ggml("ggml_backend_dev_type", ctypes.c_int, ctypes.c_void_p)
    name = _ggml("ggml_backend_dev_name", ctypes.c_char_p, ctypes.c_void_p)
    text = _ggml("ggml_backend_dev_description", ctypes.c_char_p, ctypes.c_void_p)
    sizes = ctypes.POINTER(ctypes.c_size_t)
    memory = _ggml("ggml_backend_dev_memory", None, ctypes.c_void_p, sizes, sizes)
    found = []
    for i in range(count()):
        device = get(i)
        if kind(device) == 0:  # the CPU itself
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(device, ctypes.byref(free), ctypes.byref(total))
        found.append((name(device).decode(), text(device).decode(), free.value, total.value))
    return found


def list_devices() -> list[str]:
    """One line for each device that layers can be offloaded to."""
    initialize()
    return [
        f"{name}: {text} ({total >> 20} MiB, {free >> 20} MiB free)"
        for name, text, free, total in _devices()
    ]


# ---- the model ---------------------------------------------------------------------------


class LoraFile(NamedTuple):
    """A loaded LoRA adapter, and what its metadata says of its use."""

    path: str
    task_name: str
    prompt_prefix: str


class Model:
    """Weights and vocabulary of one GGUF file, and its LoRA adapters; an adapter's id is its
    place in `adapters`.

    Raises `BackendError` if a file can't be loaded. `progress` is called with fractions.
    """

    def __init__(
        self, path: str, options: Options, progress: Callable[[float], None] | None = None
    ) -> None:
        params = C.llama_model_default_params()
        layers = options.n_gpu_layers
        params.n_gpu_layers = -1 if layers in ("auto", "all") else int(layers)
        params.split_mode = _SPLIT_MODES[options.split_mode]
        params.main_gpu = options.main_gpu
        params.load_mode = _load_mode(options)
        params.check_tensors = options.check_tensors
        params.use_extra_bufts = options.repack
        params.no_host = options.no_host
        # ctypes keeps no reference to what a struct points to: these locals do.
        split = _tensor_split(options)
        if split is not None:
            params.tensor_split = split
        overrides = _kv_overrides(options.override_kv)
        if overrides is not None:
            params.kv_overrides = overrides
        placed = tensor_overrides(options)
        if placed is not None:
            params.tensor_buft_overrides = ctypes.cast(placed, ctypes.c_void_p)
        devices = _device_list(options.device)
        if devices is not None:
            params.devices = ctypes.cast(devices, ctypes.c_void_p)

        def on_progress(fraction: float, _user: Any) -> bool:
            if progress is not None:
                progress(fraction)
            return True

        callback = C.llama_progress_callback(on_progress)
        params.progress_callback = callback
        _errors.clear()
        self._model = C.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise _fail(f"cannot load the model {path!r}")
        self._vocab = C.llama_model_get_vocab(self._model)
        if self.vocab_type == C.LLAMA_VOCAB_TYPE_NONE:
            self.close()
            raise BackendError(f"the model {path!r} has no vocabulary")
        self.n_vocab: int = C.llama_vocab_n_tokens(self._vocab)
        self.add_bos = bool(C.llama_vocab_get_add_bos(self._vocab))
        self.add_eos = bool(C.llama_vocab_get_add_eos(self._vocab))
        self._pieces: dict[tuple[int, bool], bytes] = {}
        self._adapters: list[Any] = []
        self.adapters: list[LoraFile] = []
        self._eog = [i for i in range(self.n_vocab) if C.llama_vocab_is_eog(self._vocab, i)]
        self.eog = frozenset(self._eog)
        # A vocabulary without end-of-text tokens would fail an assertion if asked to add one.
        self.bos: int = C.llama_vocab_bos(self._vocab)
        self.eos: int = C.llama_vocab_eos(self._vocab)
        try:
            self._load_adapters(path for path, _ in options.lora)
        except BackendError:
            self.close()
            raise

    @cached_property
    def fim(self) -> FimTokens | None:
        """The tokens for filling in the middle; None for a model that wasn't trained to."""
        vocab = self._vocab
        prefix, suffix = C.llama_vocab_fim_pre(vocab), C.llama_vocab_fim_suf(vocab)
        middle = C.llama_vocab_fim_mid(vocab)
        if min(prefix, suffix, middle) < 0:
            return None
        repository, file = C.llama_vocab_fim_rep(vocab), C.llama_vocab_fim_sep(vocab)
        return FimTokens(
            prefix=prefix,
            suffix=suffix,
            middle=middle,
            repository=repository if repository >= 0 else None,
            file=file if file >= 0 else None,
        )

    @property
    def vocab_type(self) -> int:
        return int(C.llama_vocab_type(self._vocab))

    @property
    def n_ctx_train(self) -> int:
        return int(C.llama_model_n_ctx_train(self._model))

    @property
    def n_embd(self) -> int:
        return int(C.llama_model_n_embd(self._model))

    @property
    def n_layer(self) -> int:
        return int(C.llama_model_n_layer(self._model))

    @property
    def n_params(self) -> int:
        return int(C.llama_model_n_params(self._model))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(C.llama_model_size(self._model))

    @property
    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        C.llama_model_desc(self._model, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def chat_template(self) -> str:
        text = C.llama_model_chat_template(self._model, None)
        return text.decode("utf-8", "replace") if text else ""

    @property
    def has_decoder(self) -> bool:
        return bool(C.llama_model_has_decoder(self._model))

    @property
    def has_encoder(self) -> bool:
        return bool(C.llama_model_has_encoder(self._model))

    @property
    def has_state(self) -> bool:
        """Whether each sequence has a recurrent state, which takes memory of its own."""
        return bool(C.llama_model_is_recurrent(self._model) or C.llama_model_is_hybrid(self._model))

    @property
    def rerank_template(self) -> str:
        """The text to make of {query} and {document}; "" if the model has none."""
        text = C.llama_model_chat_template(self._model, b"rerank")
        return text.decode("utf-8", "replace") if text else ""

    @property
    def sep(self) -> int:
        """The token that separates two texts; -1 if there is none."""
        return int(C.llama_vocab_sep(self._vocab))

    @property
    def add_sep(self) -> bool:
        return bool(C.llama_vocab_get_add_sep(self._vocab))

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> TokenArray:
        """Token ids of UTF-8 `text`; runs outside the GIL, from any thread."""
        size = len(text) + 16
        tokens = np.empty(size, np.int32)
        pointer = tokens.ctypes.data_as(ctypes.POINTER(C.llama_token))
        n = C.llama_tokenize(
            self._vocab, text, len(text), pointer, size, add_special, parse_special
        )
        if n < 0:
            raise BackendError(f"cannot tokenize a text of {len(text)} bytes")
        return tokens[:n].copy()

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes of `token` (0 <= token < n_vocab); of a control token only if `special`."""
        key = (token, special)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._piece(token, special)
        return piece

    def _piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:n]

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        """The concatenated pieces, control tokens included."""
        return b"".join([self.piece(token, special=True) for token in tokens])

    def tokenizer_addresses(self) -> tuple[int, int]:
        """Addresses of the vocabulary and of `llama_tokenize`, for native code to call it."""
        function = ctypes.cast(C._lib.llama_tokenize, ctypes.c_void_p)
        return int(self._vocab), int(function.value or 0)

    def token_text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def format_chat(
        self, template: str, messages: Sequence[tuple[str, str]], add_generation_prompt: bool
    ) -> str:
        """Render with llama.cpp's built-in formats; `template` is a format's name or a Jinja
        text that it recognizes. Raises `BackendError` if it doesn't."""
        chat = (C.llama_chat_message * max(1, len(messages)))()
        for slot, (role, content) in zip(chat, messages, strict=False):
            slot.role, slot.content = role.encode(), content.encode()
        name = template.encode()
        size = 0
        while True:
            buffer = ctypes.create_string_buffer(max(1, size))
            n = C.llama_chat_apply_template(
                name, chat, len(messages), add_generation_prompt, buffer, size
            )
            if n < 0:
                raise BackendError("llama.cpp has no built-in format for this chat template")
            if n <= size:
                return buffer.raw[:n].decode("utf-8", "replace")
            size = n

    def _load_adapters(self, paths: Iterable[str]) -> None:
        """Has to be done before any context is made: its buffers depend on the adapters."""
        for path in paths:
            _errors.clear()
            adapter = C.llama_adapter_lora_init(self._model, os.fsencode(path))
            if not adapter:
                raise _fail(f"cannot load the LoRA adapter {path!r}")
            if C.llama_adapter_get_alora_n_invocation_tokens(adapter):
                raise BackendError(
                    f"cannot load the LoRA adapter {path!r}: it applies from certain words on "
                    "(aLoRA), which is not supported"
                )
            self._adapters.append(adapter)
            task_name = _adapter_text(adapter, "adapter.lora.task_name")
            prompt_prefix = _adapter_text(adapter, "adapter.lora.prompt_prefix")
            self.adapters.append(LoraFile(path, task_name, prompt_prefix))

    def close(self) -> None:
        if self._model:
            self._adapters.clear()  # llama.cpp frees them with the model
            C.llama_model_free(self._model)
            self._model = None


def _adapter_text(adapter: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(4096)
    n = C.llama_adapter_meta_val_str(adapter, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if n > 0 else ""


def _load_mode(options: Options) -> int:
    if options.direct_io:
        return int(C.LLAMA_LOAD_MODE_DIRECT_IO)
    modes = {
        (False, False): C.LLAMA_LOAD_MODE_NONE,
        (True, False): C.LLAMA_LOAD_MODE_MMAP,
        (False, True): C.LLAMA_LOAD_MODE_MLOCK,
        (True, True): C.LLAMA_LOAD_MODE_MMAP_MLOCK,
    }
    return int(modes[options.mmap, options.mlock])


def _tensor_split(options: Options) -> Any:
    if not options.tensor_split:
        return None
    shares = (ctypes.c_float * C.llama_max_devices())()
    for i, share in enumerate(options.tensor_split[: len(shares)]):
        shares[i] = share
    return shares


def _kv_overrides(texts: Sequence[str]) -> Any:
    """KEY=TYPE:VALUE texts, already checked by the options, as a zero-terminated array."""
    if not texts:
        return None
    array = (C.llama_model_kv_override * (len(texts) + 1))()
    for entry, text in zip(array, texts, strict=False):
        key, _, typed = text.partition("=")
        kind, _, value = typed.partition(":")
        entry.key = key.encode()
        if kind == "int":
            entry.tag = C.LLAMA_KV_OVERRIDE_TYPE_INT
            entry.value.val_i64 = int(value)
        elif kind == "float":
            entry.tag = C.LLAMA_KV_OVERRIDE_TYPE_FLOAT
            entry.value.val_f64 = float(value)
        elif kind == "bool":
            entry.tag = C.LLAMA_KV_OVERRIDE_TYPE_BOOL
            entry.value.val_bool = value == "true"
        else:
            entry.tag = C.LLAMA_KV_OVERRIDE_TYPE_STR
            entry.value.val_str = value.encode()
    return array


def _device_list(names: Sequence[str]) -> Any:
    if not names:
        return None
    if list(names) == ["none"]:
        return (ctypes.c_void_p * 1)()
    by_name = _ggml("ggml_backend_dev_by_name", ctypes.c_void_p, ctypes.c_char_p)
    handles = []
    for name in names:
        handle = by_name(name.encode())
        if not handle:
            known = ", ".join(device[0] for device in _devices()) or "none"
            raise BackendError(f"unknown device {name!r} (available: {known})")
        handles.append(handle)
    return (ctypes.c_void_p * (len(handles) + 1))(*handles)


def _llama(name: str, restype: Any, *argtypes: Any) -> Callable[..., Any]:
    """A function of llama.cpp that the bindings do not declare."""
    function: Callable[..., Any] = getattr(C._lib, name)
    function.restype, function.argtypes = restype, list(argtypes)  # type: ignore[attr-defined]
    return function


def _threads(options: Options) -> tuple[int, int]:
    """How many threads generate, and how many evaluate batches."""
    n = options.threads
    if n <= 0:
        n = physical_cores()
        if cpus := options.cpus():
            n = min(n, len(cpus))
    return n, options.threads_batch if options.threads_batch > 0 else n


def _thread_pools(options: Options) -> list[ThreadPool]:
    """One for generating and one for batches; none if llama.cpp's own threads will do."""
    if not options.places_threads():
        return []
    n_threads, n_threads_batch = _threads(options)
    o = options
    batch_priority = o.prio if o.prio_batch < 0 else o.prio_batch
    return [
        ThreadPool(n_threads, o.cpus(), strict=o.cpu_strict == 1, priority=o.prio, poll=o.poll),
        ThreadPool(
            n_threads_batch,
            o.cpus_batch(),
            strict=(o.cpu_strict if o.cpu_strict_batch < 0 else o.cpu_strict_batch) == 1,
            priority=batch_priority,
            poll=o.poll if o.poll_batch < 0 else o.poll_batch,
        ),
    ]


# ---- the context -------------------------------------------------------------------------


def _view(pointer: Any, n: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """`n` elements of llama.cpp's memory as an array, which is good as long as that is."""
    address = ctypes.cast(pointer, ctypes.c_void_p).value
    if address is None:
        raise BackendError("llama.cpp has no logits for this position")
    buffer: Any = (ctypes.c_char * (n * dtype.itemsize)).from_address(address)
    return np.frombuffer(buffer, dtype)


class Context:
    """The KV cache of one model, and one batch that is filled and decoded again and again.

    `n_ctx` is the number of cells of all sequences, `n_ctx_seq` of one sequence, in tokens.
    Raises `BackendError` if there is no memory for it or the options don't fit the model.
    """

    def __init__(self, model: Model, options: Options, n_seq: int, unified: bool) -> None:
        self.model = model
        params = C.llama_context_default_params()
        params.n_ctx = options.ctx_size
        params.n_batch = options.batch_size
        params.n_ubatch = min(options.ubatch_size, options.batch_size)
        params.n_seq_max = n_seq
        params.n_threads, params.n_threads_batch = _threads(options)
        params.rope_scaling_type = _ROPE_SCALING[options.rope_scaling]
        params.rope_freq_base = options.rope_freq_base
        params.rope_freq_scale = (
            1 / options.rope_scale if options.rope_scale else options.rope_freq_scale
        )
        params.yarn_orig_ctx = options.yarn_orig_ctx
        params.yarn_ext_factor = options.yarn_ext_factor
        params.yarn_attn_factor = options.yarn_attn_factor
        params.yarn_beta_slow = options.yarn_beta_slow
        params.yarn_beta_fast = options.yarn_beta_fast
        params.flash_attn_type = _FLASH_ATTENTION[options.flash_attn]
        params.type_k = _KV_TYPES[options.cache_type_k]
        params.type_v = _KV_TYPES[options.cache_type_v]
        params.offload_kqv = options.kv_offload
        params.op_offload = options.op_offload
        params.swa_full = options.swa_full
        params.kv_unified = unified
        params.no_perf = not options.perf
        self._perf = options.perf
        self._pools = _thread_pools(options)
        if options.embeds():
            _set_pooling(params, options)
        _errors.clear()
        self._ctx = C.llama_init_from_model(model._model, params)
        if not self._ctx:
            raise _fail("cannot create the context")
        self._memory = C.llama_get_memory(self._ctx)
        self.moves_pending = False  # whether cells were moved since the last decode
        if not self._memory and not options.embeds():
            self.close()
            raise BackendError("this model can't generate; start the server with --embeddings")
        # A recurrent state is of all tokens before: none of them can be taken out.
        self.can_shift = bool(
            C.llama_memory_can_shift(self._memory)
            and not C.llama_model_is_recurrent(model._model)
            and not C.llama_model_is_hybrid(model._model)
        )
        if self._pools:
            attach = _llama("llama_attach_threadpool", None, *[ctypes.c_void_p] * 3)
            attach(self._ctx, *[pool.handle for pool in self._pools])
        self._apply_control_vectors(options)
        self.n_ctx = int(C.llama_n_ctx(self._ctx))
        self.n_ctx_seq = int(C.llama_n_ctx_seq(self._ctx))
        self.n_batch = int(C.llama_n_batch(self._ctx))
        self._allocate_batch()

    def _apply_control_vectors(self, options: Options) -> None:
        files = [(path, 1.0) for path in options.control_vector] + [*options.control_vector_scaled]
        if not files:
            return
        n_embd, n_layer = self.model.n_embd, self.model.n_layer
        data = control_vector.combine(files, n_embd, n_layer)
        first, last = options.control_vector_layer_range or (1, n_layer)
        pointer = data.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        if C.llama_set_adapter_cvec(self._ctx, pointer, data.size, n_embd, first, last) != 0:
            raise _fail("cannot apply the control vectors")

    def _allocate_batch(self) -> None:
        n = self.n_batch
        self.tokens = np.zeros(n, np.int32)
        self.positions = np.zeros(n, np.int32)
        self.sequences = np.zeros(n, np.int32)
        self.outputs = np.zeros(n, np.int8)
        self._ones = np.ones(n, np.int32)
        # llama_batch.seq_id is an array of pointers; each points to its element of `sequences`.
        addresses = self.sequences.ctypes.data + 4 * np.arange(n, dtype=np.uintp)
        self._addresses = addresses
        batch = C.llama_batch()
        batch.token = self.tokens.ctypes.data_as(ctypes.POINTER(C.llama_token))
        batch.embd = None
        batch.pos = self.positions.ctypes.data_as(ctypes.POINTER(C.llama_pos))
        batch.n_seq_id = self._ones.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = addresses.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(C.llama_seq_id)))
        batch.logits = self.outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._batch = batch

    def decode(self, n_tokens: int) -> None:
        """Evaluate the first `n_tokens` (1..n_batch) of the batch arrays.

        The arrays `tokens`, `positions`, `sequences` and `outputs` (1: logits are wanted) are
        filled by the caller; positions continue each sequence without a gap. Raises
        `OutOfCellsError` if the KV cache is full, and `BackendError` on any other failure, after
        which the cache of the sequences in the batch is undefined.
        """
        self._batch.n_tokens = n_tokens
        status = C.llama_decode(self._ctx, self._batch)
        if status == 1:
            raise OutOfCellsError
        if status != 0:
            raise _fail(f"llama_decode failed ({status})")
        self.moves_pending = False

    @cached_property
    def candidates(self) -> npt.NDArray[np.void]:
        """Room for a choice among all tokens, as an array of `llama_token_data`."""
        return np.zeros(self.model.n_vocab, _CANDIDATE)

    def logits(self, index: int) -> npt.NDArray[np.float32]:
        """The logits (n_vocab,) of batch position `index`, an output of the last decode.

        A view, good until the next decode."""
        row = C.llama_get_logits_ith(self._ctx, index)
        return _view(row, self.model.n_vocab, np.dtype(np.float32))

    def warm_up(self) -> None:
        """Touch every weight once, so that the first request doesn't pay for it."""
        C.llama_set_warmup(self._ctx, True)
        self.tokens[0] = max(self.model.bos, self.model.eos, 0)
        self.positions[0], self.sequences[0], self.outputs[0] = 0, 0, 1
        self.decode(1)
        C.llama_set_warmup(self._ctx, False)
        C.llama_memory_clear(self._memory, True)

    def remove(self, sequence: int, start: int) -> bool:
        """Forget the tokens of `sequence` from position `start` on. False if this kind of
        memory can't be cut there; then nothing was removed."""
        return bool(C.llama_memory_seq_rm(self._memory, sequence, start, -1))

    def cut_out(self, sequence: int, start: int, stop: int) -> bool:
        """Forget the tokens of `sequence` from position `start` up to `stop`, and move those
        behind them to `start`: the next decode rotates their keys. False if this kind of memory
        can't (asked to, llama.cpp would abort); then nothing was changed. The cells must not be
        shared with another sequence, which would find its tokens moved as well."""
        if not self.can_shift:
            return False
        if not C.llama_memory_seq_rm(self._memory, sequence, start, stop):
            return False
        C.llama_memory_seq_add(self._memory, sequence, stop, -1, start - stop)
        self.moves_pending = True
        return True

    def set_adapters(self, scales: Iterable[tuple[int, float]]) -> None:
        """From now on, evaluate with these LoRA adapters: (id, scale) of each."""
        pairs = list(scales)
        handles = [self.model._adapters[id] for id, _ in pairs]
        array = (C.llama_adapter_lora_p_ctypes * len(pairs))(*handles)
        strengths = (ctypes.c_float * len(pairs))(*(scale for _, scale in pairs))
        C.llama_set_adapters_lora(self._ctx, array, len(pairs), strengths)

    def save_sequence(self, sequence: int) -> StateArray:
        """A copy of all that the KV cache holds of `sequence`."""
        state = np.empty(C.llama_state_seq_get_size(self._ctx, sequence), np.uint8)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        n = C.llama_state_seq_get_data(self._ctx, pointer, len(state), sequence)
        return state[:n]

    def restore_sequence(self, sequence: int, state: StateArray, n_tokens: int) -> None:
        """Put a copy back, as `sequence`, which is empty.

        `state` must come from `save_sequence` of the same model. Raises `BackendError` if it
        doesn't fit, or doesn't hold the positions 0 up to `n_tokens`; then `sequence` is empty.
        """
        _errors.clear()
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if not C.llama_state_seq_set_data(self._ctx, pointer, len(state), sequence):
            self.remove(sequence, 0)
            raise _fail("llama.cpp refuses the state")
        if C.llama_memory_seq_pos_max(self._memory, sequence) != n_tokens - 1:
            self.remove(sequence, 0)
            raise BackendError("the state is of another text")

    def close(self) -> None:
        if not self._ctx:
            return
        if self._perf:
            perf = C.llama_perf_context(self._ctx)
            perf_log.info(
                "prompts: %d tokens, %.1f ms; generating: %d decodes, %.1f ms; graphs reused: %d",
                perf.n_p_eval,
                perf.t_p_eval_ms,
                perf.n_eval,
                perf.t_eval_ms,
                perf.n_reused,
            )
        C.llama_free(self._ctx)
        self._ctx = None
        for pool in self._pools:
            pool.close()


def _set_pooling(params: Any, options: Options) -> None:
    params.embeddings = True
    params.pooling_type = _POOLING["rank" if options.reranking else options.pooling]
    # llama.cpp asserts that the micro-batch, or the context if that is smaller (a multiple of
    # 256), can be divided by the number of sequences.
    params.n_seq_max = 1 << (params.n_seq_max - 1).bit_length()
    params.n_ubatch = -(-params.n_ubatch // params.n_seq_max) * params.n_seq_max
    # Pooling looks at one micro-batch, and attention without a causal mask does so as well.
    params.n_batch = params.n_ubatch


class EmbeddingContext(Context):
    """A context that gives vectors rather than logits. `options.embeds()` must hold.

    The cells of all `n_seq` sequences are in one cache: with separate ones llama.cpp cuts
    sequences of different lengths into pieces, which pooling must not see.
    """

    def __init__(self, model: Model, options: Options, n_seq: int) -> None:
        super().__init__(model, options, n_seq, unified=True)
        kinds = {number: name for name, number in _POOLING.items() if name}
        self.pooling: Pooling = kinds[int(C.llama_pooling_type(self._ctx))]
        self.has_memory = bool(self._memory)
        self.is_causal = bool(C.llama_get_causal_attn(self._ctx))
        rank = self.pooling == "rank"
        size = C.llama_model_n_cls_out if rank else C.llama_model_n_embd_out
        self.n_vector = int(size(model._model))
        self.outputs[:] = 1  # pooling needs all of them

    def vectors_of_tokens(self, n_tokens: int) -> Vectors:
        """One for each of the `n_tokens` of the last decode, without pooling."""
        pointer = C.llama_get_embeddings(self._ctx)
        if not pointer:
            raise _fail("the model gave no embeddings")
        return np.ctypeslib.as_array(pointer, (n_tokens, self.n_vector)).copy()

    def vector_of_sequence(self, sequence: int) -> Vectors:
        """What pooling made of the tokens of `sequence` in the last decode: one row."""
        pointer = C.llama_get_embeddings_seq(self._ctx, sequence)
        if not pointer:
            raise _fail("the model gave no embedding")
        return np.ctypeslib.as_array(pointer, (1, self.n_vector)).copy()

    def clear(self) -> None:
        """Forget the tokens of all sequences."""
        C.llama_memory_clear(self._memory, False)


# ---- sampling ----------------------------------------------------------------------------

_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Sampler:
    """A sampler chain for one request, on the CPU.

    `history` are the prompt's tokens, which the penalties look at.
    """

    def __init__(
        self, model: Model, params: GenerationParams, n_ctx: int, history: TokenArray
    ) -> None:
        chain_params = C.llama_sampler_chain_default_params()
        chain_params.no_perf = True
        self._chain = C.llama_sampler_chain_init(chain_params)
        for name, args in plan(params, n_ctx):
            sampler = _make_sampler(model, name, args)
            C.llama_sampler_chain_add(self._chain, sampler)
        size = window(params, n_ctx)
        if size:
            for token in history[-size:].tolist():
                C.llama_sampler_accept(self._chain, token)

    def sample(self, context: Context, index: int, allowed: TokenArray | None = None) -> int:
        """Choose a token from the logits of batch position `index`, which must have been an
        output of the last decode, and remember it for the penalties.

        Of `allowed` tokens (ids in ascending order, at least one) the chain sees no others;
        raises `NoTokenError` if it leaves none of them possible.
        """
        if allowed is None:
            return int(C.llama_sampler_sample(self._chain, context._ctx, index))
        return self._choose(context, index, allowed)[0]

    def sample_among(
        self, context: Context, index: int, allowed: TokenArray | None = None
    ) -> tuple[int, npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The same as `sample`, with the candidates that the chain left, in no order: their
        ids and their probabilities, copied."""
        token, array = self._choose(context, index, allowed)
        # A sampler may have put an array of its own in the place of ours.
        left = _view(array.data, array.size, _CANDIDATE)
        return token, left["id"].copy(), left["p"].copy()

    def _choose(self, context: Context, index: int, allowed: TokenArray | None) -> tuple[int, Any]:
        """The chosen token, and the `llama_token_data_array` that the chain left."""
        logits, candidates = context.logits(index), context.candidates
        size = len(logits) if allowed is None else len(allowed)
        candidates["id"][:size] = np.arange(size) if allowed is None else allowed
        candidates["logit"][:size] = logits if allowed is None else logits[allowed]
        candidates["p"][:size] = 0
        array = C.llama_token_data_array(
            data=candidates.ctypes.data_as(ctypes.POINTER(C.llama_token_data)),
            size=size,
            selected=-1,
            sorted=False,
        )
        C.llama_sampler_apply(self._chain, ctypes.byref(array))
        if allowed is not None and not (
            0 <= array.selected < array.size and array.data[array.selected].logit > -np.inf
        ):
            raise NoTokenError("logit_bias forbids every token that may come next")
        token = int(array.data[array.selected].id)
        C.llama_sampler_accept(self._chain, token)
        return token, array

    def close(self) -> None:
        if self._chain:
            C.llama_sampler_free(self._chain)
            self._chain = None


def _make_sampler(model: Model, name: str, args: tuple[Any, ...]) -> Any:
    match name:
        case "penalties":
            return C.llama_sampler_init_penalties(model.n_vocab, *args)
        case "dry":
            *shape, breakers = args
            texts = [text.encode() for text in breakers]
            array = (ctypes.c_char_p * len(texts))(*texts)
            return C.llama_sampler_init_dry(model._vocab, *shape, array, len(texts))
        case "logit_bias":
            (biases,) = args
            array = (C.llama_logit_bias * len(biases))(*biases)
            return C.llama_sampler_init_logit_bias(model.n_vocab, len(biases), array)
        case "mirostat":
            return C.llama_sampler_init_mirostat(model.n_vocab, *args)
        case _:
            return getattr(C, f"llama_sampler_init_{name}")(*args)
