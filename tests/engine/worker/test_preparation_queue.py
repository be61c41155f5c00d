"""The threads that prepare requests."""

import threading
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.params import GenerationParams
from specllama.engine.wire.requests import (
    Detokenize,
    Embed,
    FormatChat,
    GetBlocks,
    Infill,
    PromptParts,
    Rerank,
    Submit,
    Tokenize,
)
from specllama.engine.worker.preparation_queue import (
    LONG,
    LONG_THREADS,
    SHORT_THREADS,
    PreparationQueue,
    size,
)
from tests.support.media import image, sound

PROMPTS = st.lists(st.text(max_size=9) | st.integers(0, 9), max_size=9)


def held_up(lanes: PreparationQueue, size: int, n: int) -> Callable[[], None]:
    """`n` threads of the lane for `size` are busy until the result is called."""
    go_on, running = threading.Event(), threading.Barrier(n + 1)

    def work() -> None:
        running.wait()
        go_on.wait()

    for id in range(-n, 0):
        lanes.start(id, size, work)
    running.wait()
    return go_on.set


def test_long_work_does_not_delay_short_work() -> None:
    lanes, done = PreparationQueue(), threading.Event()
    go_on = held_up(lanes, LONG, LONG_THREADS)
    later = threading.Event()
    lanes.start(1, LONG, later.set)
    lanes.start(2, LONG - 1, done.set)
    done.wait()
    assert not later.is_set()
    go_on()
    later.wait()


def test_short_work_does_not_delay_long_work() -> None:
    lanes, done = PreparationQueue(), threading.Event()
    go_on = held_up(lanes, 0, SHORT_THREADS)
    lanes.start(1, LONG, done.set)
    done.wait()
    go_on()


def test_dropped_work_is_not_done() -> None:
    lanes = PreparationQueue()
    done: list[int] = []
    last = threading.Event()
    go_on = held_up(lanes, 0, SHORT_THREADS)
    for id in (1, 2, 3):
        lanes.start(id, 0, lambda id=id: done.append(id))  # type: ignore[misc]
    assert lanes.drop(2)
    assert lanes.drop(3)
    assert not lanes.drop(4), "there is nothing"
    assert not lanes.drop(-1), "it has begun"
    go_on()
    held_up(lanes, 0, SHORT_THREADS)()  # after them
    lanes.start(5, 0, last.set)
    last.wait()
    assert done == [1]


def test_a_second_part_can_be_dropped_too() -> None:
    """A request whose constraint was waited for comes again, from the thread of its first part."""
    lanes, begun = PreparationQueue(), threading.Event()
    go_on = held_up(lanes, LONG, LONG_THREADS)
    lanes.start(1, 0, lambda: lanes.start(1, LONG, begun.set))
    held_up(lanes, 0, SHORT_THREADS)()  # the first part is over
    assert lanes.drop(1)
    go_on()
    held_up(lanes, LONG, LONG_THREADS)()
    assert not begun.is_set()


@given(prompt=PROMPTS, more=PROMPTS, text=st.text(max_size=9))
def test_all_that_is_tokenized_counts(prompt: Any, more: Any, text: str) -> None:
    n, n_more = (sum(len(e) if isinstance(e, str) else 1 for e in p) for p in (prompt, more))
    assert size(Submit(1, [*prompt], GenerationParams())) == n
    assert size(GetBlocks(1, [*prompt], GenerationParams())) == n
    gap = Infill(prompt, more, text, [("name", text)])
    assert size(Submit(1, gap, GenerationParams())) == n + n_more + 2 * len(text) + 4
    assert size(Embed(1, [[*prompt], [*more]], 2)) == n + n_more
    assert size(Tokenize(1, [*prompt])) == n
    assert size(Detokenize(1, [1, 2, 3])) == 3
    assert size(Rerank(1, text, ["ab", "c"])) == 2 * len(text) + 3
    assert size(FormatChat(1, "chatml", [("user", text), ("user", "ab")])) == len(text) + 2


def test_sounds_take_long_to_become_tokens_and_images_do_not() -> None:
    assert size(Submit(1, ["abc", sound(1)], GenerationParams())) >= LONG
    assert size(Submit(1, ["abc", image(1, 1000, 1000)], GenerationParams())) < LONG


def test_biased_texts_count_like_texts_of_the_prompt() -> None:
    prompt: PromptParts = ["abc"]
    ids = GenerationParams(logit_bias=[(1, 0.5)] * LONG)
    assert size(Submit(1, prompt, ids)) == 3
    one = size(Submit(1, prompt, GenerationParams(logit_bias=[("abcd", 0.5)]))) - 3
    assert one > 4
    many = GenerationParams(logit_bias=[("abcd", 0.5)] * LONG)
    assert size(Submit(1, prompt, many)) == 3 + one * LONG
