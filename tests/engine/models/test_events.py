"""Subscriptions to the events of models."""

import pytest

from specllama.engine.models.events import MAX_WAITING, ModelEvent, ModelEvents
from tests.support.pool_stage import seen

pytestmark = pytest.mark.slow


def test_a_slow_subscriber_loses_progress_but_no_status() -> None:
    events = ModelEvents()
    slow = events.subscribe()
    for i in range(5):
        events.publish(ModelEvent("a", "download_progress", {"i": i}), is_progress=True)
    events.publish(ModelEvent("a", "status_change", {"status": "loading"}))
    events.publish(ModelEvent("b", "status_change", {"status": "loading"}))
    assert [(event.model, event.data) for event, _ in slow._events] == [
        ("a", {"i": 4}),
        ("a", {"status": "loading"}),
        ("b", {"status": "loading"}),
    ]


def test_a_subscriber_that_never_reads_is_dropped() -> None:
    events = ModelEvents()
    lost = events.subscribe()
    for _ in range(2 * MAX_WAITING):
        events.publish(ModelEvent("a", "status_change"))
    assert len(seen(lost)) == MAX_WAITING + 1
