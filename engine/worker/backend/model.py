"""The weights and the vocabulary of a GGUF file."""

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from llama_cpp import llama_cpp as C

from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions
from specllama.engine.worker.backend import room
from specllama.engine.worker.backend.library import failure, forget_errors, holdings
from specllama.engine.worker.backend.model_params import model_params
from specllama.engine.worker.backend.slices import SLICE, Slicer, Special
from specllama.engine.worker.backend.watch import stepping
from specllama.engine.worker.tokens import TokenArray

# ---- Facts about a model, without its vocabulary.


class ModelFacts:
    """A loaded model, with or without allocated weights."""

    _model: Any

    @property
    def n_ctx_train(self) -> int:
        return int(C.llama_model_n_ctx_train(self._model))

    @property
    def is_recurrent(self) -> bool:
        """True if layers keep a state of all tokens so far, from which no token can be removed."""
        model = self._model
        return bool(C.llama_model_is_recurrent(model) or C.llama_model_is_hybrid(model))

    @property
    def n_swa(self) -> int:
        """The sliding window of attention, in tokens; 0 without one."""
        return int(C.llama_model_n_swa(self._model))

    def moving_window(self, options: EngineOptions) -> int:
        """`n_swa` if cells that have left the window are reused; 0 with `--swa-full`, which keeps
        them."""
        return 0 if options.context.swa_full else self.n_swa

    @property
    def n_embd(self) -> int:
        return int(C.llama_model_n_embd(self._model))

    @property
    def n_embd_inp(self) -> int:
        """The size of an input embedding, which replaces a token."""
        return int(C.llama_model_n_embd_inp(self._model))

    @property
    def uses_mrope(self) -> bool:
        """True for M-RoPE: the tokens of an image share positions with several dimensions."""
        kinds = (C.LLAMA_ROPE_TYPE_MROPE, C.LLAMA_ROPE_TYPE_IMROPE)
        return C.llama_model_rope_type(self._model) in kinds

    @property
    def n_layer(self) -> int:
        return int(C.llama_model_n_layer(self._model))

    @property
    def n_params(self) -> int:
        return int(C.llama_model_n_params(self._model))

    @property
    def size(self) -> int:
        """The size of all tensors in bytes."""
        return int(C.llama_model_size(self._model))

    @property
    def has_decoder(self) -> bool:
        return bool(C.llama_model_has_decoder(self._model))

    @property
    def has_encoder(self) -> bool:
        return bool(C.llama_model_has_encoder(self._model))

    @property
    def has_state(self) -> bool:
        """True if each sequence has a recurrent state, which takes memory of its own."""
        return bool(C.llama_model_is_recurrent(self._model) or C.llama_model_is_hybrid(self._model))


# ---- The special tokens of a vocabulary that llama.cpp searches texts for.


_PARSED = C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
_SPECIAL = _PARSED | C.LLAMA_TOKEN_ATTR_USER_DEFINED
_STRIPS = C.LLAMA_TOKEN_ATTR_LSTRIP | C.LLAMA_TOKEN_ATTR_RSTRIP


def specials(vocab: Any, n_vocab: int) -> list[Special]:
    """All special tokens of `vocab`, a `llama_vocab` of `n_vocab` tokens."""
    found: list[Special] = []
    for token in range(n_vocab):
        attributes = C.llama_vocab_get_attr(vocab, token)
        if attributes & _SPECIAL:
            text = C.llama_vocab_get_text(vocab, token) or b""
            strips, plain = attributes & _STRIPS != 0, attributes & _PARSED == 0
            found.append(Special(text, strips=strips, plain=plain))
    return found


@dataclass(frozen=True, kw_only=True)
class FimTokens:
    """The tokens for filling in the middle; a separator that the vocabulary lacks is None."""

    prefix: int
    suffix: int
    middle: int
    repository: int | None = None
    file: int | None = None


MAX_CHARACTER = 4  # bytes in UTF-8; an unknown character is one token
SLICED = ("gpt2", "llama", "gemma4")
"""Tokenizers that handle the text on each side of a special token independently."""
MAX_INFILL_PIECE = 512  # bytes; limit of llama.cpp's infill sampler


class LoraFile(NamedTuple):
    """A loaded LoRA adapter, with the task name and prompt prefix of its metadata."""

    path: str
    task_name: str
    prompt_prefix: str


class Model(ModelFacts):
    """The weights and the vocabulary of one GGUF file, and its LoRA adapters. An adapter's id is
    its index in `adapters`.

    Raises `BackendError` if a file can't be loaded. `progress` is called with the loaded fraction,
    from 0 to 1.
    """

    def __init__(
        self, path: str, options: EngineOptions, progress: Callable[[float], None] | None = None
    ) -> None:
        params, _kept = model_params(options)

        def on_progress(fraction: float, _user: Any) -> bool:
            stepping.begin("loading the model")  # the next part
            if progress is not None:
                progress(fraction)
            return True

        callback = C.llama_progress_callback(on_progress)
        params.progress_callback = callback
        forget_errors()
        holdings.begin_model()
        self._model = C.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            error = failure(f"cannot load the model {path!r}")
            if room.is_short(str(error)) and (sentence := room.explain_weights(holdings, path)):
                raise BackendError(f"{error}; {sentence}")
            raise error
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
        # -1 if the vocabulary has no such token.
        self.bos: int = C.llama_vocab_bos(self._vocab)
        self.eos: int = C.llama_vocab_eos(self._vocab)
        try:
            self._load_adapters(path for path, _ in options.model.lora)
        except BackendError:
            self.close()
            raise

    @cached_property
    def eog(self) -> frozenset[int]:
        """The tokens that end a text."""
        is_eog = partial(C.llama_vocab_is_eog, self._vocab)
        return frozenset(compress(range(self.n_vocab), map(is_eog, range(self.n_vocab))))

    @cached_property
    def ends_gaps(self) -> bool:
        """True if llama.cpp's infill sampler may be used: it asserts that the vocabulary has an end
        token, and that the texts of all tokens are short."""
        ends = max(C.llama_vocab_eot(self._vocab), C.llama_vocab_eos(self._vocab)) >= 0
        return ends and all(
            len(C.llama_vocab_get_text(self._vocab, token) or b"") <= MAX_INFILL_PIECE
            or len(self.piece(token, special=False)) <= MAX_INFILL_PIECE
            for token in range(self.n_vocab)
        )

    @cached_property
    def fim(self) -> FimTokens | None:
        """The tokens for filling in the middle; None if the vocabulary has none."""
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

    @cached_property
    def longest_piece(self) -> int:
        """The most bytes of text that one token can represent, not counting white space; 0 if there
        is no such bound, as in vocabularies in which an unknown word of any length is one token."""
        if self.vocab_type not in (C.LLAMA_VOCAB_TYPE_SPM, C.LLAMA_VOCAB_TYPE_BPE):
            return 0
        lengths = (len(self._piece(token, True)) for token in range(self.n_vocab))
        return max(MAX_CHARACTER, *lengths)

    @property
    def vocab_type(self) -> int:
        return int(C.llama_vocab_type(self._vocab))

    @property
    def description(self) -> str:
        buffer = ctypes.create_string_buffer(256)
        C.llama_model_desc(self._model, buffer, len(buffer))
        return buffer.value.decode("utf-8", "replace")

    @property
    def ftype(self) -> str:
        """The type of most weights, named by llama.cpp, such as `Q4_K - Medium`."""
        return str(C.llama_ftype_name(C.llama_model_ftype(self._model)).decode())

    @property
    def chat_template(self) -> str:
        return self._template(None)

    @property
    def tool_template(self) -> str:
        """The separate chat template for requests with tools; "" if the model has none."""
        return self._template(b"tool_use")

    @property
    def metadata(self) -> dict[str, str]:
        """The scalar metadata, formatted by llama.cpp, which keeps no lists."""
        model = self._model
        return {
            _meta_text(C.llama_model_meta_key_by_index, model, i): _meta_text(
                C.llama_model_meta_val_str_by_index, model, i
            )
            for i in range(C.llama_model_meta_count(model))
        }

    @property
    def rerank_template(self) -> str:
        """The template with {query} and {document} for reranking; "" if the model has none."""
        return self._template(b"rerank")

    def _template(self, name: bytes | None) -> str:
        text = C.llama_model_chat_template(self._model, name)
        return text.decode("utf-8", "replace") if text else ""

    @property
    def sep(self) -> int:
        """The token that separates two texts; -1 if there is none."""
        return int(C.llama_vocab_sep(self._vocab))

    @property
    def add_sep(self) -> bool:
        return bool(C.llama_vocab_get_add_sep(self._vocab))

    def tokenize(self, text: bytes, *, add_special: bool, parse_special: bool) -> TokenArray:
        """The token ids of the UTF-8 `text`. Runs outside the GIL; may be called from any
        thread."""
        if len(text) <= SLICE:
            return self._tokenize(text, add_special, parse_special)
        slices = [*self._slicer.slices(text, parse_special=parse_special)]
        if len(slices) == 1:
            return self._tokenize(text, add_special, parse_special)
        parts = [self._tokenize(each, False, parse_special) for each in slices]
        if add_special:
            added, n = self._tokenize(b"", True, parse_special), int(self.add_bos)
            parts = [added[:n], *parts, added[n:]]
        return np.concatenate(parts)

    def _tokenize(self, text: bytes, add_special: bool, parse_special: bool) -> TokenArray:
        size = len(text) + 16
        tokens = np.empty(size, np.int32)
        pointer = tokens.ctypes.data_as(ctypes.POINTER(C.llama_token))
        n = C.llama_tokenize(
            self._vocab, text, len(text), pointer, size, add_special, parse_special
        )
        if n < 0:
            raise BackendError(f"cannot tokenize a text of {len(text)} bytes")
        return tokens[:n].copy()

    @cached_property
    def _slicer(self) -> Slicer:
        sliced = self.metadata.get("tokenizer.ggml.model") in SLICED
        return Slicer(specials(self._vocab, self.n_vocab) if sliced else [])

    def piece(self, token: int, *, special: bool) -> bytes:
        """The bytes of `token` (0 <= token < n_vocab); empty for a control token unless
        `special`."""
        key = (token, special)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = self._piece(token, special)
        return piece

    def raw_text(self, token: int) -> bytes:
        """The text of `token` (0 <= token < n_vocab) in the vocabulary's notation, such as
        "▁the"."""
        return C.llama_vocab_get_text(self._vocab, token) or b""

    def is_hidden(self, token: int) -> bool:
        """True if `token` is a control token with a text."""
        return bool(self.piece(token, special=True)) and not self.piece(token, special=False)

    def _piece(self, token: int, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = C.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, special)
        return buffer.raw[:n]

    def detokenize(self, tokens: Iterable[int]) -> bytes:
        """The concatenated pieces, including control tokens."""
        return b"".join([self.piece(token, special=True) for token in tokens])

    def tokenizer_addresses(self) -> tuple[int, int]:
        """Addresses of the vocabulary and of `llama_tokenize`, for native code that calls it."""
        function = ctypes.cast(C._lib.llama_tokenize, ctypes.c_void_p)
        return int(self._vocab), int(function.value or 0)

    def token_text(self, token: int) -> str:
        return self.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def format_chat(
        self, template: str, messages: Sequence[tuple[str, str]], add_generation_prompt: bool
    ) -> str:
        """Render with llama.cpp's built-in formats; `template` is a format's name, or a Jinja text
        that llama.cpp recognizes. Raises `BackendError` if there is no such format."""
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
        """Must run before any context is made, since the context's buffers depend on the
        adapters."""
        for path in paths:
            forget_errors()
            adapter = C.llama_adapter_lora_init(self._model, os.fsencode(path))
            if not adapter:
                raise failure(f"cannot load the LoRA adapter {path!r}")
            if C.llama_adapter_get_alora_n_invocation_tokens(adapter):
                raise BackendError(
                    f"cannot load the LoRA adapter {path!r}: certain words activate it "
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


def _meta_text(function: Callable[..., int], model: Any, index: int) -> str:
    buffer = ctypes.create_string_buffer(256)
    size = function(model, index, buffer, len(buffer))
    if size >= len(buffer):  # truncated
        buffer = ctypes.create_string_buffer(size + 1)
        function(model, index, buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def _adapter_text(adapter: Any, key: str) -> str:
    buffer = ctypes.create_string_buffer(4096)
    n = C.llama_adapter_meta_val_str(adapter, key.encode(), buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace") if n > 0 else ""
