"""A radix index: the longest common prefix of a new text with every indexed one."""

from collections.abc import Hashable, Iterator
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from specllama.engine.worker.tokens import TokenArray, common_prefix


class _Node:
    """A place where texts diverge or end. `tokens` lead here from the parent; `holders` are the
    numbers of the texts that pass through this node or end in it."""

    __slots__ = ("children", "holders", "parent", "tokens")

    def __init__(self, tokens: TokenArray, parent: "_Node | None", holders: set[int]) -> None:
        self.tokens = tokens
        self.parent = parent
        self.holders = holders
        self.children: dict[int, _Node] = {}  # by the first of their tokens


class Divergence(NamedTuple):
    """Where a text diverges from the indexed ones: its longest common prefix with any of them has
    `n` tokens. One such text has `length` tokens, and after the first `n` of these, `rest`."""

    n: int
    length: int
    rest: TokenArray


class RadixIndex:
    """A radix tree over token sequences. The number of its holder identifies each sequence.

    A lookup takes time proportional to the length of the given text, independent of the number of
    texts, plus one operation for each holder and node on the path.
    """

    def __init__(self) -> None:
        self._root: _Node | None = None
        self._ends: dict[int, _Node] = {}

    def __len__(self) -> int:
        """The number of texts."""
        return len(self._ends)

    def insert(self, holder: int, tokens: TokenArray) -> None:
        """Set the text of `holder` to `tokens`, which must not be empty."""
        self.remove(holder)
        if self._root is None:
            self._root = _Node(tokens[:0].copy(), None, set())
        node, at = self._root, 0
        node.holders.add(holder)
        while at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                leaf = _Node(tokens[at:].copy(), node, {holder})
                node.children[int(tokens[at])] = leaf
                node = leaf
                break
            n = common_prefix(child.tokens, tokens[at:])
            if n < len(child.tokens):
                child = _split(child, n)
            child.holders.add(holder)
            node, at = child, at + n
        self._ends[holder] = node

    def remove(self, holder: int) -> None:
        """Remove the text of `holder`."""
        node = self._ends.pop(holder, None)
        while node is not None:
            parent = node.parent
            node.holders.discard(holder)
            if parent is not None and not node.holders:
                del parent.children[int(node.tokens[0])]
            elif parent is not None:
                self._join(node)
            node = parent

    def _join(self, node: _Node) -> None:
        """Merge `node` with its only child, if no text ends at `node`."""
        if len(node.children) != 1 or node.parent is None:
            return
        (child,) = node.children.values()
        if child.holders != node.holders:
            return
        # Keep the child object: `_ends` may refer to it.
        child.tokens = np.concatenate((node.tokens, child.tokens))
        child.parent = node.parent
        node.parent.children[int(node.tokens[0])] = child

    def matches(self, tokens: TokenArray) -> dict[int, int]:
        """The length of the longest common prefix of `tokens` with the text of each holder; holders
        without one are left out."""
        found: dict[int, int] = {}
        node, at = self._root, 0
        while node is not None and at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                break
            n = common_prefix(child.tokens, tokens[at:])
            at += n
            found.update(dict.fromkeys(child.holders, at))
            if n < len(child.tokens):
                break
            node = child
        return found

    def divergence(self, tokens: TokenArray, n_rest: int) -> Divergence:
        """Where `tokens` diverges from all texts, with at most `n_rest` tokens of a text that
        shares the longest prefix: of several, one that was added late."""
        node, at, parts = self._root, 0, [tokens[:0]]
        while node is not None and at < len(tokens):
            child = node.children.get(int(tokens[at]))
            if child is None:
                break
            n = common_prefix(child.tokens, tokens[at:])
            node, at = child, at + n
            if n < len(child.tokens):
                parts.append(child.tokens[n:])
                break
        while at and node is not None and node.children:
            node = next(reversed(node.children.values()))
            parts.append(node.tokens)
        rest = np.concatenate(parts)
        return Divergence(at, at + len(rest), rest[:n_rest])


K = TypeVar("K", bound=Hashable)


class KeyedIndex(Generic[K]):
    """A radix index for each key: only texts with equal keys are compared."""

    def __init__(self) -> None:
        self._indices: dict[K, RadixIndex] = {}

    def __iter__(self) -> Iterator[K]:
        """Iterates over the keys that have texts, the newest key first."""
        return reversed(self._indices)

    def insert(self, key: K, holder: int, tokens: TokenArray) -> None:
        self._indices.setdefault(key, RadixIndex()).insert(holder, tokens)

    def remove(self, key: K, holder: int) -> None:
        index = self._indices[key]
        index.remove(holder)
        if not index:
            del self._indices[key]

    def matches(self, tokens: TokenArray, key: K) -> dict[int, int]:
        """As `RadixIndex.matches`, for the texts with `key`."""
        index = self._indices.get(key)
        return index.matches(tokens) if index is not None else {}

    def divergence(self, tokens: TokenArray, key: K, n_rest: int) -> Divergence:
        """As `RadixIndex.divergence`, for the texts with `key`."""
        index = self._indices.get(key)
        return Divergence(0, 0, tokens[:0]) if index is None else index.divergence(tokens, n_rest)


def _split(node: _Node, n: int) -> _Node:
    """Insert a parent of `node` with the first `n` of its tokens. Returns the parent."""
    assert node.parent is not None
    upper = _Node(node.tokens[:n], node.parent, set(node.holders))
    node.parent.children[int(node.tokens[0])] = upper
    node.tokens = node.tokens[n:]
    node.parent = upper
    upper.children[int(node.tokens[0])] = node
    return upper
