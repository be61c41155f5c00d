"""`python -m benchmarks.overlap`: the time that a device waits for the host in each step, if the
host makes texts before it launches the next step, or while the device computes that step.

It needs no device: a clock replaces it, whose decodes take a fixed time and return random logits.
Everything else is the real engine. The clock counts the processor time of the host's thread, so
that other work on the machine has no influence. The two orders alternate, round after round;
figures are medians.
"""

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from unittest.mock import patch

import msgspec
import numpy as np
import numpy.typing as npt

from specllama.engine.options import EngineOptions
from specllama.engine.options.declaration import replaced
from specllama.engine.params import GenerationParams
from specllama.engine.shipped import model_path
from specllama.engine.wire.replies import Event, Step
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Context, Model, initialize
from specllama.engine.worker.generation.engine import Engine
from tools.models.build import ensure

N_ROWS = 61
"""Number of different rows of logits, used in turn."""
GENERATES = 8
"""Number of steps before the first measured one, in which prompts are evaluated."""


class Device:
    """A simulated device. Each decode takes `seconds`, in parallel to the host."""

    def __init__(self, model: Model, seconds: float) -> None:
        rows = np.random.default_rng(1).normal(size=(N_ROWS, model.n_vocab))
        rows[:, [*model.eog]] = -np.inf
        self._rows: npt.NDArray[np.float32] = rows.astype(np.float32)
        self._seconds = seconds
        self._ends = self._waited = 0.0
        self.n_steps = 0
        self.idle = 0.0
        """Seconds between the end of a decode and the start of the next one."""

    @property
    def now(self) -> float:
        """Returns the host's time, including the time that it waited for the device."""
        return time.thread_time() + self._waited

    def decode(self, context: Context) -> None:
        now = self.now
        if self.n_steps >= GENERATES:
            self.idle += max(0.0, now - self._ends)
        self.n_steps += 1
        self._ends = max(now, self._ends) + self._seconds

    def synchronize(self, context: Context) -> None:
        self._waited += max(0.0, self._ends - self.now)

    def logits(self, context: Context, index: int) -> npt.NDArray[np.float32]:
        row: npt.NDArray[np.float32] = self._rows[(self.n_steps + 7 * index) % N_ROWS]
        return row


def idle_seconds(
    model: Model, *, overlap: bool, n_slots: int, n_tokens: int, seconds: float
) -> tuple[float, float]:
    """Returns the idle seconds of the device per step, and the seconds of a whole step."""
    device = Device(model, seconds)
    options = replaced(
        EngineOptions(), parallel=n_slots, ctx_size=512 * n_slots, warmup=False, cache_ram=0
    )
    encoder = msgspec.msgpack.Encoder()
    with (
        open(os.devnull, "wb", buffering=0) as sink,
        patch(
            "specllama.engine.worker.backend.sampler.FEW", 0
        ),  # otherwise, llama.cpp would have to return logits
        patch.object(Context, "is_asynchronous", overlap),
        patch.object(Context, "decode", lambda context: device.decode(context)),
        patch.object(Context, "synchronize", lambda context: device.synchronize(context)),
        patch.object(Context, "logits", lambda context, index: device.logits(context, index)),
    ):

        def send(events: list[Event]) -> None:
            sink.write(encoder.encode(Step([*events])))

        engine = Engine(model, options)
        for id in range(1, n_slots + 1):
            params = GenerationParams(
                n_predict=n_tokens, temperature=0.0, stream=True, stop=["\nUser:", "###"]
            )
            engine.submit(engine.preparation.prepare(Submit(id, [f"{id} apples and"], params)))
        began = 0.0
        while engine.has_work:
            if not began and device.n_steps >= GENERATES:
                began = device.now
            engine.step(send)
        whole = device.now - began
        engine.close()
    n_steps = device.n_steps - GENERATES
    return device.idle / n_steps, whole / n_steps


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", default="bench-100m", help="bench-100m, shipped, or a file")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--device-ms", type=float, default=5.0, help="time of each decode")
    parser.add_argument("--rounds", type=int, default=5)
    plan = parser.parse_args()
    if plan.model == "shipped":
        path = model_path()
    else:
        path = ensure("bench-100m") if plan.model == "bench-100m" else Path(plan.model)
    initialize()
    model = Model(str(path), EngineOptions())
    figures: dict[str, list[tuple[float, float]]] = {}
    for n_slots in plan.slots:
        rounds: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for _ in range(plan.rounds):
            for overlap, found in rounds.items():
                found.append(
                    idle_seconds(
                        model,
                        overlap=overlap,
                        n_slots=n_slots,
                        n_tokens=plan.tokens,
                        seconds=1e-3 * plan.device_ms,
                    )
                )
        for overlap, found in rounds.items():
            figures[f"{n_slots} {'overlap' if overlap else 'in turn'}"] = found
        before, after = (statistics.median(idle for idle, _ in rounds[o]) for o in (False, True))
        slow, fast = (statistics.median(whole for _, whole in rounds[o]) for o in (False, True))
        print(
            f"{n_slots:3} slots: idle {1e3 * before:6.3f} ms per step, then {1e3 * after:6.3f} ms "
            f"({after / before:4.2f}); {slow / fast:5.3f} times the steps per second",
            flush=True,
        )
    print(json.dumps(figures))
    model.close()


if __name__ == "__main__":
    main()
