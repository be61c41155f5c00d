"""Images and sound through our own path, beside what libmtmd makes of them by itself."""

import ctypes
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pytest
from llama_cpp import llama_cpp, mtmd_cpp

from engine.options import EngineOptions
from engine.protocol.media import Media
from engine.worker.backend import Context, Model, PreparedChunk, Projector, initialize
from engine.worker.tokens import TokenArray
from tests.support.media import image, sound
from tests.support.options_support import engine_options
from tools.models.build import ensure

Logits = npt.NDArray[np.float32]
Part = bytes | Media

KINDS = {
    "plain": ("embedded", "tiny-mmproj"),
    "slices": ("embedded", "tiny-mmproj-slices"),
    "whole": ("embedded", "tiny-mmproj-whole"),
    "whole and windows": ("tiny-window", "tiny-mmproj-whole"),
    "mrope": ("tiny-mrope", "tiny-mmproj-mrope"),
    "mamba": ("tiny-hybrid", "tiny-mmproj"),
    "sound": ("embedded", "tiny-mmproj-audio"),
    "both": ("embedded", "tiny-mmproj-both"),
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
                bitmaps.append(_bitmap(part))
                structs.append(mtmd_cpp.mtmd_input_part(None, bitmaps[-1]))
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


def _bitmap(media: Media) -> object:
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


def test_logits_at_the_end_of_a_medium(stage: Stage) -> None:
    """libmtmd gives no logits there: those of the text behind it say whether they are right, and
    of two media one can tell which it was."""
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
