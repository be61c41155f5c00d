"""Situations that some history has to reach, and that unit tests hardly reach."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from specllama.engine.models.client import EngineClient
from specllama.engine.models.lifecycle import Lifecycle
from specllama.engine.worker.generation.answering import Answering
from specllama.engine.worker.generation.launch import Decoding
from specllama.engine.worker.generation.sampling import Sampling
from specllama.engine.worker.scheduling.idle import IdleMover
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence
from specllama.engine.worker.scheduling.slots import SlotTable
from tests.simulation.library import replaced
from tests.simulation.world import World

STATES = ("ready", "dozing", "sleeping", "waking", "restarting", "failed", "draining", "stopped")
MANNERS = ("plain", "retrying", "half", "kept", "background", "followed")
SOMETIMES = frozenset(
    {
        *(f"a model is {state}" for state in STATES),
        *(f"end: {how}" for how in ("eos", "limit", "word")),
        *(f"end: {how}_error" for how in ("invalid_request", "server", "unavailable")),
        *(f"slot: {what}" for what in ("save", "restore", "erase", "withdrawn")),
        *(
            f"fault: {what}"
            for what in ("load", "start", "disk", "gone", "torn", "trial", "costly", "death")
        ),
        *(f"fault: llama_decode gives {status}" for status in (-3, -2, -1, 1, 2)),
        "fault: signal",
        "fault: stopped",
        "fault: nonsense",
        "fault: slow",
        "fault: hang",
        "fault: encode",
        "fault: seq_rm",
        "fault: memory",
        "end: vectors",
        "deadline: prompt",
        "deadline: total",
        *(f"client: {how}" for how in MANNERS),
        "fault: the machine sleeps",
        "a prefix is cached",
        "a prefix is shared",
        "a text is restored",
        "an idle text makes way",
        "a proposal is accepted",
        "a proposal is rejected",
        "the context is shifted",
        "a sequence is preempted",
        "a sequence gives its slot to a better priority",
        "a preempted sequence goes on",
        "a preempted sequence is restored",
        "a request moves to another process",
        "a request is paused",
        "a paused request goes on",
        "a request is cancelled while it waits",
        "a request is cancelled while it runs",
        "a token waits for its mask",
        "a text is late",
        "a step follows without a pause",
        "a digest has blocks",
    }
)
"""All events that have to occur in the histories of a campaign; some of them are rare."""


def _around(
    owner: type, name: str, note: Callable[..., None]
) -> tuple[type, dict[str, Callable[..., Any]]]:
    """Returns a replacement of a method which also calls `note` with each result and its
    arguments."""
    method = getattr(owner, name)

    def called(this: Any, *args: Any, **kwargs: Any) -> Any:
        result = method(this, *args, **kwargs)
        note(result, this, *args)
        return result

    return owner, {name: called}


@contextmanager
def counted(world: World) -> Iterator[None]:
    """Counts the product's internal events in `world.events` while the context is open."""
    known: set[Sequence] = set()
    preempted: set[Sequence] = set()
    away: set[Sequence] = set()  # paused ones

    def entered(result: bool, lifecycle: Lifecycle, state: str) -> None:
        if result:
            world.happens(f"a model is {state}")

    def succeeded(result: None, client: EngineClient, before: EngineClient) -> None:
        if client.n_running:
            world.happens("a request moves to another process")

    def paused(result: None, scheduler: Scheduler, sequence: Sequence) -> None:
        world.happens("a request is paused", scheduler.n_paused > 0)
        away.add(sequence)

    def resumed(result: None, scheduler: Scheduler, sequence: Sequence) -> None:
        world.happens("a paused request goes on")
        away.discard(sequence)

    def cancelled(result: None, scheduler: Scheduler, sequence: Sequence) -> None:
        how = "while it runs" if sequence.n_past > 0 else "while it waits"
        world.happens(f"a request is cancelled {how}")

    def put_off(result: list[Any], sampling: Sampling, outputs: list[Any], until: float) -> None:
        world.happens("a token waits for its mask", len(result) < len(outputs))

    def submitted(result: None, slots: SlotTable, sequence: Sequence, *args: Any) -> None:
        if sequence in known and sequence not in away:
            world.happens("a sequence is preempted")
            preempted.add(sequence)
        known.add(sequence)

    def gave_way(result: None, slots: SlotTable, sequence: Sequence) -> None:
        world.happens("a sequence gives its slot to a better priority")

    def planned(result: list[Chunk], scheduler: Scheduler, *args: Any) -> None:
        for chunk in result:
            if chunk.sequence in preempted:
                preempted.discard(chunk.sequence)
                world.happens("a preempted sequence goes on")
                world.happens("a preempted sequence is restored", chunk.sequence.n_restored > 0)

    def moved(result: bool, *args: Any) -> None:
        world.happens("an idle text makes way", result)

    def deferred(result: bool, *args: Any) -> None:
        world.happens("a text is late", result)

    def followed(result: object, decoding: Decoding, *args: Any) -> None:
        world.happens("a step follows without a pause")

    with ExitStack() as stack:
        for owner, names in (
            _around(Lifecycle, "enter", entered),
            _around(EngineClient, "adopt_from", succeeded),
            _around(Scheduler, "pause", paused),
            _around(Scheduler, "resume", resumed),
            _around(Scheduler, "cancel", cancelled),
            _around(SlotTable, "submit", submitted),
            _around(SlotTable, "_preempt", gave_way),
            _around(Scheduler, "plan", planned),
            _around(IdleMover, "_move", moved),
            _around(Sampling, "put_off", put_off),
            _around(Answering, "defer", deferred),
            _around(Decoding, "launch_planned", followed),
        ):
            stack.enter_context(replaced(owner, names))
        yield
