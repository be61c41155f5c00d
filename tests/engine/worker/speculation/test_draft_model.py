"""The draft model's proposals, and the small number of tokens that it evaluates for them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from specllama.engine.worker.backend import (
    BackendError,
    Context,
    Model,
    OutOfCellsError,
    initialize,
)
from specllama.engine.worker.speculation.draft_loading import draft_options
from specllama.engine.worker.speculation.draft_model import (
    FEW,
    LEAST_PIECE,
    DraftModel,
    DraftState,
    likeliest,
)
from tests.support import proposals
from tests.support.models import random_model
from tests.support.options_support import engine_options
from tests.support.proposals import Running, Text
from tools.models.build import ensure

TEXT = "import os\nimport sys\n\n\ndef first(a, b):\n    return a + b\n\n\ndef second(a, b):\n"
LOGGER = "specllama.engine.worker.speculation.draft_model"
ROUNDING = 0.05
OTHER = "The quick brown fox jumps over the lazy dog, and then once more.\n"


@pytest.fixture(scope="module", params=["shipped", "tiny-window", "tiny-mamba", "tiny-hybrid"])
def path(request: pytest.FixtureRequest) -> str:
    initialize()
    return str(random_model() if request.param == "shipped" else ensure(request.param))


Make = Callable[..., "Watched"]


class Watched(Running[DraftState]):
    """A draft model that counts its evaluated tokens, with its texts."""

    def __init__(self, context: Context, **more: Any) -> None:
        super().__init__(DraftModel(context, **more))
        self.context = context
        self.batches: list[int] = []
        decode = context.decode

        def counted() -> None:
            self.batches.append(context.batch.n_tokens)
            decode()

        setattr(context, "decode", counted)  # noqa: B010

    def evaluated(self) -> list[int]:
        """The sizes of the batches since the last call."""
        seen, self.batches = self.batches, []
        return seen


@pytest.fixture(params=[True, False], ids=["unified", "separate"])
def unified(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def make(path: str, unified: bool) -> Iterator[Make]:
    made: list[Watched] = []

    def new(**chosen: Any) -> Watched:
        names: tuple[str, ...] = ("clock", "limit")
        more = {name: chosen.pop(name) for name in names if name in chosen}
        given: dict[str, Any] = {"model_draft": path, "parallel": 4, "ctx_size": 4096, **chosen}
        options = draft_options(engine_options(**given))
        model = Model(path, options)
        context = Context(model, options, 4, unified)
        wanted: dict[str, Any] = {
            "unified": unified,
            "n_vocab": model.n_vocab,
            "limit": 1024,
            **more,
        }
        made.append(Watched(context, **wanted))
        return made[-1]

    yield new
    for each in made:
        each.source.close()


def tokens_of(draft: Watched, text: str) -> list[int]:
    tokens = draft.context.model.tokenize(text.encode(), add_special=True, parse_special=False)
    return [int(token) for token in tokens]


def ask(id: int, tokens: Sequence[int], n: int = 8, key: Any = (), p_min: float = 0.0) -> Text:
    return proposals.ask(tokens, n, id=id, key=key, p_min=p_min)


Check = Callable[[Sequence[int], Sequence[int], int], None]


@pytest.fixture
def check(path: str) -> Iterator[Check]:
    """Asserts that a proposal of up to `n` tokens is the model's own continuation.

    A kernel's result for a token depends a little on the rest of its batch. Of tokens that are
    nearly equally likely, any may be proposed.
    """
    options = engine_options(ctx_size=1024, swa_full=True)
    model = Model(path, options)
    context = Context(model, options, 1, unified=True)

    def said(text: Sequence[int], proposal: Sequence[int], n: int) -> None:
        assert len(proposal) == n or proposal[-1] in model.eog
        assert not model.eog & {*proposal[:-1]}
        context.remove(0, 0)
        context.batch.clear()
        index = context.batch.add(list(text), 0, 0)
        for position, token in enumerate(proposal, len(text)):
            context.decode()
            logits = context.logits(index)
            assert logits[token] > logits.max() - ROUNDING
            context.batch.clear()
            index = context.batch.add([token], position, 0)

    yield said
    context.close()
    model.close()


def test_the_likeliest_text_is_proposed_and_only_new_tokens_evaluated(
    make: Make, check: Check
) -> None:
    draft = make()
    text = tokens_of(draft, TEXT)
    [proposed] = draft.propose([ask(1, text, 6)])
    check(text, proposed, 6)
    assert draft.evaluated() == [len(text)] + [1] * (len(proposed) - 1)
    # All of it was right, and so is the token after it.
    longer = [*text, *proposed, 5]
    draft.verified(1, 6, 6)
    [next_one] = draft.propose([ask(1, longer, 5)])
    check(longer, next_one, 5)
    assert draft.evaluated()[0] == (2 if draft.context.is_cuttable else len(proposed) + 1)


def test_wrong_tokens_are_taken_back(make: Make, check: Check) -> None:
    draft = make()
    text = tokens_of(draft, TEXT)
    [proposed] = draft.propose([ask(1, text)])
    another = [*text, *proposed[:2], (proposed[2] + 1) % 256, 5, 7]
    # The last one again, and a text that has lost its middle.
    for tokens in (another, another, another[:4] + another[9:]):
        check(tokens, draft.propose([ask(1, tokens)])[0], 8)


def test_all_are_drafted_for_together(make: Make, check: Check) -> None:
    draft = make()
    texts = [tokens_of(draft, TEXT[: 10 * n] + OTHER[:n]) for n in range(1, 5)]
    several = draft.propose([ask(n, text, n + 2) for n, text in enumerate(texts)])
    for n, (text, proposal) in enumerate(zip(texts, several, strict=True)):
        check(text, proposal, n + 2)
    first, *rest = draft.evaluated()
    assert first == sum(map(len, texts))
    longest = max(map(len, several))
    assert rest == [sum(len(each) > k for each in several) for k in range(1, longest)]


def test_beginnings_are_shared_by_those_of_one_key(make: Make, check: Check) -> None:
    draft = make()
    text = tokens_of(draft, TEXT)
    draft.propose([ask(1, text)])
    longer = [*text, 5, 7]

    def evaluated_for(id: int, key: Any = ()) -> int:
        draft.evaluated()
        [proposed] = draft.propose([ask(id, longer, key=key)])
        check(longer, proposed, 8)
        return draft.evaluated()[0]

    # Another key can't use it.
    assert evaluated_for(2, ((0, 0.5),)) == len(longer)
    # A text of the same key, next to it, and in its place.
    assert evaluated_for(3) == 2
    draft.leave(1)
    assert evaluated_for(4) <= 2


def test_more_sequences_than_places(make: Make, check: Check) -> None:
    draft = make()
    for n in range(9):  # no sequence is forgotten
        text = tokens_of(draft, TEXT[n:])
        check(text, draft.propose([ask(n, text)])[0], 8)


def test_a_long_text_is_caught_up_with_in_pieces(make: Make, check: Check) -> None:
    now = [0.0]
    draft = make(clock=lambda: now[0])
    long, short = tokens_of(draft, OTHER * 12), tokens_of(draft, TEXT)
    draft.propose([ask(1, short)])
    decode = draft.context.decode

    def slow() -> None:
        now[0] += 0.1 * draft.context.batch.n_tokens
        decode()

    setattr(draft.context, "decode", slow)  # noqa: B010
    draft.evaluated()
    n_steps, first = 0, list[int]()
    while n_steps < 100 and not first:
        now[0] += 1e-3  # of the step
        n_steps += 1
        short.append(5)
        first, second = draft.propose([ask(2, long), ask(1, short)])
        check(short, second, 8)  # no text waits for the long one
    check(long, first, 8)
    # A token takes longer than the step: only the least is evaluated, once that is known.
    sizes = [n for n in draft.evaluated() if n > FEW]
    assert len(sizes) > 2
    assert max(sizes[2:]) <= LEAST_PIECE + 2 * FEW


def test_behind_the_end_of_the_context_nothing_is_proposed(make: Make) -> None:
    draft = make(limit=40)
    text = tokens_of(draft, OTHER * 3)
    [proposed] = draft.propose([ask(1, text[:38], 30)])
    assert len(proposed) <= 3
    assert draft.propose([ask(1, text[:41]), ask(2, text[:20])])[0] == []
    assert draft.propose([ask(3, [])]) == [[]]
    assert draft.propose([ask(3, text[:9], 0)]) == [[]]
    assert draft.propose([]) == []


def sooner_or_later(draft: Watched, wanted: Text) -> list[int]:
    """Returns the proposal once the text is evaluated as a whole."""
    tries = (draft.propose([wanted])[0] for _ in range(20))
    return next(filter(None, tries))


def test_a_full_cache_drops_unused_texts(make: Make, check: Check) -> None:
    draft = make(ctx_size=256)
    text = tokens_of(draft, OTHER * 12)[:120]
    assert len(text) == 120
    for n in range(4):
        mine = [5 + n, *text]
        check(mine, sooner_or_later(draft, ask(n, mine)), 8)
        draft.leave(n)
    # More than there is room for, all at once: some go without, and nothing fails.
    for _ in range(4):
        asks = [ask(10 + n, [9 + n, *text]) for n in range(4)]
        draft.propose(asks)
    draft.leave(10)
    draft.leave(11)
    draft.leave(12)
    check([12, *text], sooner_or_later(draft, ask(13, [12, *text])), 8)


def test_tokens_that_the_draft_model_does_not_have(make: Make) -> None:
    draft = make()
    n_vocab = draft.context.model.n_vocab
    assert draft.propose([ask(1, [5, n_vocab, 7])]) == [[]]
    assert draft.propose([ask(2, [5, 7])])[0]


def test_a_failure_ends_the_drafting_and_not_the_step(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    draft = make()
    text = tokens_of(draft, TEXT)

    def fail() -> None:
        raise BackendError("llama_decode failed (-3)")

    setattr(draft.context, "decode", fail)  # noqa: B010
    for _ in range(3):
        assert draft.propose([ask(1, text), ask(2, text)]) == [[], []]
    [record] = [each for each in caplog.records if each.name == LOGGER]
    assert "draft model failed" in record.message
    assert "llama_decode failed (-3)" in record.message
    draft.verified(1, 0, 0)
    draft.leave(1)
    draft.source.close()


def test_only_likely_tokens() -> None:
    logits = np.full(50, -30.0, np.float32)
    logits[7], logits[9] = 2.0, 2.0 - np.log(3)
    assert likeliest(logits, 0.0) == 7
    assert likeliest(logits, 0.74) == 7  # 3/4
    assert likeliest(logits, 0.76) is None
    even = np.zeros(100, np.float32)
    assert likeliest(even, 0.09) == 0  # among the ten likeliest
    assert likeliest(even, 0.11) is None
    assert likeliest(np.full(5, np.nan, np.float32), 0.0) is None
    assert likeliest(np.full(5, -np.inf, np.float32), 0.0) is None


def test_p_min_ends_a_proposal(make: Make) -> None:
    draft = make()
    text = tokens_of(draft, OTHER)
    anything, likely, certain = draft.propose(
        [ask(n, text, 20, p_min=p_min) for n, p_min in enumerate((0.0, 0.3, 1.0))]
    )
    assert len(certain) <= len(likely) <= len(anything)
    assert anything[: len(likely)] == likely
    assert likely[: len(certain)] == certain
    assert len(certain) < len(anything)


def test_room_is_made_when_it_is_needed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    draft = make()
    text = tokens_of(draft, TEXT)

    def full() -> None:
        raise OutOfCellsError

    with monkeypatch.context() as patch:
        patch.setattr(draft.context, "decode", full)
        assert draft.propose([ask(1, text)]) == [[]]
    assert draft.propose([ask(1, text), ask(2, text)])[0] == []
    draft.leave(2)
    assert draft.propose([ask(1, text)])[0]
