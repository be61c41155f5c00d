"""Accounts for the memory of a pool's models: what each will take, and what it takes."""

import logging
from dataclasses import dataclass

from specllama.engine.errors import EngineError, ErrorInfo, unavailable
from specllama.engine.models.measuring import MemoryMeter
from specllama.engine.models.memory import Need, need_of, need_of_loaded, refusal
from specllama.engine.models.records import ModelFailure, ModelRecord
from specllama.engine.models.residency import Residency, Ticket
from specllama.engine.shipped import model_file

log = logging.getLogger("specllama.engine.models")


@dataclass(frozen=True)
class MemoryView:
    """The memory of a model, in bytes by device: what it will take according to its dry run, and
    what it takes. Both are empty if unknown; `use` is empty for a model that isn't in memory.
    `seconds_kept` is the remaining time for which a request keeps it there."""

    need: dict[str, int]
    use: dict[str, int]
    seconds_kept: float = 0.0


class MemoryAccounts:
    """Measures models before they are loaded, and reports their memory to the residency. Without a
    `meter`, memory has no limits, and no model is measured."""

    def __init__(self, meter: MemoryMeter | None, residency: Residency) -> None:
        self._meter = meter
        self._residency = residency

    async def measure(self, record: ModelRecord) -> None:
        """Determines what a model, whose files exist, will take, unless it is in memory. A model
        that can't be measured counts only when it has been loaded."""
        if self._meter is None or self._residency.resident(record.name):
            return
        record.n_measuring += 1
        record.publish()
        try:
            self._residency.memory = {**await self._meter.limits()}
            record.measured = await self._meter.measure(record.options.engine)
        except EngineError as error:
            record.measured = None
            log.warning("the memory of the model %r can't be measured: %s", record.name, error)
        finally:
            record.n_measuring -= 1

    def need(self, record: ModelRecord) -> Need:
        """Returns what the model will take, by its dry run; nothing if it wasn't measured."""
        if record.measured is None:
            return Need()
        return need_of(record.measured, model_file(record.options.engine.model.model))

    def check_room(self, record: ModelRecord) -> None:
        """Raises EngineError (unavailable) if memory is limited and others would have to make room
        for the model. A model that doesn't fit alone is refused later, with the reason."""
        if self._meter is None or not self._residency.is_occupied:
            return
        if not self._residency.has_room(self.need(record)):
            text = f"the model {record.name!r} isn't loaded at the start: there is no room beside"
            raise unavailable(f"{text} the other models with load-on-startup")

    def report(self, record: ModelRecord) -> None:
        """Corrects the memory of a loaded model by what its process reports."""
        if self._meter is not None and (use := self._use(record)) is not None:
            self._residency.measured(record.name, use)

    def view(self, record: ModelRecord) -> MemoryView:
        use = self._use(record)
        return MemoryView(
            need=self.need(record).on_devices(),
            use=use.on_devices() if use else {},
            seconds_kept=record.keeping.seconds_left if record.keeping else 0.0,
        )

    def refused(self, record: ModelRecord, ticket: Ticket) -> EngineError:
        """Returns the error for a model that can't be loaded beside the pinned ones, and makes it
        the model's failure."""
        assert record.measured is not None or not ticket.need.own
        text = refusal(record.name, record.measured, ticket.need, ticket.room)
        if record.failure is None or record.failure.text != text:
            log.error("%s", text)
        record.failure = ModelFailure.passing(text)
        return EngineError(ErrorInfo("unavailable_error", text, final=True))

    def _use(self, record: ModelRecord) -> Need | None:
        engine = record.supervisor.awake_engine() if record.supervisor else None
        if engine is None:
            return None
        return need_of_loaded(self.need(record), engine.info, engine.n_private)
