"""`python -m benchmarks.overlap`: the time that a fast device waits for the host in each step.

It needs no device: a clock replaces it, whose decodes take a fixed time and return random logits.
Everything else is the real engine with all its threads. It waits until a decode has ended, so work
that fits into this time is free.

The work of a device itself can't be measured. With `--backend-sampling`, the simulated device finds
the likeliest tokens within its fixed time.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import numpy as np

from specllama.engine.options import EngineOptions
from specllama.engine.options.declaration import replaced
from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Event, Step
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Context, Model, Offload, initialize
from specllama.engine.worker.backend.offload import N_FOUND
from specllama.engine.worker.generation.engine import Engine
from tools.models.build import ensure

SCHEMA = {
    "type": "array",
    "minItems": 1000,  # so that no text ends
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "price": {"type": "number"},
            "unit": {"enum": ["piece", "kilogram", "litre"]},
            "available": {"type": "boolean"},
        },
        "required": ["name", "price", "unit", "available"],
        "additionalProperties": False,
    },
}
SCENARIOS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "default": {},
    "schema": {"json_schema": json.dumps(SCHEMA)},
    "logprobs": {"n_probs": 5},
}
"""The parameters of all requests, which otherwise have the default sampler chain."""

N_ROWS = 61
"""Number of decodes with different logits."""
ROWS_PER_SLOT = 4
"""The most rows of a decode that have logits, per slot (forced tokens add rows)."""
FIRST_TOKEN = 100
"""Each prompt is one of the tokens after this one, so that all outputs are at low indices."""
FIRST = 20
"""Steps before the first measured one: prompts, and the first masks and thresholds."""
SPIN = 3e-4
"""The last seconds of a wait, for which no sleep is precise enough."""


@dataclass
class Device:
    """A simulated device: each decode takes `seconds`, in parallel to the host. All times are
    seconds."""

    n_slots: int
    n_vocab: int
    silent: list[int]
    """Tokens that are never likely."""
    seconds: float
    idle: list[float] = field(default_factory=list)
    """Between the end of each decode and the start of the next one."""
    busy: list[float] = field(default_factory=list)
    """Processor time of all threads in that time."""
    waited: float = 0.0
    """Processor time of waiting for decodes."""
    ends: float = 0.0
    """The end of the last decode."""
    used: float | None = None
    """Processor time of the process up to the end of the last decode; None during a decode."""

    def __post_init__(self) -> None:
        # As in real models, the rows differ in their range and in their mean.
        rng = np.random.default_rng(1)
        shape = (N_ROWS + ROWS_PER_SLOT * self.n_slots, 1)
        self.rows = rng.standard_normal((shape[0], self.n_vocab), np.float32)
        self.rows *= rng.uniform(1.5, 3.0, shape).astype(np.float32)
        self.rows += rng.normal(0.0, 2.0, shape).astype(np.float32)
        self.rows[:, self.silent] = -np.inf
        self.first, self.size = self.rows.ctypes.data, self.rows.strides[0]

    def begin(self) -> None:
        """Begin a decode, after the last one."""
        now = time.perf_counter()
        self.idle.append(max(0.0, now - self.ends))
        self.busy.append(0.0 if self.used is None else time.process_time() - self.used)
        self.ends = max(now, self.ends) + self.seconds
        self.used = None

    def synchronize(self) -> None:
        if self.used is not None:
            return
        before = time.thread_time()
        if (left := self.ends - time.perf_counter()) > SPIN:
            time.sleep(left - SPIN)
        while time.perf_counter() < self.ends:
            time.sleep(0)  # lets the other threads run
        self.waited += time.thread_time() - before
        self.used = time.process_time()

    def _row(self, index: int) -> int:
        return len(self.idle) % N_ROWS + index % (ROWS_PER_SLOT * self.n_slots)

    def address(self, context: Any, index: int) -> int:
        """The address of the logits of an output."""
        return self.first + self.size * self._row(index)

    def candidates(self, rows: Mapping[int, int]) -> tuple[Any, Any]:
        """The likeliest tokens of outputs, and their logits."""
        places = [self._row(index) for index in rows]
        ids, logits = self._likeliest
        return ids[places], logits[places]

    @cached_property
    def _likeliest(self) -> tuple[Any, Any]:
        n = min(N_FOUND, self.n_vocab)
        ids = np.array([row.argpartition(-n)[-n:] for row in self.rows], np.int32)
        return ids, np.take_along_axis(self.rows, ids, axis=1)

    @contextmanager
    def replaces_decodes(self) -> Iterator[None]:

        def decode(context: Context) -> None:
            context._newest.clear()
            self.begin()

        with ExitStack() as stack:
            stack.enter_context(patch.object(Context, "decode", decode))
            stack.enter_context(patch.object(Context, "synchronize", lambda _: self.synchronize()))
            stack.enter_context(patch.object(Offload, "_candidates", self.candidates))
            stack.enter_context(patch.object(Offload, "_count", lambda offload, _: offload.n_found))
            module = "specllama.engine.worker.backend.context"
            stack.enter_context(patch(f"{module}._logits_address", self.address))
            yield


@dataclass(frozen=True)
class Figures:
    """Milliseconds per step."""

    idle: float
    """Median time that the device waits for the host, by wall clock."""
    idle_mean: float
    idle_cpu: float
    """Mean processor time of all threads during that time. Other work on the machine changes it
    less than wall clock times."""
    cpu: float
    """Mean processor time of the process, without waiting for the device."""


def measure(
    model: Model,
    scenario: str,
    *,
    n_slots: int,
    n_steps: int,
    seconds: float,
    finds: bool = False,
) -> Figures:
    """Measures steps of `seconds` on the device, which with `finds` also finds the likeliest
    tokens."""
    options = replaced(
        EngineOptions(),
        parallel=n_slots,
        ctx_size=(n_steps + 256) // 256 * 512 * n_slots,
        warmup=False,
        cache_ram=0,
        backend_sampling=finds,
    )
    encoder = msgspec.msgpack.Encoder()
    device = Device(n_slots, model.n_vocab, [*model.eog], seconds)
    with (
        open(os.devnull, "wb", buffering=0) as sink,
        patch.object(Context, "is_asynchronous", True),
    ):

        def send(events: list[Event]) -> None:
            sink.write(encoder.encode(Step([*events])))

        engine = Engine(model, options)
        # For samplers that read llama.cpp's own logits: a real decode with as many outputs.
        engine.context.evaluate([1 if finds else ROWS_PER_SLOT] * n_slots, every=True)
        with device.replaces_decodes():
            for id in range(1, n_slots + 1):
                params = GenerationParams(
                    n_predict=-1,
                    seed=id,
                    stream=True,
                    stop=["\nUser:", "###"],
                    backend_sampling=finds,
                    **SCENARIOS[scenario],
                )
                engine.submit(engine.preparation.prepare(Submit(id, [FIRST_TOKEN + id], params)))
            while len(device.idle) < FIRST:
                engine.step(send, lambda: len(device.idle) < FIRST)
            began = time.process_time() - device.waited
            while len(device.idle) < FIRST + n_steps:
                engine.step(send, lambda: len(device.idle) < FIRST + n_steps)
            used = time.process_time() - device.waited - began
            assert len(engine.scheduler.active) == n_slots, "a text has ended"
            engine.close()
    idle, busy = device.idle[FIRST:], device.busy[FIRST:]
    return Figures(
        idle=1e3 * statistics.median(idle),
        idle_mean=1e3 * statistics.fmean(idle),
        idle_cpu=1e3 * statistics.fmean(busy),
        cpu=1e3 * used / n_steps,
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overlap",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", help="a file (default: 152,000 tokens, random weights)")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 32, 64])
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=[*SCENARIOS])
    parser.add_argument("--steps", type=int, default=150, help="measured steps in each round")
    parser.add_argument("--device-ms", type=float, default=8.0, help="time of each decode")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--backend-sampling", action="store_true", help="the device finds the likeliest tokens"
    )
    parser.add_argument("--json", type=Path, help="write the figures of all rounds to this file")
    plan = parser.parse_args()
    initialize()
    model = Model(str(plan.model or ensure("bench-draft")), EngineOptions())
    found: dict[str, list[dict[str, float]]] = {}
    print("| scenario | slots | idle ms, share | mean | processor ms, idle | whole step |")
    print("|---|---|---|---|---|---|")
    for scenario in plan.scenarios:
        for n_slots in plan.slots:
            rounds = [
                measure(
                    model,
                    scenario,
                    n_slots=n_slots,
                    n_steps=plan.steps,
                    seconds=1e-3 * plan.device_ms,
                    finds=plan.backend_sampling,
                )
                for _ in range(plan.rounds)
            ]
            middle = {
                name: statistics.median(getattr(each, name) for each in rounds)
                for name in Figures.__dataclass_fields__
            }
            share = middle["idle"] / (middle["idle"] + plan.device_ms)
            print(
                f"| {scenario} | {n_slots} | {middle['idle']:.3f}, {share:.1%} "
                f"| {middle['idle_mean']:.3f} | {middle['idle_cpu']:.3f} | {middle['cpu']:.3f} |",
                flush=True,
            )
            found[f"{scenario}, {n_slots} slots"] = [vars(each) for each in rounds]
    if plan.json:
        plan.json.write_text(json.dumps(found, indent=1))
    model.close()


if __name__ == "__main__":
    main()
