"""Running texts that a client may change the course of, by the ids in their answers."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from specllama.engine.models.generation import Generation

Key = tuple[bytes, str]
"""The API key of a request, and the id of its answer."""


class SteerableTexts:
    """What runs now. `may_end` says of each whether it has asked to be told."""

    def __init__(self) -> None:
        self._running: dict[Key, tuple[Sequence[Generation], bool]] = {}

    @contextmanager
    def running(self, key: Key, texts: Sequence[Generation], *, may_end: bool) -> Iterator[None]:
        self._running[key] = (texts, may_end)
        try:
            yield
        finally:
            del self._running[key]

    def end_thoughts(self, key: Key) -> str:
        """Let the texts of an answer come to what they have to say, if they are thinking. The
        reason if that can't be; nothing if it is done."""
        texts, may_end = self._running.get(key, ((), False))
        if not texts:
            return "no active completion for this id"
        if not may_end:
            return "reasoning control not enabled for this completion"
        for text in texts:
            text.end_thoughts()
        return ""
