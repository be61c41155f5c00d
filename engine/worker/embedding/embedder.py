"""The engine of a server that embeds or reranks: from prepared inputs to vectors.

Every step takes as many inputs as fit into one micro-batch, in turn from all requests, and
evaluates them together, each as a sequence of its own. `Embedder.prepare` may run in any thread;
everything else belongs to the thread that calls `step`.
"""

import re
from collections.abc import Callable, Mapping

import numpy as np

from specllama.engine import system
from specllama.engine.errors import invalid_request, not_supported, server_error
from specllama.engine.options import EngineOptions
from specllama.engine.wire.replies import (
    Accepted,
    Event,
    Failed,
    ModelInfo,
    SlotState,
    Timings,
    Vectors,
    WaitingState,
)
from specllama.engine.wire.requests import Embed, Rerank
from specllama.engine.wire.stats import ReplicaLoad, Stats
from specllama.engine.worker.backend import (
    BackendError,
    EmbeddingContext,
    Model,
    OutOfCellsError,
    OutOfMemoryError,
    PreparedChunk,
    Projector,
    device_memory,
    sequence_count,
    warm_up,
)
from specllama.engine.worker.backend import Vectors as Rows
from specllama.engine.worker.backend.model_info import model_info, projector_info
from specllama.engine.worker.cache.texts import Key
from specllama.engine.worker.embedding.jobs import EmbeddingJob, InputPart, merged, normalized
from specllama.engine.worker.embedding.media import MediaEncoding
from specllama.engine.worker.embedding.planning import EmbeddingBatcher
from specllama.engine.worker.embedding.queueing import VectorQueueing
from specllama.engine.worker.generation.adapters import LoraScales, key_of
from specllama.engine.worker.generation.prompts import (
    check_countable,
    exceeds_context,
    tokenize_prompt,
    too_large,
)
from specllama.engine.worker.media.prompts import MediaPrompts
from specllama.engine.worker.media.registry import spans
from specllama.engine.worker.tokens import TokenArray

SAME_SCORE = 1e-3  # relative; equal inputs differ by less, through rounding


class Embedder:
    """One model, and its requests for vectors. Raises `BackendError` if the model can't embed.
    `projector` encodes images and sounds (None: not supported); the embedder closes it."""

    def __init__(
        self, model: Model, options: EngineOptions, projector: Projector | None = None
    ) -> None:
        self.model = model
        self.projector = projector
        self._n_sequences = sequence_count(model, options)
        self.context = context = EmbeddingContext(model, options, self._n_sequences)
        self.n_ctx = min(context.n_ctx, model.n_ctx_train)
        if options.context.kv_unified_per_slot > 0:
            self.n_ctx = min(self.n_ctx, options.context.kv_unified_per_slot)
        # Splitting needs causal attention, and memory of the earlier parts.
        self._can_split = context.is_causal and context.has_memory
        self._n_cells = context.n_ctx if context.has_memory else 0  # 0: no memory between steps
        self._jobs: dict[int, EmbeddingJob] = {}
        self._planner = EmbeddingBatcher(self._n_sequences, context.n_batch, self._n_cells)
        self._template = model.rerank_template
        self._latest: list[InputPart] = []
        self.media_prompts = MediaPrompts(projector, n_ubatch=context.n_ubatch)
        self._registry = self.media_prompts.registry
        self._encoding = None
        if projector is not None:
            self._encoding = MediaEncoding(projector, options.media.media_cache << 20)
        self.lora = LoraScales(model, options)
        self._applied: Key = ()  # the adapters of the last step
        self._stats = Stats()
        self._queueing = VectorQueueing(self._planner, self._stats, options.context)
        self.refuse_call = self._queueing.refuse_call
        if options.model.warmup:
            warm_up(context)
        if context.pooling == "rank":
            self._check_head()

    def tidy(self) -> None:
        """If the registry is full, forget media that are no longer used."""
        if self._encoding is not None and self._registry.is_full:
            self._registry.keep(self._encoding.ids())

    @property
    def info(self) -> ModelInfo:
        return model_info(
            self.model,
            n_slots=self._n_sequences,
            n_ctx=self.n_ctx,
            pooling=self.context.pooling,
            n_vector=self.context.n_vector,
            n_input=self.n_ctx if self._can_split else min(self.n_ctx, self.context.n_batch),
            **projector_info(self.projector),
        )

    def _check_head(self) -> None:
        """Raises `BackendError` if the model has no classification head. Then llama.cpp returns a
        number of the first vector as score, a different one for each sequence."""
        context = self.context
        n = 2 if self._n_sequences > 1 else 1
        context.batch.clear()
        for sequence in range(n):
            context.batch.add([max(self.model.bos, self.model.eos, 0)], 0, sequence)
        context.decode()
        first, last = (float(context.vector_of_sequence(i)[0, 0]) for i in (0, n - 1))
        context.clear(erase=False)
        if not abs(first - last) <= SAME_SCORE * max(1.0, abs(first)):
            raise BackendError("the model has no classification head: it can't rerank")

    # ---- requests ------------------------------------------------------------------------

    def prepare(self, message: Embed | Rerank, arrived: float | None = None) -> EmbeddingJob:
        """Tokenize and check a request received at the time `arrived` (None: now). Raises
        `EngineError`."""
        if isinstance(message, Rerank):
            inputs, normalize, dimensions = self._pairs(message), -1, 0
        else:
            for prompt in message.inputs:
                check_countable(self.model, prompt, self.n_ctx)
            reader = self.media_prompts.reader()
            inputs = [
                tokenize_prompt(self.model, prompt, media_tokens=reader.tokens)
                for prompt in message.inputs
            ]
            # Scores and vectors of tokens aren't normalized.
            plain = self.context.pooling in ("none", "rank")
            normalize, dimensions = -1 if plain else message.normalize, message.dimensions
        for tokens in inputs:
            self._check_length(len(tokens))
        job = EmbeddingJob(
            message.id,
            inputs,
            normalize,
            dimensions,
            group=message.group,
            owner=message.owner,
            terms=message.terms,
            arrived=system.now() if arrived is None else arrived,
        )
        if not isinstance(message, Rerank) and reader.chunks:
            self._add_media(job, reader.chunks)
        return job

    def _add_media(self, job: EmbeddingJob, chunks: Mapping[int, PreparedChunk]) -> None:
        if self._encoding is None or not self._can_split:
            raise not_supported("this model evaluates an input at once, and only supports text")
        job.spans = [spans(tokens, self._registry) for tokens in job.inputs]
        job.media = self._encoding.encoded(job.id, chunks)

    def _check_length(self, n_tokens: int) -> None:
        if n_tokens == 0:
            raise invalid_request("an input is empty: there are no tokens to make a vector of")
        if n_tokens > self.n_ctx:
            raise exceeds_context(n_tokens, self.n_ctx, is_input=True)
        if n_tokens > self.context.n_batch and not self._can_split:
            raise server_error(
                f"{too_large(n_tokens)}: this model has to see all of it at once, and "
                f"--ubatch-size is {self.context.n_batch}",
                final=True,
            )

    def _pairs(self, message: Rerank) -> list[TokenArray]:
        model = self.model
        if self._template:
            texts = [_filled(self._template, message.query, each) for each in message.documents]
            return [self._tokenize(text, parse_special=True) for text in texts]
        # [BOS] query [EOS] [SEP] document [EOS], with the special tokens that the model uses.
        end = [model.eos if model.eos >= 0 else model.sep] if model.add_eos else []
        between = end + ([model.sep] if model.add_sep else [])
        bos = [model.bos] if model.add_bos else []
        query = self._tokenize(message.query)
        head = np.concatenate([_special(bos), query, _special(between)])
        tail = _special(end)
        return [
            np.concatenate([head, self._tokenize(document), tail]) for document in message.documents
        ]

    def _tokenize(self, text: str, *, parse_special: bool = False) -> TokenArray:
        return self.model.tokenize(text.encode(), add_special=False, parse_special=parse_special)

    def submit(self, job: EmbeddingJob) -> list[Event | Vectors]:
        """Queue a prepared request. Returns its first event, if it has one."""
        now = system.now()
        if (error := self._queueing.refused(job, now)) is not None:
            return [Failed(job.id, error)]
        self._jobs[job.id] = job
        self._planner.add(job, now)
        return [Accepted(job.id, job.n_tokens)] if job.terms.is_metered else []

    def cancel(self, id: int) -> Timings | None:
        """Returns what a metered request has used, if it hasn't ended."""
        if (job := self._jobs.pop(id, None)) is None:
            return None
        self._forget(job)
        return job.used

    def _forget(self, job: EmbeddingJob) -> None:
        if (begun := self._planner.remove(job)) is not None:
            self.context.remove(begun.sequence, 0)

    @property
    def has_work(self) -> bool:
        return self._planner.has_work

    # ---- the step ------------------------------------------------------------------------

    def step(self, send: Callable[[list[Vectors | Failed]], None]) -> None:
        """Evaluate a batch. Passes the answers of completed and failed requests to `send`, if there
        are any."""
        if answers := self._step():
            send(answers)

    def _step(self) -> list[Vectors | Failed]:
        self._apply_adapters()
        begin = system.now()
        pieces = self._latest = self._planner.plan(begin)
        n_tokens = sum(piece.n for piece in pieces)
        try:
            self._evaluate(pieces)
            self.context.synchronize()
            self._count_step(pieces, n_tokens, system.now() - begin)
            rows = self._read(pieces, n_tokens)
        except OutOfMemoryError as error:
            return self._retry_alone(pieces, error)
        except (BackendError, OutOfCellsError) as error:
            return self._fail(pieces, str(error) or "the KV cache is full")
        events = [
            event
            for piece, part in zip(pieces, rows, strict=True)
            if (event := self._advance(piece, part)) is not None
        ]
        self._release(pieces)
        return events

    def _apply_adapters(self) -> None:
        if (key := key_of(self.lora.resolve([]))) != self._applied and self._planner.long is None:
            self._applied = key  # all parts of a long input need the same adapters
            self.context.set_adapters(key)

    def _count_step(self, pieces: list[InputPart], n_tokens: int, seconds: float) -> None:
        stats = self._stats
        stats.n_prompt += n_tokens
        stats.prompt_seconds += seconds
        stats.n_decode += 1
        stats.n_busy += len(pieces)
        for piece in pieces:
            piece.input.job.n_used += piece.n
            piece.input.job.ms += 1e3 * seconds * piece.n / n_tokens

    def _evaluate(self, pieces: list[InputPart]) -> None:
        input = pieces[0].input
        if (span := input.span) is not None:
            chunk, rows = input.job.media[span.chunk.id]
            first = input.n_past - span.start
            some = rows[first : first + pieces[0].n]
            self.context.decode_media(input.sequence, span.start, chunk, some, first)
            return
        batch = self.context.batch
        batch.clear()
        for piece in pieces:
            input, start = piece.input, piece.input.n_past
            batch.add(input.tokens[start : start + piece.n], start, input.sequence)
        self.context.decode()

    def _read(self, pieces: list[InputPart], n_tokens: int) -> list[Rows]:
        if self.context.pooling != "none":
            return [self.context.vector_of_sequence(piece.input.sequence) for piece in pieces]
        rows = self.context.vectors_of_tokens(n_tokens)
        return np.split(rows, np.cumsum([piece.n for piece in pieces])[:-1])

    def _advance(self, piece: InputPart, part: Rows) -> Vectors | Failed | None:
        """Record the vectors of a piece. Returns the answer, if that completes its request."""
        input, job = piece.input, piece.input.job
        input.parts.append(part)
        input.lengths.append(piece.n)
        input.n_past += piece.n
        if input.n_pending or job.id not in self._jobs:
            return None
        rows = merged(self.context.pooling, input.parts, input.lengths)
        if not np.isfinite(rows).all():
            self._drop(job)
            return job.failed("the model computed numbers that are not finite")
        job.rows[input.index] = rows
        job.n_open -= 1
        return None if job.n_open else self._finish(job)

    def _finish(self, job: EmbeddingJob) -> Vectors:
        del self._jobs[job.id]
        rows = [each for each in job.rows if each is not None]
        values = np.concatenate(rows)
        if job.dimensions:
            values = values[:, : job.dimensions]
        return Vectors(
            job.id,
            normalized(values, job.normalize).astype("<f4").tobytes(),
            [len(each) for each in rows],
            job.n_tokens,
            job.ms,
        )

    def _release(self, pieces: list[InputPart]) -> None:
        """Free the cells of completed inputs."""
        self._planner.end_long()
        long = self._planner.long
        if long is None:
            self.context.clear(erase=False)
            return
        for piece in pieces:
            if piece.input is not long:
                self.context.remove(piece.input.sequence, 0)

    def _retry_alone(
        self, pieces: list[InputPart], error: OutOfMemoryError
    ) -> list[Vectors | Failed]:
        """There is no memory for these pieces together: schedules each input again, alone. If there
        is only one, its request fails."""
        if len(pieces) == 1:
            return self._fail(pieces, str(error))
        self._planner.put_apart(pieces)
        self.context.clear(erase=False)  # parts of them may be in the context
        return []

    def _fail(self, pieces: list[InputPart], message: str) -> list[Vectors | Failed]:
        jobs = dict.fromkeys(piece.input.job for piece in pieces)
        for job in jobs:
            self._drop(job)
        self._release(pieces)
        return [job.failed(message) for job in jobs]

    def _drop(self, job: EmbeddingJob) -> None:
        self._jobs.pop(job.id, None)
        self._forget(job)

    # ---- looking inside ------------------------------------------------------------------

    def slots(self) -> list[SlotState]:
        """One state for each sequence. An input stays in its slot until the next step."""
        working = {piece.input.sequence: piece for piece in self._latest}
        return [self._slot_state(slot, working.get(slot)) for slot in range(self._n_sequences)]

    def waiting(self) -> tuple[list[WaitingState], int]:
        """The first requests that wait, and the number of all."""
        return self._queueing.states(system.now()), self._planner.queue.n_waiting

    def _slot_state(self, slot: int, piece: InputPart | None) -> SlotState:
        n_past = piece.input.n_past if piece else 0
        return SlotState(
            id=slot,
            id_task=piece.input.job.id if piece else -1,
            n_ctx=self.n_ctx,
            is_processing=piece is not None and self.has_work,
            n_remain=0,
            n_prompt_tokens=n_past,
            n_prompt_tokens_processed=n_past,
        )

    def stats(self) -> Stats:
        """The counters since the start, and the number of current requests."""
        begun = {piece.input.job.id for piece in self._latest} & self._jobs.keys()
        self._stats.n_tokens_waiting = self._planner.n_tokens
        self._stats.wait_seconds = self._queueing.wait_seconds(1)
        self._stats.n_refused = self._queueing.limits.n_refused
        self._stats.n_processing = len(begun)
        self._stats.n_deferred = len(self._jobs) - len(begun)
        self._stats.n_tokens_running = sum(
            len(tokens) for id in begun for tokens in self._jobs[id].inputs
        )
        self._stats.n_cells = self._n_cells
        self._stats.devices = device_memory()
        return self._stats

    def digest(self, max_blocks: int) -> bytes:
        """No blocks: texts aren't cached."""
        return b""

    @property
    def load(self) -> ReplicaLoad:
        n_busy = len(self._latest) if self.has_work else 0
        return self._queueing.load(self._n_sequences, n_busy)

    def close(self) -> None:
        if self._encoding is not None:
            self._encoding.close()
        self.context.close()
        if self.projector is not None:
            self.projector.close()


def _filled(template: str, query: str, document: str) -> str:
    """Fills the template in one pass, so placeholders in the query or the document stay
    unchanged."""
    texts = {"{query}": query, "{document}": document}
    return re.sub(r"\{query\}|\{document\}", lambda match: texts[match[0]], template)


def _special(tokens: list[int]) -> TokenArray:
    """`tokens` without -1, the id of a special token that the vocabulary lacks."""
    return np.array([token for token in tokens if token >= 0], np.int32)
