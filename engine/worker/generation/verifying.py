"""Which of the proposed tokens are a part of the text."""

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from itertools import pairwise
from random import Random
from typing import Protocol

from specllama.engine.options import EngineOptions
from specllama.engine.options.tables.speculation import DRAFT, show_rates
from specllama.engine.worker.backend import BackendError, Context
from specllama.engine.worker.generation.request import Request
from specllama.engine.worker.generation.sampling import Output
from specllama.engine.worker.scheduling.scheduler import Scheduler
from specllama.engine.worker.scheduling.sequences import Chunk, ProposalRun
from specllama.engine.worker.scheduling.step_clock import StepClock
from specllama.engine.worker.speculation.pace import Pace
from specllama.engine.worker.speculation.proposing import MOST, Proposing, Wish
from specllama.engine.worker.speculation.sources import proposal_sources

log = logging.getLogger("specllama.engine.worker.generation.verifying")


class Verifier(Protocol):
    """Compares what is proposed with what the model says."""

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        """True if the text goes on with `proposed`, the token number `depth` of a proposal, at
        position `at` of the text of a request with that `seed`. The model says `sampled`."""


class Exact:
    """Confirms what the model says."""

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        return proposed == sampled


class Synthetic:
    """Confirms by chance, for measuring: texts are not what the model would say.

    The same request gets the same text as long as the same is proposed. Nothing ends a text that
    the model wouldn't end.
    """

    def __init__(self, rates: Sequence[float], eog: Set[int]) -> None:
        """`rates` are the chances that so many tokens are confirmed: one, two, and so on."""
        self._chances = [
            rate / before if before else 0.0 for before, rate in pairwise((1.0, *rates))
        ]
        self._eog = eog

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        if proposed in self._eog or depth >= len(self._chances):
            return False
        return Random(seed << 32 | at).random() < self._chances[depth]


# ---- Proposals in the step: what is asked for before it, and which of the tokens are confirmed.
#
# A token is chosen from the target's own logits, by the request's own samplers and under its own
# constraint, as if nothing had been proposed. Only then it is compared: if the proposed token is
# the same, the logits behind it are those of the text, and the next one can be chosen at once.


def speculation(
    context: Context,
    options: EngineOptions,
    scheduler: Scheduler,
    clock: StepClock,
    *,
    has_offload: bool,
) -> "Speculation":
    """The speculation that `options` ask for. Raises `BackendError` if a source has no room, or if
    there is nothing to be measured."""
    possible = context.is_cuttable and not has_offload
    sources = proposal_sources(context.model, options) if possible else []
    rates = options.speculation.synthetic_rates(has_draft=options.draft.model_draft != "")
    if not possible and (options.speculation.types() or options.draft.model_draft):
        why = "samplers on the device" if has_offload else "a memory that can't take tokens back"
        if rates:
            raise BackendError(f"no acceptance can be made up with {why}: nothing is proposed")
        log.warning("--spec-type and --model-draft have no effect with %s", why)
    verifier: Verifier = Exact()
    if rates:
        log.warning(
            "which proposed tokens are accepted is made up, for measuring: texts are not what the "
            "model would say (%.6g tokens of a full proposal, with the model's own; rates: %s)",
            1 + sum(rates),
            show_rates(rates),
        )
        verifier = Synthetic(rates, context.model.eog)
    pace = Pace(clock, 1e-3 * options.context.target_itl_ms, context.n_batch)
    limits: dict[str, tuple[int, int]] = {DRAFT: options.speculation.draft_sizes()}
    proposing = Proposing(sources, pace, limits=limits, only_texts={DRAFT})
    return Speculation(proposing, pace, verifier, scheduler, possible=possible)


class Speculation:
    """What is proposed for the requests of one engine. Belongs to the thread that steps."""

    def __init__(
        self,
        proposing: Proposing,
        pace: Pace,
        verifier: Verifier,
        scheduler: Scheduler,
        *,
        possible: bool,
    ) -> None:
        """`possible` says that the memory can take tokens back, and more than one row of a
        sequence can have logits."""
        self._proposing = proposing
        self._pace = pace
        self._verifier = verifier
        self._scheduler = scheduler
        self._is_possible = possible
        self.n_accepted = 0
        """Tokens that were proposed and are a part of a text, since the start."""
        self._verifying: list[Request] = []  # those that have a run in this step

    def propose(self, requests: Mapping[int, Request]) -> None:
        """Set what the next step may evaluate of what is proposed."""
        if not self._is_possible:
            return
        ready = [s for s in self._scheduler.active if s.phase == "ready"]
        wishes = [
            wish for sequence in ready if (wish := self._wish(requests[sequence.id])) is not None
        ]
        if wishes:
            self._proposing.propose(wishes, len(ready))
            n_forced = sum(len(wish.forced) for wish in wishes)
            self._scheduler.ahead.takes_early = self._pace.pays_early(n_forced, len(ready))

    def _wish(self, request: Request) -> Wish | None:
        n = MOST if request.n_remain < 0 else min(MOST, request.n_remain - 1)
        n = min(n, self._scheduler.n_ctx - len(request.sequence.tokens) - 1)
        if n <= 0:
            return None
        wanted, guide = request.params.speculative, request.guide
        forced: list[int] = []
        likely: list[int] = []
        if guide is not None and request.params.jump_forward:
            # Who wants their probabilities gets those that the model gives them.
            forced = guide.forced(n) if request.probs is None else []
            likely = guide.likely(n)[len(forced) :]
        return Wish(
            request.sequence,
            request.proposals,
            min(n, wanted.n_max),
            n_min=wanted.n_min,
            p_min=wanted.p_min,
            forced=forced,
            likely=likely,
        )

    def begin(
        self, chunks: Sequence[Chunk], requests: Sequence[Request], indices: Sequence[int]
    ) -> list[Output]:
        """The chunks are evaluated; where the requests whose next token is to be chosen find its
        logits. `indices` are those of `engine.worker.generation.launch.fill`."""
        outputs: list[Output] = []
        for chunk, request, index in zip(chunks, requests, indices, strict=True):
            if chunk.proposed:
                request.run = run = ProposalRun(chunk, index)
                self._verifying.append(request)
                request.n_drafted += len(chunk.proposed) - chunk.n_forced
                index = run.place
            if chunk.is_last:
                outputs.append((request, index))
        return outputs

    def chosen(self, request: Request, token: int) -> int:
        """The model has chosen `token`; the next one of `request`, whose text it isn't part of
        yet."""
        run = request.run
        if run is None or not request.sequence.n_ahead:
            return token
        proposed = run.chunk.proposed[run.n_accepted]
        depth = run.n_accepted - run.chunk.n_forced
        if depth < 0:
            run.is_right = token == proposed
        else:
            run.is_right = self._verifier.confirms(
                proposed,
                token,
                depth=depth,
                seed=request.params.seed,
                at=len(request.sequence.tokens),
            )
        if not run.is_right:
            return token
        run.n_accepted += 1
        if depth >= 0:
            request.n_drafts_accepted += 1
            self.n_accepted += 1
        return proposed

    def goes_on(self, request: Request) -> bool:
        """True if the newest token of `request` is a proposed one, and the one behind it is chosen
        next, in the same step."""
        return request.sequence.n_ahead > 0 and request.run is not None and request.run.is_right

    def confirmed(self, outputs: Iterable[Output]) -> list[Output]:
        """Those of the `outputs`, whose tokens are chosen, that go on with what was proposed; with
        the place of the next one's logits."""
        confirmed: list[Output] = []
        for request, _ in outputs:
            sequence, run = request.sequence, request.run
            if run is None or not sequence.n_ahead:  # nothing was proposed there, or it has ended
                continue
            if run.is_right:
                self._scheduler.ahead.confirm(sequence)
                confirmed.append((request, run.place))
            else:
                self._scheduler.ahead.take_back(sequence)
        return confirmed

    def end(self) -> None:
        """The step is over: what isn't confirmed is taken back."""
        for request in self._verifying:
            self._scheduler.ahead.take_back(request.sequence)
            run, request.run = request.run, None
            if run is not None:
                is_refuted, record = not run.is_right, request.proposals
                self._proposing.verified(record, run.chunk, run.n_accepted, is_refuted=is_refuted)
        self._verifying.clear()

    def stepped(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """A step with these has taken `seconds`."""
        if all(chunk.is_single for chunk in chunks):
            self._pace.stepped(sum(len(chunk.proposed) for chunk in chunks), seconds)

    def close(self) -> None:
        self._proposing.close()
