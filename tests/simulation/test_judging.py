"""The faults that a history finds: forms of answers, texts, counts; and mutants act only in it."""

import json
import time
from typing import Any

import pytest

from specllama.engine.params import GenerationParams
from specllama.engine.wire.stats import Stats
from specllama.engine.worker.scheduling.scheduler import Scheduler
from tests.simulation.forms import FORMS, TOOL_FORMS, VECTOR_FORMS, Reading
from tests.simulation.history import History
from tests.simulation.http import Answer
from tests.simulation.http_clients import AskedForm, wrong_form, wrong_text
from tests.simulation.mutant import Acts, Mutant, adds, gives, skips
from tests.simulation.requests import Asked, wrong_stats
from tests.simulation.world import StuckError, limited

NATIVE = FORMS[0]
FIRST = {"content": "one ", "stop": False}
LAST = {"content": "two", "stop": True}
ERROR = {"error": {"code": 500, "message": "no", "type": "server_error"}}


def stream(*events: Any) -> bytes:
    return b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events)


def asked(body: bytes, *, status: int = 200, is_whole: bool = True, is_left: bool = False) -> Any:
    made = AskedForm(1, "a", NATIVE, "prompt", {}, is_stream=True)
    made.answers.append(Answer(status, bytearray(body), is_whole, is_left))
    return made


@pytest.mark.parametrize(
    ("each", "wrong"),
    [
        (asked(stream(FIRST, LAST)), ""),
        (asked(stream(FIRST, ERROR)), ""),
        (asked(stream(FIRST), is_whole=False, is_left=True), ""),
        (asked(json.dumps(ERROR).encode(), status=500), ""),
        (asked(stream(FIRST)), "ends []"),
        (asked(stream(FIRST), is_whole=False), "no end"),
        (asked(stream(FIRST, LAST, LAST)), "ends ['whole', 'whole']"),
        (asked(stream(FIRST, LAST, ERROR)), "ends ['whole', 'server_error']"),
        (asked(b"data: {\n\n"), "JSONDecodeError"),
        (asked(b"", status=418), "status 418"),
        (asked(json.dumps(FIRST).encode(), status=500), "no error"),
    ],
)
def test_the_form_of_an_answer(each: AskedForm, wrong: str) -> None:
    found = wrong_form(each)
    assert wrong in found
    assert bool(wrong) == bool(found)


def test_keys_are_checked() -> None:
    for key, status, is_right in (
        ("wrong", 401, True),
        ("wrong", 200, False),
        ("first", 401, False),
    ):
        made = asked(stream(FIRST, LAST) if status == 200 else b"{}", status=status)
        made.key = key
        assert bool(wrong_form(made)) != is_right


@pytest.mark.parametrize(
    ("said", "is_whole", "is_right"),
    [("one two", True, True), ("one", False, True), ("one", True, False), ("two", False, False)],
)
def test_the_text_of_an_answer(said: str, is_whole: bool, is_right: bool) -> None:
    made = asked(stream({"content": said, "stop": is_whole}))
    assert bool(wrong_text(made, Reading("one two"))) != is_right


ANSWERS: dict[str, Any] = {
    "/completion": {"content": "one"},
    "/v1/completions": {"choices": [{"text": "one"}]},
    "/v1/chat/completions": {"choices": [{"message": {"content": "one"}}]},
    "/v1/messages": {"type": "message", "content": [{"type": "text", "text": "one"}]},
    "/v1/responses": {
        "object": "response",
        "output": [{"type": "message", "content": [{"text": "one"}]}],
    },
    "/api/chat": {"message": {"content": "one"}, "done": True},
    "/api/generate": {"response": "one", "done": True},
}


def test_each_form_is_read() -> None:
    for form in FORMS:
        reading = form.read(json.dumps(ANSWERS[form.path]).encode(), stream=False)
        assert (reading.text, reading.ends) == ("one", ["whole"]), form.path
        assert "one" not in str(form.body("prompt", PARAMS))


PARAMS = {"n_predict": 1, "temperature": 0, "seed": 1, "stream": False}
CALLS: dict[str, Any] = {
    "/v1/chat/completions": {
        "choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]
    },
    "/v1/messages": {"type": "content_block_delta", "delta": {"partial_json": "{}"}},
    "/v1/responses": {"type": "response.function_call_arguments.delta", "delta": "{}"},
    "/api/chat": {"message": {"tool_calls": [{"function": {}}]}, "done": False},
}


def test_calls_and_vectors_are_read() -> None:
    for form in TOOL_FORMS:
        assert form.delta(CALLS[form.path]) == "{}", form.path
        assert "tools" in form.body("prompt", PARAMS)
    openai, ollama = VECTOR_FORMS
    assert openai.delta({"data": [{"embedding": [1, 2]}]}) == "[[1, 2]]"
    assert ollama.delta({"embeddings": [[1, 2]]}) == "[[1, 2]]"


def test_a_cancelled_response_has_no_whole_text() -> None:
    form = next(form for form in FORMS if form.path == "/v1/responses")
    answer = {**ANSWERS[form.path], "status": "cancelled"}
    assert form.read(json.dumps(answer).encode(), stream=False).ends == ["cancelled"]


def test_counts_of_requests_that_have_not_ended_are_not_known() -> None:
    text = Asked(1, "a", ["prompt"], GenerationParams())
    assert not wrong_stats(Stats(n_predicted=5), [text])
    assert "5 tokens predicted" in wrong_stats(Stats(n_predicted=5), [])


# ---- mutants -----------------------------------------------------------------------------


def test_effects_of_changes() -> None:
    acts = Acts()
    calls: list[tuple[Any, ...]] = []

    def real(*args: Any) -> str:
        calls.append(args)
        return "real"

    assert skips("nothing")(real, acts, 1) == "nothing"
    assert adds(1, 5)(real, acts, 1, 2) == "real"
    assert gives(0, "given")(real, acts, 1, 2) == "real"
    assert calls == [(1, 7), ("given", 2)]
    assert acts.n == 3


def test_a_mutant_is_gone_afterwards() -> None:
    real = Scheduler.finish
    with Mutant("", Scheduler, "finish", skips()).installed(Acts()):
        assert Scheduler.finish is not real
    assert Scheduler.finish is real


def test_a_mutant_that_does_nothing_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(history: History) -> None:
        raise AssertionError

    monkeypatch.setattr(History, "run", fail)
    assert not Mutant("", Scheduler, "finish", skips()).is_found(1)


def test_an_endless_history_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.world.LIMIT", 1)
    with pytest.raises(StuckError), limited():
        time.sleep(30)
