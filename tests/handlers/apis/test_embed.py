"""Texts that are too long to be embedded."""

import asyncio
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specllama.handlers.apis.embed import shortened

BEGIN, END = 1, 2


class Engine:
    """A tokenizer with a token for each byte, and special tokens around the text."""

    def __init__(self, n_input: int, before: int, behind: int) -> None:
        self.info = SimpleNamespace(n_input=n_input)
        self._before, self._behind = [BEGIN] * before, [END] * behind

    async def tokenize(self, content: list[int | str], **how: Any) -> Any:
        [text] = content
        assert isinstance(text, str)
        plain = list(text.encode())
        whole = [*self._before, *plain, *self._behind]
        return SimpleNamespace(tokens=whole if how["add_special"] else plain)


@given(
    st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), max_size=40),
    st.integers(5, 30),
    st.integers(0, 2),
    st.integers(0, 2),
)
def test_as_much_as_fits(text: str, n_input: int, before: int, behind: int) -> None:
    engine: Any = Engine(n_input, before, behind)
    made = asyncio.run(shortened(engine, text))
    n_bytes = len(text.encode())
    if n_bytes + before + behind <= n_input:
        assert made == [text]
    else:
        kept = n_input - before - behind
        assert made == [BEGIN] * before + list(text.encode()[:kept]) + [END] * behind
