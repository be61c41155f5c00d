"""The projector of a model: libmtmd, which makes embeddings of images and sounds.

libmtmd gets only decoded pixels and samples. It would decode files in this process, and start other
programs for unknown formats.
"""

import ctypes
import logging
import os
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
from llama_cpp import llama_cpp as C
from llama_cpp import mtmd_cpp as M
from msgspec import structs

from specllama.engine import system
from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions
from specllama.engine.wire.devices import CPU, DeviceUse, mib
from specllama.engine.wire.media import Media, MediaKind
from specllama.engine.wire.replies import Modality
from specllama.engine.worker.backend.batch import PreparedChunk, Rows
from specllama.engine.worker.backend.context_setup import FLASH_ATTENTION, threads
from specllama.engine.worker.backend.library import devices, view
from specllama.engine.worker.backend.model import Model
from specllama.engine.worker.backend.model_params import device_handle
from specllama.engine.worker.backend.mtmd_log import failure, forget_errors, listen
from specllama.engine.worker.tokens import TokenArray

if TYPE_CHECKING:
    from specllama.engine.formats.gguf_header import Header

log = logging.getLogger("specllama.engine.projector")

# ---- The memory that a projector will take, estimated from the header of its file.


MOST_TOKENS = 4096
"""Maximum tokens of an image of variable size, unless the file or an option sets it."""
MERGED = 4
"""Patches per token in projectors for images of variable size."""
_ANY_SIZE = ("qwen", "glm4v", "mimovl", "exaone4_5", "youtuvl")
"""Prefixes of the names of projector types with images of variable size."""


def projector_uses(options: EngineOptions) -> list[DeviceUse]:
    """The memory that the projector takes on its device; empty without a projector. The size of the
    weights is exact, the memory for computing the largest image is estimated. Raises `BackendError`
    if the file isn't a projector."""
    media = options.media
    if not media.mmproj:
        return []
    header = projector_header(media.mmproj)

    def number(key: str) -> int:
        value = header.values.get(f"clip.vision.{key}", 0)
        return value if isinstance(value, int) else 0

    patch = max(1, number("patch_size"))
    n_patches = (number("image_size") // patch) ** 2
    if media.image_max_tokens > 0:
        n_patches = max(n_patches, media.image_max_tokens * MERGED)
    elif any(kind.startswith(_ANY_SIZE) for kind in projector_kinds(header)):
        n_patches = max(n_patches, MOST_TOKENS * MERGED)
    n_numbers = 2 * number("feed_forward_length") + 8 * number("embedding_length")
    return [DeviceUse(name=_place(options), compute=header.n_bytes + 4 * n_patches * n_numbers)]


def _place(options: EngineOptions) -> str:
    name = _device(options)
    if name == "none":
        return CPU
    return name or next((name for name, *_ in devices()), CPU)


def _device(options: EngineOptions) -> str:
    """The name of the projector's device; "none" for the CPU, empty for the first device."""
    if not options.media.mmproj_offload:
        return "none"
    return options.media.mmproj_device or next(iter(options.compute.device), "")


MAX_RATIO = 200
"""Maximum ratio of the sides of an image. Beyond it, the models' preprocessing computes sides of 0
pixels or too many tokens; a black border makes the image wide enough."""
MAX_PIXELS = 1 << 27
MIN_SAMPLES = 1600
"""Minimum length of a sound, which is padded with silence: libmtmd asserts more than one sample."""

_OF_PROMPT = frozenset({"hunyuanvl", "deepseek4v"})
"""Projector types whose tokens depend on an image's place in the prompt, so that they can't be
shared between prompts."""
_TYPE_KEYS = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")


class _Opened(NamedTuple):
    """A medium with its libmtmd chunks. Keeps the medium alive, so that its `id` stays unique."""

    media: Media
    natives: list[Any]
    stack: ExitStack


class _Slices:
    """Cuts computation graphs into slices. ggml calls back for each operation, in order, before it
    computes any. When the callback returns True, it computes up to that operation, and calls back
    again."""

    def __init__(self) -> None:
        self._next: Callable[[], int] = lambda: 0
        self._left = 0  # remaining operations of this slice; 0: no limit
        self.callback = C.ggml_backend_sched_eval_callback(self._on_operation)

    def _on_operation(self, tensor: Any, asks: bool, data: Any) -> bool:
        if not asks:
            self._left = self._next()
            return True
        self._left -= 1
        return self._left == 0

    @contextmanager
    def of(self, next_slice: Callable[[], int]) -> Iterator[None]:
        self._next, self._left = next_slice, next_slice()
        try:
            yield
        finally:
            self._next, self._left = (lambda: 0), 0


class Projector:
    """The projector of one file, for one model.

    Raises `BackendError` if the file isn't a projector or doesn't fit the model. `pieces` may be
    called from any thread; calls of `encode` are serialized. A call of `encode` prepares all of its
    chunks first, so several chunks should have at most `batch_tokens` tokens together.
    """

    def __init__(self, path: str, model: Model, options: EngineOptions) -> None:
        listen()
        header = projector_header(path)
        self.path = path
        self.kinds = projector_kinds(header)
        _check_kinds(path, self.kinds)
        self.size = header.n_bytes
        self._model = model
        self._encoding = system.Lock()
        self._opened: dict[int, _Opened] = {}
        self._slices = _Slices()
        params = M.mtmd_context_params_default()
        params.use_gpu, params.device = _placed(options)
        params.print_timings = False
        params.n_threads, _ = threads(options)
        params.flash_attn_type = FLASH_ATTENTION[options.compute.flash_attn]
        params.warmup = options.model.warmup
        params.image_min_tokens = options.media.image_min_tokens
        params.image_max_tokens = options.media.image_max_tokens
        params.cb_eval = self._slices.callback
        self.batch_tokens = params.batch_max_tokens = options.media.mtmd_batch_max_tokens
        forget_errors()
        self._mtmd: Any = M.mtmd_init_from_file(os.fsencode(path), model._model, params)
        if not self._mtmd:
            raise failure(f"cannot load the projector {path!r}")
        self.vision = bool(M.mtmd_support_vision(self._mtmd))
        self.audio = bool(M.mtmd_support_audio(self._mtmd))
        self.sample_rate = max(0, int(M.mtmd_get_audio_sample_rate(self._mtmd)))
        self.uses_mrope = bool(M.mtmd_decode_use_mrope(self._mtmd))
        self.n_embd = model.n_embd_inp
        log.info(
            "projector %s: %s (%s), %s",
            os.path.basename(path),
            " and ".join(self.modalities),
            ", ".join(self.kinds),
            mib(self.size),
        )
        try:
            self._try(warm=options.model.warmup)
        except BackendError:
            self.close()
            raise

    def _try(self, *, warm: bool) -> None:
        """Test the projector before the first request. Raises `BackendError` if the model's
        vocabulary lacks the tokens that the projector needs around media, or if encoding fails."""
        for media in self._samples():
            pieces = self.pieces(media)
            if warm:
                self.encode([piece for piece in pieces if isinstance(piece, PreparedChunk)][:1])

    def _samples(self) -> Iterator[Media]:
        if self.vision:
            yield Media("image", b"", bytes(64 * 64 * 3), 64, 64)
        if self.audio:
            yield Media("audio", b"", bytes(4 * self.sample_rate))

    @property
    def modalities(self) -> list[Modality]:
        senses: dict[Modality, bool] = {"vision": self.vision, "audio": self.audio}
        return [sense for sense, there in senses.items() if there]

    def hears_or_sees(self, kind: MediaKind) -> bool:
        return self.vision if kind == "image" else self.audio

    def pieces(self, media: Media) -> list[TokenArray | PreparedChunk]:
        """The parts of a medium in a text: chunks, and the tokens around them. Cheap, as an image
        isn't encoded here. Raises `BackendError` for an unsupported medium."""
        if not self.hears_or_sees(media.kind):
            raise BackendError(f"the projector {self.path!r} doesn't support {media.kind} input")
        found: list[TokenArray | PreparedChunk] = []
        with self._tokenized(media, with_data=media.kind == "audio") as chunks:
            for chunk in chunks:
                if _is_text(chunk):
                    found.append(self._text(chunk))
                else:
                    index = sum(isinstance(piece, PreparedChunk) for piece in found)
                    found.append(self._prepared(media, index, chunk))
        return found

    @contextmanager
    def _tokenized(self, media: Media, *, with_data: bool) -> Iterator[list[Any]]:
        """A context with libmtmd's chunks of a medium, which are freed at its end."""
        forget_errors()
        bitmaps: list[Any] = []
        chunks = M.mtmd_input_chunks_init()
        try:
            try:
                for frame in _frames(media):
                    bitmaps.append(_bitmap(frame, with_data=with_data))
                    M.mtmd_bitmap_set_mergeable(bitmaps[-1], media.n_frames > 1)
                made = [ctypes.pointer(M.mtmd_input_part(None, each)) for each in bitmaps]
                parts = (ctypes.POINTER(M.mtmd_input_part) * len(made))(*made)
                if M.mtmd_tokenize_from_parts(self._mtmd, chunks, parts, len(made), False) != 0:
                    raise failure(f"cannot prepare the {media.kind}")
            finally:
                for bitmap in bitmaps:
                    M.mtmd_bitmap_free(bitmap)
            n = M.mtmd_input_chunks_size(chunks)
            yield [M.mtmd_input_chunks_get(chunks, i) for i in range(n)]
        finally:
            M.mtmd_input_chunks_free(chunks)

    def _text(self, chunk: Any) -> TokenArray:
        n = ctypes.c_size_t()
        pointer = M.mtmd_input_chunk_get_tokens_text(chunk, ctypes.byref(n))
        tokens = np.ctypeslib.as_array(pointer, (n.value,)).astype(np.int32)
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self._model.n_vocab:
            raise BackendError(
                f"the projector {self.path!r} is of another model: it needs tokens that this "
                "model's vocabulary doesn't have"
            )
        return tokens

    def _prepared(self, media: Media, index: int, chunk: Any) -> PreparedChunk:
        n_tokens = int(M.mtmd_input_chunk_get_n_tokens(chunk))
        if n_tokens < 1:
            raise BackendError(f"the {media.kind} is too small: it becomes no tokens")
        return PreparedChunk(
            media,
            index,
            n_tokens,
            int(M.mtmd_input_chunk_get_n_pos(chunk)),
            bool(M.mtmd_decode_use_non_causal(self._mtmd, chunk)),
            *(self._places(chunk, n_tokens) if self.uses_mrope else ()),
        )

    def _places(
        self, chunk: Any, n_tokens: int
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """The positions of a chunk that begins at position 0, and 1 for each position that moves
        with the chunk. llama.cpp's order is time, row, column."""
        image = M.mtmd_input_chunk_get_tokens_image(chunk)
        if not image:  # a sound: the same in all dimensions
            offsets = np.repeat(np.arange(n_tokens, dtype=np.int32)[:, None], 4, axis=1)
            return offsets, np.ones_like(offsets)
        found = []
        for first in (0, 1):
            positions = (M.mtmd_decoder_pos * n_tokens)()
            M.mtmd_helper_image_get_decoder_pos(image, first, positions)
            array = np.frombuffer(positions, np.uint32).reshape(n_tokens, 4)
            found.append(array[:, [0, 2, 1, 3]].astype(np.int32))
        return found[0], found[1] - found[0]

    def encode(
        self, chunks: Sequence[PreparedChunk], next_slice: Callable[[], int] = lambda: 0
    ) -> list[Rows]:
        """The embeddings (n_tokens, n_embd) of the first of `chunks`: at least one, and as many as
        the projector can compute at once. Runs outside the GIL. Raises `BackendError`.

        `next_slice` is called before each slice of the work, and returns the slice's maximum number
        of graph operations; 0 for no limit. It must not raise.

        Media stay prepared until other ones are encoded, or until `rest`."""
        with self._encoding:
            if not self._mtmd:
                raise BackendError("the projector is unloaded")
            self._release(keep={id(chunk.media) for chunk in chunks})
            natives = [self._native(chunk) for chunk in chunks]
            with self._slices.of(next_slice):
                return self._encode_batch(natives, [chunk.n_tokens for chunk in chunks])

    def _native(self, chunk: PreparedChunk) -> Any:
        if (opened := self._opened.get(id(chunk.media))) is None:
            stack = ExitStack()
            parts = stack.enter_context(self._tokenized(chunk.media, with_data=True))
            natives = [part for part in parts if not _is_text(part)]
            opened = self._opened[id(chunk.media)] = _Opened(chunk.media, natives, stack)
        native = opened.natives[chunk.index]
        if M.mtmd_input_chunk_get_n_tokens(native) != chunk.n_tokens:
            raise BackendError("the projector's token counts of a medium differ")
        return native

    def _release(self, keep: Container[int] = ()) -> None:
        for key in [key for key in self._opened if key not in keep]:
            self._opened.pop(key).stack.close()

    def rest(self) -> None:
        """Free all prepared media: there is nothing to encode now."""
        with self._encoding:
            self._release()

    def _encode_batch(self, natives: Sequence[Any], sizes: Sequence[int]) -> list[Rows]:
        """The embeddings of the first chunks that fit into one batch, at least one."""
        forget_errors()
        batch = M.mtmd_batch_init(self._mtmd)
        try:
            n = 0
            while n < len(natives) and (code := M.mtmd_batch_add_chunk(batch, natives[n])) != 1:
                if code:  # the batch is full, or the chunk has another size
                    break
                n += 1
            if n == 0 or M.mtmd_batch_encode(batch) != 0:
                raise failure("the projector can't encode this")
            return [
                view(
                    M.mtmd_batch_get_output_embd(batch, native),
                    size * self.n_embd,
                    np.dtype(np.float32),
                )
                .reshape(size, self.n_embd)
                .copy()
                for native, size in zip(natives[:n], sizes, strict=False)
            ]
        finally:
            M.mtmd_batch_free(batch)

    def close(self) -> None:
        with self._encoding:
            self._release()
            if self._mtmd:
                M.mtmd_free(self._mtmd)
                self._mtmd = None


def projector_header(path: str) -> "Header":
    """The header of a projector file. Raises `BackendError` if the file isn't a projector, or is
    damaged."""
    # Only here: a start without a projector is faster.
    from specllama.engine.formats.gguf_header import HeaderError, read_header

    try:
        with open(path, "rb") as file:
            header = read_header(file)
    except (HeaderError, OSError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise BackendError(f"cannot load the projector {path!r}: {reason}") from None
    if header.values.get("general.architecture") != "clip":
        raise BackendError(f"cannot load the projector {path!r}: it is another kind of model")
    return header


def projector_kinds(header: "Header") -> tuple[str, ...]:
    """llama.cpp's names of the projector types in the file."""
    return tuple(str(header.values[key]) for key in _TYPE_KEYS if header.values.get(key))


def _check_kinds(path: str, kinds: Sequence[str]) -> None:
    """Raises `BackendError` for an unsupported projector type."""
    for kind in _OF_PROMPT.intersection(kinds):
        raise BackendError(
            f"cannot load the projector {path!r}: images of its kind, {kind}, depend on where in "
            "a prompt they stand, which is not supported; --no-mmproj loads the model without it"
        )


def _placed(options: EngineOptions) -> tuple[bool, int | None]:
    """Whether the projector runs on a GPU, and the GPU's handle (None: the first one)."""
    name = _device(options)
    if name == "none":
        return False, None
    if not name:
        return True, None
    if name not in (known := [each[0] for each in devices()]):
        raise BackendError(
            f"the projector can't run on the device {name!r} (--mmproj-device, or --device; "
            f"available: {', '.join(known) or 'none'})"
        )
    return True, device_handle(name)


def _is_text(chunk: Any) -> bool:
    return bool(M.mtmd_input_chunk_get_type(chunk) == M.MTMD_INPUT_CHUNK_TYPE_TEXT)


def _frames(media: Media) -> Iterator[Media]:
    """The frames of a video as images; any other medium alone. Raises `BackendError`."""
    if media.n_frames == 1:
        yield media
        return
    n_bytes, rest = divmod(len(media.data), max(1, media.n_frames))
    if media.kind != "image" or rest or not n_bytes or media.n_frames < 1:
        raise BackendError("the data of the frames of a video don't match their number")
    for start in range(0, len(media.data), n_bytes):
        rows = media.data[start : start + n_bytes]
        yield structs.replace(media, data=rows, n_frames=1)


def _bitmap(media: Media, *, with_data: bool) -> Any:
    """libmtmd's copy of a medium; without data, an empty one of its size. Raises `BackendError`."""
    if media.kind == "audio":
        samples = _samples_of(media)
        floats = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        return M.mtmd_bitmap_init_from_audio(len(samples), floats if with_data else None)
    width, height = media.width, media.height
    if min(width, height) < 1 or width * height > MAX_PIXELS:
        raise BackendError(f"an image of {width} x {height} pixels can't be used")
    if len(media.data) != width * height * 3:
        raise BackendError("the data of an image doesn't match its size")
    wide, high = max(width, -(-height // MAX_RATIO)), max(height, -(-width // MAX_RATIO))
    if not with_data:
        return M.mtmd_bitmap_init(wide, high, None)
    pixels = np.frombuffer(media.data, np.uint8).reshape(height, width, 3)
    if (wide, high) != (width, height):
        left, top = (wide - width) // 2, (high - height) // 2
        padded = np.zeros((high, wide, 3), np.uint8)
        padded[top : top + height, left : left + width] = pixels
        pixels = padded
    octets = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    return M.mtmd_bitmap_init(wide, high, octets)


def _samples_of(media: Media) -> Rows:
    """The samples, finite and padded to `MIN_SAMPLES`. Raises `BackendError` if there are none."""
    if not media.data or len(media.data) % 4:
        raise BackendError("a sound has no samples")
    samples = np.frombuffer(media.data, "<f4").astype(np.float32)
    np.nan_to_num(samples, copy=False, posinf=1.0, neginf=-1.0)
    np.clip(samples, -1.0, 1.0, out=samples)
    return np.pad(samples, (0, max(0, MIN_SAMPLES - len(samples))))
