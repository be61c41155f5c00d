"""Saving, restoring and erasing the text of a slot.

The state of a sequence is copied (or restored) between two steps; a thread reads and writes the
files. An action waits until its slot is idle, and is performed before waiting requests.
"""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np

from specllama.engine import system
from specllama.engine.errors import (
    EngineError,
    ErrorInfo,
    invalid_request,
    not_supported,
    unavailable,
)
from specllama.engine.options import EngineOptions
from specllama.engine.wire.replies import Failed, SlotDone
from specllama.engine.wire.requests import SlotAction, check_name
from specllama.engine.worker.backend import BackendError
from specllama.engine.worker.cache import media_table, slot_file
from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.origin import Identity
from specllama.engine.worker.cache.slot_file import Origin, SavedSlot
from specllama.engine.worker.cache.texts import EMPTY, Key
from specllama.engine.worker.embedding.embedder import Embedder
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.generation.prompts import check_tokens


@dataclass(frozen=True)
class SlotTask:
    """An action that is ready, and waits only for its slot; `saved` is the file to restore."""

    message: SlotAction
    started: float
    saved: SavedSlot | None = None


class SlotActions:
    """The actions of one engine. `reply` sends a message to the server, from any thread."""

    def __init__(
        self,
        engine: Engine | Embedder,
        options: EngineOptions,
        reply: Callable[[SlotDone | Failed], None],
    ) -> None:
        self._generator = engine if isinstance(engine, Engine) else None
        self._directory = options.slot_files.slot_save_path
        self._reply = reply
        self._waiting: list[SlotTask] = []
        self._files = system.pool(1, "slot files")
        if self._directory:
            self._identity = Identity.of(options)

    @property
    def _engine(self) -> Engine:
        """The engine that generates. Raises `EngineError` if this process embeds: its slots have no
        texts."""
        if self._generator is None:
            raise not_supported("the slots of a server that embeds or reranks keep no text")
        return self._generator

    # ---- any thread ----------------------------------------------------------------------

    def start(self, message: SlotAction, enqueue: Callable[[SlotTask], None]) -> None:
        """Check the action, read the file to restore, and pass a task to the main thread by
        `enqueue`."""
        started = system.now()
        try:
            self._check(message)
        except EngineError as error:
            self._reply(Failed(message.id, error.info))
            return
        if message.action != "restore":
            enqueue(SlotTask(message, started))
            return

        def read() -> None:
            saved = self._read(message.filename)
            enqueue(SlotTask(message, started, saved))

        self._in_thread(message.id, read)

    def _check(self, message: SlotAction) -> None:
        if not self._directory:
            raise not_supported("slot actions need a directory: --slot-save-path")
        if message.slot >= self._engine.scheduler.n_slots:
            raise invalid_request(f"there is no slot {message.slot}")
        if message.action != "erase":
            check_name(message.filename)

    def _in_thread(self, id: int, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except EngineError as error:
                self._reply(Failed(id, error.info))
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
                self._reply(Failed(id, ErrorInfo("server_error", text)))

        self._files.submit(run)

    def _read(self, name: str) -> SavedSlot:
        saved = slot_file.read(self._directory, name)
        here = self._identity
        slot_file.check_origin(name, saved.origin, here.model, here.settings)
        if not here.sees_alike(saved.origin):
            if not here.projector:  # llama-server's words
                raise invalid_request(
                    "Cannot restore media tokens without an mmproj: the slot file "
                    f"{name!r} has images or sounds, and the server has no --mmproj"
                )
            raise invalid_request(
                f"the slot file {name!r} was saved with another projector (--mmproj, "
                "--image-min-tokens, --image-max-tokens)"
            )
        n_ctx = self._engine.scheduler.n_ctx
        if len(saved.tokens) > n_ctx:
            raise invalid_request(
                f"the slot file {name!r} has {len(saved.tokens)} tokens, a slot only {n_ctx}"
            )
        check_tokens(self._engine.model, saved.tokens[saved.tokens >= 0].tolist())
        try:
            tokens = media_table.from_file(saved.tokens, saved.origin.media, self._engine.registry)
        except ValueError as error:
            raise invalid_request(f"the slot file {name!r} is damaged: {error}") from None
        return msgspec.structs.replace(saved, tokens=tokens)

    # ---- the main thread -----------------------------------------------------------------

    @property
    def pending(self) -> bool:
        return bool(self._waiting)

    def add(self, task: SlotTask) -> None:
        self._waiting.append(task)

    def cancel(self, id: int) -> None:
        self._waiting = [task for task in self._waiting if task.message.id != id]

    def run(self) -> None:
        """Perform the actions whose slots are idle, in the order of arrival."""
        waiting, self._waiting = self._waiting, []
        for task in waiting:
            slot = task.message.slot
            if self._engine.scheduler.in_slot(slot) is not None:
                self._waiting.append(task)
                continue
            try:
                self._perform(task)
            except EngineError as error:
                self._reply(Failed(task.message.id, error.info))

    def _perform(self, task: SlotTask) -> None:
        message, scheduler = task.message, self._engine.scheduler
        if message.action == "erase":
            self._done(task, scheduler.texts.erase(message.slot), 0)
        elif task.saved is None:
            self._save(task)
        else:
            self._restore(task, task.saved)

    def _done(self, task: SlotTask, n_tokens: int, n_bytes: int) -> None:
        elapsed = 1e3 * (system.now() - task.started)
        self._reply(SlotDone(task.message.id, n_tokens, n_bytes, elapsed))

    def _save(self, task: SlotTask) -> None:
        message, scheduler = task.message, self._engine.scheduler
        if self._engine.context.moves_pending:
            # The moved cells have their new positions, but llama.cpp hasn't rotated the keys yet.
            scheduler.texts.forget_moved(message.slot)
        entry, state = EMPTY, np.empty(0, np.uint8)
        checkpoints: tuple[Checkpoint, ...] = ()
        if (found := scheduler.texts.cached(message.slot)) is not None:
            seq_id, entry = found
            try:
                state = self._engine.context.save_sequence(seq_id)
            except BackendError as error:
                raise unavailable(f"slot {message.slot} can't be saved: {error}") from None
            checkpoints = tuple(scheduler.cache.checkpoints.get(seq_id, ()))
        tokens, table = media_table.to_file(entry.tokens, self._engine.registry)
        origin = self._identity.origin(entry.key, entry.n_exact, table)

        def write() -> None:
            size = slot_file.write(
                self._directory, message.filename, origin, tokens, state, checkpoints
            )
            self._done(task, len(tokens), size)

        self._in_thread(message.id, write)

    def _restore(self, task: SlotTask, saved: SavedSlot) -> None:
        slot, scheduler, n_tokens = task.message.slot, self._engine.scheduler, len(saved.tokens)
        key = self._key(task.message.filename, saved.origin)
        if not n_tokens:
            scheduler.texts.erase(slot)
        else:
            seq_id = scheduler.texts.adopt(
                slot, saved.tokens, saved.origin.n_exact, key, saved.checkpoints
            )
            if seq_id is None:
                raise unavailable(f"the KV cache has no room for {n_tokens} tokens at the moment")
            try:
                self._engine.context.restore_sequence(seq_id, saved.state, n_tokens)
            except BackendError as error:
                scheduler.texts.erase(slot)
                raise invalid_request(
                    f"the slot file {task.message.filename!r} doesn't fit this server: {error}"
                ) from None
        self._done(task, n_tokens, saved.n_bytes)

    def _key(self, name: str, origin: Origin) -> Key:
        """The key of the saved text, with the ids of this process's adapters."""
        key = self._identity.key(origin)
        if key is None:
            raise invalid_request(
                f"the slot file {name!r} was saved with a LoRA adapter that is not loaded"
            )
        return key
