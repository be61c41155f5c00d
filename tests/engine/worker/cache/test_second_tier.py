"""Texts that leave the KV cache and come back, with the engine in this process."""

import logging
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.options import EngineOptions, replaced
from specllama.engine.wire.replies import Finished
from specllama.engine.worker.backend import BackendError, Model, initialize
from specllama.engine.worker.cache import slot_file
from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.disk_cache import DiskCache
from specllama.engine.worker.cache.host_cache import HostCache, KeptText, StateArray
from specllama.engine.worker.cache.origin import Identity
from specllama.engine.worker.cache.second_tier import (
    FIRST_GUESS,
    MIN_TOKENS,
    PASSES,
    SecondTier,
    _Speed,
)
from specllama.engine.worker.cache.texts import OWNER, Key
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.planning import StepPlanner
from specllama.engine.worker.media.registry import MediaRegistry
from specllama.engine.worker.scheduling import idle
from specllama.engine.worker.tokens import TokenArray
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import EXACT, GREEDY, play
from tools.models.build import ensure_adapter

pytestmark = pytest.mark.usefixtures("restoring_pays")

PROMPTS = [f"def function_{i}(self):\n" + f"    self.value_{i} += {i}\n" * 20 for i in range(3)]
N_CTX = 512  # cells: enough for one of the prompts, not for two
IDENTITY = Identity(b"m" * 16, {"--a": "1"}, [b"x" * 16])


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> EngineOptions:
    adapter = str(ensure_adapter("lora-random-a", tmp_path_factory.mktemp("adapters")))
    own = {"ctx_size": N_CTX, "parallel": 1, "threads": 1}
    lora = {"lora": ((adapter, 1.0),), "lora_init_without_apply": True}
    return engine_options(**{**EXACT, **own, **lora})


@pytest.fixture(scope="module")
def model(options: EngineOptions) -> Iterator[Model]:
    initialize()
    model = Model(str(random_model()), options)
    yield model
    model.close()


@pytest.fixture
def start(model: Model, options: EngineOptions) -> Callable[..., Engine]:
    def starting(**changes: Any) -> Engine:
        return Engine(model, replaced(options, **changes))

    return starting


def ask(engine: Engine, prompt: str, **params: Any) -> Finished:
    return play(engine, [prompt], n_predict=12, **{**GREEDY, **params})[prompt]


# ---- host memory -------------------------------------------------------------------------


@pytest.mark.parametrize("unified", [True, False])
def test_a_restored_text_continues_equally(start: Callable[..., Engine], unified: bool) -> None:
    engine = start(kv_unified=unified)
    first = [ask(engine, prompt) for prompt in PROMPTS]
    again = [ask(engine, prompt) for prompt in PROMPTS]
    assert [f.tokens for f in again] == [f.tokens for f in first]
    n_restored = sum(f.n_prompt - 1 for f in again[:2])
    assert [f.timings.prompt_n for f in again] == [1, 1, 1]
    assert engine.stats().n_prompt_restored >= n_restored


def test_a_part_of_a_text_comes_back(start: Callable[..., Engine]) -> None:
    engine, fresh = start(), start(cache_ram=0)
    for prompt in PROMPTS:
        ask(engine, prompt)
    half = PROMPTS[0][: len(PROMPTS[0]) // 2] + "return 1"
    answer = ask(engine, half)
    assert 0 < answer.timings.cache_n < answer.n_prompt - 1
    assert answer.tokens == ask(fresh, half).tokens


def test_without_a_tier_nothing_comes_back(start: Callable[..., Engine]) -> None:
    engine = start(cache_ram=0)
    for prompt in PROMPTS:
        ask(engine, prompt)
    assert ask(engine, PROMPTS[0]).timings.cache_n < MIN_TOKENS
    assert engine.stats().n_prompt_restored == 0


@pytest.mark.parametrize("unified", [True, False])
def test_texts_of_idle_slots_are_saved(start: Callable[..., Engine], unified: bool) -> None:
    """What llama-server's own test of the option asks: a text whose slot was cleared comes back."""
    engine = start(ctx_size=4 * N_CTX, parallel=2, kv_unified=unified, cache_idle_slots=True)
    first = ask(engine, PROMPTS[0], id_slot=0)
    assert engine.stats().n_bytes_cache_ram == 0, "no other request has come"
    ask(engine, PROMPTS[1], id_slot=1)
    assert engine.stats().n_bytes_cache_ram > 0
    again = ask(engine, PROMPTS[0])
    assert (again.tokens, again.timings.prompt_n) == (first.tokens, 1)
    assert (again.timings.cache_ram_n > 0) == unified
    longer = ask(engine, PROMPTS[0] + "return 1")
    assert longer.timings.cache_n >= again.timings.cache_n
    engine.close()


def test_idle_texts_leave_when_they_delay_others(
    start: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StepPlanner, "_compute_seconds", lambda *_: 1e6)
    size = {"ctx_size": 4 * N_CTX, "parallel": 2, "kv_unified": True}
    engine, fresh = start(**size), start(**size, cache_ram=0)
    first = [ask(engine, prompt) for prompt in PROMPTS]
    assert engine.stats().n_bytes_cache_ram == 0, "few cells are idle"
    monkeypatch.setattr(idle, "MIN_CELLS", 8)
    other = ask(engine, "x" + PROMPTS[0])
    assert other.tokens == ask(fresh, "x" + PROMPTS[0]).tokens
    assert engine.stats().n_bytes_cache_ram > 0
    again = [ask(engine, prompt) for prompt in PROMPTS]
    assert [f.tokens for f in again] == [f.tokens for f in first]
    assert [f.timings.cache_n for f in again] == [f.n_prompt - 1 for f in first]
    assert all(f.timings.cache_ram_n > MIN_TOKENS for f in again)
    engine.close()
    fresh.close()


def test_texts_of_idle_slots_need_a_place(
    start: Callable[..., Engine], caplog: pytest.LogCaptureFixture
) -> None:
    start(cache_idle_slots=True, cache_ram=0).close()
    assert "--cache-idle-slots has no effect without --cache-ram" in caplog.text


def test_adapters_are_a_part_of_the_key(start: Callable[..., Engine]) -> None:
    engine = start()
    lora = {"lora": [(0, 1.0)]}
    adapted = ask(engine, PROMPTS[0], **lora)
    ask(engine, PROMPTS[1])
    assert ask(engine, PROMPTS[0]).timings.cache_n < MIN_TOKENS
    again = ask(engine, PROMPTS[0], **lora)
    assert (again.tokens, again.timings.prompt_n) == (adapted.tokens, 1)


# ---- files -------------------------------------------------------------------------------


@pytest.mark.parametrize("cache_ram", [0, 8192])
def test_a_text_outlives_its_engine(
    start: Callable[..., Engine], tmp_path: Path, cache_ram: int
) -> None:
    changes = {"cache_disk": str(tmp_path), "cache_ram": cache_ram}
    engine = start(**changes)
    lora = [{}, {"lora": [(0, 1.0)]}, {}]
    first = [ask(engine, prompt, **more) for prompt, more in zip(PROMPTS, lora, strict=True)]
    engine.close()
    assert len(list(tmp_path.iterdir())) == 3
    engine = start(**changes)
    again = [ask(engine, prompt, **more) for prompt, more in zip(PROMPTS, lora, strict=True)]
    assert [f.tokens for f in again] == [f.tokens for f in first]
    assert [f.timings.prompt_n for f in again] == [1, 1, 1]
    engine.close()
    assert len(list(tmp_path.iterdir())) == 3, "they are there already"


def test_files_of_another_kind_of_cache_are_passed_over(
    start: Callable[..., Engine], tmp_path: Path
) -> None:
    engine = start(cache_disk=str(tmp_path))
    ask(engine, PROMPTS[0])
    engine.close()
    for other in ({"cache_type_k": "f16"}, {"swa_full": True}, {"flash_attn": "on"}):
        engine = start(cache_disk=str(tmp_path), **other)
        assert ask(engine, PROMPTS[0]).timings.cache_n == 0
        engine.close()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_directory_that_is_gone(start: Callable[..., Engine], tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="--cache-disk: "):
        start(cache_disk=str(tmp_path / "none"))


def text(n: int, first: int = 0, key: Key = (), n_bytes: int = 100) -> KeptText:
    state = np.random.default_rng(n).integers(0, 256, n_bytes, np.uint8)
    return KeptText(np.arange(first, first + n, dtype=np.int32), key, state)


def disk_cache(directory: Path, limit: int = 1 << 20, **changes: Any) -> DiskCache:
    identity = Identity(**{**vars(IDENTITY), **changes})
    return DiskCache(str(directory), limit, identity, MediaRegistry(), lambda n: 0)


def finish(disk: DiskCache) -> None:
    disk.close(time.monotonic() + SECONDS)
    disk.poll()


def write(directory: Path, *texts: KeptText) -> list[Path]:
    disk = disk_cache(directory)
    for one in texts:
        disk.write(one)
    finish(disk)
    return sorted(directory.glob("*.kv"), key=lambda path: path.stat().st_size)


def fetch(disk: DiskCache, wanted: KeptText) -> KeptText | None:
    while (stored := disk.find(wanted.tokens, wanted.key)) is not None:
        if (found := disk.fetch(stored)) is not None:
            return found
        disk.wait(SECONDS)
    return None


def test_files_return_written_data(tmp_path: Path) -> None:
    texts = [text(5), text(7, 100, ((0, 0.5),))]
    write(tmp_path, *texts)
    disk = disk_cache(tmp_path)
    for one in texts:
        found = fetch(disk, one)
        assert found is not None
        assert (found.tokens.tolist(), found.key) == (one.tokens.tolist(), one.key)
        assert found.state.tobytes() == one.state.tobytes()
        disk.use(found)
    assert disk.find(texts[1].tokens, ()) is None
    finish(disk)


@pytest.mark.parametrize(
    "changes",
    [{"model": b"n" * 16}, {"settings": {"--a": "2"}}, {"adapters": [b"y" * 16]}],
    ids=lambda changes: ",".join(changes),
)
def test_files_of_others_are_passed_over(tmp_path: Path, changes: dict[str, Any]) -> None:
    write(tmp_path, text(5, key=((0, 0.5),)))
    disk = disk_cache(tmp_path, **changes)
    assert len(disk) == 0
    finish(disk)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_prefix_is_of_no_use_beside_a_longer_text(tmp_path: Path) -> None:
    [path] = write(tmp_path, text(5), text(9), text(7))
    _, tokens, _ = slot_file.read_head(str(tmp_path), path.name)
    assert len(tokens) == 9


def test_the_same_text_with_checkpoints_takes_the_place(tmp_path: Path) -> None:
    state = np.arange(9, dtype=np.uint8)
    plain = text(9)
    rich = replace(plain, first_cut=9, checkpoints=(Checkpoint(4, state), Checkpoint(6, state)))
    write(tmp_path, plain)
    for _ in range(2):
        disk = uncuttable(tmp_path)
        disk.write(rich)
        disk.write(plain)
        disk._thread.submit(int).result()
        found = fetch(disk, replace(rich, tokens=rich.tokens[:5]))
        assert found is not None
        assert [(each.n, each.state.tobytes()) for each in found.checkpoints] == [
            (4, state.tobytes()),
            (6, state.tobytes()),
        ]
        assert found.first_cut == 9
        finish(disk)
        assert len(list(tmp_path.iterdir())) == 1
    stored = [uncuttable(tmp_path).find(plain.tokens[:n], ()) for n in (3, 5, 8, 9)]
    assert [each.n if each else 0 for each in stored] == [0, 4, 6, 9]


def test_checkpoints_for_which_there_is_no_room(tmp_path: Path) -> None:
    one = text(9, n_bytes=1000)
    checkpoints = tuple(Checkpoint(n, np.zeros(1000, np.uint8)) for n in (2, 4, 8))
    disk = uncuttable(tmp_path, limit=3500)
    disk.write(replace(one, first_cut=9, checkpoints=checkpoints))
    finish(disk)
    [path] = tmp_path.iterdir()
    assert slot_file.read_head(str(tmp_path), path.name)[2] == (4, 8)


def uncuttable(directory: Path, limit: int = 1 << 20) -> DiskCache:
    return DiskCache(str(directory), limit, IDENTITY, MediaRegistry(), lambda n: n)


def test_the_oldest_files_give_way(tmp_path: Path) -> None:
    texts = [text(5, 100 * i, n_bytes=2000) for i in range(4)]
    disk = disk_cache(tmp_path, limit=8000)
    for i, one in enumerate(texts[:3]):
        disk.write(one)
        name = disk._name(one.tokens, one.key)
        disk._thread.submit(os.utime, tmp_path / name, (1000 + i, 1000 + i)).result()
    assert disk.covers(texts[0].tokens, ()), "used again"
    disk.write(texts[3])
    finish(disk)
    assert [disk.find(one.tokens, ()) is not None for one in texts] == [True, False, True, True]
    disk = disk_cache(tmp_path, limit=100)
    disk.write(text(5, 900, n_bytes=2000))
    finish(disk)
    assert len(list(tmp_path.iterdir())) == 3, "larger than all that may be kept"


def test_two_servers_use_one_directory(tmp_path: Path) -> None:
    one, two = disk_cache(tmp_path), disk_cache(tmp_path)
    ours, theirs = text(5), text(5, 100)
    one.write(ours)
    finish(one)
    two.write(theirs)
    two._thread.submit(int).result()
    two.poll()
    found = fetch(two, ours)
    assert found is not None
    two.use(found)
    for path in tmp_path.iterdir():
        path.unlink()
    assert fetch(two, ours) is None
    finish(two)


def test_damaged_files_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one = text(40)
    [path] = write(tmp_path, one)
    good = path.read_bytes()
    damaged = [b"", b"x", good[:-1], good[:30], good[: len(good) // 2], good + b"x"]
    damaged += [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(len(good))]
    for data in damaged[:: max(1, len(damaged) // 80)] + damaged[:6]:
        path.write_bytes(data)
        disk = disk_cache(tmp_path)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert fetch(disk, one) is None
        finish(disk)
    path.write_bytes(good)
    path.rename(tmp_path / f"{'0' * 64}.kv")
    (tmp_path / f"{'1' * 64}.kv").mkdir()
    (tmp_path / f"{'2' * 64}.kv").symlink_to(path)
    (tmp_path / "README").write_text("ours")
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        disk = disk_cache(tmp_path)
    assert len(disk) == 0
    assert "is ignored: its name is that of another text" in caplog.text
    finish(disk)


def test_leftovers_of_a_killed_server_are_removed(tmp_path: Path) -> None:
    old, new = tmp_path / ".slot-old.part", tmp_path / ".slot-new.part"
    for path in (old, new):
        path.write_bytes(b"...")
    os.utime(old, (1000, 1000))
    finish(disk_cache(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == [new.name]


def test_a_disk_that_refuses_is_no_disaster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*args: object, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    disk = disk_cache(tmp_path)
    monkeypatch.setattr(os, "replace", full)
    disk.write(text(5))
    finish(disk)
    assert len(disk) == 0
    assert list(tmp_path.iterdir()) == []
    assert "No space left on device" in caplog.text


# ---- the rules ---------------------------------------------------------------------------


class FakeStates:
    """Saving takes no time, and is of any size."""

    def __init__(self, n_bytes: int = 1000) -> None:
        self.n_bytes = n_bytes
        self.refuses = False
        self.is_full = False
        self.restored: list[int] = []

    def state_size(self, sequence: int) -> int:
        return self.n_bytes

    def first_cut_of_copy(self, n_tokens: int) -> int:
        return 0

    def save_sequence(self, sequence: int) -> StateArray:
        if self.is_full:
            raise BackendError("there is no memory")
        return np.zeros(100, np.uint8)

    def restore_sequence(self, sequence: int, state: StateArray, n_tokens: int) -> None:
        if self.refuses:
            raise BackendError("no")
        self.restored.append(n_tokens)


def tier(states: FakeStates, limit: int | None = None, **changes: Any) -> SecondTier:
    arguments: dict[str, Any] = {
        "is_busy": lambda: False,
        "compute_seconds": lambda n, start: 0.001 * n,
        "max_stall": 0.01,
        **changes,
    }
    return SecondTier(states, HostCache(limit), None, **arguments)


def ids(n: int, first: int = 0) -> TokenArray:
    return np.arange(first, first + n, dtype=np.int32)


def test_saving_delays_no_generation() -> None:
    for busy, n_bytes, is_kept in (
        (True, 1_000_000_000, False),
        (False, 1_000_000_000, True),
        (True, 1_000, True),
    ):
        one = tier(FakeStates(n_bytes), is_busy=lambda busy=busy: busy)
        one.offer(0, ids(100), ())
        assert (one.find(ids(100), (), 0) is not None) == is_kept


@pytest.mark.parametrize("is_busy", [True, False])
def test_idle_texts_leave_when_they_have_cost_as_much_as_the_copy(is_busy: bool) -> None:
    """A copy of 1,000 bytes there and back takes two microseconds, and so does the attention over
    the cells of two rows, as a token takes 20 ms."""
    one = tier(
        FakeStates(),
        is_busy=lambda: is_busy,
        compute_seconds=lambda n, start: 1e-6 * PASSES * n,
    )
    assert not one.is_worth(100, 1000, 1.9)
    assert one.is_worth(100, 1000, 2.1)
    for compute_seconds in (0.0, 1e-9):
        one = tier(FakeStates(), compute_seconds=lambda n, start, each=compute_seconds: each * n)
        assert not one.is_worth(100, 10_000_000, 1000), "the times are unknown, or it is no gain"


def test_idle_texts_leave_in_the_time_that_a_step_has() -> None:
    size = 2_000_000_000  # two seconds
    for is_busy, n_bytes, are_worth in (
        (True, size, [False, False]),
        (True, size // 400, [True, True, False]),
        (False, size, [True, False]),
        (False, size // 4, [True, True, False]),
    ):
        states = FakeStates(n_bytes)
        one = tier(states, is_busy=lambda is_busy=is_busy: is_busy)
        for _ in range(2):
            one.begin_step()
            for worth in are_worth:
                assert one.is_worth(10_000, n_bytes, 1e12) == worth
                one._stall += n_bytes * 1e-9 if worth else 0.0


def test_a_text_that_has_no_place_in_host_memory_is_not_copied_for_nothing() -> None:
    one = tier(FakeStates(1000), limit=1000)
    assert one.is_worth(100, 1000, 1e12)
    assert not one.is_worth(100, 1001, 1e12)


def test_one_slow_copy_has_no_effect_on_the_speed() -> None:
    speed = _Speed()
    assert speed.each == FIRST_GUESS
    found = []
    for seconds in (2.0, 0.5, 0.5, 2.0, 0.5, 2.0, 2.0):
        speed.observe(1, seconds)
        found.append(speed.each)
    assert found == [FIRST_GUESS, 0.5, 0.5, 0.5, 0.5, 0.5, 2.0]


def test_short_texts_and_small_gains_are_not_worth_it() -> None:
    one = tier(FakeStates())
    one.offer(0, ids(MIN_TOKENS - 1), ())
    assert one.find(ids(MIN_TOKENS), (), 0) is None
    one.offer(0, ids(100), ())
    assert one.find(ids(100), (), 100 - MIN_TOKENS + 1) is None
    assert one.find(ids(100), (), 100 - MIN_TOKENS) is not None


def test_texts_that_are_faster_to_compute_are_not_restored() -> None:
    one = tier(FakeStates(), compute_seconds=lambda n, start: 1e-12 * n)
    one.offer(0, ids(100), ())
    assert one.find(ids(100), (), 0) is None


def test_states_that_llama_cpp_rejects_are_forgotten() -> None:
    states = FakeStates()
    one = tier(states)
    one.offer(0, ids(100), ())
    found = one.find(ids(60), (), 0)
    assert found is not None
    assert (found.n, found.length) == (60, 100)
    assert one.restore(3, found) == ()
    states.refuses = True
    assert one.restore(3, found) is None
    assert one.find(ids(60), (), 0) is None
    assert states.restored == [100]


def test_a_text_is_not_kept_without_memory_for_it() -> None:
    states = FakeStates()
    one = tier(states)
    states.is_full = True
    one.offer(0, ids(100), ())
    assert one.find(ids(100), (), 0) is None
    states.is_full = False
    one.offer(0, ids(100), ())
    assert one.find(ids(100), (), 0) is not None


def test_a_text_that_has_an_owner_goes_into_no_file(tmp_path: Path) -> None:
    owned = text(3000, key=((OWNER, 7.0),))
    assert not write(tmp_path, owned)
