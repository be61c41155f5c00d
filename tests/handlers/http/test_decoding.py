"""JSON texts of requests."""

import gc
import json
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.http.decoding import UndecodableError, decoded

DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(DOCUMENTS)
def test_what_is_json_is_decoded(document: object) -> None:
    assert decoded(json.dumps(document).encode()) == document


@given(st.binary())
def test_what_is_not_is_refused(raw: bytes) -> None:
    with suppress(UndecodableError):
        json.dumps(decoded(raw))
    assert gc.isenabled()


def test_no_garbage_is_looked_for_meanwhile() -> None:
    phases: list[str] = []

    def seen(phase: str, info: dict[str, int]) -> None:
        phases.append(phase)

    gc.collect()
    gc.callbacks.append(seen)
    try:
        value = decoded(b"[%s[]]" % (b"[]," * 10_000))
        during = list(phases)
    finally:
        gc.callbacks.remove(seen)
    assert len(value) == 10_001
    assert during.count("start") <= 1  # afterwards


@pytest.mark.parametrize("collects", [True, False])
def test_who_has_switched_it_off_keeps_it_so(collects: bool) -> None:
    gc.enable() if collects else gc.disable()
    try:
        decoded(b"{}")
        with pytest.raises(UndecodableError):
            decoded(b"{")
        assert gc.isenabled() is collects
    finally:
        gc.enable()
