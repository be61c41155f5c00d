"""The cache that is bounded by bytes."""

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.worker.constraints.compiler import ByteLRU

LIMIT = 100


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 130), st.booleans())))
def test_it_never_holds_more_than_its_bytes(history: list[tuple[int, int, bool]]) -> None:
    memory: ByteLRU[int, int] = ByteLRU(LIMIT)
    sizes: dict[int, int] = {}  # in the order of their last use
    for key, size, is_put in history:
        if is_put:
            memory.put(key, size, size)
            sizes.pop(key, None)
            if size <= LIMIT:
                sizes[key] = size
            while sum(sizes.values()) > LIMIT:
                del sizes[next(iter(sizes))]
        else:
            found = memory.get(key)
            assert found == sizes.get(key)
            if found is not None:
                sizes[key] = sizes.pop(key)
        assert memory.n_bytes == sum(sizes.values()) <= LIMIT
        assert len(memory) == len(sizes)
