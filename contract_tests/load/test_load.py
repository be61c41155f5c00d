"""Answers are judged as right, wrong or undocumented."""

import json
import tomllib
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract_tests.load import asks, flood, overload, reading, tally
from contract_tests.load.asks import Ask
from contract_tests.load.exchange import FOR_EVER, Exchange
from contract_tests.load.judging import Judge

STREAM = "text/event-stream"
TRUTH = {"content": "one two", "finish": "limit"}


def ask(read: reading.Reader = reading.native, stream: bool = True) -> Ask:
    return Ask(name="ask", path="/completion", body=lambda _: {"prompt": "a"}, read=read,
               stream=stream)  # fmt: skip


def exchange(content: bytes, each: Ask, *, status: int = 200, cut: str = "",
             kind: str = STREAM) -> Exchange:  # fmt: skip
    made = Exchange(each, 0, begun=1.0, ended=2.0, status=status, content=content, cut=cut)
    made.headers = {"content-type": kind, "x-request-id": "req_0"}
    made.request = httpx.Request("POST", f"http://a{each.path}", json={"prompt": "a"})
    return made


def events(*documents: Any) -> bytes:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in documents)
    return "".join(f"data: {text}\n\n" for text in texts).encode()


def judge(**options: Any) -> Judge:
    made = Judge(documented=False, **options)
    made.truth["ask"] = TRUTH
    return made


FIRST = {"content": "one "}
LAST = {"content": "two", "stop": True, "stop_type": "limit"}
ERROR = {"error": {"code": 500, "message": "no", "type": "server_error"}}


@pytest.mark.parametrize(
    ("content", "cut", "outcome"),
    [
        (events(FIRST, LAST), "", "right"),
        (events(FIRST, ERROR), "", "error in a stream"),
        (events(FIRST), "torn", "cut"),
        (events(FIRST) + b'data: {"cont', "torn", "cut"),
        (events(FIRST, LAST), "torn", "cut"),
        (b"", "torn", "cut"),
    ],
)
def test_possible_outcomes_of_a_stream(content: bytes, cut: str, outcome: str) -> None:
    verdict = judge().verdict(exchange(content, ask(), cut=cut))
    assert not verdict.problem
    assert verdict.outcome == outcome


@pytest.mark.parametrize(
    ("content", "cut", "problem"),
    [
        (events({"content": "another"}, LAST), "", "content is 'anothertwo'"),
        (events({"content": "another"}), "torn", "content is 'another'"),
        (events({"content": "another"}, ERROR), "", "content is 'another'"),
        (events(FIRST, {**LAST, "content": ""}), "", "content is 'one '"),
        (events(FIRST, {**LAST, "stop_type": "eos"}), "", "finish is 'eos'"),
        (events(FIRST, LAST, {**LAST, "content": ""}), "", "the stream has 2 ends"),
        (events(FIRST, LAST, ERROR), "", "1 ends, and an error"),
        (events(FIRST, LAST, {"content": ""}), "", "1 documents after the end"),
        (events(FIRST, LAST, {**LAST, "content": ""}), "torn", "the stream has 2 ends"),
        (events(FIRST), "", "the stream has 0 ends, and no error"),
        (events(FIRST, "{"), "", "JSONDecodeError"),
        (events(FIRST) + b"da", "", "the stream ended inside of an event"),
        (events(FIRST), FOR_EVER, FOR_EVER),
    ],
)
def test_faults_of_a_stream(content: bytes, cut: str, problem: str) -> None:
    verdict = judge().verdict(exchange(content, ask(), cut=cut))
    assert verdict.outcome == "wrong"
    assert problem in verdict.problem


def test_a_response_fails_in_two_events() -> None:
    failed = {"type": "response.failed", "response": {"error": {"code": "server_error"}}}
    error = {"type": "error", **ERROR}
    responses = ask(reading.responses)
    for documents, outcome in (
        ((failed, error), "error in a stream"),
        ((failed, error, error), "wrong"),
        ((failed, failed), "wrong"),
    ):
        assert judge().verdict(exchange(events(*documents), responses)).outcome == outcome


def test_whole_answers() -> None:
    whole = ask(stream=False)
    for content, outcome in (("one two", "right"), ("one", "wrong"), ("one two.", "wrong")):
        document = {"content": content, "stop": True, "stop_type": "limit"}
        made = exchange(json.dumps(document).encode(), whole, kind="application/json")
        assert judge().verdict(made).outcome == outcome


@pytest.mark.parametrize(
    ("status", "content", "problem"),
    [
        (500, ERROR, ""),
        (418, ERROR, "no documented status 418"),
        (500, {"oops": 1}, "error"),
        (503, {"error": "no"}, "error"),
    ],
)
def test_errors_are_documented(status: int, content: Any, problem: str) -> None:
    made = Judge(documented=True)
    answer = exchange(json.dumps(content).encode(), ask(), status=status, kind="application/json")
    verdict = made.verdict(answer)
    assert verdict.outcome == ("wrong" if problem else "error")
    assert problem in verdict.problem


def test_right_answers_are_validated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("contract_tests.load.judging.VALIDATED", 1.0)
    made = Judge(documented=True)
    made.truth["ask"] = TRUTH
    verdict = made.verdict(exchange(events(FIRST, LAST), ask()))
    assert verdict.outcome == "wrong"  # most fields of a real answer are missing


STREAMS: dict[str, tuple[reading.Reader, list[Any]]] = {
    "chat": (reading.choices, [
        {"choices": [{"index": 0, "delta": {"reasoning_content": "hm"}}]},
        {"choices": [{"index": 0, "delta": {"content": "yes"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [
            {"function": {"name": "f", "arguments": "{"}}]}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"function": {"arguments": "}"}}]},
                      "finish_reason": "tool_calls"}]},
        "[DONE]",
    ]),
    "responses": (reading.responses, [
        {"type": "response.reasoning_text.delta", "delta": "hm"},
        {"type": "response.output_text.delta", "delta": "yes"},
        {"type": "response.function_call_arguments.delta", "delta": "{}"},
        {"type": "response.completed", "response": {"status": "completed"}},
    ]),
    "messages": (reading.messages, [
        {"type": "message_start", "message": {}},
        {"type": "content_block_delta", "delta": {"thinking": "hm"}},
        {"type": "content_block_delta", "delta": {"text": "yes"}},
        {"type": "content_block_delta", "delta": {"partial_json": "{}"}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]),
    "Ollama": (reading.ollama, [
        {"message": {"thinking": "hm"}, "done": False},
        {"message": {"content": "yes"}, "done": False},
        {"message": {"tool_calls": [{"function": {"name": "f", "arguments": {}}}]}},
        {"message": {}, "done": True, "done_reason": "stop"},
    ]),
}  # fmt: skip
"""Each stream has the reasoning `hm`, the text `yes` and a call."""


@pytest.mark.parametrize("form", STREAMS)
def test_streams_of_every_form(form: str) -> None:
    read, documents = STREAMS[form]
    data = [each if isinstance(each, str) else json.dumps(each) for each in documents]
    said = reading.read_stream(read, data)
    assert (said.parts["thoughts"], said.parts["content"]) == ("hm", "yes")
    assert said.parts["calls"]
    assert said.parts["finish"]
    assert (said.n_ends, said.behind, said.error) == (1, 0, None)
    assert not reading.read_stream(read, data[:-1]).n_ends
    twice = reading.read_stream(read, [*data, data[-1]])
    assert (twice.n_ends, twice.behind) == (2, 1)


@pytest.mark.parametrize(
    ("read", "document"),
    [
        (reading.choices, ERROR),
        (reading.messages, {"type": "error", "error": {"message": "no"}}),
        (reading.ollama, {"error": "no"}),
        (reading.responses, {"type": "response.failed", "response": {"error": {"message": "no"}}}),
    ],
)
def test_errors_of_every_form(read: reading.Reader, document: Any) -> None:
    said = reading.read_stream(read, [json.dumps(document)])
    assert said.error
    assert said.n_ends == 0


def test_vectors_may_differ_in_their_last_digits() -> None:
    def vector(*values: float) -> reading.Parts:
        return reading.read_whole(reading.vectors, {"data": [{"embedding": [*values]}]}).parts

    assert not reading.differs(vector(0.1, 0.2), vector(0.1004, 0.1996), True)
    assert reading.differs(vector(0.1, 0.2), vector(0.2, 0.1), True)
    assert reading.differs(vector(0.1, 0.2), vector(0.1), True)


def test_a_new_file_has_the_same_image() -> None:
    assert asks.drawn(1) != asks.drawn(2)


def test_every_kind_of_request_has_a_name() -> None:
    all_asks = [*asks.generation(), *asks.constrained(), *asks.others("http://a"), *asks.kept()]
    texts = {each.name for each in all_asks if each.read is not reading.nothing}
    assert len(texts) == len([each for each in all_asks if each.read is not reading.nothing])


# ---- refusals ----------------------------------------------------------------------------------

KEY_LIMITS = {"requests": 60}
OPENAI_LIMITS = {
    "x-ratelimit-limit-requests": "60", "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "1m0s",
}  # fmt: skip
ANTHROPIC_LIMITS = {
    "anthropic-ratelimit-requests-limit": "60", "anthropic-ratelimit-requests-remaining": "0",
    "anthropic-ratelimit-requests-reset": "2026-01-01T00:00:00Z",
}  # fmt: skip


def refusal(path: str, status: int, kind: str, head: dict[str, str]) -> flood.Answer:
    error = {"code": status, "type": kind, "message": "no"}
    document = {"error": error, **({"type": "error"} if path == flood.MESSAGES else {})}
    return flood.Answer(path, status=status, head=head, body=json.dumps(document).encode())


@pytest.mark.parametrize(
    ("path", "status", "kind", "head"),
    [
        ("/completion", 429, "rate_limit_error", OPENAI_LIMITS),
        ("/completion", 503, "unavailable_error", OPENAI_LIMITS),
        (flood.MESSAGES, 429, "rate_limit_error", ANTHROPIC_LIMITS),
        (flood.MESSAGES, 503, "overloaded_error", ANTHROPIC_LIMITS),
    ],
)
def test_faults_of_refusals(path: str, status: int, kind: str, head: dict[str, str]) -> None:
    right = {**head, "retry-after": "7"}
    assert not flood.fault_of_refusal(refusal(path, status, kind, right), KEY_LIMITS)
    later = {**head, "retry-after": "121", "x-should-retry": "false"}
    assert not flood.fault_of_refusal(refusal(path, status, kind, later), KEY_LIMITS)
    for wrong in (
        head, {**head, "retry-after": "0"}, {**head, "retry-after": "1.5"},
        {**head, "retry-after": "121"}, {"retry-after": "7"},
        *({**right, name: "61"} for name in head if "reset" not in name),
    ):  # fmt: skip
        assert flood.fault_of_refusal(refusal(path, status, kind, wrong), KEY_LIMITS), wrong
    assert flood.fault_of_refusal(refusal(path, status, "server_error", right), KEY_LIMITS)
    assert flood.fault_of_refusal(flood.Answer(path, status=status, head=right), KEY_LIMITS)


def load(name: str, **answers: list[flood.Answer]) -> tally.Load:
    fine = [flood.Answer("/completion", ended=1.0, status=200)]
    made = tally.Load(name, streams=fine, crowd=fine, hostile=fine, honest=fine, health=fine)
    for which, given in answers.items():
        setattr(made, which, given)
    return made


def test_faults_of_an_overload() -> None:
    cut = [flood.Answer("/completion", ended=1.0, cut="torn")]
    refused = [refusal("/completion", 503, "unavailable_error", {"retry-after": "7"})]
    assert not tally.faults(load("waiting"))
    assert not tally.faults(load("refused", crowd=refused))
    assert not tally.faults(load("leaving", crowd=cut, streams=cut))
    for name in ("waiting", "leaving", "refused"):
        assert tally.faults(load(name, honest=cut)), name
        assert tally.faults(load(name, health=cut)), name
    assert tally.faults(load("refused"))
    assert tally.faults(load("waiting", crowd=refused))
    assert tally.faults(load("waiting", crowd=cut))


def test_memory_of_an_overload() -> None:
    most = tally.PEAK + 2 * tally.PER_REQUEST
    for samples, is_right in (
        ([0, most, 0], True), ([0, most + 3 * tally.PER_REQUEST, 0], False),
        ([0, most, most], False),
    ):  # fmt: skip
        made = load("waiting")
        made.memory = samples
        assert (not tally.faults(made)) == is_right


def test_a_keys_file_of_an_overload(tmp_path: Path) -> None:
    keys = overload.keys_file(tmp_path / "keys.toml")
    tables = tomllib.loads((tmp_path / "keys.toml").read_text("utf-8"))["keys"]
    assert {name: each["key"] for name, each in tables.items()} == keys
    assert len(overload.WEIGHTS) > 1
    assert {"admin", "holders", "honest", "hostile", "streams", *overload.WEIGHTS} == {*keys}


def test_an_overload_has_a_table() -> None:
    lines = tally.table([load("waiting"), load("leaving")]).splitlines()
    assert len({line.count("|") for line in lines}) == 1
