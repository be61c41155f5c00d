"""A queue in which nobody waits for all that came before."""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Turns(Generic[K, V]):
    """Values that wait under a key; the newest and the oldest are taken by turns.

    Of those that came before, at most one more is taken first than of those that come after: the
    last one waits for one at most, however many there are. Every other turn is the oldest's, so
    nobody waits for more than twice as many as came before, and one.
    """

    def __init__(self) -> None:
        self._waiting: OrderedDict[K, V] = OrderedDict()
        self._newest = True  # is taken next

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, key: K, value: V) -> None:
        self._waiting[key] = value

    def take(self) -> V | None:
        """The next value; None if there is none."""
        if not self._waiting:
            return None
        _, value = self._waiting.popitem(last=self._newest)
        self._newest = not self._newest
        return value

    def remove(self, key: K) -> bool:
        """True if there was something under `key`."""
        if key not in self._waiting:
            return False
        del self._waiting[key]
        return True
