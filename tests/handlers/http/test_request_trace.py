"""The stages of a request, from the times of its generations."""

from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.params import GenerationParams
from specllama.engine.wire.replies import Timings
from specllama.handlers.http.request_trace import GenerationTimes, RequestTrace

MS = st.floats(0, 1e4)
TIMINGS = st.builds(
    Timings,
    cache_n=st.integers(0, 9),
    prompt_n=st.integers(0, 9),
    prompt_ms=MS,
    predicted_n=st.integers(0, 9),
    predicted_ms=MS,
)
SUBMITTED = 100.0
GENERATIONS = st.lists(
    st.builds(GenerationTimes, st.just(SUBMITTED), st.floats(SUBMITTED, SUBMITTED + 100), TIMINGS),
    min_size=1,
    max_size=4,
)


@given(GENERATIONS)
def test_stages_lie_between_submission_and_end(generations: list[GenerationTimes]) -> None:
    trace = RequestTrace("a", SUBMITTED - 1)
    trace.computed(generations)
    stages = {each.name: each for each in trace.stages}
    assert list(stages) == ["prepare", "queue", "prefill", "decode"]
    end = max(each.end for each in generations)
    assert (stages["prepare"].begin, stages["prepare"].end) == (SUBMITTED - 1, SUBMITTED)
    assert stages["queue"].begin == SUBMITTED
    assert stages["decode"].end == trace.generated == end
    for each in stages.values():
        assert each.begin <= each.end <= end
    assert stages["queue"].begin <= stages["prefill"].begin <= stages["decode"].begin
    counted = sum(each.timings.predicted_n for each in generations)
    assert stages["decode"].attributes["specllama.tokens"] == counted


def test_the_durations_of_one_generation_are_those_of_the_engine() -> None:
    trace = RequestTrace("a", 0.0)
    timings = Timings(3, 4, 500.0, 2, 250.0, draft_n=5, draft_n_accepted=1)
    trace.computed([GenerationTimes(1.0, 3.0, timings)])
    times = {each.name: (each.begin, each.end) for each in trace.stages}
    assert times == {
        "prepare": (0.0, 1.0),
        "queue": (1.0, 2.25),
        "prefill": (2.25, 2.75),
        "decode": (2.75, 3.0),
    }
    attributes = {each.name: each.attributes for each in trace.stages}
    assert attributes["prefill"] == {"specllama.tokens": 4, "specllama.tokens.cached": 3}
    assert attributes["decode"] == {
        "specllama.tokens": 2,
        "specllama.tokens.proposed": 5,
        "specllama.tokens.accepted": 1,
    }


def test_a_request_without_generations_has_no_stages() -> None:
    trace = RequestTrace("a", 0.0)
    trace.computed([])
    assert trace.stages == []
    trace.waited(1.0, 2.0)
    assert [(each.name, each.end) for each in trace.stages] == [("prepare", 1.0), ("queue", 2.0)]


def test_attributes_of_a_request() -> None:
    trace = RequestTrace("a", 0.0)
    trace.asked("chat", GenerationParams(n_predict=7, temperature=0.5), 2)
    assert trace.attributes["gen_ai.request.max_tokens"] == 7
    assert trace.attributes["gen_ai.request.temperature"] == 0.5
    assert trace.attributes["gen_ai.request.choice.count"] == 2
    endless = RequestTrace("a", 0.0)
    endless.asked("chat", GenerationParams(), 1)
    assert "gen_ai.request.max_tokens" not in endless.attributes
