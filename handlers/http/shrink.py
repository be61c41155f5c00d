"""Makes a large invalid instance small, so that explaining what is wrong with it is cheap.

A validator lists every error of every branch of a union, some ten microseconds each: minutes
for an array of a million wrong items. One of them is enough for a sentence.
"""

from collections.abc import Callable
from typing import Any

Path = tuple[str | int, ...]

FEW = 32  # items of an array that are not cut any further
MANY = 512  # items, properties that can be explained in a tolerable time
LONG = 4096  # characters
DEPTH = 8  # levels below which nothing is cut
TRIALS = 256  # validations that finding the fault may cost


class Shrunk:
    """A part of `instance` (which is consumed) that is as invalid as the whole.

    `offsets` says, for the path of each array that was cut, where the rest of it began.
    `crowded` is the path of an array that has too many items, and their number: one in which
    every part is valid by itself.
    """

    def __init__(self, instance: Any, is_valid: Callable[[Any], bool]) -> None:
        self.offsets: dict[Path, int] = {}
        self.crowded: tuple[Path, int] | None = None
        self._root = [instance]
        self._is_valid = is_valid
        self._trials = TRIALS
        self._cut(self._root, 0, ())

    @property
    def instance(self) -> Any:
        return self._root[0]

    def _still_invalid(self) -> bool:
        self._trials -= 1
        return not self._is_valid(self._root[0])

    def _cut(self, parent: Any, key: Any, path: Path) -> None:
        node = parent[key]
        if self._trials <= 0 or len(path) > DEPTH or self.crowded is not None:
            return
        if isinstance(node, str):
            if len(node) > LONG:
                parent[key] = node[:LONG]
                if not self._still_invalid():
                    parent[key] = node
        elif isinstance(node, list):
            if len(node) > FEW:
                self._cut_array(parent, key, path)
            for index in range(len(parent[key])):
                self._cut(parent[key], index, (*path, index))
        elif isinstance(node, dict):
            if len(node) > MANY and path:
                self._cut_object(parent, key)
            for name in list(parent[key]):
                self._cut(parent[key], name, (*path, name))

    def _cut_array(self, parent: Any, key: Any, path: Path) -> None:
        items = parent[key]
        start = self._halve(parent, key, len(items), FEW, lambda a, b: items[a:b])
        if start:
            self.offsets[path] = start
        if len(parent[key]) > MANY:
            self.crowded = (path, len(items))

    def _cut_object(self, parent: Any, key: Any) -> None:
        pairs = list(parent[key].items())
        self._halve(parent, key, len(pairs), MANY, lambda a, b: dict(pairs[a:b]))

    def _halve(
        self, parent: Any, key: Any, size: int, enough: int, part: Callable[[int, int], Any]
    ) -> int:
        """Leaves in the place the smallest invalid half of a half ...; returns its start."""
        start, end = 0, size
        while end - start > enough and self._trials > 0:
            middle = (start + end) // 2
            for a, b in ((start, middle), (middle, end)):
                parent[key] = part(a, b)
                if self._still_invalid():
                    start, end = a, b
                    break
            else:
                break
        parent[key] = part(start, end)
        return start
