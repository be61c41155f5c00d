"""The values of --models-memory."""

import pytest

from specllama.engine.options import OptionError
from specllama.engine.options.text_values import (
    EVERY_GPU,
    HOST,
    MemorySize,
    memory_sizes,
    show_memory_sizes,
)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("16000", [MemorySize(HOST, 16000)]),
        ("80%", [MemorySize(HOST, 80, is_percentage=True)]),
        (
            "host=16000, CUDA0=80% ,gpu=1",
            [MemorySize(HOST, 16000), MemorySize("CUDA0", 80, True), MemorySize(EVERY_GPU, 1)],
        ),
        ("RPC0:10.0.0.1:50052=7", [MemorySize("RPC0:10.0.0.1:50052", 7)]),
    ],
)
def test_sizes_by_device(text: str, sizes: list[MemorySize]) -> None:
    assert memory_sizes(text) == tuple(sizes)
    assert memory_sizes(show_memory_sizes(sizes)) == tuple(sizes)


@pytest.mark.parametrize(
    "text",
    ["", ",", "0", "-1", "101%", "0%", "1.5", "much", "host=", "=5", "a b=5", "1,2", "gpu=1,gpu=2"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(OptionError):
        memory_sizes(text)


def test_a_percentage_is_of_the_device() -> None:
    assert MemorySize(HOST, 25, is_percentage=True).of(1000) == 250
    assert MemorySize(HOST, 3).of(1000) == 3 << 20
