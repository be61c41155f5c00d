"""Finds the members of a fleet that hold the beginning of a text in their KV caches.

A text is known by the hashes of its blocks. The hash of a block depends on all tokens before it, so
a member that holds a block also holds all earlier blocks of that text. For each block there is an
integer with one bit for each member that holds it. A search goes through the blocks of a prompt
once, and costs little more for a thousand members than for ten.

A member holds a block for one of two reasons: it has reported the block, or it is expected to
compute the block for a request. Expectations are counted, since several requests may need one
block.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt


class Holding:
    """The blocks of one member. `row` is its number in the index, from 0."""

    def __init__(self, row: int) -> None:
        self.bit = 1 << row
        self.reported: set[int] = set()
        self.expected: dict[int, int] = {}  # numbers of requests

    def __len__(self) -> int:
        """The number of blocks; a block that is both reported and expected counts twice."""
        return len(self.reported) + len(self.expected)


class Holders:
    """The members that hold each block. A member has at most `n_most` blocks; further ones are
    ignored."""

    def __init__(self, n_most: int) -> None:
        self._n_most = n_most
        self._masks: dict[int, int] = {}

    def __len__(self) -> int:
        """The number of different blocks."""
        return len(self._masks)

    def of(self, block: int) -> int:
        """The members that hold the block, as bits."""
        return self._masks.get(block, 0)

    def prefixes(self, blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Yields numbers of blocks, and the members (as bits) that hold exactly so many from the
        beginning of `blocks`, in increasing order. Members without the first block are left out."""
        holders = self.of(blocks[0]) if blocks else 0
        for n, block in enumerate(blocks):
            if not holders:
                return
            left = holders & self._masks.get(block, 0)
            if left != holders:
                yield n, holders ^ left
                holders = left
        if holders:
            yield len(blocks), holders

    def report(self, holding: Holding, added: Iterable[int], removed: Iterable[int]) -> None:
        """Records a member's changes since its last report."""
        for block in removed:
            if block in holding.reported:
                holding.reported.remove(block)
                if block not in holding.expected:
                    self._remove(block, holding.bit)
        for block in islice(added, self._room(holding)):
            holding.reported.add(block)
            self._add(block, holding.bit)

    def expect(self, holding: Holding, blocks: Iterable[int]) -> list[int]:
        """Records that a request makes a member compute `blocks`. Returns the blocks that it hasn't
        reported yet: the argument for `forget`."""
        reported, expected = holding.reported, holding.expected
        new = [block for block in blocks if block not in reported][: self._room(holding)]
        for block in new:
            expected[block] = expected.get(block, 0) + 1
            self._add(block, holding.bit)
        return new

    def forget(self, holding: Holding, expected: Iterable[int]) -> None:
        """Ends the expectations of one request. Reported blocks, and blocks that other requests
        need, stay."""
        for block in expected:
            if holding.expected[block] > 1:
                holding.expected[block] -= 1
                continue
            del holding.expected[block]
            if block not in holding.reported:
                self._remove(block, holding.bit)

    def clear(self, holding: Holding) -> None:
        """Removes all blocks of a member."""
        for block in holding.reported | holding.expected.keys():
            self._remove(block, holding.bit)
        holding.reported.clear()
        holding.expected.clear()

    def _room(self, holding: Holding) -> int:
        return max(0, self._n_most - len(holding))

    def _add(self, block: int, bit: int) -> None:
        # Blocks with one holder, which are most of them, share the integer of that holder.
        mask = self._masks.get(block)
        self._masks[block] = bit if mask is None else mask | bit

    def _remove(self, block: int, bit: int) -> None:
        if left := self._masks[block] & ~bit:
            self._masks[block] = left
        else:
            del self._masks[block]


def rows(mask: int, n_rows: int) -> npt.NDArray[np.bool_]:
    """Returns which of `n_rows` rows have their bits set in `mask`."""
    octets = np.frombuffer(mask.to_bytes((n_rows + 7) // 8, "little"), np.uint8)
    return np.unpackbits(octets, count=n_rows, bitorder="little").view(np.bool_)
