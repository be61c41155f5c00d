"""Measures the memory that a model will take if it is loaded within the limits of all models."""

import os
from collections.abc import Mapping

from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions
from specllama.engine.options.text_values import HOST
from specllama.engine.shipped import model_file
from specllama.engine.wire.devices import CPU, DeviceMemory, DeviceUse
from specllama.engine.wire.replies import Measured
from specllama.engine.wire.startup import private
from specllama.engine.worker.backend import device_memory
from specllama.engine.worker.backend.exactness import promised
from specllama.engine.worker.backend.memory import HostMemory, host_memory
from specllama.engine.worker.fitting.choice import AUTO, Choice, FitBudget, choose
from specllama.engine.worker.fitting.fitting import asked, is_measurable
from specllama.engine.worker.fitting.measuring import Measuring

_16_BIT = ("f32", "f16", "bf16")


def measured(options: EngineOptions | None, limits: Mapping[str, int]) -> Measured:
    """The memory of the machine and, with `options`, what their model will take. With `--fit`, a
    context and layers that are not given are chosen as if no other model were in memory: so they
    don't depend on the models beside it. `limits` are the bytes for models on each device. Raises
    `BackendError` for a model that can't be measured."""
    memory = machine_memory()
    if options is None:
        return Measured(memory)
    options = promised(options)
    with Measuring(model_file(options.model.model), options) as measuring:
        before = measuring.uses(measuring.n_ctx)
        n_base = private()
        most = {**limits, HOST: limits[HOST] - n_base} if HOST in limits else limits
        choice = _choice(measuring, options, before, _budgets(options, memory, most))
        n_mapped = 0
        if options.model.how_to_load().startswith("mmap") and not measuring.is_repacked:
            n_mapped = measuring.n_host_weights(choice.n_ctx, choice.n_layers)
    return Measured(
        memory=memory,
        uses=[*choice.uses],
        ctx_size=choice.n_ctx,
        n_gpu_layers=choice.n_layers,
        n_mapped=n_mapped,
        n_base=n_base,
        is_cache_16_bit=any(kind in _16_BIT for kind in options.cache_types()),
    )


def machine_memory() -> list[DeviceMemory]:
    """The memory of the host and of every device for offloading. Sizes are 0 if unknown."""
    host = host_memory() or _other_host()
    return [DeviceMemory(HOST, host.available, host.total), *device_memory()]


def _other_host() -> HostMemory:
    """The memory of a host that isn't Linux; all of it counts as available."""
    try:
        total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        total = 0
    return HostMemory(total, total)


def _budgets(
    options: EngineOptions, memory: list[DeviceMemory], limits: Mapping[str, int]
) -> dict[str, FitBudget]:
    found = {}
    for i, device in enumerate(memory):
        room = device.total - options.compute.fit_margin(max(i - 1, 0))
        most = max(min(room, limits.get(device.name, room)), 0)
        if device.total:  # other devices don't report their memory
            found[CPU if device.name == HOST else device.name] = FitBudget(most, margin=0)
    return found


def _choice(
    measuring: Measuring,
    options: EngineOptions,
    before: list[DeviceUse],
    budgets: Mapping[str, FitBudget],
) -> Choice:
    if options.compute.fit == "off" or not is_measurable(options, before):
        return Choice(measuring.n_ctx, AUTO, before, fits=True)
    try:
        return choose(asked(measuring, options, before, budgets), measuring.uses, budgets)
    except BackendError:  # with fewer layers or tokens; the given options are possible
        return Choice(measuring.n_ctx, AUTO, before, fits=False)
