"""One generation: all state of a request, except for its place in the scheduler."""

import codecs
from collections.abc import Callable, Mapping
from collections.abc import Sequence as SequenceOf
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from specllama.engine import system
from specllama.engine.params import GenerationParams, StopScope
from specllama.engine.wire.replies import (
    Deadline,
    PromptProgress,
    SlotState,
    StopType,
    Timings,
    TokenProbs,
)
from specllama.engine.wire.requests import Submit
from specllama.engine.wire.stats import MissReason
from specllama.engine.worker.backend import PreparedChunk, Sampler
from specllama.engine.worker.constraints.compiler import Guided
from specllama.engine.worker.generation.adapters import key_of
from specllama.engine.worker.generation.asides import AnswerParts, Texts
from specllama.engine.worker.generation.probabilities import ProbabilityLog, PromptProbabilities
from specllama.engine.worker.media.encoder import EncodeOrder
from specllama.engine.worker.scheduling.limits import Deadlines
from specllama.engine.worker.scheduling.sequences import ProposalRun, Sequence, Span
from specllama.engine.worker.speculation.pace import ProposalRecord
from specllama.engine.worker.tokens import TokenArray, TokenBuffer

# ---- From token pieces to text that can be shown: whole characters, no part of a stop string.


_utf8_decoder = codecs.getincrementaldecoder("utf-8")


class TextStream:
    """Decodes pieces one by one, and holds back text that may become a stop string.

    The results of `feed` and `finish` together are the decoded text (invalid bytes become U+FFFD),
    cut before its first stop string: the one that is complete first and, of several that are
    complete with the same character, the longest. With a `scope`, stop strings count only outside
    of asides, and never span one; without a `scope`, they count everywhere.
    """

    def __init__(self, stops: SequenceOf[str] = (), scope: StopScope | None = None) -> None:
        self.stopping_word = ""
        self._decoder = _utf8_decoder("replace")
        self._decode = self._decoder.decode
        self._held = ""
        self._stops = Texts(stops)
        self._parts = AnswerParts(scope) if stops and scope is not None else None

    @property
    def n_held(self) -> int:
        """Decoded characters that are held back."""
        return len(self._held) + (self._parts.n_held if self._parts is not None else 0)

    @property
    def is_whole(self) -> bool:
        """True if the last piece ended with a whole character."""
        return not self._decoder.getstate()[0]

    def feed(self, piece: bytes) -> str:
        """Returns the text that can be shown after `piece`."""
        text = self._decode(piece)
        return self._show(text) if self._stops.all and text else text

    def finish(self) -> str:
        """Returns the held-back rest of a text that ends without a stop string."""
        text = self._decode(b"", True)
        if not self._stops.all:
            return text
        text = self._show(text, last=True)
        return text if self.stopping_word else text + self._take_held()

    def _show(self, text: str, *, last: bool = False) -> str:
        if self._parts is None:
            return self._scan(text)
        shown: list[str] = []
        for kind, part in self._parts.split(text, last=last):
            if kind == "aside":
                shown += [self._take_held(), part]
            else:
                shown.append(self._scan(part, counts=kind == "text"))
            if self.stopping_word:
                self._parts = None
                break
        return "".join(shown)

    def _take_held(self) -> str:
        held, self._held = self._held, ""
        return held

    def _scan(self, new: str, *, counts: bool = True) -> str:
        """Returns the text that can be shown with `new`. Without `counts`, no stop string can end
        in `new`."""
        n_old = len(self._held)
        text = self._held + new
        for end in range(n_old + 1, len(text) + 1) if counts else ():
            for length in self._stops.lengths:
                if length <= end and text[end - length : end] in self._stops.all:
                    self.stopping_word = text[end - length : end]
                    self._held = ""
                    return text[: end - length]
        start = self._hold_from(text)
        self._held = text[start:]
        return text[:start]

    def _hold_from(self, text: str) -> int:
        """The start of the longest suffix of `text` that may become a stop string."""
        first = max(0, len(text) - self._stops.lengths[0] + 1)
        for start in range(first, len(text)):
            if self._stops.may_begin(text, start):
                return start
        return len(text)


class IndentLimit:
    """Cuts a text where a line after the first begins with less than `n_blanks` blanks.

    A space or a tab counts as one blank. The blanks of that line are kept, its rest is cut. The
    rule also applies to lines that have only blanks, or no character.
    """

    def __init__(self, n_blanks: int) -> None:
        self.reached = False
        self._wanted = n_blanks
        self._found: int | None = None  # blanks at the line's start; None: past them

    def feed(self, text: str) -> str:
        """The part of `text` before the cut; all of it while `reached` is false."""
        at = 0
        while not self.reached:
            if self._found is None:
                at = text.find("\n", at) + 1
                if not at:
                    return text
                self._found = 0
            while at < len(text) and text[at] in " \t":
                self._found += 1
                at += 1
            if at == len(text):
                return text
            self.reached = self._found < self._wanted
            self._found = None
        return text[:at]


class Prompt(NamedTuple):
    """The tokens of a prompt. The `spans` are its media; `media` has their chunks by id. `text` is
    the prompt's text if the answer contains it (`Submit.echo_prompt`), else empty."""

    tokens: TokenArray
    spans: SequenceOf[Span] = ()
    media: Mapping[int, PreparedChunk] = MappingProxyType({})
    text: str = ""


def _shown(reason: MissReason | None) -> MissReason | None:
    """The reason that a client may know: nothing about texts of other keys."""
    return "new" if reason == "key" else reason


class Request:
    """One generation: its sequence for the scheduler, its sampler, its text so far.

    `piece` returns the bytes that a token shows; `probs` is None without `n_probs`, and
    `prompt_probs` unless requested. `arrived` and all other times are of `system.now`.
    """

    def __init__(
        self,
        submit: Submit,
        prompt: Prompt,
        sampler: Sampler,
        guided: Guided,
        *,
        arrived: float,
        piece: Callable[[int], bytes],
        probs: ProbabilityLog | None = None,
        prompt_probs: PromptProbabilities | None = None,
    ) -> None:
        params = submit.params
        self.id = submit.id
        self.confirm = submit.confirm
        self.terms = submit.terms
        self.is_repeated = submit.is_repeated
        self.place = 0  # in the queue, as last reported
        self.params: GenerationParams = params
        self.prompt = prompt.text
        self.sequence = Sequence(
            id=submit.id,
            tokens=TokenBuffer(prompt.tokens),
            n_prompt=len(prompt.tokens),
            group=submit.group,
            id_slot=params.id_slot,
            cache_prompt=params.cache_prompt and prompt_probs is None,
            n_reuse=params.n_cache_reuse,
            key=key_of(params.lora, submit.owner if submit.private else 0),
            owner=submit.owner,
            weight=submit.terms.weight,
            priority=submit.terms.priority,
            n_predict=params.n_predict,
            cache_bytes=submit.terms.cache_bytes,
            spans=prompt.spans,
            n_outputs=prompt_probs.n_outputs if prompt_probs is not None else 0,
        )
        self.media = prompt.media
        self.n_prompt_kept = len(prompt.tokens)  # of the prompt, after context shifts
        self.sampler = sampler
        self.guide, self.relaxed = guided
        self.piece = piece
        self.stream = TextStream(params.stop, params.answer.stops if params.answer else None)
        self.indent = IndentLimit(params.n_indent) if params.n_indent > 0 else None
        self.probs = probs
        self.prompt_probs = prompt_probs
        self.pending_text: list[str] = []  # decoded, not sent yet
        self.n_sent = 0  # generated tokens that events have contained
        self._spilled: list[int] = []  # unsent tokens that a context shift may drop
        self.n_decoded = 0
        self.n_drafted = self.n_drafts_accepted = 0  # without forced ones
        self.has_new_line = False
        self.late: int | None = None  # the newest token, until its text is made
        self.kept: int | None = None  # the index of its kept logits, while it waits for a mask
        self.run: ProposalRun | None = None  # its proposal in the current step
        self.proposals = ProposalRecord()
        self.orders: dict[int, EncodeOrder] = {}  # of media chunks, by id
        self.stop_type: StopType = "none"
        self.truncated = False
        self.slot = -1  # also after the end
        self.deadlines = Deadlines.of(submit.terms, arrived)
        self.deadline: Deadline = ""  # that has ended the text
        self._n_unread = 0  # tokens of the prompt that weren't evaluated before the end
        self.arrived = arrived  # s
        self.started = 0.0  # s; admission to a slot
        self.first_token = 0.0
        self.last_token = 0.0

    @property
    def free_sampler(self) -> Sampler | None:
        """The sampler, if only it and the logits determine the next token, and its candidates
        aren't wanted."""
        return self._plain_sampler if self.guide is None else None

    @property
    def simple_sampler(self) -> Sampler | None:
        """The sampler, if it `is_simple` and its candidates aren't wanted."""
        sampler = self._plain_sampler
        return sampler if sampler is not None and sampler.is_simple else None

    @property
    def _plain_sampler(self) -> Sampler | None:
        if self.params.n_predict == 0 or (self.probs is not None and self.probs.post_sampling):
            return None
        return self.sampler

    @property
    def wanted(self) -> float | None:
        """`Sampler.wanted` for the next choice and its probabilities."""
        wanted = self.sampler.wanted(is_limited=self.guide is not None)
        if self.probs is None or wanted is None:
            return wanted
        return max(wanted, self.probs.n_top) if wanted > 0 else None

    @property
    def reports_progress(self) -> bool:
        """True if there is progress to report: the prompt is not evaluated yet."""
        return self.params.return_progress and self.params.stream and not self.n_decoded

    def enter(self, now: float) -> bool:
        """Record the slot of the request. Returns True if this is its first step."""
        self.slot = self.sequence.slot
        if self.started:
            return False
        self.started = now
        return True

    def append(self, token: int, now: float) -> None:
        """Append `token`, chosen at `now`."""
        if not self.n_decoded:
            self.first_token = now
        self.last_token = now
        self.n_decoded += 1
        self.sequence.append(token)

    def stop(self, stop_type: StopType, now: float) -> None:
        """End without another token."""
        self.stop_type = stop_type
        self.last_token = now
        self.first_token = self.first_token or now

    @property
    def in_prompt(self) -> bool:
        """True until the whole prompt has been evaluated for the first time."""
        return not self.n_decoded and self.sequence.n_pending > 0

    def expire(self, deadline: Deadline, now: float) -> None:
        """End the text as it is at `now`, because a deadline has passed."""
        self.deadline, self.stop_type = deadline, "limit"
        sequence = self.sequence
        if not self.n_decoded:
            self.first_token = self.last_token = now
            self._n_unread = sequence.n_prompt - max(sequence.n_past, sequence.n_cached)

    @property
    def has_ended(self) -> bool:
        """True if no token follows any more."""
        return self.stop_type != "none"

    @property
    def is_out_of_time(self) -> bool:
        """True if generating takes longer than `t_max_predict_ms`."""
        return 0 < self.params.t_max_predict_ms < 1e3 * (self.last_token - self.first_token)

    @property
    def may_end_with_text(self) -> bool:
        """True if the text that a token shows may end the answer."""
        params = self.params
        return bool(params.stop) or self.indent is not None or params.t_max_predict_ms > 0

    @property
    def n_remain(self) -> int:
        """The number of tokens that may still be generated; -1 for no limit."""
        limit = self.params.n_predict
        return limit if limit < 0 else max(0, limit - self.n_decoded)

    @property
    def timings(self) -> Timings:
        sequence = self.sequence
        end_of_prompt = self.first_token or system.now()
        return Timings(
            cache_n=sequence.n_cached,
            prompt_n=sequence.n_prompt - sequence.n_cached - self._n_unread,
            prompt_ms=1e3 * (end_of_prompt - self.started) if self.started else 0.0,
            predicted_n=self.n_decoded,
            predicted_ms=1e3 * (self.last_token - self.first_token),
            draft_n=self.n_drafted,
            draft_n_accepted=self.n_drafts_accepted,
            cache_ram_n=sequence.n_restored - sequence.n_from_files,
            cache_disk_n=sequence.n_from_files,
            cache_miss_reason=_shown(sequence.miss_reason),
        )

    @property
    def used(self) -> Timings:
        """The timings with the tokens that were really evaluated, also before the end of the
        prompt. Without any, the time is 0."""
        sequence, timings = self.sequence, self.timings
        if sequence.generating:
            return timings
        n_read = max(0, sequence.n_past - sequence.n_cached, sequence.n_own)
        prompt_ms = timings.prompt_ms if n_read else 0.0
        return msgspec.structs.replace(timings, prompt_n=n_read, prompt_ms=prompt_ms)

    @property
    def progress(self) -> PromptProgress:
        sequence = self.sequence
        return PromptProgress(
            total=sequence.n_prompt,
            cache=sequence.n_cached,
            processed=min(sequence.n_past, sequence.n_prompt),
            time_ms=1e3 * (system.now() - self.started),
        )

    def slot_state(self, slot: int, n_ctx: int, text: Callable[[TokenArray], str]) -> SlotState:
        """The state of the slot that serves this request, or served it last; `text` detokenizes."""
        seq = self.sequence
        is_processing = seq.slot == slot
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
            n_remain=self.n_remain if is_processing else -1,
            n_decoded=self.n_decoded,
            stopping_word=self.stream.stopping_word,
            n_prompt_tokens=seq.n_past,
            n_prompt_tokens_processed=n_evaluated - seq.n_cached,
            n_prompt_tokens_cache=seq.n_cached,
            n_prompt_tokens_shared=seq.n_shared,
            n_prompt_tokens_restored=seq.n_restored,
            n_prompt_tokens_from_files=seq.n_from_files,
            cache_miss_reason=seq.miss_reason,
            generated=text(seq.tokens.view(self.n_prompt_kept)),
            key_name=self.terms.key_name,
            priority=self.terms.priority,
        )

    @property
    def is_cut(self) -> bool:
        """True if a stop string or the indent limit has cut the text before the end of its last
        token."""
        return bool(self.stream.stopping_word) or (self.indent is not None and self.indent.reached)

    def feed(self, piece: bytes) -> str:
        """Add the bytes of one more token. Returns the text that can be shown now."""
        return self._show(self.stream.feed(piece))

    def flush(self) -> None:
        """Show the held-back text: the answer has ended."""
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
        if not self._spilled and self.n_decoded - self.n_sent == 1:  # the usual case
            self.n_sent += 1
            return [self.sequence.tokens.item(len(self.sequence.tokens) - 1)]
        self.spill()
        tokens, self._spilled = self._spilled, []
        self.n_sent += len(tokens)
        return tokens

    def spill(self) -> None:
        """Copy the unsent tokens out of the sequence, so that a context shift doesn't drop them."""
        n = self.n_decoded - self.n_sent - len(self._spilled)
        tokens = self.sequence.tokens
        self._spilled += tokens.view(len(tokens) - n).tolist()

    def take_text(self) -> str:
        text = "".join(self.pending_text)
        self.pending_text.clear()
        return text

    def take_prompt_probs(self) -> list[TokenProbs]:
        return self.prompt_probs.take() if self.prompt_probs is not None else []

    def release_media(self) -> None:
        """Release the ordered embeddings of media."""
        for order in self.orders.values():
            order.release()
        self.orders.clear()

    def close(self) -> None:
        """Release all resources outside of the KV cache."""
        self.late = None
        self.proposals.detach()
        self.release_media()
        self.sampler.close()
