"""LoRA adapters and saved slots, with the engine in this process."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.errors import EngineError
from specllama.engine.options import EngineOptions, replaced
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Failed, Finished, SlotDone
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import BackendError, Model, initialize
from specllama.engine.worker.generation.engine import Engine
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import stepped
from tests.support.slots import Slots
from tools.models.build import ensure, ensure_adapter

pytestmark = pytest.mark.usefixtures("orders")

PROMPT = "def read(self, path):"
EXACT: dict[str, Any] = {
    "flash_attn": "off",
    "cache_type_k": "f32",
    "cache_type_v": "f32",
    "threads": 1,
    "kv_unified": True,
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    directory = tmp_path_factory.mktemp("adapters")
    return str(ensure_adapter("lora-random-a", directory)), str(
        ensure_adapter("lora-random-b", directory)
    )


@pytest.fixture(scope="module")
def options(files: tuple[str, str]) -> EngineOptions:
    lora = tuple((path, 1.0) for path in files)
    return engine_options(**EXACT, lora=lora, lora_init_without_apply=True, ctx_size=1024)


@pytest.fixture(scope="module")
def model(options: EngineOptions) -> Iterator[Model]:
    initialize()
    model = Model(str(random_model()), options)
    yield model
    model.close()


def submit(engine: Engine, id: int, **params: Any) -> None:
    wanted = {"temperature": 0.0, "ignore_eos": True, "n_predict": 16, **params}
    engine.submit(engine.preparation.prepare(Submit(id, [PROMPT], GenerationParams(**wanted))))


def finish(engine: Engine) -> dict[int, Finished]:
    done: dict[int, Finished] = {}
    while engine.has_work:
        for event in stepped(engine):
            assert not isinstance(event, Failed), event
            if isinstance(event, Finished):
                done[event.id] = event
    return done


def play(engine: Engine, **params: Any) -> Finished:
    submit(engine, 1, **params)
    return finish(engine)[1]


@pytest.fixture(scope="module")
def base() -> str:
    plain = Model(str(random_model()), engine_options())
    text = play(Engine(plain, engine_options(**EXACT))).text
    plain.close()
    return text


SETS: tuple[list[tuple[int, float]], ...] = (
    [],
    [(0, 1.0)],
    [(1, 1.0)],
    [(0, 1.0), (1, 1.0)],
    [(0, -0.5)],
)


# ---- LoRA ----------------------------------------------------------------------------------


def test_scale_0_is_the_base_model_and_others_are_not(
    model: Model, options: EngineOptions, base: str
) -> None:
    engine = Engine(model, options)
    assert play(engine, lora=[(0, 0.0), (1, 0.0)]).text == base
    texts = [play(engine, lora=scales).text for scales in SETS]
    assert texts[0] == base
    assert len(set(texts)) == len(SETS)
    engine.close()


def test_a_text_under_other_scales_is_missed_for_that(model: Model, options: EngineOptions) -> None:
    engine = Engine(model, options)
    long = PROMPT * 8
    reasons = []
    for scales in (SETS[0], SETS[1], SETS[1], SETS[2]):
        wanted = GenerationParams(n_predict=4, ignore_eos=True, lora=scales)
        engine.submit(engine.preparation.prepare(Submit(1, [long], wanted)))
        timings = finish(engine)[1].timings
        reasons.append((timings.cache_miss_reason, timings.cache_n > 0))
    engine.close()
    assert reasons == [("new", False), ("adapter", False), (None, True), ("adapter", False)]


def test_alternating_and_simultaneous_requests_give_each_its_own_text(
    model: Model, options: EngineOptions
) -> None:
    engine = Engine(model, options)
    alone = [play(engine, lora=scales, cache_prompt=False).text for scales in SETS]
    for _ in range(2):
        for scales, text in zip(SETS, alone, strict=True):
            assert play(engine, lora=scales, id_slot=0).text == text
    for id in range(20):
        submit(engine, id, lora=SETS[id % len(SETS)])
    together = finish(engine)
    assert [together[id].text for id in range(20)] == alone * 4
    engine.close()


def test_cached_prefixes_are_reused_under_the_same_adapters_only(
    model: Model, options: EngineOptions
) -> None:
    engine = Engine(model, options)
    n = play(engine, id_slot=0).n_prompt
    cached = [
        play(engine, id_slot=0, lora=scales).timings.cache_n
        for scales in ([], [(0, 1.0)], [(0, 1.0), (1, 0.0)], [(0, 0.5)], [(0, 0.0)])
    ]
    assert cached == [n - 1, 0, n - 1, 0, n - 1], "the first text is still there"
    engine.close()


def test_the_servers_scales_are_for_requests_without_their_own(
    model: Model, options: EngineOptions, base: str
) -> None:
    engine = Engine(model, options)
    engine.lora.set([(1, 1.0)])
    assert [adapter.scale for adapter in engine.lora.adapters] == [0.0, 1.0]
    with_b = play(engine)
    assert with_b.params.lora == [(0, 0.0), (1, 1.0)]
    assert with_b.text == play(engine, lora=[(1, 1.0)]).text != base
    assert play(engine, lora=[(0, 0.0)]).text == base
    engine.lora.set([(1, 1.0), (2, 1.0)])
    assert [adapter.scale for adapter in engine.lora.adapters] == [0.0, 1.0]
    engine.lora.set([])
    assert play(engine).text == base
    engine.close()


def test_unknown_adapters_mean_nothing(model: Model, options: EngineOptions, base: str) -> None:
    engine = Engine(model, options)
    for id in (-1, 2, 2**31 - 1):
        answer = play(engine, lora=[(id, 1.0)])
        assert answer.params.lora == [(0, 0.0), (1, 0.0)]
        assert answer.text == base
    engine.close()


@pytest.mark.parametrize("scale", [1e6, -1e6, 1e-30])
def test_extreme_scales_generate_something(
    model: Model, options: EngineOptions, scale: float
) -> None:
    engine = Engine(model, options)
    assert play(engine, lora=[(0, scale)], temperature=1.0).n_decoded == 16
    engine.close()


def test_files_that_are_no_adapter_for_this_model(tmp_path: Path, files: tuple[str, str]) -> None:
    other = str(ensure("tiny-spm", tmp_path))
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(Path(files[0]).read_bytes()[:-100])
    larger = str(ensure_adapter("lora-bench-100m", tmp_path))
    for path, what in (
        (str(random_model()), "adapter"),
        (other, "adapter"),
        (str(damaged), ""),
        (larger, "wrong base model|does not exist"),
        (str(tmp_path / "missing"), ""),
    ):
        with pytest.raises(BackendError, match=rf"cannot load the LoRA adapter .*{what}"):
            Model(str(random_model()), engine_options(lora=((path, 1.0),)))


# ---- saved slots ---------------------------------------------------------------------------


def slots(
    loaded: Model, options: EngineOptions, directory: Path, **changes: Any
) -> tuple[Engine, Slots]:
    options = replaced(options, slot_save_path=str(directory), **changes)
    engine = Engine(loaded, options)
    return engine, Slots(engine, options)


@pytest.mark.parametrize("unified", [True, False])
def test_a_restored_slot_saves_the_work(
    model: Model, options: EngineOptions, tmp_path: Path, unified: bool
) -> None:
    engine, actions = slots(model, options, tmp_path, parallel=2, kv_unified=unified)
    first = play(engine, id_slot=0)
    n_tokens = first.n_prompt + first.n_decoded - 1
    saved = actions.act(0, "save")
    assert (saved.n_tokens, saved.n_bytes) == (n_tokens, (tmp_path / "a.bin").stat().st_size)
    assert actions.act(0, "erase").n_tokens == n_tokens
    assert actions.act(0, "erase").n_tokens == 0
    assert play(engine, id_slot=0, n_predict=0).timings.cache_n == 0
    for slot in (0, 1):
        restored = actions.act(slot, "restore")
        assert (restored.n_tokens, restored.n_bytes) == (n_tokens, saved.n_bytes)
        again = play(engine, id_slot=slot)
        assert (again.timings.cache_n, again.text) == (first.n_prompt - 1, first.text)
    engine.close()

    # Like a new process: the file is valid there as well.
    engine, actions = slots(model, options, tmp_path, parallel=2, kv_unified=unified)
    actions.act(1, "restore")
    again = play(engine, id_slot=1)
    assert (again.timings.cache_n, again.text) == (first.n_prompt - 1, first.text)
    engine.close()


def test_an_empty_slot_can_be_saved_and_restored(
    model: Model, options: EngineOptions, tmp_path: Path
) -> None:
    engine, actions = slots(model, options, tmp_path)
    assert actions.act(0, "save").n_tokens == 0
    play(engine, id_slot=0)
    assert actions.act(0, "restore").n_tokens == 0
    assert play(engine, id_slot=0).timings.cache_n == 0
    engine.close()


def test_the_adapters_of_a_saved_text_count(
    model: Model, options: EngineOptions, tmp_path: Path
) -> None:
    engine, actions = slots(model, options, tmp_path)
    n = play(engine, id_slot=0, lora=[(1, 0.5)]).n_prompt
    actions.act(0, "save")
    cached = []
    for scales in ([], [(1, 1.0)], [(1, 0.5)]):
        actions.act(0, "restore")
        cached.append(play(engine, id_slot=0, lora=scales).timings.cache_n)
    assert cached == [0, 0, n - 1]
    engine.close()

    without = engine_options(**EXACT, ctx_size=1024)
    plain = Model(str(random_model()), without)
    engine, actions = slots(plain, without, tmp_path)
    with pytest.raises(EngineError, match="LoRA adapter that is not loaded"):
        actions.act(0, "restore")
    engine.close()
    plain.close()


def test_files_of_other_servers_are_refused_and_the_slot_keeps_its_text(
    model: Model, options: EngineOptions, tmp_path: Path
) -> None:
    engine, actions = slots(model, options, tmp_path)
    play(engine, id_slot=0, n_predict=200)
    actions.act(0, "save")
    engine.close()
    others: list[tuple[dict[str, Any], str]] = [
        ({"cache_type_k": "f16"}, "--cache-type-k"),
        ({"kv_unified": False, "parallel": 4}, "--kv-unified"),
        ({"rope_freq_base": 5000.0}, "--rope-freq-base"),
        ({"ctx_size": 512, "parallel": 4, "kv_unified": True, "model": "x"}, "another model"),
    ]
    for changes, message in others:
        if "model" in changes:
            changes["model"] = options.model.lora[0][0]  # any other file: it is not loaded again
        engine, actions = slots(model, options, tmp_path, **changes)
        n = play(engine, id_slot=0).n_prompt
        with pytest.raises(EngineError, match=message) as caught:
            actions.act(0, "restore")
        assert caught.value.info.type == "invalid_request_error"
        assert play(engine, id_slot=0).timings.cache_n == n - 1
        engine.close()


def test_a_text_that_is_too_long_for_a_slot(
    model: Model, options: EngineOptions, tmp_path: Path
) -> None:
    engine, actions = slots(model, options, tmp_path)
    play(engine, id_slot=0, n_predict=300)
    actions.act(0, "save")
    engine.close()
    engine, actions = slots(model, options, tmp_path, ctx_size=256)
    with pytest.raises(EngineError, match="a slot only 256"):
        actions.act(0, "restore")
    engine.close()


def test_without_room_in_the_cache_it_is_unavailable(
    model: Model, options: EngineOptions, tmp_path: Path
) -> None:
    engine, actions = slots(model, options, tmp_path, ctx_size=512)
    play(engine, id_slot=0, n_predict=250)
    actions.act(0, "save")
    submit(engine, 2, id_slot=1, n_predict=400)
    while engine.slots()[1].n_decoded < 350:
        stepped(engine)
    with pytest.raises(EngineError) as caught:
        actions.act(0, "restore")
    assert caught.value.info.type == "unavailable_error"
    finish(engine)
    engine.close()


def test_a_busy_slot_is_waited_for_and_others_are_not(
    model: Model, options: EngineOptions, tmp_path: Path
) -> None:
    engine, actions = slots(model, options, tmp_path, parallel=2)
    submit(engine, 1, id_slot=0)
    submit(engine, 2, id_slot=0)
    stepped(engine)
    actions.begin(0, "save", id=7)
    actions.begin(0, "erase", id=8)
    actions.begin(0, "erase", id=9)
    actions.begin(1, "erase", id=10)
    for _ in range(4):
        actions.actions.add(actions.tasks.get())
    actions.actions.run()
    assert actions.replies.get().id == 10
    actions.actions.cancel(9)
    order: list[Finished] = []
    while engine.has_work:
        order += [event for event in stepped(engine) if isinstance(event, Finished)]
        actions.actions.run()
    assert [event.id for event in order] == [1, 2]
    assert order[1].timings.cache_n == 0, "both actions came before request 2"
    assert not actions.actions.pending
    done = sorted(
        [actions.replies.get(timeout=SECONDS) for _ in range(2)], key=lambda reply: reply.id
    )
    assert [reply.id for reply in done] == [7, 8]
    assert all(isinstance(reply, SlotDone) and reply.n_tokens > 10 for reply in done)
    engine.close()


def test_without_a_directory_and_without_such_a_slot(model: Model, options: EngineOptions) -> None:
    engine = Engine(model, options)
    with pytest.raises(EngineError) as caught:
        Slots(engine, options).act(0, "erase")
    assert caught.value.info.type == "not_supported_error"
    engine.close()


def test_a_text_with_moved_cells_is_saved_as_such(
    model: Model, options: EngineOptions, tmp_path: Path
) -> None:
    engine, actions = slots(model, options, tmp_path, ctx_size=256, parallel=1, context_shift=True)
    assert play(engine, id_slot=0, n_predict=300, n_keep=4).truncated
    found = engine.scheduler.texts.cached(0)
    assert found is not None
    _, entry = found
    assert 0 < entry.n_exact < len(entry.tokens)
    actions.act(0, "save")
    actions.act(0, "erase")
    actions.act(0, "restore")
    again = engine.scheduler.texts.cached(0)
    assert again is not None
    _, restored = again
    assert restored.n_exact == entry.n_exact
    assert restored.tokens.tolist() == entry.tokens.tolist()
    engine.context.moves_pending = True  # as after a request that ended right after a shift
    assert actions.act(0, "save").n_tokens == entry.n_exact
    engine.close()
