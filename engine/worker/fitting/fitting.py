"""Fits a model to the free memory (`--fit`)."""

import logging
from collections.abc import Callable, Mapping, Sequence

from specllama.engine.errors import BackendError
from specllama.engine.options import EngineOptions, replaced
from specllama.engine.wire.devices import CPU, Bytes, DeviceMemory, DeviceUse, mib
from specllama.engine.worker.backend import device_memory
from specllama.engine.worker.backend.memory import HostMemory, host_memory
from specllama.engine.worker.fitting.choice import (
    AUTO,
    Asked,
    Choice,
    FitBudget,
    choose,
    fit,
    largest_context,
)
from specllama.engine.worker.fitting.measuring import Measuring

log = logging.getLogger("specllama.engine.fit")

# ---- Log messages about a model and the free memory.


def chosen(
    asked: Asked, choice: Choice, before: Sequence[DeviceUse], free: Mapping[str, Bytes]
) -> str:
    """The message about the changed values, and the reason."""
    parts = []
    if choice.n_ctx != asked.n_ctx:
        parts.append(f"a context of {choice.n_ctx} tokens in place of {asked.n_ctx} (-c)")
    if choice.n_layers != AUTO:
        parts.append(f"{choice.n_layers} of {asked.most_layers} layers on devices (-ngl)")
    why = f"without that, the model needs {needed(before, free)}"
    return f"fitted to the free memory: {', '.join(parts)}; {why} (--fit, --fit-target)"


def short_of(choice: Choice, free: Mapping[str, Bytes]) -> str:
    """The message about a model that is loaded although it may need more memory than is free."""
    return f"memory is short: the model needs {needed(choice.uses, free)}"


def needed(uses: Sequence[DeviceUse], free: Mapping[str, Bytes]) -> str:
    """The needed and the free memory of each device; of the host if the model is on no device."""
    shown = [use for use in uses if use.name in free and use.name != CPU]
    shown = shown or [use for use in uses if use.name in free]
    return ", ".join(
        f"{mib(use.model + use.kv_cache + use.compute)} of the {mib(free[use.name])} free "
        + ("in the machine's memory" if use.name == CPU else f"on {use.name}")
        for use in shown
    )


def too_large(
    choice: Choice,
    host: HostMemory,
    remedies: Sequence[str],
    *,
    with_weights: bool,
    is_possible: bool,
) -> str:
    """The error: the free memory, the needed memory, and what would fit. `remedies`: options each
    of which would help. `is_possible`: the machine has that much memory, but not free."""
    [use] = [use for use in choice.uses if use.name == CPU]
    cache = f"a context of {choice.n_ctx} tokens needs {mib(use.kv_cache)} for its KV cache"
    weights = f" beside {mib(use.model)} of weights" if with_weights else ""
    fits = f"{' or '.join(remedies)} would fit" if remedies else ""
    smaller = "a smaller quantization of the model may fit" if with_weights and not fits else ""
    help = fits or smaller or "no context of this model would fit"
    escape = " (--fit off tries it nevertheless)" if is_possible else ""
    return (
        f"there is no memory for this: {mib(host.available)} of {mib(host.total)} are free, "
        f"{cache}{weights}; {help}{escape}"
    )


def too_large_for(device: DeviceMemory, n_ctx: int, kv_cache: Bytes, n_fit: int) -> str:
    """The error about a KV cache that exceeds the memory of its device and the machine together.
    `n_fit`: a context that would fit, 0 if there is none."""
    fits = f"-c {n_fit} would fit" if n_fit else "no context of this model would fit"
    return (
        f"there is no memory for this: {device.name} has {mib(device.free)} of "
        f"{mib(device.total)} free, a context of {n_ctx} tokens needs {mib(kv_cache)} for its KV "
        f"cache; {fits}"
    )


CELLS = 256
"""llama.cpp rounds each part of a KV cache up to a multiple of this many tokens."""


def fitted(
    path: str,
    options: EngineOptions,
    *,
    host: Callable[[], HostMemory | None] = host_memory,
    devices: Callable[[], Sequence[DeviceMemory]] = device_memory,
) -> EngineOptions:
    """The `options` for loading the model at `path`: with a smaller context and fewer layers on
    devices if necessary, unless the user has set these. `host` and `devices` return the free
    memory.

    Raises `BackendError` if the machine has no memory for the KV cache: loading fills it at once,
    so the system would kill this process. With `--fit off`, it only raises if the cache exceeds the
    machine's total memory, which llama.cpp may take minutes to detect. A cache on a device is only
    refused if it exceeds the total memory of the device and of the machine: some devices use the
    machine's memory, too."""
    try:
        with Measuring(path, options) as measuring:
            fitting = _Fitting(measuring, options, host(), devices())
            if options.compute.fit == "off":
                fitting.check_possible()
                return options
            return fitting.options()
    except CannotFitError:
        raise
    except BackendError as error:
        # If something is wrong, loading the model reports it.
        log.debug("not fitted to memory: %s", error)
        return options


def asked(
    measuring: Measuring,
    options: EngineOptions,
    uses: Sequence[DeviceUse],
    budgets: Mapping[str, FitBudget],
) -> Asked:
    """The values of `options`, with the alternatives to values that the user hasn't set. `uses` is
    the memory with these values."""
    n_ctx = measuring.n_ctx
    step = CELLS * measuring.n_parts
    least = max(step, options.compute.fit_ctx * measuring.n_parts)
    is_given = options.context.ctx_size >= 0 or options.context.is_sized_by_slot()
    is_on_devices = any(use.name in budgets and use.name != CPU for use in uses)
    may_choose = is_on_devices and options.compute.n_gpu_layers == "auto"
    return Asked(
        n_ctx=n_ctx,
        least_ctx=n_ctx if is_given else min(n_ctx, least),
        most_layers=measuring.n_layer if may_choose else 0,
        step=step,
    )


def is_measurable(options: EngineOptions, uses: Sequence[DeviceUse]) -> bool:
    """False if weights are not placed on devices layer by layer."""
    compute = options.compute
    placed = compute.override_tensor or compute.cpu_moe or compute.n_cpu_moe
    by_hand = placed or compute.n_cpu_ffn or compute.split_mode == "row"
    return not (by_hand and any(use.name != CPU for use in uses))


class CannotFitError(BackendError):
    """There is no memory for the requested values, and no alternative."""


class _Fitting:
    def __init__(
        self,
        measuring: Measuring,
        options: EngineOptions,
        host: HostMemory | None,
        devices: Sequence[DeviceMemory],
    ) -> None:
        self._measuring = measuring
        self._options = options
        self._host = host
        self._devices = devices

    def options(self) -> EngineOptions:
        options, before = self._options, self._measuring.uses(self._measuring.n_ctx)
        wanted = asked(self._measuring, options, before, self._budgets())
        choice = Choice(wanted.n_ctx, AUTO, before, fits=True)
        if is_measurable(options, before):
            choice = choose(wanted, self._measuring.uses, self._budgets())
        self._check_host(choice, self._host.most if self._host else 0)
        self._check_devices(choice)
        if choice.n_ctx != wanted.n_ctx:
            options = replaced(options, ctx_size=choice.n_ctx)
        if choice.n_layers != AUTO:
            options = replaced(options, n_gpu_layers=choice.n_layers)
        if options != self._options:
            log.warning("%s", chosen(wanted, choice, before, self._free()))
        elif not choice.fits and not self._has_room(choice.uses):
            log.warning("%s", short_of(choice, self._free()))
        else:
            log.debug("everything fits: %s", needed(choice.uses, self._free()))
        return options

    def check_possible(self) -> None:
        """Raises `CannotFitError` if the model exceeds the total memory of the machine."""
        n_ctx = self._measuring.n_ctx
        choice = Choice(n_ctx, AUTO, self._measuring.uses(n_ctx), fits=False)
        self._check_host(choice, self._host.most_ever if self._host else 0)
        self._check_devices(choice)

    def _budgets(self) -> dict[str, FitBudget]:
        margin = self._options.compute.fit_margin
        found = {
            device.name: FitBudget(device.free, margin(i))
            for i, device in enumerate(self._devices)
            if device.total  # other devices don't report their memory
        }
        if self._host is not None:
            found[CPU] = FitBudget(self._host.available, margin(0))
        return found

    def _has_room(self, uses: Sequence[DeviceUse]) -> bool:
        """True if there is room without the margins."""
        bare = {name: FitBudget(free, 0) for name, free in self._free().items()}
        return fit(uses, bare)

    def _free(self) -> dict[str, Bytes]:
        return {name: budget.free for name, budget in self._budgets().items()}

    def _check_host(self, choice: Choice, most: Bytes) -> None:
        host, filled = self._host, self._filled(choice.uses)
        if host is None or filled <= most:
            return
        n_layers = choice.n_layers

        def works(n_ctx: int, options: EngineOptions | None = None) -> bool:
            uses = self._measuring.uses(n_ctx, n_layers, options)
            compute = sum(use.compute for use in uses if use.name == CPU)
            return self._filled(uses) + compute <= host.available

        n_fit = largest_context(choice.n_ctx, CELLS * self._measuring.n_parts, works)
        remedies = [f"-c {n_fit}"] if n_fit else []
        smaller = replaced(self._options, cache_type_k="q8_0", cache_type_v="q8_0")
        try:
            if works(choice.n_ctx, smaller):
                remedies.append("-ctk q8_0 -ctv q8_0")
        except BackendError:
            pass  # not possible with the other options
        raise CannotFitError(
            too_large(
                choice,
                host,
                remedies,
                with_weights=self._has_own_weights(choice.uses),
                is_possible=filled <= host.most_ever,
            )
        )

    def _check_devices(self, choice: Choice) -> None:
        if self._host is None:
            return
        held = {use.name: use.kv_cache for use in choice.uses}
        for device in self._devices:
            kv_cache = held.get(device.name, 0)
            if not device.total or kv_cache <= device.total + self._host.most_ever:
                continue
            n_fit = largest_context(
                choice.n_ctx,
                CELLS * self._measuring.n_parts,
                lambda n_ctx: self._has_room(self._measuring.uses(n_ctx, choice.n_layers)),
            )
            raise CannotFitError(too_large_for(device, choice.n_ctx, kv_cache, n_fit))

    def _filled(self, uses: Sequence[DeviceUse]) -> Bytes:
        """The host memory that loading fills. Mapped weights don't count: they are read from their
        file on demand, and can be dropped again."""
        weights = self._has_own_weights(uses)
        return sum(use.kv_cache + (use.model if weights else 0) for use in uses if use.name == CPU)

    def _has_own_weights(self, uses: Sequence[DeviceUse]) -> bool:
        is_mapped = self._options.model.how_to_load() == "mmap"
        return is_measurable(self._options, uses) and (not is_mapped or self._measuring.is_repacked)
