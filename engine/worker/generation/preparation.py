"""Turns a client's `Submit` into a `Request` that is ready for the step.

Tokenizing a long prompt takes longer than a step, so it may run in any thread. Compiling a grammar
may take seconds; no thread waits for it. All data that this module reads is constant while the
engine serves, except the scales of the adapters.
"""

import logging
import random
from functools import partial
from typing import Any, NamedTuple

import msgspec

from specllama.engine import system
from specllama.engine.errors import EngineError, ErrorInfo, invalid_request, not_supported
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.options import EngineOptions
from specllama.engine.options.model_values import log_left_out
from specllama.engine.params import RANDOM_SEED, GenerationParams, SamplerName
from specllama.engine.wire.replies import (
    Accepted,
    Begun,
    Blocks,
    Deadline,
    Event,
    Finished,
    PromptMedium,
    Timings,
)
from specllama.engine.wire.requests import GetBlocks, Infill, Submit
from specllama.engine.worker.backend import (
    Context,
    Offload,
    Sampler,
)
from specllama.engine.worker.cache.block_hashes import hashes_of, medium_hash
from specllama.engine.worker.constraints.compiler import CompileOrder, Compiler
from specllama.engine.worker.constraints.lazy import Guide
from specllama.engine.worker.constraints.trial import BusyError
from specllama.engine.worker.generation.adapters import LoraScales, key_of
from specllama.engine.worker.generation.probabilities import ProbabilityLog, PromptProbabilities
from specllama.engine.worker.generation.prompts import (
    Room,
    check_countable,
    detokenize_media,
    exceeds_context,
    tokenize_gap,
    tokenize_prompt,
)
from specllama.engine.worker.generation.request import Prompt, Request
from specllama.engine.worker.media.prompts import MediaPrompts, MediaReader
from specllama.engine.worker.media.registry import spans
from specllama.engine.worker.scheduling.limits import Deadlines
from specllama.engine.worker.scheduling.sequences import Span
from specllama.engine.worker.tokens import TokenArray

log = logging.getLogger("specllama.engine.worker.generation.preparation")
LOGITS = 64 << 20
"""Maximum bytes of logits that a step computes for a prompt whose probabilities are requested: each
prompt token has a row of `n_vocab` logits."""
MAX_LISTED = 20  # keywords in one message
_BUSY = ErrorInfo(
    "unavailable_error",
    "too many costly grammars and JSON schemas are waiting to be compiled",
    retry_after=5,
)


class Preparing(NamedTuple):
    """A request that waits for its constraint. `shown`: the control tokens whose text is shown."""

    submit: Submit
    prompt: Prompt
    shown: frozenset[int]
    order: CompileOrder
    arrived: float

    @property
    def deadlines(self) -> Deadlines:
        return Deadlines.of(self.submit.terms, self.arrived)

    def expired(self, deadline: Deadline) -> list[Event]:
        """Returns the events of the request if `deadline` passes now: an empty text."""
        id, confirm = self.submit.id, self.submit.confirm
        finished = Finished(
            id=id,
            text="",
            tokens=[],
            stop_type="limit",
            stopping_word="",
            truncated=False,
            has_new_line=False,
            id_slot=-1,
            prompt=self.prompt.text,
            n_prompt=len(self.prompt.tokens),
            n_decoded=0,
            timings=Timings(cache_n=0, prompt_n=0, prompt_ms=0.0, predicted_n=0, predicted_ms=0.0),
            params=self.submit.params,
            deadline=deadline,
        )
        return [*([Accepted(id)] if confirm else []), Begun(id), finished]


class Preparation:
    """Prepares requests for slots of `n_ctx` tokens each."""

    def __init__(
        self,
        context: Context,
        options: EngineOptions,
        lora: LoraScales,
        media: MediaPrompts,
        offload: Offload | None,
        *,
        n_ctx: int,
    ) -> None:
        self._model = context.model
        self._n_batch = context.n_batch
        self._lora = lora
        self.compiler = Compiler(context.model)
        """Compiles the constraints."""
        self._offload = offload
        self._media = media
        self._n_outputs = max(1, min(context.n_batch, LOGITS // (4 * context.model.n_vocab)))
        self._n_slots = options.context.n_slots()
        self._n_ctx = n_ctx
        self._special = options.sampling.special  # control tokens are shown in generated text
        self._suffix_first = options.context.spm_infill
        self._strict_schemas = options.sampling.strict_schemas
        self._defaults = options.generation_defaults(context.model.metadata)
        log_left_out(context.model.metadata)

    def prepare(self, submit: Submit) -> Request:
        """`begin`, then `finish`: blocks until the constraint is compiled. Raises `EngineError`."""
        return self.finish(self.begin(submit, system.now()))

    def begin(self, submit: Submit, arrived: float) -> "Preparing":
        """Tokenize, check, and order the constraint of a request that `arrived` at that time.
        Raises `EngineError`."""
        prompt = self.tokenize(submit)
        shown = self._preserved(submit.params.preserved_tokens)
        params = self._in_force(submit.params, shown)
        try:
            order = self.compiler.order(params)
        except GrammarError as error:
            raise invalid_request(str(error)) from None
        submit = msgspec.structs.replace(submit, params=params)
        return Preparing(submit, prompt, shown, order, arrived)

    def drop(self, preparing: "Preparing") -> None:
        """Discard a request that is no longer wanted, and its constraint's order."""
        self.compiler.drop(preparing.order)

    def finish(self, preparing: "Preparing") -> Request:
        """Build the request, once its constraint is ready. Raises `EngineError`."""
        submit, prompt, shown, order, arrived = preparing
        params = submit.params
        try:
            guided = self.compiler.guide(order)
        except GrammarError as error:
            raise invalid_request(str(error)) from None
        except BusyError:
            raise EngineError(_BUSY) from None
        if guided.relaxed and self._strict_schemas:
            raise invalid_request(
                "with --strict-schemas, a keyword of a schema that can't be turned into a "
                f"constraint is an error: {', '.join(guided.relaxed[:MAX_LISTED])}"
            )
        piece = partial(self._piece, shown=shown)
        probs = None
        if params.n_probs > 0:
            probs = ProbabilityLog(params.n_probs, params.post_sampling_probs, piece)
        prompt_probs = self._prompt_probs(submit, prompt.tokens)
        return Request(
            submit,
            prompt,
            self._sampler(params, prompt.tokens, guided.guide, probs),
            guided,
            arrived=arrived,
            piece=piece,
            probs=probs,
            prompt_probs=prompt_probs,
        )

    def _prompt_probs(self, submit: Submit, tokens: TokenArray) -> PromptProbabilities | None:
        """The probabilities of the prompt; None without `Submit.prompt_probs`. Raises
        `EngineError`."""
        n_probs = submit.params.n_probs
        if not (submit.prompt_probs and n_probs):
            return None
        if self._offload is not None:
            raise not_supported(
                "with --backend-sampling, the device computes no probabilities of a prompt"
            )
        if len(tokens) and tokens.min() < 0:
            raise not_supported("a prompt with images or sounds has no probabilities")
        piece = partial(self._model.piece, special=True)
        return PromptProbabilities(tokens, n_probs, piece, self._n_outputs)

    def text(self, tokens: TokenArray) -> str:
        """The text of `tokens`, for display: media are shown as markers."""
        return detokenize_media(self._model, tokens, self._media.registry)

    def tokenize(self, submit: Submit) -> Prompt:
        """The prompt in tokens. Raises `EngineError` if they don't fit the context."""
        reader = self._media.reader()
        tokens = self._tokens(submit, reader)
        return Prompt(
            tokens,
            [
                Span(span.start, span.stop, span.chunk.is_whole)
                for span in spans(tokens, self._media.registry)
            ],
            reader.chunks,
            self.text(tokens) if submit.echo_prompt else "",
        )

    def blocks(self, asked: GetBlocks) -> Blocks:
        """The blocks of a prompt. Raises `EngineError` as `tokenize` does."""
        registry = self._media.registry
        tokens = self._tokens(asked, self._media.reader())
        key = key_of(self._lora.resolve(asked.params.lora), asked.owner if asked.private else 0)
        media = [
            PromptMedium(
                int.from_bytes(medium_hash(span.chunk.name), "little"),
                span.chunk.n_tokens,
                span.stop,
            )
            for span in spans(tokens, registry)
        ]
        return Blocks(asked.id, len(tokens), hashes_of(tokens, key, registry.name_of), media)

    def _tokens(self, asked: Submit | GetBlocks, reader: MediaReader) -> TokenArray:
        """The tokens of a prompt. Raises `EngineError` if they don't fit the context."""
        if isinstance(asked.prompt, Infill):
            n_predict = asked.params.n_predict
            room = Room(n_ctx=self._n_ctx, n_batch=self._n_batch, n_predict=n_predict)
            first = self._suffix_first
            tokens = tokenize_gap(self._model, asked.prompt, room, suffix_first=first)
        else:
            check_countable(self._model, asked.prompt, self._n_ctx)
            tokens = tokenize_prompt(self._model, asked.prompt, media_tokens=reader.tokens)
        if len(tokens) >= self._n_ctx:
            raise exceeds_context(len(tokens), self._n_ctx)
        return tokens

    def _in_force(self, params: GenerationParams, shown: frozenset[int]) -> GenerationParams:
        """The effective parameters, which the answer reports, too: `params` with defaults filled
        in. `shown`: the control tokens whose text this request shows."""
        own: dict[str, Any] = {name: getattr(self._defaults, name) for name in params.unset}
        params = msgspec.structs.replace(params, **own, unset=[])
        seed, whitespace = params.seed, params.json_whitespace
        has_begun = params.generation_prompt or (params.answer and params.answer.given)
        if params.json_schema and has_begun:
            whitespace = "flexible"  # the text has already begun, with white space of its own
        return msgspec.structs.replace(
            params,
            seed=random.randrange(RANDOM_SEED) if seed == RANDOM_SEED else seed,
            # As in llama-server: some clients count up without a limit.
            id_slot=params.id_slot if 0 <= params.id_slot < self._n_slots else -1,
            json_whitespace=whitespace,
            samplers=self._samplers(params),
            logit_bias=self._resolve_biases(params),
            preserved_tokens=[*sorted(shown)],
            lora=self._lora.resolve(params.lora),
        )

    def _samplers(self, params: GenerationParams) -> list[SamplerName]:
        """The samplers of `params` that can be applied. Infill is dropped under a constraint, as it
        ends a text even where the grammar doesn't allow it, and with vocabularies for which
        llama.cpp's assertions would fail."""
        if "infill" not in params.samplers:
            return params.samplers
        constrained = params.grammar or params.json_schema or params.answer
        if self._model.ends_gaps and not constrained:
            return params.samplers
        why = "under a grammar" if constrained else "with this vocabulary"
        log.info("the infill sampler is left out: it can't be used %s", why)
        return [name for name in params.samplers if name != "infill"]

    def _resolve_biases(self, params: GenerationParams) -> list[tuple[int | str, float]]:
        """The biases by token: texts are replaced by their tokens, ids outside of the vocabulary
        are dropped, and `ignore_eos` is added. If there are more entries than vocabulary tokens,
        entries of the same token are added up: many texts would make millions of entries."""
        most, were_added_up = self._model.n_vocab, False
        resolved: list[tuple[int | str, float]] = []
        for token, bias in params.logit_bias:
            if isinstance(token, int):
                if 0 <= token < self._model.n_vocab:
                    resolved.append((token, bias))
            else:
                ids = self._model.tokenize(token.encode(), add_special=False, parse_special=False)
                resolved.extend((id, bias) for id in ids.tolist())
            if len(resolved) > 2 * most:  # seldom, so that adding up stays cheap
                resolved, were_added_up = _added_up(resolved), True
        if params.ignore_eos:
            resolved.extend((id, float("-inf")) for id in sorted(self._model.eog))
        return _added_up(resolved) if were_added_up or len(resolved) > most else resolved

    def _preserved(self, preserved: list[int | str]) -> frozenset[int]:
        """The control tokens to show: the ids in `preserved`, and the control tokens in its texts,
        except for tokens that end the generation."""
        if not preserved:
            return frozenset()
        model = self._model
        found = {token for token in preserved if isinstance(token, int)}
        for text in preserved:
            if isinstance(text, str):
                ids = model.tokenize(text.encode(), add_special=False, parse_special=True)
                found.update(ids.tolist())
        return frozenset(
            token
            for token in found - model.eog
            if 0 <= token < model.n_vocab and model.is_hidden(token)
        )

    def _piece(self, token: int, shown: frozenset[int]) -> bytes:
        return self._model.piece(token, special=self._special or token in shown)

    def _sampler(
        self,
        params: GenerationParams,
        tokens: TokenArray,
        guide: Guide | None,
        probs: ProbabilityLog | None,
    ) -> Sampler:
        """The sampler of a request. Constraints and probabilities need all logits on the host."""
        has_media = bool(len(tokens)) and tokens.min() < 0
        if has_media:
            tokens = tokens[tokens >= 0]
        sampler = Sampler(self._model, params, self._n_ctx, tokens)
        if self._offload is not None and params.backend_sampling:
            is_free = guide is None and probs is None and not has_media
            sampler.is_offloaded = is_free and self._offload.suits(sampler)
        return sampler


def _added_up(biases: list[tuple[int | str, float]]) -> list[tuple[int | str, float]]:
    """One entry for each token, with the sum of its biases: llama.cpp adds them up as well."""
    total: dict[int | str, float] = {}
    for token, bias in biases:
        total[token] = total.get(token, 0.0) + bias
    return [*total.items()]
