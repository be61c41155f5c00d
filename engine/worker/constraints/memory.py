"""A cache bounded by bytes."""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Memory(Generic[K, V]):
    """Values of which each has a size; the ones not used for longest go first."""

    def __init__(self, n_bytes: int) -> None:
        self._limit = n_bytes
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._used = 0

    @property
    def n_bytes(self) -> int:
        """The size of all values."""
        return self._used

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: K) -> V | None:
        if (found := self._entries.get(key)) is None:
            return None
        self._entries.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, n_bytes: int) -> None:
        """Keep `value`, unless it is larger than all that is kept may be."""
        if (old := self._entries.pop(key, None)) is not None:
            self._used -= old[1]
        if n_bytes > self._limit:
            return
        self._entries[key] = value, n_bytes
        self._used += n_bytes
        while self._used > self._limit:
            _, (_, freed) = self._entries.popitem(last=False)
            self._used -= freed
