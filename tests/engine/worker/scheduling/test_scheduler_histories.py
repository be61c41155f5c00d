"""The scheduler in random histories."""

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specllama.engine.worker.cache import block_hashes
from specllama.engine.worker.cache.texts import ALL, Key
from specllama.engine.worker.generation.adapters import key_of
from specllama.engine.worker.scheduling import idle
from specllama.engine.worker.scheduling.misses import reusable
from specllama.engine.worker.scheduling.placement import context_shift
from specllama.engine.worker.scheduling.sequences import Chunk, Sequence, uncut
from tests.support.fake_kv import FakeKV, FakeTier
from tests.support.media_texts import is_uncut, spans, texts
from tests.support.scheduling import A, B, scheduler, sequence

pytestmark = pytest.mark.slow

LIMITS = {1: 20, 2: 45}
"""The bytes of the cached texts of each owner."""
OWNED = key_of([], 1)


@pytest.fixture(autouse=True)
def _sizes_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts are short, and the caches are small."""
    monkeypatch.setattr(block_hashes, "BLOCK", 2)
    monkeypatch.setattr(idle, "MIN_CELLS", 2)


class Histories(RuleBasedStateMachine):
    """Random submissions, cancellations and steps. All requests end, and no cells are mixed up."""

    @initialize(
        n_slots=st.integers(1, 4),
        unified=st.booleans(),
        n_batch=st.integers(4, 16),
        cuttable=st.booleans(),
        similarity=st.sampled_from([0.0, 0.1, 0.9]),
        continuous=st.booleans(),
        shiftable=st.booleans(),
        shifts=st.booleans(),
        n_more=st.integers(0, 3),
        window=st.sampled_from([0, 0, 4]),
        n_checkpoints=st.sampled_from([0, 1, 3]),
        checkpoint_step=st.sampled_from([0, 0, 3, 100]),
        saves_idle=st.sampled_from([None, True, False]),
        tier=st.sampled_from([None, (0, 0), (2, 0), (0, 2), (3, 3)]),
        proposes=st.sampled_from([0, 0, 1, 3, 40]),
        encodes=st.integers(1, 5),
        n_prompt=st.sampled_from([None, None, 1, 2, 5]),
        ends_late=st.booleans(),
        n_new=st.sampled_from([1, 1000]),
    )
    def begin(
        self,
        n_slots: int,
        unified: bool,
        n_batch: int,
        cuttable: bool,
        similarity: float,
        continuous: bool,
        shiftable: bool,
        shifts: bool,
        n_more: int,
        window: int,
        n_checkpoints: int,
        checkpoint_step: int,
        saves_idle: bool | None,
        tier: tuple[int, int] | None,
        proposes: int,
        encodes: int,
        n_prompt: int | None,
        ends_late: bool,
        n_new: int,
    ) -> None:
        self.ends_late = ends_late
        self.n_new = n_new  # the number of blocks that a digest hashes
        self.kv = FakeKV(24 if unified else None, 24, cuttable, shiftable, window)
        self.n_checkpoints = n_checkpoints
        self.tier = FakeTier(self.kv, *tier) if tier is not None else None
        self.shifts = shifts
        self.shifted: set[int] = set()
        self.s = scheduler(
            self.kv,
            n_slots,
            n_batch=n_batch,
            n_sequences=n_slots + n_more,
            n_checkpoints=n_checkpoints,
            checkpoint_step=checkpoint_step,
            saves_idle=saves_idle,
            similarity=similarity,
            continuous=continuous,
            tier=self.tier,
        )
        self.proposes = proposes
        self.encodes = encodes  # the number of steps between two embeddings
        self.n_steps = 0
        self.n_prompt = n_prompt
        self.n_batch, self.n_slots = n_batch, n_slots
        self.limits: dict[int, int] = {}
        self.alive: dict[int, Sequence] = {}
        self.paused: set[int] = set()
        self.postponed: dict[int, Sequence] = {}  # evaluated, without a chosen next token
        self.slow: set[int] = set()  # sequences whose masks are late
        self.next_id = 0

    @rule(
        tokens=texts().filter(bool),
        n_predict=st.integers(1, 30),
        pinned=st.booleans(),
        cache=st.booleans(),
        n_reuse=st.integers(0, 3),
        key=st.sampled_from([(), (), A, B, OWNED]),
        slow=st.booleans(),
        priority=st.sampled_from([0, 0, 0, 1, -1, 2]),
        owner=st.sampled_from([0, *LIMITS]),
    )
    def submit(
        self,
        tokens: list[int],
        n_predict: int,
        pinned: bool,
        cache: bool,
        n_reuse: int,
        key: Key,
        slow: bool = False,
        priority: int = 0,
        owner: int = 0,
    ) -> None:
        self.next_id += 1
        if slow:
            self.slow.add(self.next_id)
        slot = self.next_id % self.n_slots if pinned else -1
        new = sequence(
            self.next_id,
            tokens,
            id_slot=slot,
            cache_prompt=cache,
            n_reuse=n_reuse,
            key=key,
            priority=priority,
            owner=owner,
            cache_bytes=LIMITS.get(owner, 0),
            n_predict=n_predict,
        )
        self.alive[new.id] = new
        self.limits[new.id] = n_predict
        self.s.submit(new)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.alive)))
        sequence = self.alive.pop(id)
        for _ in range(2):
            self.s.cancel(sequence)
        self.paused.discard(id)
        self.s.pause(sequence)
        self.s.resume(sequence)
        assert sequence.phase == "ended"

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def pause(self, data: st.DataObject) -> None:
        """Pauses a request whose client doesn't read; it may be paused already."""
        id = data.draw(st.sampled_from(sorted(self.alive)))
        text = self.alive[id].tokens.view().tolist()
        self.s.pause(self.alive[id])
        self.paused.add(id)
        assert self.alive[id] not in self.s.active
        assert self.alive[id].tokens.view().tolist() == text

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        id = data.draw(st.sampled_from(sorted(self.alive)))
        self.s.resume(self.alive[id])
        self.paused.discard(id)

    @rule()
    def step(self) -> None:
        self._choose_late(all=False)
        self._propose()
        entries, running = [*self.s.cache.entries], {q.id for q in self.s.active}
        self._encode()
        texts = {id: one.tokens.view().tolist() for id, one in self.alive.items()}
        chunks = self.s.plan(self.n_prompt, now=float(self.n_steps))
        assert texts == {id: one.tokens.view().tolist() for id, one in self.alive.items()}
        for preempted in self.s.slots.preempted:
            assert preempted.phase != "ended"
        self.s.slots.preempted.clear()
        if not chunks and self.s.n_in("encoding"):
            return
        if not chunks and any(not q.n_pending for q in self.s.active):
            self._choose_late(all=True)
            return
        if not chunks and self.tier is not None and not self.s.active:
            return  # the sequence may wait for the second tier
        assert chunks or not self.alive.keys() - self.paused, (
            "work is waiting, but nothing is planned"
        )
        self._check_sizes(chunks)
        if any(c.proposed for c in chunks) and all(c.sequence.id in running for c in chunks):
            n_free, n_new = self.s.cache.n_free, sum(c.n_tokens for c in chunks)
            assert n_free is None or n_new <= n_free, "cells that are still used"
            is_all = len(chunks) == len(self.s.active)
            if is_all and all(c.sequence.phase == "ready" for c in chunks):
                n_before = self.n_free_before
                if n_before is not None and n_before >= len(chunks):
                    assert entries == [*self.s.cache.entries], "a cached text made room for them"
        assert len({c.sequence.id for c in chunks}) == len(chunks)
        self._check_proposed(chunks)
        if any(not c.sequence.generating for c in chunks):
            served = {c.sequence.id for c in chunks}
            waiting = [
                q
                for q in self.s.active
                if q.phase == "ready" and q.adapters == chunks[0].sequence.adapters
            ]
            assert all(q.id in served for q in waiting), "a prompt held generation up"
        self.kv.evaluate(chunks)
        chunks = [chunk for chunk in chunks if not self._ends_before(chunk)]
        self.s.advance(chunks)
        for chunk in chunks:
            if not chunk.is_last:
                assert not chunk.proposed
                continue
            if chunk.sequence.id in self.slow:
                self.s.ahead.take_back(chunk.sequence)
                self.postponed[chunk.sequence.id] = chunk.sequence
            else:
                self._verify(chunk.sequence, chunk.proposed)

    def _ends_before(self, chunk: Chunk) -> bool:
        """Ends a sequence as if a stop string were found in its newest token during the
        evaluation."""
        done = chunk.sequence
        if not (self.ends_late and self.kv.is_cuttable and done.generating):
            return False
        if (done.id + len(done.tokens)) % 5:
            return False
        self.s.finish_before(chunk)
        del self.alive[done.id]
        return True

    def _check_proposed(self, chunks: list[Chunk]) -> None:
        ready = [c for c in chunks if c.sequence.phase == "ready"]
        assert all(c.n_early <= c.n_forced <= len(c.proposed) for c in chunks)
        if self.kv.n_cells is None:
            assert len({c.n_late for c in ready}) <= 1, "separate caches are cut into many batches"
            ids = [c.sequence.seq_id for c in chunks]
            assert ids == sorted(ids), "as well"
        else:
            assert not any(c.n_early for c in chunks)

    def _check_sizes(self, chunks: list[Chunk]) -> None:
        """Checks that embeddings have separate decodes, and exceed a budget only if necessary."""
        (n_media,) = [c.n_tokens for c in chunks if c.span is not None] or [0]
        is_whole = any(c.span is not None and c.span.is_whole for c in chunks)
        n_tokens = sum(c.n_tokens for c in chunks) - n_media
        assert n_tokens + (0 if is_whole else n_media) <= self.n_batch
        if self.n_prompt is not None and not is_whole:
            n_of_prompts = sum(c.n_tokens for c in chunks if c.sequence.phase != "ready")
            assert n_of_prompts <= max(2 * self.n_prompt, 4)

    def _encode(self) -> None:
        """Adds the missing embeddings of texts in slots one by one. They may be dropped before
        their use."""
        self.n_steps += 1
        for active in self.s.active:
            spans = [span for span in active.spans if span.stop > active.n_past]
            ids = [active.tokens.item(span.start) for span in spans]
            missing = [id for id in ids if id not in self.kv.embedded]
            if missing and self.n_steps % self.encodes == 0:
                self.kv.embedded.add(missing.pop(0))
                self.n_steps += 1
            starts = [span.start for span, id in zip(spans, ids, strict=True) if id in missing]
            active.embed(min(starts, default=ALL))

    @precondition(lambda self: self.kv.embedded)
    @rule(data=st.data())
    def drop_embeddings(self, data: st.DataObject) -> None:
        self.kv.embedded.discard(data.draw(st.sampled_from(sorted(self.kv.embedded))))
        self._encode()

    @rule()
    def fail_to_encode(self) -> None:
        """Ends a waiting request, as if its medium couldn't be encoded."""
        for active in self.s.active:
            if active.phase == "encoding":
                self.s.cancel(self.alive.pop(active.id))
                return

    @rule(n=st.integers(1, 8), pauses=st.booleans())
    def leave_inside_of_a_medium(self, n: int, pauses: bool) -> None:
        for _ in range(n):
            for active in self.s.active:
                if active.span is not None and active.n_past > active.span.start:
                    self.s.pause(active)
                    if pauses:
                        self.paused.add(active.id)
                    else:
                        self.s.cancel(self.alive.pop(active.id))
                    return
            self.step()

    def _propose(self) -> None:
        """Makes proposals that are right, or wrong from some token on."""
        self.n_free_before = self.s.cache.n_free
        for each in self.s.active:
            if each.phase == "ready" and self.proposes:
                text = each.tokens.view().tolist()
                n_right = (each.id + len(text)) % (self.proposes + 1)
                for n in range(self.proposes):
                    text.append((sum(text) + (n == n_right)) % 3)
                each.proposed = tuple(text[-self.proposes :])
                n_forced = n_right if each.id % 2 else 0  # forced tokens are always right
                each.n_forced = min(n_forced, self.proposes)

    def _verify(self, sequence: Sequence, proposed: tuple[int, ...]) -> None:
        self._sample(sequence)
        for n, token in enumerate(proposed):
            if not sequence.n_ahead:
                return  # the sequence has ended, or lost a part of its text
            if sequence.tokens.item(len(sequence.tokens) - 1) != token:
                self.s.ahead.take_back(sequence)
                return
            self.s.ahead.confirm(sequence)
            if (sequence.id + n) % 7 == 6:  # the mask for the next token is late
                self.s.ahead.take_back(sequence)
                self.postponed[sequence.id] = sequence
                return
            self._sample(sequence)

    def _choose_late(self, *, all: bool) -> None:
        """Chooses the tokens of sequences whose masks are ready, unless they have left their
        slot."""
        for id, late in list(self.postponed.items()):
            if late.slot < 0 or late.n_pending:
                del self.postponed[id]
            elif all or (id + len(late.tokens)) % 3:
                del self.postponed[id]
                self._sample(late)

    @rule(n=st.integers(2, 30))
    def steps(self, n: int) -> None:
        """Runs many steps, so that contexts become full."""
        for _ in range(n):
            self.step()

    @rule(slot=st.integers(0, 3))
    def erase(self, slot: int) -> None:
        if slot < self.n_slots and self.s.in_slot(slot) is None:
            found = self.s.texts.cached(slot)
            n_tokens = 0 if found is None else len(self.kv.text(found[0]))
            assert self.s.texts.erase(slot) == n_tokens

    @rule(
        slot=st.integers(0, 3),
        tokens=texts(24).filter(bool),
        key=st.sampled_from([(), A, B]),
    )
    def restore(self, slot: int, tokens: list[int], key: Key) -> None:
        if slot >= self.n_slots or self.s.in_slot(slot) is not None:
            return
        id = self.s.texts.adopt(slot, np.array(tokens, np.int32), ALL, key)
        if id is not None:
            self.kv.restore(id, tokens, key)

    @rule(n=st.integers(1, 3))
    def give_up(self, n: int) -> None:
        for _ in range(n):
            self.s.cache.evict()

    @precondition(lambda self: self.tier is not None and self.tier.kept)
    @rule(data=st.data(), tokens=texts(5, 0))
    def come_back(self, data: st.DataObject, tokens: list[int]) -> None:
        """A request continues a text in the tier, or a part of it."""
        assert self.tier is not None
        kept, key = data.draw(st.sampled_from(self.tier.kept))
        n = uncut(spans(kept.tolist()), data.draw(st.integers(0, len(kept))))
        wanted = [*kept[:n].tolist(), *tokens]
        wanted = wanted[: uncut(spans(wanted), 20)] or [0]
        self.submit(wanted, data.draw(st.integers(1, 30)), False, True, 0, key)

    @rule()
    def no_room_after_all(self) -> None:
        self._propose()
        self._encode()
        chunks = self.s.plan()
        self.s.slots.preempted.clear()
        if not chunks:
            return
        active = self.s.active
        if early := [early_part(chunk) for chunk in chunks if chunk.n_early]:
            self.kv.evaluate(early)
        self.s.relieve()
        if any(c.proposed for c in chunks):
            assert self.s.active == active, "it is enough to propose nothing"
            assert not any(c.proposed for c in self.s.plan())
            self.s.slots.preempted.clear()

    def _sample(self, done: Sequence) -> None:
        done.append(sum(done.tokens.view().tolist()) % 3)
        self.limits[done.id] -= 1
        if not self.limits[done.id] or (len(done.tokens) >= 24 and not self._shift(done)):
            self.s.finish(done)
            del self.alive[done.id]

    def _shift(self, full: Sequence) -> bool:
        if not self.shifts or full.spans:
            return False
        before = full.tokens.view().tolist()
        n_keep, n_discard = context_shift(full.n_past, 24, full.id % 3, full.n_prompt % 4)
        if not self.s.shift(full, n_keep, n_discard):
            assert not self.kv.shiftable
            assert full.tokens.view().tolist() == before
            return False
        assert full.tokens.view().tolist() == before[:n_keep] + before[n_keep + n_discard :]
        self.shifted.add(full.id)
        return True

    @invariant()
    def what_nobody_asked_to_approximate_is_exact(self) -> None:
        if not hasattr(self, "s"):
            return
        for active in self.s.active:
            exact = [cell.exact for cell in self.kv.cells.get(active.seq_id, [])]
            assert all(exact[: active.n_exact])
            if not active.n_reuse and active.id not in self.shifted:
                assert all(exact)

    @invariant()
    def each_prompt_token_has_one_origin(self) -> None:
        if not hasattr(self, "s"):
            return
        for active in self.s.active:
            assert 0 <= active.n_from_files <= active.n_restored
            assert active.n_restored + active.n_shared <= active.n_cached <= reusable(active)
            assert (active.miss_reason is None) == (active.n_cached == reusable(active))
            assert (active.miss_reason == "disabled") == (
                active.miss_reason is not None and not active.cache_prompt
            )

    @invariant()
    def a_digest_has_the_blocks_of_cached_texts(self) -> None:
        if not hasattr(self, "s"):
            return
        data = block_hashes.digest(self.s.slots.usable(), name_of, 1000, self.n_new)
        found = [data[at : at + 8] for at in range(0, len(data), 8)]
        cached: set[bytes] = set()
        for held in filter(None, self.kv.cells.values()):
            n_exact = [*(cell.exact for cell in held), False].index(False)
            cached |= blocks([cell.token for cell in held[:n_exact]], held[0].key)
        for tokens, key in self.tier.kept if self.tier is not None else ():
            cached |= blocks(tokens.tolist(), key)
        assert len({*found}) == len(found)
        assert {*found} <= cached
        if self.kv.cuttable and self.n_new > 1:
            for entry in self.s.cache.entries.values():
                assert blocks(entry.tokens[: entry.n_exact].tolist(), entry.key) <= {*found}

    @invariant()
    def owners_keep_to_their_limits(self) -> None:
        if not hasattr(self, "s"):
            return
        checkpoints = self.s.cache.checkpoints
        for owner, limit in LIMITS.items():
            sizes = [
                len(entry.tokens) + sum(each.state.nbytes for each in checkpoints.get(id, ()))
                for id, entry in self.s.cache.entries.items()
                if entry.owner == owner
            ]
            n_bytes = sum(sizes) + (self.tier.n_bytes_of(owner) if self.tier is not None else 0)
            assert n_bytes <= limit + max(sizes, default=0)

    @invariant()
    def nothing_is_kept_that_cuts_a_medium(self) -> None:
        if not hasattr(self, "s"):
            return
        for active in self.s.active:
            assert is_uncut(active.tokens.view(0, active.n_given).tolist())
        for entry in self.s.cache.entries.values():
            assert is_uncut(entry.tokens.tolist())

    @invariant()
    def phases_are_what_the_counts_say(self) -> None:
        if not hasattr(self, "s"):
            return
        for each in self.alive.values():
            if each not in self.s.active:
                assert each.phase == ("paused" if each.id in self.paused else "queued")
            elif not each.n_pending:
                assert each.phase == "choosing"
            elif each.generating and each.n_pending == 1:
                assert each.phase == "ready"
            else:
                assert each.phase == ("prefill" if each.n_next else "encoding")

    @invariant()
    def nothing_is_ahead_between_steps(self) -> None:
        if not hasattr(self, "s"):
            return
        for each in [*self.alive.values(), *self.s.active]:
            assert not each.n_ahead
            assert not each.proposed or each in self.s.active
            if each.proposed:
                assert each.phase == "ready"

    @invariant()
    def the_cache_claims_what_is_held(self) -> None:
        if not hasattr(self, "s"):
            return
        claimed = {active.seq_id: active for active in self.s.active}
        assert not claimed.keys() & self.s.cache.entries.keys()
        for id, held in self.kv.cells.items():
            assert all(id in cell.owners for cell in held)
            keys = {cell.key for cell in held}
            if (active := claimed.get(id)) is not None:
                assert self.s.in_slot(active.slot) is active
                assert active.tokens.view(0, active.n_past).tolist() == self.kv.text(id)
            elif (entry := self.s.cache.entries.get(id)) is not None:
                assert entry.tokens.tolist() == self.kv.text(id)
                assert keys == {entry.key}
            else:
                assert not held, "cells without an owner"
        checkpoints = self.s.cache.checkpoints
        assert checkpoints.keys() <= claimed.keys() | self.s.cache.entries.keys()
        assert all(len(each) <= self.n_checkpoints for each in checkpoints.values())
        for id, each in checkpoints.items():
            for checkpoint in each:
                tokens, _ = self.kv.saved[int(checkpoint.state.view(np.uint32)[0])]
                assert tokens == self.kv.text(id)[: checkpoint.n]
        labels = [entry.slot for entry in self.s.cache.entries.values() if entry.slot >= 0]
        assert len(labels) == len(set(labels)), "two last texts of one slot"
        if self.kv.n_cells is not None:
            assert self.s.n_cells_used == self.kv.n_used

    def _go_through(self, ids: set[int]) -> None:
        for _ in range(2000):
            if not ids & self.alive.keys():
                return
            self.step()
        raise AssertionError("somebody starved")

    def teardown(self) -> None:
        if not hasattr(self, "s"):
            return
        self._go_through(self.alive.keys() - self.paused)
        assert self.alive.keys() == self.paused
        assert self.s.n_paused == len(self.paused)
        assert not self.s.has_work, "the paused ones are no work"
        for id in sorted(self.paused):
            self.s.resume(self.alive[id])
        self.paused.clear()
        self._go_through(set(self.alive))
        assert not self.s.has_work


def name_of(id: int) -> bytes:
    """Returns the name of a medium."""
    return b"%d" % id


def blocks(tokens: list[int], key: Key) -> set[bytes]:
    """Returns the hashes of the blocks of a text."""
    data = block_hashes.hashes_of(np.array(tokens, np.int32), key, name_of)
    return {data[at : at + 8] for at in range(0, len(data), 8)}


def early_part(chunk: Chunk) -> Chunk:
    """Returns the part of `chunk` that is evaluated early."""
    return chunk._replace(proposed=chunk.proposed[: chunk.n_early - 1])


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
