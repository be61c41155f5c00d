"""Verification of proposed tokens: which of them become a part of the text."""

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
from specllama.engine.worker.speculation.proposing import MOST, ProposalRequest, Proposing
from specllama.engine.worker.speculation.sources import proposal_sources

log = logging.getLogger("specllama.engine.worker.generation.verifying")


class Verifier(Protocol):
    """Compares proposed tokens with the model's choices."""

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        """Returns True if the text continues with `proposed`, the token number `depth` of a
        proposal, at position `at` of the text of a request with that `seed`. The model's choice is
        `sampled`."""


class Exact:
    """Confirms a token if the model chooses the same one."""

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        return proposed == sampled


class Synthetic:
    """Confirms at random, for measurements: texts are not the model's own.

    Equal requests with equal proposals get equal texts. A proposed end-of-generation token is never
    confirmed, so only the model ends a text.
    """

    def __init__(self, rates: Sequence[float], eog: Set[int]) -> None:
        """`rates`: the probabilities that at least one, two, ... tokens of a proposal are
        confirmed."""
        self._chances = [
            rate / before if before else 0.0 for before, rate in pairwise((1.0, *rates))
        ]
        self._eog = eog

    def confirms(self, proposed: int, sampled: int, *, depth: int, seed: int, at: int) -> bool:
        if proposed in self._eog or depth >= len(self._chances):
            return False
        return Random(seed << 32 | at).random() < self._chances[depth]


# ---- Proposals in the step: which tokens are proposed before it, and which are confirmed.
#
# Every token is chosen from the target model's logits, by the request's own samplers and
# constraint, as without proposals. The choice is then compared with the proposed token: if they are
# equal, the logits of the next row are valid for the text, and the next token can be chosen in the
# same step.


def speculation(
    context: Context,
    options: EngineOptions,
    scheduler: Scheduler,
    clock: StepClock,
    *,
    has_offload: bool,
) -> "Speculation":
    """The speculation of `options`. Raises `BackendError` if there is no memory for a source, or if
    synthetic rates are set and nothing can be proposed."""
    possible = context.is_cuttable and not has_offload
    sources = proposal_sources(context.model, options) if possible else []
    rates = options.speculation.synthetic_rates(has_draft=options.draft.model_draft != "")
    if not possible and (options.speculation.types() or options.draft.model_draft):
        why = "--backend-sampling" if has_offload else "a memory that can't take tokens back"
        if rates:
            raise BackendError(f"--spec-synth-* is impossible with {why}: nothing is proposed")
        log.warning("--spec-type and --model-draft have no effect with %s", why)
    verifier: Verifier = Exact()
    if rates:
        log.warning(
            "proposed tokens are accepted at random (--spec-synth-*), for measurements: texts are "
            "not the model's own (%.6g tokens per full proposal and step; rates: %s)",
            1 + sum(rates),
            show_rates(rates),
        )
        verifier = Synthetic(rates, context.model.eog)
    target = 1e-3 * options.context.target_itl_ms
    pace = Pace(clock, target, context.n_batch, is_full=bool(rates))
    limits: dict[str, tuple[int, int]] = {DRAFT: options.speculation.draft_sizes()}
    proposing = Proposing(sources, pace, limits=limits, only_texts={DRAFT})
    return Speculation(proposing, pace, verifier, scheduler, possible=possible)


class Speculation:
    """Proposes and verifies tokens for the requests of one engine. Belongs to the thread that
    steps."""

    def __init__(
        self,
        proposing: Proposing,
        pace: Pace,
        verifier: Verifier,
        scheduler: Scheduler,
        *,
        possible: bool,
    ) -> None:
        """`possible`: the memory can take tokens back, and more than one row of a sequence can have
        logits."""
        self._proposing = proposing
        self._pace = pace
        self._verifier = verifier
        self._scheduler = scheduler
        self._is_possible = possible
        self.n_accepted = 0
        """The number of confirmed tokens since the start."""
        self._verifying: list[Request] = []  # requests with a run in this step

    @property
    def has_sources(self) -> bool:
        """True if tokens may be proposed for texts without a constraint."""
        return self._is_possible and bool(self._proposing.names)

    def propose(self, requests: Mapping[int, Request]) -> None:
        """Set the proposed tokens that the next step may evaluate."""
        if not self._is_possible:
            return
        ready = [s for s in self._scheduler.active if s.phase == "ready"]
        has_sources = self.has_sources
        proposal_requests = [
            each
            for sequence in ready
            if (has_sources or requests[sequence.id].guide is not None)
            and (each := self._proposal_request(requests[sequence.id])) is not None
        ]
        if proposal_requests:
            self._proposing.propose(proposal_requests, len(ready))
            n_forced = sum(len(each.forced) for each in proposal_requests)
            self._scheduler.ahead.takes_early = self._pace.is_early_faster(n_forced, len(ready))

    def _proposal_request(self, request: Request) -> ProposalRequest | None:
        n = MOST if request.n_remain < 0 else min(MOST, request.n_remain - 1)
        n = min(n, self._scheduler.n_ctx - len(request.sequence.tokens) - 1)
        if n <= 0:
            return None
        wanted, guide = request.params.speculative, request.guide
        forced: list[int] = []
        likely: list[int] = []
        if guide is not None and request.params.jump_forward:
            # For a request with probabilities, forced tokens are sampled, too: their probabilities
            # come from the logits.
            forced = guide.forced(n) if request.probs is None else []
            likely = guide.likely(n)[len(forced) :]
        return ProposalRequest(
            request.sequence,
            request.proposals,
            min(n, wanted.n_max),
            n_min=wanted.n_min,
            # Improbable tokens often don't pay, which doesn't count in a full pace.
            p_min=0.0 if self._pace.is_full else wanted.p_min,
            forced=forced,
            likely=likely,
        )

    def begin(
        self, chunks: Sequence[Chunk], requests: Sequence[Request], indices: Sequence[int]
    ) -> list[Output]:
        """Begin to verify the evaluated `chunks`. Returns the requests whose next token is to be
        chosen, with the index of its logits. `indices` are the result of
        `engine.worker.generation.launch.fill`."""
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
        """The next token of `request`, whose model has chosen `token`: the proposed one if the
        verifier confirms it. The caller appends it to the text afterwards."""
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
        """True if the newest token of `request` is a confirmed proposal, so the token after it is
        chosen in the same step."""
        return request.sequence.n_ahead > 0 and request.run is not None and request.run.is_right

    def confirmed(self, outputs: Iterable[Output]) -> list[Output]:
        """Of the `outputs`, whose tokens are chosen: the requests that continue with a confirmed
        token, with the index of their next logits. The other proposals are taken back."""
        confirmed: list[Output] = []
        for request, _ in outputs:
            sequence, run = request.sequence, request.run
            if run is None or not sequence.n_ahead:  # nothing is left to verify
                continue
            if run.is_right:
                self._scheduler.ahead.confirm(sequence)
                confirmed.append((request, run.place))
            else:
                self._scheduler.ahead.take_back(sequence)
        return confirmed

    def end(self) -> None:
        """End the step: take back the tokens that aren't confirmed, and report to the sources."""
        for request in self._verifying:
            self._scheduler.ahead.take_back(request.sequence)
            run, request.run = request.run, None
            if run is not None:
                is_refuted, record = not run.is_right, request.proposals
                self._proposing.verified(record, run.chunk, run.n_accepted, is_refuted=is_refuted)
        self._verifying.clear()

    def stepped(self, chunks: Sequence[Chunk], seconds: float) -> None:
        """A step with these `chunks` has taken `seconds`."""
        if all(chunk.is_single for chunk in chunks):
            self._pace.stepped(sum(len(chunk.proposed) for chunk in chunks), seconds)

    def close(self) -> None:
        self._proposing.close()
