"""Texts with media are the same, whatever was served before and is served at the same time."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest

from specllama.engine.errors import EngineError
from specllama.engine.options import EngineOptions
from specllama.engine.params import GenerationParams
from specllama.engine.wire.link import Link
from specllama.engine.wire.media import Media
from specllama.engine.wire.replies import Event, Failed, Finished, SlotDone
from specllama.engine.wire.requests import (
    GetBlocks,
    PromptParts,
    Submit,
    Tokenize,
    to_engine_decoder,
)
from specllama.engine.worker.backend import (
    BackendError,
    Model,
    PreparedChunk,
    Projector,
    Rows,
    initialize,
    sampler,
)
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.worker import Worker
from tests.support.media import image, sound
from tests.support.options_support import engine_options
from tests.support.playing import EXACT, GREEDY, stepped
from tests.support.slots import Slots
from tools.models.build import ensure

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("orders", "restoring_pays"),
    pytest.mark.covering(1),
]

KINDS = {
    "plain": ("random", "tiny-mmproj"),
    "slices": ("random", "tiny-mmproj-slices"),
    "whole": ("random", "tiny-mmproj-whole"),
    "whole and windows": ("tiny-window", "tiny-mmproj-whole"),
    "mrope": ("tiny-mrope", "tiny-mmproj-mrope"),
    "recurrent": ("tiny-hybrid", "tiny-mmproj"),
    "sound": ("random", "tiny-mmproj-audio"),
}
SMALL: dict[str, Any] = {**EXACT, "ctx_size": 2048, "parallel": 1, "warmup": False}
Key = tuple[int | str, ...]
"""A prompt: texts, and numbers of media."""


class Stage:
    """A model, and engines on it that see or hear."""

    def __init__(self, kind: str) -> None:
        initialize()
        model, self._projector = KINDS[kind]
        self.medium = sound if kind == "sound" else image
        self._file = str(ensure(model))
        self.model = Model(self._file, engine_options())
        self._alone: dict[tuple[Key, int], list[int]] = {}

    def options(self, **options: Any) -> EngineOptions:
        files = {"model": self._file, "mmproj": str(ensure(self._projector))}
        return engine_options(**{**SMALL, **files, **options})

    def engine(self, **options: Any) -> Engine:
        chosen = self.options(**options)
        return Engine(
            self.model, chosen, Projector(str(ensure(self._projector)), self.model, chosen)
        )

    def alone(self, key: Key, n_predict: int) -> list[int]:
        """The tokens that an engine says that has seen nothing else."""
        if (key, n_predict) not in self._alone:
            engine = self.engine()
            (finished,) = play(engine, [self.prompt(*key)], n_predict=n_predict)
            engine.close()
            self._alone[key, n_predict] = finished.tokens
        return self._alone[key, n_predict]

    def prompt(self, *key: int | str) -> PromptParts:
        return [each if isinstance(each, str) else self.medium(each) for each in key]

    def check(self, engine: Engine, *keys: Key, n: int = 12) -> list[Finished]:
        """Together, each of them gets the text that it gets alone."""
        results = play(engine, [self.prompt(*key) for key in keys], n_predict=n)
        for key, finished in zip(keys, results, strict=True):
            assert finished.tokens == self.alone(key, n), key
        return results


def play(engine: Engine, prompts: Sequence[PromptParts], **params: Any) -> list[Finished]:
    events: list[Event] = []
    for id, prompt in enumerate(prompts, start=1):
        given = GenerationParams(**{**GREEDY, **params})
        events += engine.submit(engine.preparation.prepare(Submit(id, prompt, given, group=id)))
    while engine.has_work:
        events += stepped(engine)
    assert not [event for event in events if isinstance(event, Failed)]
    found = {event.id: event for event in events if isinstance(event, Finished)}
    return [found[id] for id in range(1, len(prompts) + 1)]


@pytest.fixture(scope="module", params=[*KINDS])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    stage = Stage(request.param)
    yield stage
    stage.model.close()


@pytest.fixture(scope="module")
def plain() -> Iterator[Stage]:
    stage = Stage("plain")
    yield stage
    stage.model.close()


TURN = ("What is it? ", 1, " A dog.")


def test_several_turns(stage: Stage) -> None:
    engine = stage.engine()
    first, second, third = (
        stage.check(engine, TURN),
        stage.check(engine, (*TURN, " And ", 2, "?")),
        stage.check(engine, (*TURN, " And ", 2, "? A cat. And ", 1, 1, "?")),
    )
    assert first[0].timings.cache_n == 0
    assert second[0].timings.cache_n > 10
    assert third[0].timings.cache_n >= second[0].timings.cache_n


@pytest.mark.parametrize("unified", [True, False])
def test_in_company(stage: Stage, unified: bool) -> None:
    engine = stage.engine(parallel=4, kv_unified=unified, ctx_size=8192)
    texts = [("x" * 50, n, " y") for n in range(3)]
    stage.check(engine, *texts, ("no medium at all",), ("x" * 50, 0, " y", 1), TURN)
    stage.check(engine, *texts, TURN, (*TURN, 2))


def test_a_medium_at_the_end_after_a_search_on_the_device(
    plain: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler, "FEW", 0)  # reads the logits, as for a large vocabulary
    engine = plain.engine(backend_sampling=True)
    play(engine, [plain.prompt("no medium at all")], n_predict=3, backend_sampling=True)
    plain.check(engine, ("What is it? ", 1))


def test_a_medium_at_the_end(stage: Stage) -> None:
    engine = stage.engine()
    for _ in range(2):
        stage.check(engine, ("Look: ", 3), ("Look: ", 3, 3), (3,))


def test_eleven(stage: Stage) -> None:
    text: Key = ("All of them: ", *range(11), " and?")
    engine = stage.engine(ctx_size=4096)
    stage.check(engine, text)
    again = stage.check(engine, text)[0]
    assert again.timings.prompt_n < again.n_prompt / 2


def test_a_budget_splits_only_splittable_media(plain: Stage) -> None:
    engine = plain.engine(parallel=3, ctx_size=6144, target_itl_ms=1)
    plain.check(engine, ("def f(self):",), ("a", 1, 2, 3, "b"), ("c", 4, "d", 5), n=40)


def test_preempted(plain: Stage) -> None:
    """There are cells for about two of four."""
    engine = plain.engine(ctx_size=256, parallel=4, kv_unified=True)
    texts = [(f"Number {n}: ", n, " is a") for n in range(4)]
    plain.check(engine, *texts, n=120)


def test_nothing_is_encoded_twice(plain: Stage) -> None:
    engine = plain.engine(parallel=2, ctx_size=4096)
    plain.check(engine, ("a", 1, 1, "b"), ("c", 1, "d"))
    plain.check(engine, ("e", 1, "f"))
    assert engine._embeddings._encoder is not None
    assert engine._embeddings._encoder.n_encoded == 1


def test_cached_media_are_not_encoded(plain: Stage) -> None:
    engine = plain.engine(media_cache=0)
    plain.check(engine, ("a", 1, "b"))
    plain.check(engine, ("a", 1, "c"))
    assert engine._embeddings._encoder is not None
    assert engine._embeddings._encoder.n_encoded == 1


def test_the_same_text_several_times(plain: Stage) -> None:
    engine = plain.engine(parallel=4, ctx_size=8192)
    plain.check(engine, *4 * [("x" * 40, 5, "y")])


def test_from_host_memory(stage: Stage) -> None:
    engine = stage.engine(ctx_size=640)
    texts = [(f"{n}: " + "value, " * 60, n, "then") for n in range(3)]
    for text in texts:
        stage.check(engine, text)
    again = [stage.check(engine, text)[0] for text in texts]
    assert engine.stats().n_prompt_restored > 0
    for turn in again:  # there is no checkpoint within the medium at its end
        assert turn.timings.prompt_n < turn.n_prompt / 2


@pytest.mark.parametrize("cache_ram", [0, 64])
def test_from_files(stage: Stage, tmp_path: Path, cache_ram: int) -> None:
    """They outlive the process, within which ids are unique."""
    changes = {"cache_disk": str(tmp_path), "cache_ram": cache_ram}
    text = ("Some words: " * 5, 1, " and ", 2, 1)
    first = stage.engine(**changes)
    (said,) = stage.check(first, text)
    first.close()
    assert len([*tmp_path.iterdir()]) == 1
    engine = stage.engine(**changes)
    stage.check(engine, ("Others: ", 7, 3, 1))  # their ids come first now
    answer = [*stage.prompt(*text), *said.tokens, "More: ", stage.medium(3)]
    (more,) = play(engine, [answer], n_predict=12)
    assert engine.stats().n_prompt_restored > 0
    assert more.timings.cache_n == said.n_prompt + len(said.tokens) - 1
    fresh = stage.engine()
    assert play(fresh, [answer], n_predict=12)[0].tokens == more.tokens


def test_files_of_another_projector_are_passed_over(plain: Stage, tmp_path: Path) -> None:
    engine = plain.engine(cache_disk=str(tmp_path))
    plain.check(engine, ("Some words: " * 5, 1), ("Some other words: " * 20,))
    engine.close()
    assert len([*tmp_path.iterdir()]) == 2
    other = plain.engine(cache_disk=str(tmp_path), image_max_tokens=99)
    plain.check(other, ("Some words: " * 5, 1), ("Some other words: " * 20,))
    assert other.stats().n_prompt_restored > 0, "texts have nothing to do with it"


def test_blocks_have_the_names_of_media(stage: Stage) -> None:
    """Another process numbers its media in another order, and reports the same blocks."""
    text = ("Some words: " * 9, 1, " and " * 9, 2, " or " * 20)
    here, there = stage.engine(), stage.engine()
    stage.check(there, ("Others: ", 2, 3, 1))
    found = []
    for engine in (here, there):
        asked = GetBlocks(1, stage.prompt(*text), GenerationParams())
        found.append(engine.preparation.blocks(asked))
        (finished,) = stage.check(engine, text)
        assert found[-1].n_tokens == finished.n_prompt
        assert found[-1].blocks in engine.digest(1000)
    assert found[0] == found[1]
    for medium in found[0].media:
        assert medium.hash.to_bytes(8, "little") in engine.digest(1000)
        assert medium.stop <= found[0].n_tokens
    assert sum(each.n_tokens for each in found[0].media) > 0
    other = GetBlocks(1, stage.prompt(*text[:3], 4, text[-1]), GenerationParams())
    blocks = here.preparation.blocks(other).blocks
    assert blocks[:8] == found[0].blocks[:8]
    assert blocks[-8:] != found[0].blocks[-8:]


def slot_action(
    engine: Engine, stage: Stage, directory: Path, action: Literal["save", "restore"]
) -> SlotDone:
    """Save or restore slot 0."""
    return Slots(engine, stage.options(slot_save_path=str(directory))).act(0, action)


def test_a_slot_is_saved_and_restored(stage: Stage, tmp_path: Path) -> None:
    engine = stage.engine()
    text = ("Once: ", 1, " and ", 1, 2, "!")
    (said,) = stage.check(engine, text)
    saved = slot_action(engine, stage, tmp_path, "save")
    engine.close()
    engine = stage.engine()
    stage.check(engine, ("Others: ", 7, 3, 1))
    restored = slot_action(engine, stage, tmp_path, "restore")
    assert restored.n_tokens == saved.n_tokens == said.n_prompt + len(said.tokens) - 1
    answer = [*stage.prompt(*text), *said.tokens, "More: ", stage.medium(3)]
    (more,) = play(engine, [answer], n_predict=12)
    assert more.timings.cache_n == restored.n_tokens
    slot_action(engine, stage, tmp_path, "restore")
    (again,) = stage.check(engine, text)
    assert again.timings.cache_n > 0
    assert play(stage.engine(), [answer], n_predict=12)[0].tokens == more.tokens


def test_a_slot_of_another_projector_is_refused(plain: Stage, tmp_path: Path) -> None:
    engine = plain.engine()
    plain.check(engine, ("Once: ", 1))
    slot_action(engine, plain, tmp_path, "save")
    blind = plain.options(mmproj="", slot_save_path=str(tmp_path))
    with pytest.raises(EngineError, match="Cannot restore media tokens without an mmproj"):
        Slots(Engine(plain.model, blind), blind).act(0, "restore")
    other = Stage("slices")
    with pytest.raises(EngineError, match="another projector"):
        slot_action(other.engine(), other, tmp_path, "restore")
    other.model.close()


def test_the_context_is_full(plain: Stage) -> None:
    engine = plain.engine(ctx_size=256, context_shift=True)
    (finished,) = play(engine, [plain.prompt("a", 1, "b")], n_predict=1000)
    assert (finished.stop_type, finished.truncated) == ("limit", True)
    assert finished.n_prompt + finished.n_decoded == 256


def test_prompts_are_shown_with_markers(plain: Stage) -> None:
    engine = plain.engine()
    submit = Submit(1, plain.prompt("Two: ", 1, 1, "."), GenerationParams(n_predict=1))
    request = engine.preparation.prepare(Submit(1, submit.prompt, submit.params, echo_prompt=True))
    assert request.prompt.count("<__media__>") == 2


def refusal(engine: Engine, *prompt: int | str | Media) -> EngineError:
    with pytest.raises(EngineError) as caught:
        engine.preparation.prepare(Submit(1, [*prompt], GenerationParams()))
    return caught.value


def test_refusals(plain: Stage) -> None:
    engine = plain.engine()
    assert "audio input is not supported - hint" in str(refusal(engine, "a", sound(1)))
    blind = Engine(plain.model, engine_options(**SMALL))
    assert "image input is not supported - hint" in str(refusal(blind, "a", image(1)))
    small = plain.engine(ctx_size=256)
    many = refusal(small, *(image(n) for n in range(100)))
    assert many.info.type == "exceed_context_size_error"


def test_a_medium_that_cannot_be_encoded_fails_its_request_alone(
    plain: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = plain.engine(parallel=3, ctx_size=6144)
    encode = Projector.encode
    bad = image(666)

    def failing(
        self: Projector, chunks: Sequence[PreparedChunk], next_slice: Callable[[], int]
    ) -> list[Rows]:
        if any(chunk.media.digest == bad.digest for chunk in chunks):
            raise BackendError("this one can't be encoded")
        return encode(self, chunks, next_slice)

    monkeypatch.setattr(Projector, "encode", failing)
    params = GenerationParams(**GREEDY, n_predict=12)
    prompts: list[PromptParts] = [plain.prompt("a", 1), ["a", bad, "b"], plain.prompt("c")]
    events: list[Event] = []
    for id, prompt in enumerate(prompts, start=1):
        own = msgspec.structs.replace(params)
        events += engine.submit(engine.preparation.prepare(Submit(id, prompt, own, group=id)))
    while engine.has_work:
        events += stepped(engine)
    (failed,) = [event for event in events if isinstance(event, Failed)]
    assert (failed.id, failed.error.message) == (2, "this one can't be encoded")
    said = {event.id: event.tokens for event in events if isinstance(event, Finished)}
    assert said == {1: plain.alone(("a", 1), 12), 3: plain.alone(("c",), 12)}
    plain.check(engine, ("a", 2, "b"))


def test_several_answers_to_one_prompt_and_its_tokens(plain: Stage) -> None:
    """As the server process sends them."""
    engine = plain.engine(parallel=3, ctx_size=6144)
    worker = Worker(engine, Link.of_files(-1, -1, to_engine_decoder), plain.options())
    prompt, params = plain.prompt("Look: ", 1, 1, "!"), GenerationParams(**GREEDY, n_predict=12)
    sent = Submit(1, prompt, params, group=1, others=[(2, 7), (3, 8)])
    message = to_engine_decoder.decode(msgspec.msgpack.encode(sent))
    assert worker._take(message) is None
    events: list[Event] = []
    for _ in range(3):
        request = worker._inbox.get()
        assert isinstance(request, Request)
        events += engine.submit(request)
    while engine.has_work:
        events += stepped(engine)
    said = {event.id: event.tokens for event in events if isinstance(event, Finished)}
    assert said == dict.fromkeys((1, 2, 3), plain.alone(("Look: ", 1, 1, "!"), 12))
    assert engine._embeddings._encoder is not None
    assert engine._embeddings._encoder.n_encoded == 1
    tokens = worker._tokenize(Tokenize(4, prompt, add_special=True, with_pieces=True))
    assert {e.n_prompt for e in events if isinstance(e, Finished)} == {len(tokens.tokens)}
    assert tokens.pieces is not None
    assert min(tokens.tokens) < 0 <= min(tokens.pieces)


def test_proposals_change_nothing(plain: Stage) -> None:
    engine = plain.engine(
        parallel=2, ctx_size=4096, spec_type=("radix", "ngram-simple", "ngram-mod", "ngram-cache")
    )
    texts = [("one two three one two three ", 1, " one two three ", 1, " one"), ("a", 2, 2, "a")]
    for _ in range(3):
        plain.check(engine, *texts, n=40)


def test_a_micro_batch_that_is_too_small() -> None:
    stage = Stage("whole")
    engine = stage.engine(ubatch_size=8, batch_size=64)
    assert "--ubatch-size" in str(refusal(engine, "a", image(1)))
    stage.model.close()
