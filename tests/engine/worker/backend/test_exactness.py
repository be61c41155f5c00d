"""The promise of `--reproducible`, and the kernels that keep it."""

import logging
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFReader
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.options.composition import SHIPPED_CONTEXT
from specllama.engine.options.values import OptionError
from specllama.engine.shipped import MODEL_NAME, model_path
from specllama.engine.worker.backend import Context, Model, exactness, initialize
from specllama.engine.worker.backend.exactness import depends_on_batch
from specllama.engine.worker.generation.engine import Engine
from specllama.handlers.options import parse, remarks
from tests.support.options_support import engine_options, layered
from tools.models.build import ensure, ensure_adapter

OTHER = "--model=/not/looked/at.gguf"
SMALL: dict[str, Any] = {"ctx_size": 2048, "threads": 1}


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    initialize()
    model = Model(str(model_path()), engine_options())
    yield model
    model.close()


@pytest.mark.parametrize(
    ("argv", "reproducible"),
    [
        ([], True),
        (["-m", MODEL_NAME], True),
        (["-m", str(model_path())], True),
        ([OTHER], False),
        (["--embeddings"], False),
        (["--reproducible", "off"], False),
        ([OTHER, "--reproducible"], True),
        ([OTHER, "--reproducible", "auto"], False),
    ],
)
def test_the_shipped_model_is_reproducible_and_others_may_be(
    argv: list[str], reproducible: bool
) -> None:
    engine = layered({}, (), argv, files=False).engine
    assert engine.is_reproducible() is reproducible
    assert engine.unified_kv_cache() is not reproducible
    assert engine.cache_types() == ("bf16" if reproducible else "f16", "f16")
    assert bool(engine.irreproducible()) is not reproducible


def test_a_variable_sets_it() -> None:
    on = {"LLAMA_ARG_REPRODUCIBLE": "on"}
    assert layered(on, (), [OTHER], files=False).engine.is_reproducible()
    assert not parse([], {"LLAMA_ARG_REPRODUCIBLE": "off"}).model.engine.is_reproducible()


TYPES = st.sampled_from(["f32", "f16", "bf16", "q8_0", ""])
NEGATABLE = st.sampled_from([None, "--kv-unified", "--no-kv-unified"])


@given(TYPES, TYPES, NEGATABLE, st.sampled_from(["", "--parallel=2"]))
def test_the_users_options_win(k: str, v: str, unified: str | None, slots: str) -> None:
    argv = [f"-ctk={k}" if k else "", f"-ctv={v}" if v else "", unified or "", slots]
    options = parse(["--reproducible", *filter(None, argv)], {})
    found = options.model.engine.cache_types()
    assert found == (k or "bf16", v or ("bf16" if k in ("f16", "f32") else "f16"))
    assert options.model.engine.unified_kv_cache() is (unified == "--kv-unified")


@pytest.mark.parametrize("shifting", ["--context-shift", "--cache-reuse=5"])
def test_keys_that_are_to_be_moved_are_f16(shifting: str) -> None:
    options = parse(["--reproducible", shifting], {})
    assert options.model.engine.cache_types() == ("f16", "bf16")
    name = shifting.partition("=")[0]
    with pytest.raises(OptionError, match=f"{name}: llama.cpp can't move keys"):
        parse(["-ctk", "bf16", shifting], {})


def test_the_memory_of_bf16_keys_cannot_be_shifted(model: Model) -> None:
    """llama.cpp would abort the process."""
    for k, can_shift in (("bf16", False), ("f16", True), ("q8_0", True)):
        context = Context(model, engine_options(cache_type_k=k), 1, True)
        assert context.can_shift is can_shift
        context.close()


@pytest.mark.parametrize(
    "undoing",
    [
        ["-fa", "off"],
        ["-kvu"],
        ["-ctv", "f16", "--context-shift"],
        ["-ctk", "f32", "-ctv", "f32"],
    ],
    ids=lambda argv: " ".join(argv),
)
def test_undoing_it_is_reported(undoing: list[str]) -> None:
    argv = ["--reproducible", *undoing]
    [remark] = remarks(parse(argv, {}), argv, {})
    assert remark.startswith("--reproducible: ")
    assert not remarks(parse(undoing, {}), undoing, {}), "no option asks for it"
    assert not remarks(parse(argv[:1], {}), argv[:1], {})


@pytest.mark.parametrize(
    ("devices", "argv", "stays"),
    [
        ([], [], True),
        (["GPU0"], [], False),
        (["GPU0"], ["--gpu-layers", "3"], False),
        (["GPU0"], ["--gpu-layers", "0"], True),
        (["GPU0"], ["--device", "none"], True),
        (["GPU0"], ["--reproducible"], True),
        (["GPU0"], [OTHER, "--reproducible"], True),
    ],
)
def test_it_is_off_by_itself_where_a_device_has_layers(
    devices: list[str], argv: list[str], stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exactness, "devices", lambda: devices)
    options = layered({}, (), argv, files=False).engine
    assert options.is_reproducible()
    found = exactness.promised(options)
    assert found.is_reproducible() is stays
    assert found.cache_types() == ("bf16" if stays else "f16", "f16")
    assert found.unified_kv_cache() is not stays


def test_slots_of_the_shipped_model_have_the_context_it_was_trained_with(model: Model) -> None:
    [key] = [k for k in GGUFReader(model_path()).fields.values() if "context_length" in k.name]
    assert key.contents() == SHIPPED_CONTEXT
    options = engine_options()
    context = Context(model, options, options.context.n_slots(), options.unified_kv_cache())
    assert context.n_ctx_seq == SHIPPED_CONTEXT
    context.close()


@pytest.mark.parametrize(
    ("options", "depends"),
    [
        ({}, False),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, False),
        ({"cache_type_k": "bf16", "cache_type_v": "f32"}, False),
        ({"context_shift": True}, False),
        ({"cache_type_k": "f16", "cache_type_v": "f16"}, True),
    ],
    ids=str,
)
def test_kernels_that_depend_on_the_batch_are_noticed(
    model: Model, options: dict[str, Any], depends: bool
) -> None:
    context = Context(model, engine_options(**SMALL, **options), n_seq=2, unified=False)
    assert depends_on_batch(context) is depends
    assert depends_on_batch(context) is depends, "the cache is empty again"
    context.close()


def test_weights_that_depend_on_the_batch_are_reported(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "specllama.engine.worker.generation.engine")
    Engine(model, engine_options(**SMALL)).close()
    assert not caplog.messages
    path = str(ensure("tiny-window"))
    options = engine_options(model=path, reproducible="on", **SMALL)
    other = Model(path, options)
    Engine(other, options).close()
    other.close()
    assert "--reproducible is not possible here" in caplog.text


def test_adapters_are_in_force_while_it_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    initialize()
    adapters = tuple((str(ensure_adapter(each, tmp_path)), 1.0) for each in ("lora-a", "lora-b"))
    model = Model(str(model_path()), engine_options(lora=adapters))
    context = Context(model, engine_options(**SMALL), n_seq=2, unified=False)
    steps: list[Any] = []

    def set_adapters(self: Context, scales: Iterable[tuple[int, float]]) -> None:
        steps.append(list(scales))
        applied(self, steps[-1])

    def decode(self: Context) -> None:
        steps.append("decode")
        decoded(self)

    applied, decoded = Context.set_adapters, Context.decode
    monkeypatch.setattr(Context, "set_adapters", set_adapters)
    monkeypatch.setattr(Context, "decode", decode)
    assert not depends_on_batch(context), "weights in Q8_0 don't"
    assert steps == [[(0, 1.0), (1, 1.0)], *["decode"] * 4, []]
    context.close()
    model.close()
