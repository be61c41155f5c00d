"""Which models may draft for which, and with which options."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from msgspec.structs import replace

from specllama.engine.options import EngineOptions
from specllama.engine.worker.backend import BackendError, Context, Model, device_uses
from specllama.engine.worker.speculation import draft_loading
from specllama.engine.worker.speculation.draft_loading import draft_options, draft_source
from specllama.engine.worker.speculation.source import Ask
from specllama.engine.worker.speculation.vocabularies import MAX_MORE, difference
from specllama.engine.worker.tokens import TokenBuffer
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.vocabulary_files import with_vocabulary
from tools.models.build import ensure

SHIPPED = str(random_model())


def refusal(model: Model, path: object, **chosen: Any) -> str:
    with pytest.raises(BackendError) as caught:
        draft_source(model, engine_options(model_draft=str(path), ctx_size=1024, **chosen))
    message = str(caught.value)
    assert "\n" not in message
    assert "draft model" in message
    return message


def test_no_draft_model_is_no_source(model: Model) -> None:
    assert draft_source(model, engine_options()) is None


def test_a_model_drafts_for_itself(model: Model) -> None:
    source = draft_source(model, engine_options(model_draft=SHIPPED, ctx_size=1024))
    assert source is not None
    assert source.name == "draft-simple"
    text = model.tokenize(b"def add(a, b):\n", add_special=True, parse_special=False)
    state = source.begin(TokenBuffer(text), ())
    [proposed] = source.propose([Ask(state, 3)])
    assert len(proposed) == 3
    source.close()
    source.close()
    state.detach()


def test_its_memory_stands_beside_that_of_the_model() -> None:
    options = engine_options(ctx_size=1024)
    model = Model(SHIPPED, options)
    context = Context(model, options, 1, unified=False)
    [before] = device_uses()
    source = draft_source(model, engine_options(model_draft=SHIPPED, ctx_size=1024))
    assert source is not None
    [after] = device_uses()
    assert after == replace(before, draft=after.draft)
    assert before.draft == 0
    assert after.draft > before.model + before.kv_cache / 2
    source.close()
    context.close()
    model.close()


def test_files_that_are_no_draft_models(model: Model, tmp_path: Path) -> None:
    half = tmp_path / "half.gguf"
    half.write_bytes(random_model().read_bytes()[:300_000])
    assert "half.gguf" in refusal(model, half)
    assert "none.gguf" in refusal(model, tmp_path / "none.gguf")
    projector = tmp_path / "mmproj.gguf"
    writer = gguf.GGUFWriter(projector, "clip")
    writer.add_tensor("a", np.zeros((4, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "mmproj" in refusal(model, projector)


@pytest.mark.parametrize("name", ["tiny-bert", "tiny-embed", "tiny-rerank"])
def test_models_for_embeddings_do_not_draft(model: Model, name: str) -> None:
    for more in ({}, {"spec_replace": (("a", "b"),)}):
        assert "an embedding model" in refusal(model, ensure(name), **more)


def test_a_context_that_there_is_no_room_for(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise BackendError("cannot create the context: failed to allocate the buffer")

    monkeypatch.setattr(draft_loading, "Context", full)
    message = refusal(model, SHIPPED)
    assert SHIPPED in message
    assert "failed to allocate" in message


def test_devices_are_named_as_for_the_model(model: Model) -> None:
    assert "unknown device 'XPU9'" in refusal(model, SHIPPED, device_draft=("XPU9",))
    assert "'XPU'" in refusal(model, SHIPPED, override_tensor_draft=("a=XPU",))


# ---- vocabularies --------------------------------------------------------------------------


def test_another_vocabulary_is_refused(model: Model) -> None:
    message = refusal(model, ensure("tiny-spm"))
    assert "its vocabulary differs (it is of the kind SPM, not BPE)" in message
    assert "--spec-replace" in message


def other_token(tokens: list[str]) -> list[str]:
    tokens[300], tokens[301] = tokens[301], tokens[300]
    return tokens


def more_tokens(n: int) -> Callable[[list[str]], list[str]]:
    return lambda tokens: tokens + [f"[more{i}]" for i in range(n)]


def first_tokens(tokens: list[str]) -> list[str]:
    return [f"[{i}]" for i in range(5)] + tokens[5:]


@pytest.mark.parametrize(
    ("change", "values", "reason"),
    [
        (other_token, {}, "its token 300 is "),
        (more_tokens(MAX_MORE + 1), {}, "it has "),
        (more_tokens(MAX_MORE), {}, ""),
        (first_tokens, {}, ""),
        (None, {"tokenizer.ggml.add_bos_token": True}, "texts begin with another token"),
        (None, {"tokenizer.ggml.add_eos_token": True}, "texts end with another token"),
    ],
)
def test_vocabularies_are_compared(
    model: Model, tmp_path: Path, change: Any, values: dict[str, bool], reason: str
) -> None:
    values = {
        key: value != model.add_bos if "bos" in key else value for key, value in values.items()
    }
    path = with_vocabulary(random_model(), tmp_path / "other.gguf", change, values)
    other = Model(str(path), engine_options())
    for found in (difference(model, other), difference(other, model)):
        assert found.startswith(reason)
        assert bool(found) == bool(reason)
    other.close()


def test_tokens_of_the_larger_vocabulary_alone(model: Model, tmp_path: Path) -> None:
    path = with_vocabulary(random_model(), tmp_path / "large.gguf", more_tokens(7), {})
    source = draft_source(model, engine_options(model_draft=str(path), ctx_size=1024))
    assert source is not None
    text = TokenBuffer(np.array([5, model.n_vocab + 3], np.int32))
    assert source.propose([Ask(source.begin(text, ()), 3)]) == [[]]
    source.close()


# ---- options ---------------------------------------------------------------------------------


def of_draft(**chosen: Any) -> EngineOptions:
    return draft_options(engine_options(model_draft="d.gguf", model="m.gguf", **chosen))


def test_the_draft_model_has_options_of_its_own() -> None:
    options = of_draft(
        ctx_size=4096, n_gpu_layers=7, lora=(("a", 1.0),), control_vector=("c",), threads=5,
        cache_type_k="q8_0", override_tensor=("a=CPU",), cpu_moe=True, swa_full=False,
        backend_sampling=True, batch_size=99, flash_attn="on", mmap=False,
    )  # fmt: skip
    assert options.model.model == "d.gguf"
    assert options.context_size() == 4096
    assert options.cache_types() == ("f16", "f16")
    assert (options.compute.n_gpu_layers, options.compute.threads) == ("auto", 5)
    assert (options.model.lora, options.model.control_vector) == ((), ())
    assert not options.compute.override_tensor
    assert not options.compute.cpu_moe
    assert not options.sampling.backend_sampling
    assert options.context.swa_full
    # Options that it doesn't have are those of the model.
    assert (options.context.batch_size, options.compute.flash_attn) == (99, "on")
    assert not options.model.mmap
    own = of_draft(
        ctx_size=4096, ctx_size_draft=512, cache_type_k_draft="q8_0", cache_type_v_draft="q4_0",
        n_gpu_layers_draft=3, device_draft=("CUDA1",), split_mode="row", n_cpu_moe_draft=2,
        cpu_moe_draft=True, override_tensor_draft=("b=CPU",),
    )  # fmt: skip
    assert own.context_size() == 512
    assert own.cache_types() == ("q8_0", "q4_0")
    compute = own.compute
    assert (compute.n_gpu_layers, compute.device, compute.split_mode) == (3, ("CUDA1",), "layer")
    assert (compute.n_cpu_moe, compute.cpu_moe, compute.override_tensor) == (2, True, ("b=CPU",))


def test_threads_are_the_models_unless_they_are_said() -> None:
    compute = of_draft(threads=3, threads_batch=5, cpu_mask=(1,), prio=2, poll_batch=7).compute
    assert (compute.threads, compute.threads_batch) == (3, 5)
    assert (compute.cpus(), compute.prio, compute.poll_batch) == ([1], 2, 7)
    compute = of_draft(
        threads=3, threads_batch=5, threads_draft=2, cpu_mask=(1,), cpu_mask_batch=(2,),
        cpu_range_draft=(3, 4), cpu_strict_draft=1, prio_draft=0, prio=2, poll_draft=9,
    ).compute  # fmt: skip
    assert (compute.threads, compute.threads_batch) == (2, 2)
    assert compute.cpus() == compute.cpus_batch() == [3, 4]
    assert (compute.cpu_strict, compute.cpu_strict_batch) == (1, 1)
    assert (compute.prio, compute.prio_batch, compute.poll, compute.poll_batch) == (0, 0, 9, 9)
    compute = of_draft(threads_batch_draft=6, cpu_mask_batch_draft=(5,), prio_batch_draft=1).compute
    assert (compute.threads_batch, compute.cpus_batch(), compute.prio_batch) == (6, [5], 1)
