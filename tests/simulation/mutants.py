"""All mutants: changes of the handling of cached texts and of running texts."""

from collections.abc import Callable, Sequence
from typing import Any

from llama_cpp import llama_cpp

from specllama.engine.errors import EngineError
from specllama.engine.models.client import EngineClient
from specllama.engine.models.engine_process import EngineProcess, WaitingRequests
from specllama.engine.models.generation import Generation
from specllama.engine.models.records import Lease
from specllama.engine.models.residency import Residency
from specllama.engine.models.supervisor import Supervisor
from specllama.engine.wire.process import Changes
from specllama.engine.wire.replies import Accepted, Delta, Failed, Finished
from specllama.engine.worker.backend import Context
from specllama.engine.worker.cache import slot_file
from specllama.engine.worker.cache.block_hashes import BlockHashes
from specllama.engine.worker.cache.cells import Cells
from specllama.engine.worker.cache.checkpoints import Checkpoints
from specllama.engine.worker.cache.host_cache import HostCache
from specllama.engine.worker.cache.prefix_cache import PrefixCache
from specllama.engine.worker.cache.radix import RadixIndex
from specllama.engine.worker.cache.second_tier import SecondTier
from specllama.engine.worker.cache.texts import OWNER
from specllama.engine.worker.constraints.compiler import Compiler
from specllama.engine.worker.constraints.constraint import Constraint
from specllama.engine.worker.constraints.lazy import LazyConstraint
from specllama.engine.worker.constraints.thinking import ThinkingLimit
from specllama.engine.worker.embedding.planning import EmbeddingBatcher
from specllama.engine.worker.generation import request
from specllama.engine.worker.generation.answering import Answering
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.launch import Counting, Decoding
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.requests import Requests
from specllama.engine.worker.generation.sampling import Sampling
from specllama.engine.worker.generation.verifying import Exact, Speculation
from specllama.engine.worker.media.encoder import MediaEncoder
from specllama.engine.worker.media.registry import MediaRegistry
from specllama.engine.worker.scheduling.admission import AdmissionQueue
from specllama.engine.worker.scheduling.limits import Deadlines
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk
from specllama.engine.worker.scheduling.sharing import Ahead
from specllama.engine.worker.scheduling.slots import SlotTable
from specllama.engine.worker.slot_actions import SlotActions
from specllama.engine.worker.worker import Worker
from tests.simulation.mutant import Acts, Mutant, adds, gives, skips

Real = Callable[..., Any]


# ---- Cached data: cells, checkpoints, kept texts, files, media.


def _copy_put_off(
    real: Real, acts: Acts, source: int, target: int, n: int, state: Any = None
) -> bool:
    """Copies cells without computing. Between separate caches, llama.cpp then copies them at the
    next decode, when they may belong to another text."""
    context: Context = real.args[0]  # type: ignore[attr-defined]
    if context._unified or n < context.first_cut(source):
        return bool(real(source, target, n, state))
    acts()
    llama_cpp.llama_memory_seq_cp(context._memory, source, target, 0, -1)
    if context.remove(target, n):
        return True
    context.remove(target, 0)
    return False


def _shared_by_all(real: Real, acts: Acts, scales: Any, owner: int = 0) -> Any:
    acts.n += owner > 0
    return real(scales)


def _without_scales(real: Real, acts: Acts, scales: Any, owner: int = 0) -> Any:
    key = real(scales, owner)
    acts.n += len(key) > bool(owner)
    return tuple(each for each in key if each[0] == OWNER)


def _removed_less(real: Real, acts: Acts, sequence: int, start: int) -> Any:
    if not start:
        return real(sequence, start)
    acts()
    return True


def _all_inherited(real: Real, acts: Acts, source: int, target: int, n: int) -> Any:
    acts()
    return real(source, target, 1 << 30)


def _one_more_found(real: Real, acts: Acts, tokens: Any, key: Any, *more: Any) -> Any:
    found = real(tokens, key, *more)
    if found is None:
        return None
    text, n = found
    acts.n += n < min(len(tokens), len(text.tokens))
    return text, min(n + 1, len(tokens), len(text.tokens))


def _grown_twice(real: Real, acts: Acts, sequence: int, n: int) -> None:
    acts()
    real(sequence, 2 * n)


def _one_longer(real: Real, acts: Acts, tokens: Any) -> dict[int, int]:
    acts()
    return {holder: min(n + 1, len(tokens)) for holder, n in real(tokens).items()}


def _leniently(real: Real, acts: Acts, *args: Any, **_: Any) -> None:
    acts()
    real(*args, leniently=True)


def _same_medium(real: Real, acts: Acts, digest: bytes, index: int, **about: Any) -> Any:
    acts()
    return real(bytes([about["n_tokens"] % 2]), index, **about)


def _any_origin(real: Real, acts: Acts, *args: Any) -> None:
    try:
        real(*args)
    except EngineError:
        acts()


def _done(real: Real, acts: Acts, *args: Any) -> bool:
    acts.n += not real(*args)
    return True


OF_MEMORY = (
    Mutant("copies of cells are deferred to the next decode", Context, "copy", _copy_put_off),
    Mutant("a text is shared between keys", request, "key_of", _shared_by_all),
    Mutant("a text is shared between adapters", request, "key_of", _without_scales),
    Mutant("the adapters of the last step stay", Decoding, "apply", skips()),
    Mutant("cells aren't removed from a text", Context, "remove", _removed_less),
    Mutant("a text is cut one token too late", PrefixCache, "cut", adds(1, 1)),
    Mutant("a failed cut counts as done", PrefixCache, "cut", _done),
    Mutant("a failed copy counts as done", PrefixCache, "copy", _done),
    Mutant("a failed rewind counts as done", Context, "rewind", _done),
    Mutant("a copy has a token too many", PrefixCache, "copy", adds(2, 1)),
    Mutant("a copy inherits all checkpoints", Checkpoints, "inherit", _all_inherited),
    Mutant("checkpoints outlive a cut", Checkpoints, "cut", skips()),
    Mutant("hashes outlive a cut", BlockHashes, "cut", skips()),
    Mutant("the host cache finds a token too many", HostCache, "find", _one_more_found),
    Mutant("prefixes are a token too long", RadixIndex, "matches", _one_longer),
    Mutant("kept texts have no key", SecondTier, "find", gives(1, ())),
    Mutant("kept texts are offered without a key", SecondTier, "offer", gives(2, ())),
    Mutant("a restored text keeps a token too many", PrefixCache, "restored", adds(2, 1)),
    Mutant("cells that were cut stay counted", Cells, "cut", skips()),
    Mutant("cells are counted twice", Cells, "grow", _grown_twice),
    Mutant("a dropped text stays in the cache", PrefixCache, "drop", skips()),
    Mutant("slot files of another model are accepted", slot_file, "check_origin", _any_origin),
    Mutant("all models have the same fingerprint", slot_file, "fingerprint", skips(answer=b"")),
    Mutant("images of the same size are the same", MediaRegistry, "intern", _same_medium),
)

# ---- Running work: scheduler, speculation, requests, models and their processes.


def _every(n: int, real: Real, acts: Acts, event: Any) -> None:
    if isinstance(event, Delta):
        acts()
        if acts.n % n == 0:
            return
    real(event)


def _event_lost(real: Real, acts: Acts, event: Any) -> None:
    _every(5, real, acts, event)


def _event_twice(real: Real, acts: Acts, event: Any) -> None:
    if isinstance(event, Delta):
        acts()
        if acts.n % 5 == 0:
            real(event)
    real(event)


def _ends_twice(real: Real, acts: Acts, send: Callable[[list[Any]], None]) -> None:
    def sends(events: list[Any]) -> None:
        ends = [event for event in events if isinstance(event, Finished)]
        acts.n += len(ends)
        send([*events, *ends])

    real(sends)


def _failures_lost(real: Real, acts: Acts, message: Any) -> None:
    if isinstance(message, Failed):
        acts()
    else:
        real(message)


def _in_reverse(real: Real, acts: Acts, send: Callable[[list[Any]], None]) -> None:
    def sends(events: list[Any]) -> None:
        acts.n += len(events) > 1
        send(events[::-1])

    real(sends)


def _right(real: Real, acts: Acts, proposed: int, sampled: int, **about: Any) -> bool:
    acts.n += proposed != sampled
    return True


def _itself(real: Real, acts: Acts) -> Any:
    acts()
    return real.args[0]  # type: ignore[attr-defined]


def _nothing_due(real: Real, acts: Acts) -> list[Any]:
    acts.n += bool(real())
    return []


def _slot_kept(real: Real, acts: Acts, *chunks: Any) -> bool:
    requests: Requests = real.args[0]  # type: ignore[attr-defined]
    acts.n += any(request.has_ended for request in requests._late)
    requests._late = [request for request in requests._late if request.late is not None]
    return False


def _no_end_late(real: Real, acts: Acts, request: Any, token: int, *, is_final: bool) -> bool:
    is_late = bool(real(request, token, is_final=is_final))
    if not is_late or request.sequence.id % 3:
        return is_late
    acts()
    request.late = None
    return True


def _padding_kept(real: Real, acts: Acts, chunks: Sequence[Chunk]) -> None:
    """Leaves the padding in the cache, so the next tokens of these prompts get cells after it."""
    acts.n += sum(chunk.n_pad > 0 for chunk in chunks)
    real([chunk._replace(n_pad=0) for chunk in chunks])


OF_RUNNING = (
    Mutant("a paused request never goes on", Scheduler, "resume", skips()),
    Mutant("a cancelled request keeps its slot", Scheduler, "cancel", skips()),
    Mutant("a finished request keeps its slot", Scheduler, "finish", skips()),
    Mutant("a failed request keeps its slot", Scheduler, "discard", skips()),
    Mutant("tokens after an end stay", Scheduler, "finish_before", skips()),
    Mutant("rejected proposals are never removed", Ahead, "take_back", skips()),
    Mutant("padding is never removed", Scheduler, "advance", _padding_kept),
    Mutant("proposals are never cleared", Ahead, "drop_proposed", skips()),
    Mutant("proposals are always right", Exact, "confirms", _right),
    Mutant("runs of proposals have no end", Speculation, "end", skips()),
    Mutant("costly keywords are never enforced", Compiler, "_compile", _leniently),
    Mutant("a copy of a constraint is the constraint itself", Constraint, "fork", _itself),
    Mutant("a copy of a lazy constraint is the constraint itself", LazyConstraint, "fork", _itself),
    Mutant("a copy of a reasoning limit is the limit itself", ThinkingLimit, "fork", _itself),
    Mutant("a token waits for its mask for ever", Sampling, "due", _nothing_due),
    Mutant("a late token is lost", Answering, "defer", _no_end_late),
    Mutant("late tokens are never answered", Requests, "answer_late", skips(answer=[])),
    Mutant("ended requests keep their slots", Requests, "free_finished", _slot_kept),
    Mutant("a cancelled request is never released", Requests, "cancel", skips()),
    Mutant("a cancelled engine request goes on", Engine, "cancel", skips()),
    Mutant("orders for media are never released", MediaEncoder, "release", skips()),
    Mutant("steps aren't counted", Counting, "decoded", skips()),
    Mutant("cancelled vectors stay in the queue", EmbeddingBatcher, "remove", skips()),
    Mutant("slot actions are never done", SlotActions, "run", skips()),
    Mutant("an event is lost", Generation, "put", _event_lost),
    Mutant("an event comes twice", Generation, "put", _event_twice),
    Mutant("a text ends twice", Engine, "step", _ends_twice),
    Mutant("failures are lost", EngineClient, "dispatch", _failures_lost),
    Mutant("requests don't move to the next process", EngineClient, "adopt_from", skips()),
    Mutant("a client never forgets", EngineClient, "forget", skips()),
    Mutant("a client never resumes", EngineClient, "resume", skips()),
    Mutant("requests of a dead process have no end", EngineClient, "close", skips()),
    Mutant("waiting requests never go on", WaitingRequests, "go_on", skips()),
    Mutant("waiting requests never give up", WaitingRequests, "give_up", skips()),
    Mutant("a process never ends", EngineProcess, "end", skips()),
    Mutant("events are sent in reverse", Engine, "step", _in_reverse),
    Mutant("a supervisor's changes wake no task", Changes, "announce", skips()),
    Mutant("a lease is never released", Lease, "release", skips()),
    Mutant("a supervisor never counts a released lease", Supervisor, "release", skips()),
    Mutant("a supervisor is never woken", Supervisor, "wake", skips()),
    Mutant("a model's place in memory is never released", Residency, "release", skips()),
    Mutant("a withdrawn ticket keeps its turn", Residency, "withdraw", skips()),
    Mutant("a model that is gone keeps its place", Residency, "gone", skips()),
)

# ---- The queue and its terms: priorities, time limits, meters.


def _no_deadlines(real: Real, acts: Acts, arrived: float) -> Deadlines:
    acts.n += real(arrived) != Deadlines()
    return Deadlines()


def _no_deadline(real: Real, acts: Acts, passed: str, now: float) -> None:
    acts()
    real("", now)


def _unreported(real: Real, acts: Acts, *args: Any) -> None:
    acts.n += real(*args) is not None


def _settled_twice(real: Real, acts: Acts, timings: Any) -> None:
    generation: Generation = real.args[0]  # type: ignore[attr-defined]
    meter = generation._meter
    real(timings)
    if meter is not None:
        acts()
        meter.ended(timings)


def _reserved_again(real: Real, acts: Acts, event: Any) -> bool:
    """Reserves tokens for a text again when the next process has accepted it as well."""
    generation: Generation = real.args[0]  # type: ignore[attr-defined]
    meter = generation._meter
    is_again = isinstance(event, Accepted) and generation.request.terms.is_accepted
    if is_again and meter is not None:
        acts()
        meter.accepted(event.n_tokens)
    return bool(real(event))


def _token_lost(real: Real, acts: Acts, sequence: Any) -> None:
    """Preempts a sequence, whose last token becomes another one."""
    if sequence.generating and len(sequence.tokens) > sequence.n_prompt + 1:
        acts()
        sequence.tokens.view(len(sequence.tokens) - 1)[0] ^= 1
    real(sequence)


def _tokens_stay(real: Real, acts: Acts, ticket: Any, change: int) -> None:
    queue: AdmissionQueue[Any] = real.args[0]  # type: ignore[attr-defined]
    before = queue.n_tokens
    real(ticket, change)
    if change < 0 and ticket.n_tokens:
        acts()
        queue.n_tokens = before


def _never_again(real: Real, acts: Acts, sequence: Any, n_uncached: int | None = None) -> None:
    if sequence.n_charged:  # it had a slot
        acts()
    else:
        real(sequence, n_uncached)


def _reason_of_others(real: Real, acts: Acts, *args: Any) -> Any:
    acts()
    return "key"


OF_TERMS = (
    Mutant("a deadline is ignored", Deadlines, "of", _no_deadlines),
    Mutant("an end at a deadline has no reason", Request, "expire", _no_deadline),
    Mutant("the end of a cancelled text isn't reported", Worker, "_cancel", _unreported),
    Mutant("a meter gets an end twice", Generation, "settle", _settled_twice),
    Mutant("a meter gets no end", Generation, "settle", skips()),
    Mutant("a meter reserves twice", Generation, "_is_taken", _reserved_again),
    Mutant("flows without a text stay in the queue", AdmissionQueue, "_forget_idle", skips()),
    Mutant("a running text never leaves its flow", AdmissionQueue, "leave", skips()),
    Mutant("tokens that don't wait any more stay counted", AdmissionQueue, "_count", _tokens_stay),
    Mutant("a preempted text changes", SlotTable, "_preempt", _token_lost),
    Mutant("a text that was in a slot never comes back", SlotTable, "submit", _never_again),
    Mutant("clients learn of texts of other keys", request, "_shown", _reason_of_others),
)

MUTANTS = (*OF_MEMORY, *OF_RUNNING, *OF_TERMS)
