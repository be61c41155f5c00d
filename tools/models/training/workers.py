"""Processes that train one network; each computes its share of the batches of a step.

Most matrices are small, so two threads of a process are hardly faster than one; two processes are.
"""

import multiprocessing
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import nn

T = TypeVar("T")


class Workers:
    """Worker number `rank` of `n`, and its connection to the others."""

    def __init__(self, rank: int = 0, n: int = 1) -> None:
        self.rank = rank
        self.n = n

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Returns this worker's share of the items."""
        return items[self.rank :: self.n]

    def add(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replaces the gradients by their sums over all workers."""
        if self.n == 1:
            return
        given = list(parameters)
        gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in given]
        flat = torch.cat([each.flatten() for each in gradients])
        dist.all_reduce(flat)
        parts = flat.split([each.numel() for each in gradients])
        for parameter, part in zip(given, parts, strict=True):
            parameter.grad = part.view_as(parameter)

    def agree(self, wish: bool) -> bool:
        """Returns whether any worker passes true."""
        if self.n == 1:
            return wish
        shared = torch.tensor([int(wish)])
        dist.all_reduce(shared, dist.ReduceOp.MAX)
        return bool(shared)


def work(n: int, run: Callable[[Workers], None]) -> None:
    """Runs `run` in `n` processes, of which this one is the first. When it returns, the others have
    ended.

    Raises RuntimeError if another process failed.
    """
    if n == 1:
        run(Workers())
        return
    # Forked before a thread pool exists, because its threads would be missing in the others.
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as directory:
        meeting = Path(directory) / "meeting"
        others = [
            context.Process(target=_run, args=(rank, n, meeting, run), daemon=True)
            for rank in range(1, n)
        ]
        for each in others:
            each.start()
        try:
            _run(0, n, meeting, run)
        finally:
            for each in others:
                each.join(timeout=60)
    if failed := [each.exitcode for each in others if each.exitcode]:
        raise RuntimeError(f"a worker ended with {failed[0]}")


def _run(rank: int, n: int, meeting: Path, run: Callable[[Workers], None]) -> None:
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=n)
    try:
        run(Workers(rank, n))
    finally:
        dist.destroy_process_group()
