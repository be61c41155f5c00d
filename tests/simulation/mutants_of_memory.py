"""Mutants of what is cached: cells, checkpoints, kept texts, files, media."""

from collections.abc import Callable
from typing import Any

from llama_cpp import llama_cpp

from specllama.engine.worker.backend import Context
from specllama.engine.worker.cache import slot_file
from specllama.engine.worker.cache.cells import Cells
from specllama.engine.worker.cache.checkpoints import Checkpoint, Checkpoints, Cuts
from specllama.engine.worker.cache.host_cache import HostCache
from specllama.engine.worker.cache.origin import Identity
from specllama.engine.worker.cache.prefix_cache import OWNER, PrefixCache
from specllama.engine.worker.cache.radix import RadixIndex
from specllama.engine.worker.cache.second_tier import SecondTier
from specllama.engine.worker.generation import request
from specllama.engine.worker.generation.launch import Decoding
from specllama.engine.worker.media.registry import MediaRegistry
from specllama.engine.worker.scheduling.placement import IdleTexts
from tests.simulation.mutant import Acts, Mutant, adds, gives, skips

Real = Callable[..., Any]


def _copy_put_off(
    real: Real, acts: Acts, source: int, target: int, n: int, state: Any = None
) -> bool:
    """Between separate caches, llama.cpp copies cells with the next decode: by then they may be
    those of another text."""
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


def _other_checkpoint(real: Real, acts: Acts, id: int, n: int) -> Any:
    state = real(id, n)
    checkpoints: Checkpoints = real.args[0]  # type: ignore[attr-defined]
    others = [each.state for each in checkpoints.of.get(id, ()) if each.n != n]
    if state is None or not others:
        return state
    acts()
    return others[0]


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


def _cut_anywhere(real: Real, acts: Acts, id: int, n: int) -> int:
    acts.n += real(id, n) != n
    return n


def _kept_cut_anywhere(real: Real, acts: Acts, n: int) -> int:
    acts.n += real(n) != n
    return n


def _grown_twice(real: Real, acts: Acts, sequence: int, n: int) -> None:
    acts()
    real(sequence, 2 * n)


def _one_longer(real: Real, acts: Acts, tokens: Any) -> dict[int, int]:
    acts()
    return {holder: min(n + 1, len(tokens)) for holder, n in real(tokens).items()}


def _same_medium(real: Real, acts: Acts, digest: bytes, index: int, **about: Any) -> Any:
    acts()
    return real(bytes([about["n_tokens"] % 2]), index, **about)


def _checkpoints_lost(real: Real, acts: Acts, *args: Any) -> Any:
    kept = real(*args)
    acts.n += bool(kept)
    return kept and [Checkpoint(each.n - 1, each.state) for each in kept]


MUTANTS = (
    Mutant("copies of cells are put off", Context, "copy", _copy_put_off),
    Mutant("a text is shared between keys", request, "key_of", _shared_by_all),
    Mutant("a text is shared between adapters", request, "key_of", _without_scales),
    Mutant("the adapters of the last step stay", Decoding, "apply", skips()),
    Mutant("cells aren't removed from a text", Context, "remove", _removed_less),
    Mutant("a text is cut one token too late", PrefixCache, "cut", adds(1, 1)),
    Mutant("a copy has a token too many", PrefixCache, "copy", adds(2, 1)),
    Mutant("the state of another checkpoint", Checkpoints, "at", _other_checkpoint),
    Mutant("a copy inherits all checkpoints", Checkpoints, "inherit", _all_inherited),
    Mutant("checkpoints outlive a cut", Checkpoints, "cut", skips()),
    Mutant("a checkpoint counts one token less", Checkpoints, "add", adds(1, -1)),
    Mutant("a kept text can be cut anywhere", Cuts, "reachable", _kept_cut_anywhere),
    Mutant("a text in the cache can be cut anywhere", PrefixCache, "reachable", _cut_anywhere),
    Mutant("the host cache finds a token too many", HostCache, "find", _one_more_found),
    Mutant("prefixes are a token too long", RadixIndex, "matches", _one_longer),
    Mutant("kept texts have no key", SecondTier, "find", gives(1, ())),
    Mutant("kept texts are offered without a key", SecondTier, "offer", gives(2, ())),
    Mutant("a restored state has a token more", PrefixCache, "restored", adds(1, 1)),
    Mutant("restored checkpoints are off by one", SecondTier, "restore", _checkpoints_lost),
    Mutant("cells that were cut stay counted", Cells, "cut", skips()),
    Mutant("cells are counted twice", Cells, "grow", _grown_twice),
    Mutant("a dropped text stays in the cache", PrefixCache, "drop", skips()),
    Mutant("an erased slot may be used again", IdleTexts, "forget_moved", skips()),
    Mutant("slot files of another model are taken", slot_file, "check_origin", skips()),
    Mutant("kept files of other settings are taken", Identity, "fits", skips(answer=True)),
    Mutant("images of the same size are the same", MediaRegistry, "intern", _same_medium),
    Mutant("a changed text keeps its old prefix", PrefixCache, "retext", skips()),
)
