"""The number of threads that compute, and their CPUs."""

import os

from llama_cpp import llama_cpp as C

from specllama.engine.options import EngineOptions
from specllama.engine.worker.backend.ggml import ThreadPool


def physical_cores() -> int:
    """The best number of threads: a core's second hardware thread adds nothing."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if usable is None:
        return max(1, (os.cpu_count() or 1) // 2)
    siblings = set()
    for cpu in usable:
        path = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings"
        try:
            with open(path, encoding="ascii") as file:
                siblings.add(file.read().strip())
        except OSError:
            siblings.add(str(cpu))
    return max(1, len(siblings))


def threads(options: EngineOptions) -> tuple[int, int]:
    """The numbers of threads for generating and for evaluating batches."""
    n = options.compute.threads
    if n <= 0:
        n = physical_cores()
        if cpus := options.compute.cpus():
            n = min(n, len(cpus))
    return n, options.compute.threads_batch if options.compute.threads_batch > 0 else n


def has_cores_for(options: EngineOptions, *, times: int) -> bool:
    """True if so many pools of threads can compute at once without a GPU, each on its own cores."""
    n_most = max(threads(options))
    n_usable = len(options.compute.cpus()) or physical_cores()
    return not C.llama_supports_gpu_offload() and times * n_most <= n_usable


def thread_pools(options: EngineOptions) -> list[ThreadPool]:
    """Thread pools, one for generating and one for batches; none if llama.cpp's own threads will
    do."""
    if not options.compute.places_threads():
        return []
    n_threads, n_threads_batch = threads(options)
    o = options.compute
    batch_priority = o.prio if o.prio_batch < 0 else o.prio_batch
    return [
        ThreadPool(n_threads, o.cpus(), strict=o.cpu_strict == 1, priority=o.prio, poll=o.poll),
        ThreadPool(
            n_threads_batch,
            o.cpus_batch(),
            strict=(o.cpu_strict if o.cpu_strict_batch < 0 else o.cpu_strict_batch) == 1,
            priority=batch_priority,
            poll=o.poll if o.poll_batch < 0 else o.poll_batch,
        ),
    ]
