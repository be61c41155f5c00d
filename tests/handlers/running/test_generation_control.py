"""Control of running generations: ending the reasoning."""

from typing import Any, cast

import pytest

from specllama.handlers.running.ongoing import GenerationControl


class Text:
    def __init__(self) -> None:
        self.n_ended = 0

    def end_thoughts(self) -> None:
        self.n_ended += 1


def test_only_running_generations_that_allow_it_end() -> None:
    control = GenerationControl()
    texts: Any = [Text(), Text()]
    unknown = "no active completion for this id"
    assert control.end_thoughts(("", "x")) == unknown
    with control.running(("key", "x"), texts, may_end=True):
        assert control.end_thoughts(("", "x")) == unknown
        assert control.end_thoughts(("key", "y")) == unknown
        assert [text.n_ended for text in texts] == [0, 0]
        assert control.end_thoughts(("key", "x")) == ""
        assert [text.n_ended for text in texts] == [1, 1]
        with control.running(("", "z"), texts, may_end=False):
            assert "not enabled" in control.end_thoughts(("", "z"))
    assert control.end_thoughts(("key", "x")) == unknown
    assert [text.n_ended for text in texts] == [1, 1]


def test_the_end_of_a_failure_is_noted() -> None:
    control = GenerationControl()
    with pytest.raises(ValueError, match="gone"), control.running(("", "x"), [], may_end=True):
        raise ValueError("gone")
    assert "no active" in control.end_thoughts(("", "x"))
    assert cast(Any, control)._running == {}
