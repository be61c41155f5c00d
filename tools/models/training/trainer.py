"""The training loop: batches, two optimizers, a learning rate with warm-up, plateau and decay, and
a checkpoint every few minutes."""

import math
import os
import signal
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType as WeightType
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

from tools.models.gguf_file import read_tensors, write_model
from tools.models.lessons.curriculum import ABILITIES
from tools.models.recipes import TALKER, Recipe
from tools.models.training.attention import block_mask
from tools.models.training.batches import Batch, batches, padded
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
from tools.models.training.supply import STRIDE, Pool, supply
from tools.models.training.workers import Workers, work

BATCH = 6144
"""Tokens per forward pass."""
ACCUMULATED = 2
"""Batches per step once lessons are at their full level; before, more steps teach more."""
GPU_BATCH = 32_768
"""Tokens per forward pass on a GPU, with one pass per step; smaller passes take as long."""
GPU_ROOM = 256
"""Tokens of a GPU's pass that are reserved for padding: lessons differ in length, but all passes
have the same size."""
WARM_UP = 100
AVERAGED = 0.998
"""The share of the averaged weights that each step keeps."""
FULL_LEVEL = 0.35
"""The share of the training after which lessons have their full length and difficulty."""
FULL_LEVEL_TOKENS = 100e6
"""The number of tokens after which lessons are at their full level at the latest."""
AHEAD_WEIGHT = 0.4
"""The weight of the token after the next one in the loss; the token after that has its square."""
SAVE_EVERY = 240
LOG_EVERY = 25
GPU_LOG_EVERY = 500


@dataclass(frozen=True, kw_only=True)
class Settings:
    """`device` is PyTorch's name. On a GPU, the `processes` make the lessons. On a CPU, they share
    the batches of a step, with `threads` threads each.

    `weights` is a model of another training to begin with. It has learnt the short lessons, so all
    lessons have their full level from the first step on. It may be a smaller model."""

    directory: Path
    seed: int
    n_tokens: int
    decay: float
    rate: float
    threads: int
    processes: int = 1
    weights: Path | None = None
    device: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def checkpoint(self) -> Path:
        return self.directory / "checkpoint.pt"


@dataclass(kw_only=True)
class State:
    """The contents of a checkpoint."""

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
        device = self.network.token_embd.device
        saved = torch.load(path, weights_only=True, map_location=device)
        self.network.load_state_dict(saved["network"])
        self.average = saved["average"]
        for optimizer, values in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.step, self.n_tokens, self.lesson = saved["step"], saved["n_tokens"], saved["lesson"]


def new_state(settings: Settings, recipe: Recipe) -> State:
    torch.manual_seed(settings.seed)
    network = Network(recipe.decoder, len(recipe.vocabulary().tokens), settings.device)
    if settings.weights:
        given = state_of(read_tensors(settings.weights), recipe.decoder)
        network.load_state_dict(grown(given, network.state_dict()))
    network.to(settings.device)
    optimizers: list[torch.optim.Optimizer] = [
        Muon(network.matrices(), lr=settings.rate),
        torch.optim.AdamW(
            network.others(), lr=settings.rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
    ]
    average = {name: values.clone() for name, values in network.state_dict().items()}
    return State(network=network, average=average, optimizers=optimizers)


def rate(settings: Settings, state: State) -> float:
    """Returns the learning rate: a warm-up, a plateau, and a linear decay to zero."""
    left = 1 - state.n_tokens / settings.n_tokens
    return settings.rate * max(0.0, min(1.0, (state.step + 1) / WARM_UP, left / settings.decay))


def level(settings: Settings, state: State) -> float:
    """Returns the length and difficulty of lessons, from 0 to 1."""
    if settings.weights:
        return 1.0
    full = min(FULL_LEVEL * settings.n_tokens, FULL_LEVEL_TOKENS)
    return min(1.0, 0.1 + 0.9 * state.n_tokens / full)


def train(settings: Settings, recipe: Recipe = TALKER) -> None:
    settings.directory.mkdir(parents=True, exist_ok=True)
    if settings.on_gpu:
        _train(settings, recipe, Workers())
    else:
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
            f"multiplies in {str(factor_type(settings.device)).removeprefix('torch.')}"
        )
    # A processor's batches have many sizes, and one compilation works for all of them.
    forward = torch.compile(state.network, dynamic=not settings.on_gpu)
    saved = time.monotonic()
    pools = _pools_of_gpu if settings.on_gpu else _pools
    # If the training ends within a pool, the rest of its lessons is skipped.
    with closing(pools(settings, state, recipe, workers)) as source:
        while state.n_tokens < settings.n_tokens and not workers.agree(bool(stop)):
            _step(state, next(source), forward, rate(settings, state), log, workers)
            if first and time.monotonic() - saved > SAVE_EVERY:
                state.save(settings.checkpoint)
                saved = time.monotonic()
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
    """Writes the averaged weights of the checkpoint as a GGUF file, or their mean with
    `settings.weights`, which have the share `kept`. The mean loses less of the earlier abilities
    (Wortsman et al., "Robust fine-tuning of zero-shot models", 2022)."""
    from dataclasses import replace

    saved = torch.load(settings.checkpoint, weights_only=True, map_location="cpu")
    decoder = replace(recipe.decoder, weight_type=WeightType[weight_type])
    state = saved["average"]
    if kept:
        assert settings.weights is not None
        before = grown(state_of(read_tensors(settings.weights), decoder), state)
        state = {name: values.lerp(before[name], kept) for name, values in state.items()}
    write_model(replace(recipe, decoder=decoder), path, named_tensors(state, decoder))
    print(f"{path}: step {saved['step']}, {saved['n_tokens'] / 1e6:.2f} million tokens")


def _pools(
    settings: Settings, state: State, recipe: Recipe, workers: Workers
) -> Generator[list[Batch]]:
    """Yields the batches of each step."""
    while True:
        reached = level(settings, state)
        pool, state.lesson = batches(
            settings.seed,
            state.lesson,
            size=BATCH,
            level=reached,
            n_ctx=recipe.decoder.n_ctx_train,
            together=max(ACCUMULATED if reached == 1 else 1, workers.n),
        )
        yield from pool


def _pools_of_gpu(
    settings: Settings, state: State, recipe: Recipe, _: Workers
) -> Generator[list[Batch]]:
    """Yields the batches of each step, of one size, made by separate processes."""
    pools = (
        Pool(
            seed=settings.seed,
            first=first,
            size=GPU_BATCH - GPU_ROOM,
            level=level(settings, state),
            n_ctx=recipe.decoder.n_ctx_train,
        )
        for first in count(math.ceil(state.lesson / STRIDE) * STRIDE, STRIDE)
    )
    with closing(supply(pools, settings.processes)) as made:
        for pool, found in made:
            state.lesson = max(state.lesson, pool.first + STRIDE)
            for batch in found:
                yield [padded(batch, GPU_BATCH)]


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A batch on its device. `answers` are the places whose `AHEAD` further tokens are predicted,
    too, and `ahead_weights` the weights of these (`AHEAD`, places)."""

    tokens: Tensor
    positions: Tensor
    targets: Tensor
    parts: Tensor | BlockMask
    answers: Tensor
    weights: Tensor
    ahead_weights: Tensor


def inputs(batch: Batch, device: str) -> Inputs:
    def moved(values: NDArray[Any]) -> Tensor:
        tensor = torch.from_numpy(values)
        return tensor if device == "cpu" else tensor.pin_memory().to(device, non_blocking=True)

    known = _answers(batch.weights)
    # A fixed number of places, because a GPU's sizes may not change: surplus places have the weight
    # 0.
    answers = np.flatnonzero(known) if device == "cpu" else np.arange(len(known))
    ahead = np.stack([batch.weights[answers + i] for i in range(1, AHEAD + 1)])
    parts: Tensor | BlockMask = moved(batch.parts)
    if device != "cpu":
        parts = block_mask(parts, len(batch.tokens), _compiled_mask())
    return Inputs(
        tokens=moved(batch.tokens),
        positions=moved(batch.positions),
        targets=moved(batch.targets),
        parts=parts,
        answers=moved(answers),
        weights=moved(batch.weights),
        ahead_weights=moved(ahead * known[answers]),
    )


@cache
def _compiled_mask() -> Any:
    return torch.compile(create_block_mask)


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
        given = inputs(batch, state.network.token_embd.device.type)
        losses, ahead = forward(
            given.tokens, given.positions, given.targets, given.parts, given.answers
        )
        loss = (losses * given.weights).sum()
        for i, each in enumerate(ahead * given.ahead_weights, 1):
            loss = loss + AHEAD_WEIGHT**i * each.sum()
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
    # At first, the average covers few steps.
    kept = min(AVERAGED, state.step / (state.step + 10))
    with torch.no_grad():
        for name, values in state.network.state_dict().items():
            state.average[name].lerp_(values, 1 - kept)
    if log and state.step % log.every == 0:
        log.write(state, learning_rate)


def _answers(weights: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Returns whether the target of each place and the `AHEAD` after it all belong to an answer."""
    counted = weights > PROMPT_WEIGHT
    n = len(counted) - AHEAD
    known: NDArray[np.bool_] = np.all([counted[i : n + i] for i in range(AHEAD + 1)], axis=0)
    return known


class Log:
    """Prints a line every few steps: the loss of the first worker's answers, and the speed of all
    workers."""

    def __init__(self, settings: Settings, state: State) -> None:
        self.every = GPU_LOG_EVERY if settings.on_gpu else LOG_EVERY
        self._path = settings.directory / "losses.txt"
        self._sums = torch.zeros(len(ABILITIES), 2, device=settings.device)
        self._since = time.monotonic()
        self._tokens = state.n_tokens

    def add(self, batch: Batch, losses: torch.Tensor) -> None:
        numbers = [ABILITIES.index(each) for each in batch.abilities]
        places = np.resize(np.repeat(numbers, batch.lengths), len(batch.tokens))
        counted = (batch.weights > PROMPT_WEIGHT).astype(np.float32)
        device = losses.device
        answers = torch.from_numpy(counted).to(device)
        found = torch.stack((losses * answers, answers), 1)
        self._sums.index_add_(0, torch.from_numpy(places).to(device), found)

    def write(self, state: State, learning_rate: float) -> None:
        took = time.monotonic() - self._since
        means = ", ".join(
            f"{ability} {loss / n:.3f}"
            for ability, (loss, n) in zip(ABILITIES, self._sums.tolist(), strict=True)
            if n
        )
        speed = (state.n_tokens - self._tokens) / took
        self.say(
            f"step {state.step}, {state.n_tokens / 1e6:.2f} M, {speed:.0f} tokens/s, "
            f"rate {learning_rate:.5f}: {means}"
        )
        self._sums.zero_()
        self._tokens, self._since = state.n_tokens, time.monotonic()

    def say(self, text: str) -> None:
        line = f"{datetime.now(UTC):%H:%M:%S} {text}"
        print(line, flush=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def _on_signal() -> list[int]:
    """Returns a list that is not empty once the process has received a signal to end."""
    received: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        received.append(number)

    signal.signal(signal.SIGTERM, remember)
    signal.signal(signal.SIGINT, remember)
    return received
