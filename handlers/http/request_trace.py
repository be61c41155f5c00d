"""What a trace contains about one request, besides the fields of its log line.

The handlers fill it in, without knowing the library that exports it (`handlers.http.otel`). A
server that exports no traces has none, and the handlers then skip this work.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Timings

OPERATION = "gen_ai.operation.name"
FINISH_REASONS = "gen_ai.response.finish_reasons"

Value = str | bool | int | float | list[str]
"""A value of an attribute."""


class Stage(NamedTuple):
    """A part of the work for a request, which becomes a span. Times are those of
    `engine.system.now`."""

    name: str
    begin: float
    end: float
    attributes: dict[str, Value]


class GenerationTimes(NamedTuple):
    """The times of one generation: `end` is when its last event arrived."""

    submitted: float
    end: float
    timings: Timings


@dataclass(slots=True)
class RequestTrace:
    """The trace of one request. `trace_id` is that of the client, or else a new one. The names of
    `attributes` are those of OpenTelemetry's conventions, or begin with `specllama.`. They contain
    no text of prompts or answers."""

    trace_id: str
    arrived: float
    attributes: dict[str, Value] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)
    generated: float = 0.0  # when the engine's last event arrived

    def asked(self, operation: str, params: GenerationParams, n: int) -> None:
        """Adds the attributes of a request for `n` texts for each prompt."""
        found: dict[str, Value] = {
            OPERATION: operation,
            "gen_ai.request.stream": params.stream,
            "gen_ai.request.temperature": params.temperature,
            "gen_ai.request.top_p": params.top_p,
        }
        if params.n_predict >= 0:
            found["gen_ai.request.max_tokens"] = params.n_predict
        if n > 1:
            found["gen_ai.request.choice.count"] = n
        self.attributes |= found

    def waited(self, submitted: float, end: float) -> None:
        """Adds the stages of generations that ended before they had slots."""
        self._prepared(submitted)
        self.stages.append(Stage("queue", submitted, end, {}))

    def computed(self, generations: Sequence[GenerationTimes]) -> None:
        """Adds the stages of generations that ran together. A stage lasts from the earliest begin
        to the latest end of any of them, so it may overlap with the next one."""
        if not generations:
            return
        spans = [_boundaries(each) for each in generations]
        timings = [each.timings for each in generations]
        begin, first_slot, first_token = (min(span[i] for span in spans) for i in range(3))
        last_slot, last_token, end = (max(span[i] for span in spans) for i in (1, 2, 3))
        self._prepared(begin)
        prompt: dict[str, Value] = {
            "specllama.tokens": sum(each.prompt_n for each in timings),
            "specllama.tokens.cached": sum(each.cache_n for each in timings),
        }
        text: dict[str, Value] = {"specllama.tokens": sum(each.predicted_n for each in timings)}
        if drafted := sum(each.draft_n for each in timings):
            text["specllama.tokens.proposed"] = drafted
            text["specllama.tokens.accepted"] = sum(each.draft_n_accepted for each in timings)
        self.stages += [
            Stage("queue", begin, last_slot, {}),
            Stage("prefill", first_slot, last_token, prompt),
            Stage("decode", first_token, end, text),
        ]
        self.generated = end

    def _prepared(self, submitted: float) -> None:
        self.stages.append(Stage("prepare", self.arrived, submitted, {}))


def _boundaries(times: GenerationTimes) -> tuple[float, float, float, float]:
    """Returns when the generation was submitted, got a slot, had its first token, and ended. The
    durations are the engine's; they are counted back from the end."""
    first_token = max(times.submitted, times.end - times.timings.predicted_ms / 1000)
    slot = max(times.submitted, first_token - times.timings.prompt_ms / 1000)
    return times.submitted, slot, first_token, times.end
