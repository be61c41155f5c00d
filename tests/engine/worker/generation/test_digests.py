"""The blocks of a prompt before its request, and the blocks that are cached after it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.options import EngineOptions, replaced
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Blocks, Finished
from specllama.engine.wire.requests import GetBlocks, Infill, Prompt, Submit
from specllama.engine.wire.stats import BLOCK
from specllama.engine.worker.backend import Model, initialize
from specllama.engine.worker.cache.block_hashes import SIZE
from specllama.engine.worker.generation.engine import Engine
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.playing import GREEDY, play, stepped
from tools.models.build import ensure_adapter

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("orders", "restoring_pays")]

PROMPTS = [f"def function_{i}(self):\n" + f"    self.value_{i} += {i}\n" * 20 for i in range(3)]
MOST = 10_000
PLAIN = GenerationParams()
ADAPTED = GenerationParams(lora=[(0, 1.0)])


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> EngineOptions:
    adapter = str(ensure_adapter("lora-random-a", tmp_path_factory.mktemp("adapters")))
    lora: dict[str, Any] = {"lora": ((adapter, 1.0),), "lora_init_without_apply": True}
    return engine_options(ctx_size=2048, parallel=2, threads=1, warmup=False, **lora)


@pytest.fixture(scope="module")
def model(options: EngineOptions) -> Iterator[Model]:
    initialize()
    model = Model(str(random_model()), options)
    yield model
    model.close()


@pytest.fixture
def start(model: Model, options: EngineOptions) -> Callable[..., Engine]:
    return lambda **changes: Engine(model, replaced(options, **changes))


def blocks(
    engine: Engine,
    prompt: Prompt,
    params: GenerationParams = PLAIN,
    owner: int = 0,
    *,
    private: bool = False,
) -> Blocks:
    return engine.preparation.blocks(GetBlocks(1, prompt, params, owner, private))


def split(data: bytes) -> list[bytes]:
    return [data[at : at + SIZE] for at in range(0, len(data), SIZE)]


def cached(engine: Engine) -> set[bytes]:
    found = split(engine.digest(MOST))
    assert len({*found}) == len(found)
    return {*found}


def ask(engine: Engine, prompt: str, **params: Any) -> Finished:
    return play(engine, [prompt], n_predict=40, **{**GREEDY, **params})[prompt]


@pytest.mark.parametrize("unified", [True, False])
def test_what_is_cached_after_a_request(start: Callable[..., Engine], unified: bool) -> None:
    """All whole blocks of the prompt and of the answer, without the answer's last token, which
    isn't evaluated."""
    engine = start(kv_unified=unified)
    assert not cached(engine)
    before = blocks(engine, [PROMPTS[0]])
    answer = ask(engine, PROMPTS[0])
    assert before.n_tokens == answer.n_prompt
    assert len(split(before.blocks)) == answer.n_prompt // BLOCK > 2
    tokens = engine.model.tokenize(PROMPTS[0].encode(), add_special=True, parse_special=True)
    whole = [*tokens.tolist(), *answer.tokens[:-1]]
    evaluated = blocks(engine, whole)
    assert cached(engine) == {*split(evaluated.blocks)}
    assert evaluated.n_tokens // BLOCK > before.n_tokens // BLOCK
    more = blocks(engine, [*whole, *tokens.tolist()])
    assert more.blocks.startswith(evaluated.blocks)
    assert evaluated.blocks.startswith(before.blocks)


def test_a_prompt_that_continues(start: Callable[..., Engine]) -> None:
    engine = start()
    ask(engine, PROMPTS[0])
    more = split(blocks(engine, [PROMPTS[0] + "\n\n" + PROMPTS[1]]).blocks)
    n = len(split(blocks(engine, [PROMPTS[0]]).blocks))
    assert [each in cached(engine) for each in more[: n + 3]] == n * [True] + 3 * [False]


def test_other_owners_and_adapters_have_no_block_in_common(start: Callable[..., Engine]) -> None:
    engine = start()
    ask(engine, PROMPTS[0])
    kinds: dict[str, dict[str, Any]] = {
        "plain": {},
        "shared": {"owner": 5},
        "private": {"owner": 5, "private": True},
        "of another owner": {"owner": 6, "private": True},
        "adapted": {"params": ADAPTED},
    }
    found = {
        name: {*split(blocks(engine, [PROMPTS[0]], **of).blocks)} for name, of in kinds.items()
    }
    assert found["plain"] == found["shared"] <= cached(engine)
    del found["shared"]
    assert len(set().union(*found.values())) == sum(map(len, found.values()))
    request = engine.preparation.prepare(
        Submit(1, [PROMPTS[0]], GenerationParams(n_predict=1), owner=5, private=True)
    )
    engine.submit(request)
    while engine.has_work:
        stepped(engine)
    assert found["private"] <= cached(engine)
    ask(engine, PROMPTS[0], lora=[(0, 1.0)])
    assert found["adapted"] <= cached(engine)
    assert not found["of another owner"] & cached(engine)


def test_the_server_s_scales_are_those_of_a_request_without(start: Callable[..., Engine]) -> None:
    engine = start()
    plain, adapted = (blocks(engine, [PROMPTS[0]], each) for each in (PLAIN, ADAPTED))
    engine.lora.set([(0, 1.0)])
    assert blocks(engine, [PROMPTS[0]]) == adapted != plain
    engine.lora.set([(0, 0.0)])
    assert blocks(engine, [PROMPTS[0]]) == plain


@pytest.mark.parametrize("cache_ram", [0, 8192])
def test_an_evicted_text_stays_in_host_memory(start: Callable[..., Engine], cache_ram: int) -> None:
    engine = start(ctx_size=512, parallel=1, cache_ram=cache_ram)
    for prompt in PROMPTS[:2]:
        ask(engine, prompt)
    first, second = ({*split(blocks(engine, [prompt]).blocks)} for prompt in PROMPTS[:2])
    assert second <= cached(engine)
    assert (first <= cached(engine)) == (cache_ram > 0)
    assert cache_ram or len(first & cached(engine)) < len(first)
    whole = split(engine.digest(MOST))
    assert split(engine.digest(5)) == whole[:5]
    assert {*whole[:5]} <= second, "the text that was used last comes first"


def test_a_running_text(start: Callable[..., Engine]) -> None:
    engine = start(parallel=1)
    for id in (1, 2):
        params = GenerationParams(n_predict=4, ignore_eos=True)
        engine.submit(engine.preparation.prepare(Submit(id, [PROMPTS[id]], params)))
    first, second = (blocks(engine, [PROMPTS[id]]) for id in (1, 2))
    assert engine.load.n_busy == 0
    assert (engine.load.n_slots, engine.load.n_waiting) == (1, 2)
    assert engine.load.n_tokens_waiting == first.n_tokens + second.n_tokens
    while engine.scheduler.n_generating == 0:
        stepped(engine)
    assert cached(engine) == {*split(first.blocks)}
    load = engine.load
    assert (load.n_busy, load.n_waiting) == (1, 1)
    assert load.n_tokens_waiting == second.n_tokens
    assert min(load.prompt_seconds, load.wait_seconds) > 0
    while engine.has_work:
        stepped(engine)
    load = engine.load
    assert (load.n_busy, load.n_waiting, load.n_tokens_waiting) == (0, 0, 0)
    assert min(load.prompt_seconds, load.step_seconds) > 0
    assert load.wait_seconds == 0


def test_two_engines_compute_the_same(start: Callable[..., Engine]) -> None:
    one, other = start(), start(kv_unified=False, parallel=1)
    for engine in (one, other):
        ask(engine, PROMPTS[1])
    assert cached(one) == cached(other)


# ---- refused prompts ---------------------------------------------------------------------


WRONG: dict[str, Prompt] = {
    "too long": ["x" * 100 + " y" * 5000],
    "an unknown token": [1, 10**6],
    "a gap": Infill(["a"], ["b"]),
    "an unknown token in a gap": Infill([10**6], ["b"]),
}


@pytest.mark.parametrize("prompt", WRONG.values(), ids=WRONG.keys())
def test_the_errors_are_those_of_a_request(start: Callable[..., Engine], prompt: Prompt) -> None:
    preparation = start().preparation

    def outcome(prepare: Callable[[], Any]) -> object:
        try:
            prepare()
        except EngineError as error:
            return error.info
        return None

    of_request = outcome(lambda: preparation.prepare(Submit(1, prompt, PLAIN)))
    assert of_request == outcome(lambda: preparation.blocks(GetBlocks(1, prompt, PLAIN)))
    assert (of_request is None) == (prompt == WRONG["a gap"])


def test_an_empty_prompt(start: Callable[..., Engine]) -> None:
    assert blocks(start(), [""]).n_tokens <= 1
    assert blocks(start(), []) == Blocks(1, 0, b"")
