"""Projectors: their files, the media that they encode, and errors."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader, GGUFWriter
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.wire.devices import CPU
from specllama.engine.wire.media import Media
from specllama.engine.worker.backend import (
    BackendError,
    Model,
    PreparedChunk,
    Projector,
    initialize,
)
from specllama.engine.worker.backend import projector as backend_projector
from specllama.engine.worker.backend.projector import projector_uses
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.tokens import TokenArray
from tests.support.media import image, sound
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tools.models.build import ensure
from tools.models.gguf_file import write_model
from tools.models.recipes import RECIPES

OPTIONS = engine_options(threads=1, ctx_size=512)


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    initialize()
    model = Model(str(random_model()), OPTIONS)
    yield model
    model.close()


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A projector for a model with another embedding."""
    path = tmp_path_factory.mktemp("projectors") / "narrow.gguf"
    recipe: Any = RECIPES["tiny-mmproj"]
    write_model(replace(recipe, n_embd=64), path)
    return path


@pytest.fixture(scope="module")
def both() -> Iterator[Projector]:
    initialize()
    model = Model(str(ensure("random")), OPTIONS)
    projector = Projector(str(ensure("tiny-mmproj-both")), model, OPTIONS)
    yield projector
    projector.close()
    model.close()


def chunks(pieces: list[TokenArray | PreparedChunk]) -> list[PreparedChunk]:
    return [piece for piece in pieces if isinstance(piece, PreparedChunk)]


# ---- files ---------------------------------------------------------------------------------


def refusal(path: Path, name: str = "random") -> str:
    initialize()
    model = Model(str(ensure(name)), OPTIONS)
    try:
        with pytest.raises(BackendError) as caught:
            Projector(str(path), model, OPTIONS)
        message = str(caught.value)
        assert "\n" not in message
        assert str(path) in message
        return message
    finally:
        model.close()


def test_a_projector_of_another_model_is_refused(narrow: Path) -> None:
    assert "mismatch between text model (n_embd = 128) and mmproj (n_embd = 64)" in refusal(narrow)


def test_files_that_are_no_projector_are_rejected(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("not a model")
    assert refusal(text).endswith("it is not a GGUF file")
    assert refusal(tmp_path / "missing.gguf").endswith("No such file or directory")
    assert refusal(ensure("tiny-spm")).endswith("it is another kind of model")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9, 0.999])
def test_a_file_that_was_cut_is_refused(share: float, tmp_path: Path) -> None:
    data = ensure("tiny-mmproj").read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(data[: int(len(data) * share)])
    assert "cannot load the projector" in refusal(path)


def changed(source: Path, path: Path, *, without: str = "", **values: str) -> Path:
    """A copy with other texts in its metadata, and without some tensors."""
    reader = GGUFReader(source)
    writer = GGUFWriter(path, "clip")
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            value = values.get(key.rpartition(".")[2], field.contents())
            sub_type = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(key, value, field.types[0], sub_type)
    for tensor in reader.tensors:
        if not without or without not in tensor.name:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_kinds_that_cannot_be_had_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "changed.gguf"
    for kind, words in (
        ("hunyuanvl", "depend on where in a prompt they stand"),
        ("deepseek4v", "depend on where in a prompt they stand"),
        ("made_up", "unknown projector type: made_up"),
    ):
        assert words in refusal(changed(ensure("tiny-mmproj"), path, projector_type=kind))


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    path = changed(ensure("tiny-mmproj"), tmp_path / "changed.gguf", without="ffn_up.weight")
    assert "unable to find tensor v.blk.0.ffn_up.weight" in refusal(path)


# ---- its properties -------------------------------------------------------------------------


def test_an_engine_reports_its_projectors_media() -> None:
    initialize()
    model = Model(str(ensure("random")), OPTIONS)
    for name, modalities, rate in (
        ("tiny-mmproj", ["vision"], 0),
        ("tiny-mmproj-audio", ["audio"], 16_000),
        ("tiny-mmproj-both", ["vision", "audio"], 16_000),
    ):
        path = ensure(name)
        projector = Projector(str(path), model, OPTIONS)
        engine = Engine(model, OPTIONS, projector)
        info = engine.info
        assert (info.modalities, info.sample_rate) == (modalities, rate)
        assert info.projector == path.name
        assert 0 < info.projector_size < path.stat().st_size
        engine.close()
        with pytest.raises(BackendError, match="unloaded"):
            projector.encode([])
    engine = Engine(model, OPTIONS)
    assert engine.info.modalities == []
    engine.close()
    model.close()


def test_its_memory_is_counted(tmp_path: Path) -> None:
    path = ensure("tiny-mmproj-mrope")
    options = engine_options(mmproj=str(path))
    (use,) = projector_uses(options)
    assert use.name == CPU
    assert use.compute > path.stat().st_size / 2
    (smaller,) = projector_uses(engine_options(mmproj=str(path), image_max_tokens=64))
    assert smaller.compute < use.compute
    assert projector_uses(engine_options()) == []


@pytest.mark.parametrize(
    ("chosen", "name"),
    [
        ({}, "GPU0"),
        ({"device": ("GPU1", "GPU0")}, "GPU1"),
        ({"device": ("GPU1",), "mmproj_device": "GPU0"}, "GPU0"),
        ({"device": ("none",), "mmproj_device": "GPU1"}, "GPU1"),
        ({"device": ("none",)}, CPU),
        ({"mmproj_device": "none"}, CPU),
        ({"mmproj_device": "GPU1", "mmproj_offload": False}, CPU),
    ],
)
def test_its_memory_is_that_of_its_device(
    chosen: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [("GPU0", "", 0, 0), ("GPU1", "", 0, 0)]
    monkeypatch.setattr(backend_projector, "devices", lambda: found)
    (use,) = projector_uses(engine_options(mmproj=str(ensure("tiny-mmproj")), **chosen))
    assert use.name == name


def test_an_unknown_device_is_named(model: Model) -> None:
    for name in ("GPU9", "CPU", "GPU0,GPU1"):
        options = engine_options(threads=1, ctx_size=512, mmproj_device=name)
        with pytest.raises(BackendError, match=f"can't run on the device '{name}'.*available"):
            Projector(str(ensure("tiny-mmproj")), model, options)


# ---- media ---------------------------------------------------------------------------------


def test_equal_images_have_equal_embeddings_and_others_have_others(both: Projector) -> None:
    one, again, other = (chunks(both.pieces(image(seed)))[0] for seed in (1, 1, 2))
    first, second, third = (both.encode([chunk])[0] for chunk in (one, again, other))
    assert np.array_equal(first, second)
    assert np.abs(first - third).mean() > 0.05
    encoded = [both.encode(chunks(both.pieces(sound(seed))))[0] for seed in (1, 2)]
    assert np.abs(encoded[0] - encoded[1]).mean() > 0.05


def test_long_sounds_have_several_chunks(both: Projector) -> None:
    found = chunks(both.pieces(sound(1, seconds=65)))
    assert [(chunk.index, chunk.n_tokens) for chunk in found] == [(0, 75), (1, 75), (2, 75)]
    rows = [both.encode(found[i:])[0] for i in range(3)]
    assert np.abs(rows[0] - rows[1]).mean() > 0.05


def test_images_are_encoded_together(model: Model) -> None:
    projector = Projector(str(ensure("tiny-mmproj-batch")), model, OPTIONS)
    found = [chunks(projector.pieces(image(seed, 64, 64)))[0] for seed in range(5)]
    alone = [projector.encode([chunk])[0] for chunk in found]
    together = projector.encode(found)
    assert len(together) == 5
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
    large = chunks(projector.pieces(image(7, 200, 200)))
    assert len(large) == 5  # four slices and the whole of it
    assert len(projector.encode([*large, *found])) == 10
    projector.close()


@pytest.mark.parametrize(("n_images", "together"), [(0, 1), (1, 1), (2, 2), (3, 3)])
def test_images_are_encoded_together_up_to_a_limit(
    model: Model, n_images: int, together: int
) -> None:
    def opened(limit: int) -> Projector:
        options = engine_options(threads=1, ctx_size=512, mtmd_batch_max_tokens=limit)
        return Projector(str(ensure("tiny-mmproj-batch")), model, options)

    projector = opened(1024)
    size = chunks(projector.pieces(image(0, 64, 64)))[0].n_tokens
    projector.close()
    projector = opened(n_images * size)
    assert projector.batch_tokens == n_images * size, "the encoder keeps to it, too"
    found = [chunks(projector.pieces(image(seed, 64, 64)))[0] for seed in range(5)]
    assert len(projector.encode(found)) == together
    projector.close()


def test_a_projector_that_takes_one_at_a_time_gives_one(both: Projector) -> None:
    found = [chunks(both.pieces(image(seed)))[0] for seed in range(3)]
    assert len(both.encode(found)) == 1
    both.rest()
    assert np.array_equal(both.encode(found[1:])[0], both.encode([found[1]])[0])


@settings(max_examples=40, deadline=None)
@given(width=st.integers(1, 300), height=st.integers(1, 300), long=st.sampled_from([1, 1, 50]))
def test_images_of_any_size(both: Projector, width: int, height: int, long: int) -> None:
    (chunk,) = chunks(both.pieces(image(1, width * long, height)))
    (rows,) = both.encode([chunk])
    assert rows.shape == (16, 128)
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("kind", ["slices", "batch", "whole", "mrope"])
@pytest.mark.parametrize("size", [(1, 1), (1, 10_000), (10_000, 1), (2, 3), (900, 4), (640, 480)])
def test_extreme_images(kind: str, size: tuple[int, int]) -> None:
    initialize()
    model = Model(str(ensure("tiny-mrope" if kind == "mrope" else "random")), OPTIONS)
    limited = engine_options(threads=1, image_max_tokens=256)
    projector = Projector(str(ensure(f"tiny-mmproj-{kind}")), model, limited)
    for chunk in chunks(projector.pieces(image(3, *size))):
        (rows,) = projector.encode([chunk])
        assert rows.shape == (chunk.n_tokens, 128)
        assert np.isfinite(rows).all()
        assert 0 < chunk.n_pos <= chunk.n_tokens
    projector.close()
    model.close()


@pytest.mark.parametrize("n", [1, 2, 100, 1599, 16_000])
def test_short_sounds_and_wild_samples(n: int, both: Projector) -> None:
    samples = np.full(n, 0.5, "<f4")
    samples[::3], samples[1::7] = np.nan, np.inf
    (chunk,) = chunks(both.pieces(Media("audio", b"", samples.tobytes())))
    (rows,) = both.encode([chunk])
    assert np.isfinite(rows).all()


def test_input_that_would_end_the_process_is_rejected(both: Projector) -> None:
    for bad in (
        Media("image", b"", b"", 0, 10),
        Media("image", b"", b"123", 2, 2),
        Media("image", b"", b"", 1 << 20, 1 << 20),
        Media("image", b"", b"", -1, -1),
        Media("image", b"", b"", 1, 1, 2),
        Media("image", b"", bytes(3), 1, 1, 0),
        Media("image", b"", bytes(7), 1, 1, 2),
        Media("image", b"", bytes(12), 1, 1, 2),
        Media("audio", b"", bytes(8), n_frames=2),
        Media("audio", b"", b""),
        Media("audio", b"", b"12345"),
    ):
        with pytest.raises(BackendError):
            both.pieces(bad)


def test_the_wrong_sense_is_refused() -> None:
    initialize()
    model = Model(str(ensure("random")), OPTIONS)
    for name, media in (("tiny-mmproj", sound(1)), ("tiny-mmproj-audio", image(1))):
        projector = Projector(str(ensure(name)), model, OPTIONS)
        with pytest.raises(BackendError, match=f"doesn't support {media.kind} input"):
            projector.pieces(media)
        projector.close()
    model.close()
