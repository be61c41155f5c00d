"""The training loop: it learns, goes on where it ended, and writes a model."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from tools.models.recipes import TALKER

torch = pytest.importorskip("torch", reason="PyTorch is not installed: the extra `train` has it")

SMALL = replace(
    TALKER, decoder=replace(TALKER.decoder, n_embd=32, n_layer=1, n_head=1, n_head_kv=1, n_ff=32)
)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.models.training import batches, trainer

    def as_it_is(network: Any, **_: Any) -> Any:
        return network

    monkeypatch.setattr(torch, "compile", as_it_is)
    monkeypatch.setattr(trainer, "BATCH", 512)
    monkeypatch.setattr(trainer, "WARM_UP", 5)
    monkeypatch.setattr(trainer, "LOG_EVERY", 5)
    monkeypatch.setattr(batches, "POOL", 5_000)


@pytest.fixture
def settings(tmp_path: Path) -> Callable[[int], Any]:
    from tools.models.training.trainer import Settings

    def made(n_tokens: int) -> Settings:
        return Settings(
            directory=tmp_path, seed=1, n_tokens=n_tokens, decay=0.3, rate=0.01, threads=1
        )

    return made


def steps(directory: Path) -> list[str]:
    return [each for each in (directory / "losses.txt").read_text().splitlines() if "rate" in each]


def conversation_loss(line: str) -> float:
    return float(line.split("conversation ")[1].split(",")[0])


def test_losses_fall_and_a_model_comes_out(settings: Callable[[int], Any], tmp_path: Path) -> None:
    from tools.models.training import trainer

    trainer.train(settings(12_000), SMALL)
    lines = [each for each in steps(tmp_path) if "conversation" in each]
    assert conversation_loss(lines[-1]) < conversation_loss(lines[0])
    path = tmp_path / "model.gguf"
    trainer.export(settings(12_000), path, "Q8_0", SMALL)
    names = {each.name for each in GGUFReader(path).tensors}
    assert {"token_embd.weight", "blk.0.attn_q.weight", "output_norm.weight"} <= names


def test_it_goes_on_where_it_ended(settings: Callable[[int], Any], tmp_path: Path) -> None:
    from tools.models.training import trainer

    trainer.train(settings(2_000), SMALL)
    first = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    trainer.train(settings(6_000), SMALL)
    second = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert second["step"] > first["step"] > 0
    assert second["n_tokens"] >= 6_000 > first["n_tokens"] >= 2_000
    assert second["lesson"] > first["lesson"]
    assert not (tmp_path / "checkpoint.part").exists()
    # Nothing is left to do.
    trainer.train(settings(6_000), SMALL)
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True)["step"] == second["step"]


def test_two_processes_take_the_steps_of_one(
    settings: Callable[[int], Any], tmp_path: Path
) -> None:
    from tools.models.training import trainer

    # At the full level a step has as many batches for one as for two.
    full = replace(settings(3_000), weights=_begun(settings, tmp_path))
    one, two = (replace(full, directory=tmp_path / each) for each in ("one", "two"))
    trainer.train(one, SMALL)
    trainer.train(replace(two, processes=2), SMALL)
    alone, both = (torch.load(each.checkpoint, weights_only=True) for each in (one, two))
    assert (alone["step"], alone["n_tokens"]) == (both["step"], both["n_tokens"])
    for name, values in alone["network"].items():
        torch.testing.assert_close(both["network"][name], values, rtol=1e-3, atol=1e-4)
    trainer.train(replace(two, processes=2, n_tokens=6_000), SMALL)
    assert torch.load(two.checkpoint, weights_only=True)["n_tokens"] >= 6_000


def _begun(settings: Callable[[int], Any], tmp_path: Path) -> Path:
    from tools.models.training import trainer

    first = replace(settings(1_000), directory=tmp_path / "begun")
    trainer.train(first, SMALL)
    path = tmp_path / "begun.gguf"
    trainer.export(first, path, "F32", SMALL)
    return path


def test_gradients_are_the_sums_of_all_workers(tmp_path: Path) -> None:
    from tools.models.training.workers import Workers, work

    def run(workers: Workers) -> None:
        vector = torch.nn.Parameter(torch.zeros(2))
        if workers.rank:
            vector.grad = torch.tensor([2.0, 4.0])
        workers.add([vector])
        assert vector.grad is not None
        assert vector.grad.tolist() == [2.0, 4.0]
        assert workers.share(range(5)) == range(workers.rank, 5, 2)
        assert workers.agree(workers.rank == 1)
        assert not workers.agree(False)
        (tmp_path / str(workers.rank)).touch()

    work(2, run)
    assert {each.name for each in tmp_path.iterdir()} == {"0", "1"}


def test_the_failure_of_another_worker_is_reported() -> None:
    from tools.models.training.workers import Workers, work

    def run(workers: Workers) -> None:
        # After all workers have met.
        workers.agree(False)
        if workers.rank:
            raise SystemExit(3)

    with pytest.raises(RuntimeError, match="a worker ended with 3"):
        work(2, run)


def test_it_begins_with_weights_of_a_file(settings: Callable[[int], Any], tmp_path: Path) -> None:
    from tools.models.training import trainer

    trainer.train(settings(6_000), SMALL)
    path = tmp_path / "model.gguf"
    trainer.export(settings(6_000), path, "F32", SMALL)
    trained = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["average"]
    further = replace(settings(6_000), directory=tmp_path / "further", weights=path)
    state = trainer.new_state(further, SMALL)
    for name, values in state.network.state_dict().items():
        # The parts that predict later tokens are in no file.
        in_file = not name.startswith("ahead.")
        assert torch.equal(values, trained[name] if in_file else 0 * values), name
    assert trainer.level(further, state) == 1 > trainer.level(settings(6_000), state)


@pytest.mark.parametrize("kept", [0.5, 0.3])
def test_a_share_of_the_first_weights_can_be_kept(
    settings: Callable[[int], Any], tmp_path: Path, kept: float
) -> None:
    from tools.models.gguf_file import read_tensors
    from tools.models.training import trainer
    from tools.models.training.network import state_of

    trainer.train(settings(2_000), SMALL)
    first, mixed = tmp_path / "first.gguf", tmp_path / "mixed.gguf"
    trainer.export(settings(2_000), first, "F32", SMALL)
    further = replace(settings(4_000), directory=tmp_path / "further", weights=first)
    trainer.train(further, SMALL)
    trainer.export(further, mixed, "F32", SMALL, kept=kept)
    before, found = (state_of(read_tensors(each), SMALL.decoder) for each in (first, mixed))
    after = torch.load(further.checkpoint, weights_only=True)["average"]
    for name, values in found.items():
        assert not torch.equal(before[name], after[name]), name
        torch.testing.assert_close(values, kept * before[name] + (1 - kept) * after[name])


def test_the_rate_rises_stays_and_falls(settings: Callable[[int], Any]) -> None:
    from tools.models.training.trainer import rate

    def at(step: int, n_tokens: int) -> float:
        state: Any = SimpleNamespace(step=step, n_tokens=n_tokens)
        return rate(settings(1000), state)

    assert at(0, 0) == pytest.approx(0.002)
    assert at(100, 500) == pytest.approx(0.01)
    assert at(100, 850) == pytest.approx(0.005)
    assert at(100, 1000) == at(100, 2000) == 0


def test_tokens_ahead_are_those_of_one_answer() -> None:
    from tools.models.training import trainer
    from tools.models.training.encoding import PROMPT_WEIGHT

    weights = np.full(9, PROMPT_WEIGHT, np.float32)
    weights[2:6] = 1.0
    weights[7:] = 3.0
    assert np.flatnonzero(trainer._answers(weights)).tolist() == [2, 3]
