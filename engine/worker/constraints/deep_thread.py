"""A thread for work that recurses deeply."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

STACK = 256 << 20  # bytes of address space; only what is used becomes memory


class DeepThread:
    """One thread with a large stack that does one thing after the other."""

    def __init__(self) -> None:
        self._executor: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="compile")
                before = threading.stack_size(STACK)
                try:
                    # The executor starts its thread with the first piece of work.
                    return self._executor.submit(work)
                finally:
                    threading.stack_size(before)
            return self._executor.submit(work)

    def close(self) -> None:
        with self._lock:
            if self._executor is not None:
                self._executor.shutdown(cancel_futures=True)
