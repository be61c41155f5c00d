"""The training loop: batches, two optimizers, a rate that warms up, stays and falls, and a
checkpoint every few minutes."""

import os
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from gguf import GGMLQuantizationType as WeightType

from tools.models.gguf_file import read_tensors, write_model
from tools.models.recipes import TALKER, Recipe
from tools.models.training.batches import Batch, batches
from tools.models.training.encoding import PROMPT_WEIGHT
from tools.models.training.muon import Muon
from tools.models.training.network import (
    AHEAD,
    Network,
    factor_type,
    grown,
    named_tensors,
    state_of,
)
from tools.models.training.workers import Workers, work

BATCH = 6144
"""Tokens that go through the network at once."""
ACCUMULATED = 2
"""Batches for a step, once lessons are at their full level: before, many steps teach more."""
WARM_UP = 100
AVERAGED = 0.998
"""How much of the averaged weights stays at a step."""
FULL_LEVEL = 0.35
"""The part of the training after which lessons are as long and hard as they get."""
AHEAD_WEIGHT = 0.4
"""What the token behind the next one counts in the loss; the one behind it counts its square."""
SAVE_EVERY = 240
LOG_EVERY = 25


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`threads` are those of each of the `processes`, which share the batches of a step.

    `weights` is a model that another training has written, to begin with: it knows the short
    lessons, so that all are at their full level from the first step on. It may be a smaller one."""

    directory: Path
    seed: int
    n_tokens: int
    decay: float
    rate: float
    threads: int
    processes: int = 1
    weights: Path | None = None

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint.pt"


@dataclass(kw_only=True)
class State:
    """All that a checkpoint holds."""

    network: Network
    average: dict[str, torch.Tensor]
    optimizers: list[torch.optim.Optimizer]
    step: int = 0
    n_tokens: int = 0
    lesson: int = 0

    def save(self, path: Path) -> None:
        part = path.with_suffix(".part")
        torch.save(
            {
                "network": self.network.state_dict(),
                "average": self.average,
                "optimizers": [each.state_dict() for each in self.optimizers],
                "step": self.step,
                "n_tokens": self.n_tokens,
                "lesson": self.lesson,
            },
            part,
        )
        os.replace(part, path)

    def load(self, path: Path) -> None:
        saved = torch.load(path, weights_only=True)
        self.network.load_state_dict(saved["network"])
        self.average = saved["average"]
        for optimizer, values in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.step, self.n_tokens, self.lesson = saved["step"], saved["n_tokens"], saved["lesson"]


def new_state(settings: Settings, recipe: Recipe) -> State:
    torch.manual_seed(settings.seed)
    network = Network(recipe.decoder, len(recipe.vocabulary().tokens))
    if settings.weights:
        given = state_of(read_tensors(settings.weights), recipe.decoder)
        network.load_state_dict(grown(given, network.state_dict()))
    optimizers: list[torch.optim.Optimizer] = [
        Muon(network.matrices(), lr=settings.rate),
        torch.optim.AdamW(
            network.others(), lr=settings.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
    ]
    average = {name: values.clone() for name, values in network.state_dict().items()}
    return State(network=network, average=average, optimizers=optimizers)


def rate(settings: Settings, state: State) -> float:
    """The learning rate: a warm-up, a plateau, and a straight way down to zero."""
    left = 1 - state.n_tokens / settings.n_tokens
    return settings.rate * max(0.0, min(1.0, (state.step + 1) / WARM_UP, left / settings.decay))


def level(settings: Settings, state: State) -> float:
    """How long and hard lessons may be, from 0 to 1."""
    if settings.weights:
        return 1.0
    return min(1.0, 0.1 + 0.9 * state.n_tokens / (FULL_LEVEL * settings.n_tokens))


def train(settings: Settings, recipe: Recipe = TALKER) -> None:
    settings.directory.mkdir(parents=True, exist_ok=True)
    work(settings.processes, lambda workers: _train(settings, recipe, workers))


def _train(settings: Settings, recipe: Recipe, workers: Workers) -> None:
    torch.set_num_threads(settings.threads)
    state = new_state(settings, recipe)
    if settings.checkpoint.exists():
        state.load(settings.checkpoint)
    stop = _on_signal()
    first = workers.rank == 0
    log = Log(settings, state) if first else None
    if log:
        log.say(
            f"begins at step {state.step}, {state.n_tokens / 1e6:.2f} million tokens, "
            f"multiplies in {str(factor_type()).removeprefix('torch.')}"
        )
    # Batches have many sizes: one compilation for all of them.
    forward = torch.compile(state.network, dynamic=True)
    saved = time.monotonic()
    stopped = False
    while state.n_tokens < settings.n_tokens and not stopped:
        reached = level(settings, state)
        # If the training ends within a pool, the rest of its lessons is left out.
        pool, state.lesson = batches(
            settings.seed,
            state.lesson,
            size=BATCH,
            level=reached,
            n_ctx=recipe.decoder.n_ctx_train,
            together=max(ACCUMULATED if reached == 1 else 1, workers.n),
        )
        for group in pool:
            _step(state, group, forward, rate(settings, state), log, workers)
            if first and time.monotonic() - saved > SAVE_EVERY:
                state.save(settings.checkpoint)
                saved = time.monotonic()
            stopped = workers.agree(bool(stop))
            if stopped or state.n_tokens >= settings.n_tokens:
                break
    if log:
        state.save(settings.checkpoint)
        log.say(f"ends at step {state.step}, {state.n_tokens / 1e6:.2f} million tokens")


def export(
    settings: Settings,
    path: Path,
    weight_type: str,
    recipe: Recipe = TALKER,
    *,
    kept: float = 0.0,
) -> None:
    """Write the averaged weights of the checkpoint as a GGUF file, or the mean of them and those of
    `settings.weights`, of which the part `kept` stays: it loses less of what was known before
    (Wortsman et al., "Robust fine-tuning of zero-shot models", 2022)."""
    from dataclasses import replace

    saved = torch.load(settings.checkpoint, weights_only=True)
    decoder = replace(recipe.decoder, weight_type=WeightType[weight_type])
    state = saved["average"]
    if kept:
        assert settings.weights is not None
        before = grown(state_of(read_tensors(settings.weights), decoder), state)
        state = {name: values.lerp(before[name], kept) for name, values in state.items()}
    write_model(replace(recipe, decoder=decoder), path, named_tensors(state, decoder))
    print(f"{path}: step {saved['step']}, {saved['n_tokens'] / 1e6:.2f} million tokens")


def _step(
    state: State,
    group: list[Batch],
    forward: Any,
    learning_rate: float,
    log: "Log | None",
    workers: Workers,
) -> None:
    total = float(sum(each.weights.sum() for each in group))
    for batch in workers.share(group):
        weights = torch.from_numpy(batch.weights)
        answers = _answers(weights)
        losses, ahead = forward(
            torch.from_numpy(batch.tokens),
            torch.from_numpy(batch.positions),
            torch.from_numpy(batch.targets),
            torch.from_numpy(batch.parts),
            answers,
        )
        loss = (losses * weights).sum()
        for i, each in enumerate(ahead, 1):
            loss = loss + AHEAD_WEIGHT**i * (each * weights[answers + i]).sum()
        (loss / total).backward()
        if log:
            log.add(batch, losses.detach())
    state.n_tokens += sum(len(each.tokens) for each in group)
    workers.add(state.network.parameters())
    torch.nn.utils.clip_grad_norm_(state.network.parameters(), 1.0)
    for optimizer in state.optimizers:
        for parameters in optimizer.param_groups:
            parameters["lr"] = learning_rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    state.step += 1
    # At first the average is that of few steps.
    kept = min(AVERAGED, state.step / (state.step + 10))
    with torch.no_grad():
        for name, values in state.network.state_dict().items():
            state.average[name].lerp_(values, 1 - kept)
    if log and state.step % LOG_EVERY == 0:
        log.write(state, learning_rate)


def _answers(weights: torch.Tensor) -> torch.Tensor:
    """The places of a batch where the target and the `AHEAD` behind it are all of an answer."""
    counted = weights > PROMPT_WEIGHT
    n = len(counted) - AHEAD
    return torch.stack([counted[i : n + i] for i in range(AHEAD + 1)]).all(0).nonzero().squeeze(1)


class Log:
    """A line every few steps: the loss of the first worker's answers, and the speed of all."""

    def __init__(self, settings: Settings, state: State) -> None:
        self._path = settings.directory / "losses.txt"
        self._sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._since = time.monotonic()
        self._tokens = state.n_tokens

    def add(self, batch: Batch, losses: torch.Tensor) -> None:
        answers = torch.from_numpy(batch.weights > PROMPT_WEIGHT)
        rows = (each.split(batch.lengths) for each in (losses, answers))
        for ability, found, counted in zip(batch.abilities, *rows, strict=True):
            self._sums[ability][0] += float(found[counted].sum())
            self._sums[ability][1] += int(counted.sum())

    def write(self, state: State, learning_rate: float) -> None:
        took = time.monotonic() - self._since
        means = ", ".join(
            f"{ability} {loss / max(1, count):.3f}"
            for ability, (loss, count) in sorted(self._sums.items())
        )
        speed = (state.n_tokens - self._tokens) / took
        self.say(
            f"step {state.step}, {state.n_tokens / 1e6:.2f} M, {speed:.0f} tokens/s, "
            f"rate {learning_rate:.5f}: {means}"
        )
        self._sums.clear()
        self._tokens, self._since = state.n_tokens, time.monotonic()

    def say(self, text: str) -> None:
        line = f"{datetime.now(UTC):%H:%M:%S} {text}"
        print(line, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _on_signal() -> list[int]:
    """A list that is no longer empty when the process was asked to end."""
    received: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        received.append(number)

    signal.signal(signal.SIGTERM, remember)
    signal.signal(signal.SIGINT, remember)
    return received
