"""Images and sound through our own path, compared with libmtmd's results."""

import ctypes
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from llama_cpp import llama_cpp, mtmd_cpp
from msgspec import structs

from specllama.engine.options import EngineOptions
from specllama.engine.wire.media import Media
from specllama.engine.worker.backend import (
    BackendError,
    Context,
    Model,
    PreparedChunk,
    Projector,
    initialize,
)
from specllama.engine.worker.tokens import TokenArray
from tests.support.media import frames, image, sound
from tests.support.options_support import engine_options
from tools.models.build import ensure

pytestmark = pytest.mark.slow

Logits = npt.NDArray[np.float32]
Part = bytes | Media

KINDS = {
    "plain": ("random", "tiny-mmproj"),
    "slices": ("random", "tiny-mmproj-slices"),
    "whole": ("random", "tiny-mmproj-whole"),
    "whole and windows": ("tiny-window", "tiny-mmproj-whole"),
    "batches": ("random", "tiny-mmproj-batch"),
    "mrope": ("tiny-mrope", "tiny-mmproj-mrope"),
    "mamba": ("tiny-hybrid", "tiny-mmproj"),
    "sound": ("random", "tiny-mmproj-audio"),
    "both": ("random", "tiny-mmproj-both"),
    "sound with mrope": ("tiny-mrope", "tiny-mmproj-audio"),
}
OPTIONS = engine_options(threads=1, ctx_size=2048, batch_size=128, ubatch_size=64)


class Stage:
    """A model with its projector and a context of several sequences."""

    def __init__(
        self, kind: str, options: EngineOptions = OPTIONS, *, unified: bool = True
    ) -> None:
        initialize()
        model, projector = KINDS[kind]
        self.model = Model(str(ensure(model)), options)
        self.projector = Projector(str(ensure(projector)), self.model, options)
        self.context = Context(self.model, options, 4, unified)
        self.medium = image if self.projector.vision else sound

    def close(self) -> None:
        self.context.close()
        self.projector.close()
        self.model.close()

    def pieces(self, parts: Sequence[Part]) -> list[TokenArray | PreparedChunk]:
        found: list[TokenArray | PreparedChunk] = []
        for part in parts:
            if isinstance(part, bytes):
                found.append(self.model.tokenize(part, add_special=False, parse_special=True))
            else:
                found += self.projector.pieces(part)
        return found

    def evaluate(
        self, parts: Sequence[Part], *, sequence: int = 0, start: int = 0, piece: int = 1 << 20
    ) -> tuple[int, Logits]:
        """The number of tokens then, and the logits of the last one. Causal chunks are evaluated
        `piece` tokens at a time."""
        context, index = self.context, -1
        for part in self.pieces(parts):
            if isinstance(part, PreparedChunk):
                rows = self.projector.encode([part])[0]
                step = part.n_tokens if part.is_whole else min(piece, context.n_batch)
                for at in range(0, part.n_tokens, step):
                    some = rows[at : at + step]
                    index = context.decode_media(sequence, start, part, some, at, output=True)
                start += part.n_tokens
            else:
                for at in range(0, len(part), context.n_batch):
                    some_tokens = part[at : at + context.n_batch]
                    context.batch.clear()
                    index = context.batch.add(some_tokens, start + at, sequence)
                    context.decode()
                start += len(part)
        return start, context.logits(index).copy()

    def genuine(self, parts: Sequence[Part]) -> Logits:
        """The logits that libmtmd's own evaluation of a whole prompt gives, in an own context."""
        context = Context(self.model, OPTIONS, 1, unified=True)
        bitmaps, structs = [], []
        for part in parts:
            if isinstance(part, bytes):
                text = mtmd_cpp.mtmd_input_text(part, len(part), False, True)
                structs.append(mtmd_cpp.mtmd_input_part(ctypes.pointer(text), None))
            else:
                for bitmap in _bitmaps(part):
                    bitmaps.append(bitmap)
                    structs.append(mtmd_cpp.mtmd_input_part(None, bitmap))
        pointers = [ctypes.pointer(struct) for struct in structs]
        array = (ctypes.POINTER(mtmd_cpp.mtmd_input_part) * len(pointers))(*pointers)
        chunks = mtmd_cpp.mtmd_input_chunks_init()
        mtmd, n_past = self.projector._mtmd, llama_cpp.llama_pos(0)
        try:
            assert mtmd_cpp.mtmd_tokenize_from_parts(mtmd, chunks, array, len(pointers), False) == 0
            evaluate = mtmd_cpp.mtmd_helper_eval_chunks
            assert evaluate(mtmd, context._ctx, chunks, 0, 0, 64, True, ctypes.byref(n_past)) == 0
            pointer = llama_cpp.llama_get_logits_ith(context._ctx, -1)
            return np.ctypeslib.as_array(pointer, (self.model.n_vocab,)).copy()
        finally:
            mtmd_cpp.mtmd_input_chunks_free(chunks)
            for bitmap in bitmaps:
                mtmd_cpp.mtmd_bitmap_free(bitmap)
            context.close()


def _bitmaps(media: Media) -> list[Any]:
    """One bitmap, or one for each frame of a video; libmtmd may merge those."""
    if media.n_frames == 1:
        return [_bitmap(media)]
    size = len(media.data) // media.n_frames
    found = []
    for at in range(0, len(media.data), size):
        found.append(_bitmap(structs.replace(media, data=media.data[at : at + size])))
        mtmd_cpp.mtmd_bitmap_set_mergeable(found[-1], True)
    return found


def _bitmap(media: Media) -> Any:
    if media.kind == "audio":
        samples = np.frombuffer(media.data, np.float32).copy()
        floats = samples.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        return mtmd_cpp.mtmd_bitmap_init_from_audio(len(samples), floats)
    pixels = np.frombuffer(media.data, np.uint8).copy()
    octets = pixels.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
    return mtmd_cpp.mtmd_bitmap_init(media.width, media.height, octets)


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = Stage(request.param)
    yield stage
    stage.close()


@pytest.fixture
def stage(shared: Stage) -> Stage:
    for sequence in range(4):
        shared.context.remove(sequence, 0)
    return shared


TEXT = b"Look at this. " * 20


def test_logits_are_those_of_libmtmd(stage: Stage) -> None:
    one, two = stage.medium(1), stage.medium(2)
    prompts: list[list[Part]] = [
        [TEXT, one, b" What do you see?"],
        [b"a", one, b" and ", two, b" and again ", one, b" differ."],
        [one, b" at the beginning"],
        [b"first ", one, two, one, b" in a row"],
    ]
    for prompt in prompts:
        _, logits = stage.evaluate(prompt)
        np.testing.assert_allclose(logits, stage.genuine(prompt), atol=1e-3)
        assert stage.context.remove(0, 0)


def test_frames_of_a_video(stage: Stage) -> None:
    """As many tokens and the same logits as with libmtmd's own merging of frames."""
    if not stage.projector.vision:
        pytest.skip("the projector supports no images")
    texts: list[Part] = [b"Video:", frames(1), b"[0m0.00s]"]
    for pieces in ([*texts, frames(2, 3), b" So?"], [*texts, frames(2, 3), frames(4), b" So?"]):
        parts = [b"See. ", *pieces]
        _, logits = stage.evaluate(parts)
        np.testing.assert_allclose(logits, stage.genuine(parts), atol=1e-3)
        assert stage.context.remove(0, 0)


def test_a_projector_with_temporal_merging_makes_one_image_of_two_frames() -> None:
    for kind, n_images in (("mrope", 1), ("plain", 2)):
        stage = Stage(kind)

        def chunks(media: Media, stage: Stage = stage) -> list[PreparedChunk]:
            found = stage.projector.pieces(media)
            return [piece for piece in found if isinstance(piece, PreparedChunk)]

        [one], two = chunks(image(1)), chunks(frames(1, 2))
        assert [chunk.n_tokens for chunk in two] == [one.n_tokens] * n_images
        assert [chunk.index for chunk in two] == [*range(n_images)]
        [still] = stage.projector.encode(chunks(frames(1, 1))[:1])
        [moving] = stage.projector.encode(two[:1])
        assert (np.abs(still - moving).max() > 1e-3) == (n_images == 1)
        stage.close()


def test_logits_at_the_end_of_a_medium(stage: Stage) -> None:
    """libmtmd returns no logits there. The logits of the text after it show whether they are right,
    and distinguish two media."""
    found = {}
    for seed in (1, 2):
        n, logits = stage.evaluate([b"Here: ", stage.medium(seed)])
        found[seed] = logits
        _, behind = stage.evaluate([b" So what?"], start=n)
        wanted = stage.genuine([b"Here: ", stage.medium(seed), b" So what?"])
        np.testing.assert_allclose(behind, wanted, atol=1e-3)
        stage.context.remove(0, 0)
    assert np.abs(found[1] - found[2]).max() > 0.1


def test_causal_chunks_can_be_evaluated_in_pieces(stage: Stage) -> None:
    prompt: list[Part] = [b"Now ", stage.medium(3), b" yes"]
    wanted = stage.genuine(prompt)
    for piece in (1, 7, 20):
        _, logits = stage.evaluate(prompt, piece=piece)
        np.testing.assert_allclose(logits, wanted, atol=1e-3)
        stage.context.remove(0, 0)


def test_sequences_share_media(stage: Stage) -> None:
    """At the borders of media: cut, copied, cut again and gone on with."""
    one, two = stage.medium(1), stage.medium(2)
    context = stage.context
    before = stage.evaluate([b"Once "])[0]
    behind = stage.evaluate([one], start=before)[0]
    stage.evaluate([b" there was", two, b" and so"], start=behind)
    state = None
    if not context.is_cuttable:  # of a fresh one then, as a checkpoint behind the first medium
        context.remove(1, 0)
        stage.evaluate([b"Once ", one], sequence=1)
        state = context.save(1)
    assert context.copy(0, 2, behind, state)
    _, logits = stage.evaluate([b" upon a time"], sequence=2, start=behind)
    wanted = stage.genuine([b"Once ", one, b" upon a time"])
    np.testing.assert_allclose(logits, wanted, atol=1e-3)
    if context.is_cuttable:
        assert context.first_cut(0) == 0
        assert context.remove(0, before)
        _, logits = stage.evaluate([two, b" else"], start=before)
        wanted = stage.genuine([b"Once ", two, b" else"])
        np.testing.assert_allclose(logits, wanted, atol=1e-3)


def test_states_are_saved_and_restored(stage: Stage) -> None:
    context, one, two = stage.context, stage.medium(1), stage.medium(2)
    prompts: list[list[Part]] = [[b"A ", one, b" B ", two], [b"A ", one, b" B"]]
    for prompt in prompts:
        n, _ = stage.evaluate(prompt)
        state = context.save_sequence(0)
        assert len(state) <= context.state_size(0)
        for sequence in (0, 1, 3):
            context.remove(sequence, 0)
        context.restore_sequence(3, state, n)
        _, logits = stage.evaluate([b" and C"], sequence=3, start=n)
        wanted = stage.genuine([*prompt, b" and C"])
        np.testing.assert_allclose(logits, wanted, atol=1e-3)
        context.remove(3, 0)
        with pytest.raises(BackendError, match="another text"):
            context.restore_sequence(3, state, n - 1)


def test_checkpoints_are_gone_back_to(stage: Stage) -> None:
    context, one = stage.context, stage.medium(1)
    n, _ = stage.evaluate([b"A ", one])
    assert context.first_cut(0) <= n
    state = context.save(0)
    stage.evaluate([b" or", stage.medium(2), b" not"], start=n)
    if state is None or not context.rewind(0, n, state):
        assert context.is_cuttable
        return
    _, logits = stage.evaluate([b" B"], start=n)
    np.testing.assert_allclose(logits, stage.genuine([b"A ", one, b" B"]), atol=1e-3)


def test_separate_caches() -> None:
    stage = Stage("mrope", unified=False)
    n, _ = stage.evaluate([b"A ", image(1)])
    end, _ = stage.evaluate([b" then", image(2)], start=n)
    assert stage.context.copy(0, 1, n)
    assert stage.context.copy(0, 2, end)
    wanted = stage.genuine([b"A ", image(1), b" B"])
    _, logits = stage.evaluate([b" B"], sequence=1, start=n)
    np.testing.assert_allclose(logits, wanted, atol=1e-3)
    wanted = stage.genuine([b"A ", image(1), b" then", image(2), b" B"])
    _, logits = stage.evaluate([b" B"], sequence=2, start=end)
    np.testing.assert_allclose(logits, wanted, atol=1e-3)
    stage.close()


def test_input_that_would_end_the_process_is_rejected(stage: Stage) -> None:
    context, medium = stage.context, stage.medium(1)
    chunk = next(c for c in stage.projector.pieces(medium) if isinstance(c, PreparedChunk))
    rows = stage.projector.encode([chunk])[0]
    for wrong in (rows[:, :64], rows[:0], np.repeat(rows, 20, axis=0)):
        with pytest.raises(BackendError, match="can't be evaluated"):
            context.decode_media(0, 0, chunk, wrong)
    with pytest.raises(BackendError, match="in these pieces"):
        context.decode_media(0, 0, chunk, rows, 1)
    if chunk.is_whole:
        with pytest.raises(BackendError, match="in these pieces"):
            context.decode_media(0, 0, chunk, rows[:3])


def test_other_media_lead_to_other_texts(stage: Stage) -> None:
    def continued(seed: int) -> list[int]:
        stage.context.remove(0, 0)
        n, logits = stage.evaluate([b"Tell me of ", stage.medium(seed), b"\nThis is"])
        tokens: list[int] = []
        for number in range(n, n + 8):
            tokens.append(int(logits.argmax()))
            stage.context.batch.clear()
            index = stage.context.batch.add(tokens[-1:], number, 0)
            stage.context.decode()
            logits = stage.context.logits(index)
        return tokens

    texts = [continued(seed) for seed in (1, 2, 3, 1)]
    assert texts[3] == texts[0]
    assert len(set(map(tuple, texts))) == 3


@pytest.mark.parametrize("n", [1, 3, 1000])
def test_encoding_in_slices_changes_nothing(n: int, stage: Stage) -> None:
    """Encodes in `n` operations, between which other work may happen."""
    (chunk, *_) = [
        piece for piece in stage.pieces([stage.medium(1)]) if isinstance(piece, PreparedChunk)
    ]
    (whole,) = stage.projector.encode([chunk])
    n_slices = 0

    def next_slice() -> int:
        nonlocal n_slices
        n_slices += 1
        return n

    (rows,) = stage.projector.encode([chunk], next_slice)
    assert np.array_equal(rows, whole)
    assert n_slices > 20 / n
    before = n_slices
    stage.projector.encode([chunk])
    assert n_slices == before
