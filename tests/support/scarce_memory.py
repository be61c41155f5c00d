"""A device whose memory doesn't suffice for every batch."""

from typing import Any

import pytest
from llama_cpp import llama_cpp

NO_MEMORY, MOST = -2, 60


class Device:
    """A context without memory for batches of more than `most` tokens. With `evaluates`, a
    batch is computed before its failure, so its tokens are in the KV cache, as after llama.cpp's
    failure in a later micro-batch. The next `failing` batches fail whatever their size."""

    def __init__(self, patch: pytest.MonkeyPatch, *, evaluates: bool) -> None:
        self.most, self.n_failed = MOST, 0
        self.failing = 0
        self._decode, self._evaluates = llama_cpp.llama_decode, evaluates
        patch.setattr(llama_cpp, "llama_decode", self)

    def __call__(self, context: Any, batch: Any) -> int:
        if batch.n_tokens <= self.most and not self.failing:
            return int(self._decode(context, batch))
        self.failing = max(0, self.failing - 1)
        self.n_failed += 1
        if self._evaluates:
            assert self._decode(context, batch) == 0
        return NO_MEMORY
