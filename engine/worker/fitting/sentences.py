"""What is said of a model and the memory that is free: one line each."""

from collections.abc import Mapping, Sequence

from specllama.engine.wire.devices import CPU, Bytes, DeviceUse, mib
from specllama.engine.worker.backend.host_memory import HostMemory
from specllama.engine.worker.fitting.choice import AUTO, Asked, Choice


def chosen(
    asked: Asked, choice: Choice, before: Sequence[DeviceUse], free: Mapping[str, Bytes]
) -> str:
    """What was chosen in place of what, and why."""
    parts = []
    if choice.n_ctx != asked.n_ctx:
        parts.append(f"a context of {choice.n_ctx} tokens in place of {asked.n_ctx} (-c)")
    if choice.n_layers != AUTO:
        parts.append(f"{choice.n_layers} of {asked.most_layers} layers on devices (-ngl)")
    why = f"all of it needs {needed(before, free)}"
    return f"fitted to the free memory: {', '.join(parts)}; {why} (--fit, --fit-target)"


def short_of(choice: Choice, free: Mapping[str, Bytes]) -> str:
    """A model that is loaded although there is less memory than it may need."""
    return f"memory is short: the model needs {needed(choice.uses, free)}"


def needed(uses: Sequence[DeviceUse], free: Mapping[str, Bytes]) -> str:
    """The use of each device beside its free memory; the machine's if the model is on none."""
    told = [use for use in uses if use.name in free and use.name != CPU]
    told = told or [use for use in uses if use.name in free]
    return ", ".join(
        f"{mib(use.model + use.kv_cache + use.compute)} of the {mib(free[use.name])} free "
        + ("in the machine's memory" if use.name == CPU else f"on {use.name}")
        for use in told
    )


def too_large(
    choice: Choice,
    host: HostMemory,
    remedies: Sequence[str],
    *,
    with_weights: bool,
    is_possible: bool,
) -> str:
    """What is there, what is needed, and what would fit. `remedies`: options that help, each.
    `is_possible`: the machine has that much, though it isn't free."""
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
