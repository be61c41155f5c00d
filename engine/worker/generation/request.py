"""One generation on its way: what the engine keeps for a request besides its tokens' places."""

import time
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from types import MappingProxyType

import numpy as np

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import PromptProgress, SlotState, StopType, Timings, TokenProbs
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import OffloadedSampler, PreparedChunk, Sampler
from specllama.engine.worker.constraints.lazy import Guide
from specllama.engine.worker.generation.adapters import key_of
from specllama.engine.worker.generation.detokenizer import IndentLimit, TextStream
from specllama.engine.worker.generation.probabilities import ProbabilityLog, PromptProbabilities
from specllama.engine.worker.scheduling.media import Span
from specllama.engine.worker.scheduling.sequences import Sequence
from specllama.engine.worker.tokens import TokenArray, TokenBuffer


class Request:
    """One generation: its sequence for the scheduler, its sampler, its text so far.

    `tokens` are those of the prompt, with media in the `spans`, which are made of the chunks
    `media`, by id. `prompt` is its text, if the answer is to have it. `piece` gives the bytes that
    a token shows; `guide` is None for a text without a constraint, and `relaxed` what of its
    schemas it leaves out; `probs` is None without `n_probs`. `prompt_probs`, if they are wanted,
    come from the logits of the prompt, of which a step has those of `n_outputs` tokens at the most.
    `arrived` is a time of `time.perf_counter`, as all others.
    """

    def __init__(
        self,
        submit: Submit,
        tokens: TokenArray,
        sampler: Sampler | OffloadedSampler,
        *,
        arrived: float,
        piece: Callable[[int], bytes],
        guide: Guide | None = None,
        relaxed: tuple[str, ...] = (),
        probs: ProbabilityLog | None = None,
        prompt_probs: PromptProbabilities | None = None,
        n_outputs: int = 0,
        prompt: str = "",
        spans: SequenceOf[Span] = (),
        media: Mapping[int, PreparedChunk] = MappingProxyType({}),
    ) -> None:
        params = submit.params
        self.id = submit.id
        self.confirm = submit.confirm
        self.params: GenerationParams = params
        self.prompt = prompt
        self.sequence = Sequence(
            id=submit.id,
            tokens=TokenBuffer(tokens),
            n_prompt=len(tokens),
            group=submit.group,
            id_slot=params.id_slot,
            cache_prompt=params.cache_prompt and prompt_probs is None,
            n_reuse=params.n_cache_reuse,
            key=key_of(params.lora, submit.owner if submit.private else 0),
            owner=submit.owner,
            spans=spans,
            n_outputs=n_outputs,
        )
        self.media = media
        self.n_prompt_kept = len(tokens)  # of the prompt, after context shifts
        self.sampler = sampler
        self.guide = guide
        self.relaxed = relaxed
        self.piece = piece
        self.stream = TextStream(params.stop, params.answer.stops if params.answer else None)
        self.indent = IndentLimit(params.n_indent) if params.n_indent > 0 else None
        self.probs = probs
        self.prompt_probs = prompt_probs
        self.pending_text: list[str] = []  # decoded, not sent yet
        self.n_sent = 0  # generated tokens that events have carried
        self._spilled: list[int] = []  # the first of the others, if a shift dropped them
        self.n_decoded = 0
        self.n_drafted = self.n_drafts_accepted = 0  # proposed tokens that might have been wrong
        self.has_new_line = False
        self.stop_type: StopType = "none"
        self.truncated = False
        self.slot = -1  # also after the end
        self.arrived = arrived  # s
        self.started = 0.0  # s; admission to a slot
        self.first_token = 0.0
        self.last_token = 0.0

    @property
    def slow_sampler(self) -> Sampler | None:
        """The sampler, if it takes long to choose, and nothing else has to do with the choice."""
        sampler = self.sampler
        if self.guide is not None or self.probs is not None:
            return None
        return sampler if isinstance(sampler, Sampler) and sampler.slow else None

    @property
    def bound(self) -> float | None:
        """`Sampler.bound`, if what reaches it is all that there is to know of the next logits."""
        if not isinstance(self.sampler, Sampler) or self.probs is not None:
            return None
        bound = self.sampler.bound
        # The likeliest of all tokens may not be allowed.
        return None if bound == np.inf and self.guide is not None else bound

    @property
    def reports_progress(self) -> bool:
        """True if there is progress to report: the prompt is not evaluated yet."""
        return self.params.return_progress and self.params.stream and not self.n_decoded

    def enter(self, now: float) -> bool:
        """Note the slot that a step serves this in. True if it is the first step."""
        self.slot = self.sequence.slot
        if self.started:
            return False
        self.started = now
        return True

    def append(self, token: int, now: float) -> None:
        """Go on with `token`, chosen at `now`."""
        if not self.n_decoded:
            self.first_token = now
        self.last_token = now
        self.n_decoded += 1
        self.sequence.generating = True
        self.sequence.tokens.append(token)

    def stop(self, stop_type: StopType, now: float) -> None:
        """End without another token."""
        self.stop_type = stop_type
        self.last_token = now
        self.first_token = self.first_token or now

    @property
    def is_out_of_time(self) -> bool:
        """True if generating takes longer than `t_max_predict_ms`."""
        return 0 < self.params.t_max_predict_ms < 1e3 * (self.last_token - self.first_token)

    @property
    def may_end_with_text(self) -> bool:
        """True if what a token shows may end the text: it has to be looked at for that."""
        params = self.params
        return bool(params.stop) or self.indent is not None or params.t_max_predict_ms > 0

    @property
    def n_remain(self) -> int:
        """Tokens that may still come; -1 for no limit."""
        limit = self.params.n_predict
        return limit if limit < 0 else max(0, limit - self.n_decoded)

    @property
    def timings(self) -> Timings:
        sequence = self.sequence
        end_of_prompt = self.first_token or time.perf_counter()
        return Timings(
            cache_n=sequence.n_cached,
            prompt_n=sequence.n_prompt - sequence.n_cached,
            prompt_ms=1e3 * (end_of_prompt - self.started) if self.started else 0.0,
            predicted_n=self.n_decoded,
            predicted_ms=1e3 * (self.last_token - self.first_token),
            draft_n=self.n_drafted,
            draft_n_accepted=self.n_drafts_accepted,
        )

    @property
    def progress(self) -> PromptProgress:
        sequence = self.sequence
        return PromptProgress(
            total=sequence.n_prompt,
            cache=sequence.n_cached,
            processed=min(sequence.n_past, sequence.n_prompt),
            time_ms=1e3 * (time.perf_counter() - self.started),
        )

    def slot_state(
        self, slot: int, n_ctx: int, *, is_processing: bool, text: Callable[[TokenArray], str]
    ) -> SlotState:
        """The state of the slot that serves this, or has served it last; `text` detokenizes."""
        seq = self.sequence
        n_evaluated = seq.n_prompt if seq.generating else max(seq.n_cached, seq.n_past)
        return SlotState(
            id=slot,
            id_task=self.id,
            n_ctx=n_ctx,
            is_processing=is_processing,
            params=self.params,
            prompt=text(seq.tokens.view(0, self.n_prompt_kept)),
            has_next_token=is_processing,
            has_new_line=self.has_new_line,
            n_remain=self.n_remain,
            n_decoded=self.n_decoded,
            stopping_word=self.stream.stopping_word,
            n_prompt_tokens=seq.n_past,
            n_prompt_tokens_processed=n_evaluated - seq.n_cached,
            n_prompt_tokens_cache=seq.n_cached,
            n_prompt_tokens_shared=seq.n_shared,
            n_prompt_tokens_restored=seq.n_restored,
            generated=text(seq.tokens.view(self.n_prompt_kept)),
        )

    @property
    def is_cut(self) -> bool:
        """True if the text ends before the last token's end."""
        return bool(self.stream.stopping_word) or (self.indent is not None and self.indent.reached)

    def feed(self, piece: bytes) -> str:
        """Take the bytes of one more token; the text that can be shown now."""
        return self._show(self.stream.feed(piece))

    def flush(self) -> None:
        """Show what was held back, for nothing more will come."""
        if not self.is_cut:
            self._show(self.stream.finish())

    def _show(self, text: str) -> str:
        if self.indent is not None:
            text = self.indent.feed(text)
        if self.probs is not None:
            self.probs.shown(len(text), self.stream.n_held)
        if text:
            self.pending_text.append(text)
        return text

    def unsent_tokens(self) -> list[int]:
        if not self._spilled and self.n_decoded - self.n_sent == 1:  # mostly
            self.n_sent += 1
            return [self.sequence.tokens.item(len(self.sequence.tokens) - 1)]
        self.spill()
        tokens, self._spilled = self._spilled, []
        self.n_sent += len(tokens)
        return tokens

    def spill(self) -> None:
        """Put unsent tokens where no context shift drops them."""
        n = self.n_decoded - self.n_sent - len(self._spilled)
        tokens = self.sequence.tokens
        self._spilled += tokens.view(len(tokens) - n).tolist()

    def take_text(self) -> str:
        text = "".join(self.pending_text)
        self.pending_text.clear()
        return text

    def take_prompt_probs(self) -> list[TokenProbs]:
        return self.prompt_probs.take() if self.prompt_probs is not None else []

    def close(self) -> None:
        self.sampler.close()
