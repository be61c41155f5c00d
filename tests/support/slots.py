"""Slot actions of an engine in this process."""

import queue
from typing import Any

from specllama.engine.errors import EngineError
from specllama.engine.options import EngineOptions
from specllama.engine.wire.replies import Failed, SlotDone
from specllama.engine.wire.requests import SlotAction
from specllama.engine.worker.generation.engine import Engine
from specllama.engine.worker.slot_actions import SlotActions, SlotTask


class Slots:
    """Runs slot actions of an engine without a worker."""

    def __init__(self, engine: Engine, options: EngineOptions) -> None:
        self.engine = engine
        self.replies: queue.SimpleQueue[SlotDone | Failed] = queue.SimpleQueue()
        self.tasks: queue.SimpleQueue[SlotTask] = queue.SimpleQueue()
        self.actions = SlotActions(engine, options, self.replies.put)

    def begin(self, slot: int, action: Any, name: str = "a.bin", id: int = 1) -> None:
        self.actions.start(SlotAction(id, slot, action, name), self.tasks.put)

    def act(self, slot: int, action: Any, name: str = "a.bin") -> SlotDone:
        self.begin(slot, action, name)
        while True:
            if not self.replies.empty():
                reply = self.replies.get()
                break
            if not self.tasks.empty():
                self.actions.add(self.tasks.get())
                self.actions.run()
        if isinstance(reply, Failed):
            raise EngineError(reply.error)
        return reply
