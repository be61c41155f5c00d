"""Constrained generations in the engine, on the shipped model."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from specllama.engine.errors import EngineError
from specllama.engine.params import AnswerRules, GenerationParams
from specllama.engine.wire.replies import Begun, Delta, Event, Failed, Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.trial import BusyError, TrialLanes
from specllama.engine.worker.generation.engine import Engine
from tests.support.options_support import engine_options
from tests.support.playing import stepped

pytestmark = pytest.mark.slow

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"enum": [1, 20, 300]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(model: Model) -> Iterator[Engine]:
    # Options with which a text does not depend on how its prompt was cut into batches.
    engine = Engine(model, engine_options(flash_attn="off", cache_type_k="f32", cache_type_v="f32"))
    yield engine
    engine.close()


def play(engine: Engine, *requests: dict[str, Any]) -> list[list[Event]]:
    """The events of requests that run together."""
    events: list[list[Event]] = [[] for _ in requests]
    for id, asked in enumerate(requests):
        params = GenerationParams(**{"n_predict": 200, "seed": id, **asked})
        request = engine.preparation.prepare(Submit(id, ["Once upon a time"], params))
        events[id] += engine.submit(request)
    while engine.has_work:
        for event in stepped(engine):
            if not isinstance(event, Begun):
                events[event.id].append(event)
    return events


def finish(engine: Engine, **params: Any) -> Finished:
    [[event]] = play(engine, params)
    assert isinstance(event, Finished), event
    return event


def test_a_grammar_ends_the_text(engine: Engine) -> None:
    result = finish(engine, grammar='root ::= [a-c]{5} "."', ignore_eos=True)
    assert (len(result.text), result.text[-1], result.stop_type) == (6, ".", "eos")
    assert set(result.text[:5]) <= set("abc")


def test_no_text_at_all(engine: Engine) -> None:
    result = finish(engine, grammar='root ::= ""')
    assert (result.text, result.n_decoded, result.stop_type) == ("", 0, "eos")


@pytest.mark.parametrize("given", ["{", '{"name": "Ada", "age"', '{"name":"é', '{"name": "', ""])
def test_a_schema_continues_a_prefill(engine: Engine, given: str) -> None:
    schema = json.dumps(PERSON)
    result = finish(engine, json_schema=schema, answer=AnswerRules(given=given))
    assert set(json.loads(given + result.text)) == {"name", "age"}


def test_nothing_follows_a_whole_answer_that_is_given(engine: Engine) -> None:
    answer = AnswerRules(given='{"name": "", "age": 300}')
    result = finish(engine, json_schema=json.dumps(PERSON), answer=answer)
    assert (result.text, result.n_decoded, result.stop_type) == ("", 0, "eos")


def test_a_prefill_must_follow_the_schema(engine: Engine) -> None:
    with pytest.raises(EngineError, match="begins an answer that doesn't follow"):
        finish(engine, json_schema=json.dumps(PERSON), answer=AnswerRules(given='{"nome'))


def test_the_end_comes_only_where_the_grammar_may_end(engine: Engine, model: Model) -> None:
    eager = [(token, 1e9) for token in model.eog]
    assert finish(engine, grammar="root ::= .*", logit_bias=eager).text == ""
    result = finish(engine, grammar="root ::= . . .*", logit_bias=eager)
    assert len(result.text) >= 2
    assert result.n_decoded <= 3


def test_a_cut_off_text_is_marked(engine: Engine) -> None:
    result = finish(engine, json_schema=json.dumps(PERSON), n_predict=3)
    assert (result.stop_type, result.n_decoded) == ("limit", 3)


def test_a_text_that_is_complete_at_the_limit_is_complete(engine: Engine) -> None:
    n = finish(engine, json_schema=json.dumps(PERSON)).n_decoded
    assert finish(engine, json_schema=json.dumps(PERSON), n_predict=n).stop_type == "eos"


def test_constrained_and_free_requests_share_the_steps(engine: Engine) -> None:
    schema, grammar = {"json_schema": json.dumps(PERSON)}, {"grammar": 'root ::= ("ab" | "ba")+'}
    requests: list[dict[str, Any]] = [{}, {**schema, "stream": True}, grammar]
    requests += [{**schema, "temperature": 3.0}, grammar]
    every = play(engine, *requests)
    _, streamed, *_ = every
    text = "".join(event.text for event in streamed if isinstance(event, Delta | Finished))
    for events in every:
        event = events[-1]
        assert isinstance(event, Finished)
        written = text if events is streamed else event.text
        if event.stop_type == "eos" and event.params.json_schema:
            assert json.loads(written).keys() == {"name", "age"}
    [alone] = play(engine, {**schema, "seed": 1})
    assert isinstance(alone[-1], Finished)
    assert alone[-1].text == text


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"mirostat": 1},
        {"mirostat": 2, "temperature": 0.0},
        {"repeat_penalty": 2.0, "repeat_last_n": -1, "frequency_penalty": 1e6},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"dry_multiplier": 1e6, "dry_base": 1e6, "dry_allowed_length": 0},
        {"typical_p": 0.0, "top_k": 1, "top_p": 0.0, "min_p": 1.0},
        {"top_n_sigma": 1e-6, "samplers": ["top_n_sigma", "temperature"]},
        {"samplers": []},
        {"stop": ["zz"]},
    ],
    ids=str,
)
def test_samplers_choose_among_allowed_tokens(engine: Engine, params: dict[str, Any]) -> None:
    result = finish(engine, grammar="root ::= [ab]{12}", **params)
    assert (len(result.text), result.stop_type) == (12, "eos")
    assert set(result.text) <= set("ab")


def test_biases_go_on_working(engine: Engine, model: Model) -> None:
    [yes] = model.tokenize(b"b", add_special=False, parse_special=False).tolist()
    result = finish(engine, grammar="root ::= [abc]{4}", logit_bias=[(yes, 1e6)])
    assert result.text == "bbbb"


def test_a_bias_that_forbids_everything_is_an_error(engine: Engine, model: Model) -> None:
    never = [(token, float("-inf")) for token in range(model.n_vocab)]
    [[event]] = play(engine, {"grammar": 'root ::= "a"', "logit_bias": never})
    assert isinstance(event, Failed)
    assert event.error.type == "invalid_request_error"
    assert "logit_bias" in event.error.message
    assert finish(engine, n_predict=2).n_decoded == 2


def test_tokens_in_a_grammar(engine: Engine, model: Model) -> None:
    [think] = model.tokenize(b"<think>", add_special=False, parse_special=True).tolist()
    result = finish(engine, grammar=f'root ::= <think> "a" !<think> <[{think}]>')
    assert result.tokens[0] == result.tokens[-1] == think
    assert result.tokens[2] != think
    with pytest.raises(EngineError, match="not one token of the vocabulary"):
        finish(engine, grammar="root ::= <[99999]>")


@pytest.mark.parametrize(
    "grammar",
    [
        's ::= "a" s "b" | "a" s "c" | "a"',
        "s ::= s s s | .?",
        's ::= a\na ::= b a "x" | "y"\nb ::= c\nc ::= ""',
        "s ::= ((([a-z]{0,99}){0,99}){0,99}){0,99}",
        "s ::= " + "(" * 20_000 + '"a"' + ")" * 20_000,
        "s ::= r0\n" + "".join(f'r{i} ::= r{i + 1} | "b"\n' for i in range(9999)) + 'r9999 ::= "a"',
        "s ::= r0\n" + "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(60)) + 'r60 ::= "a"?',
        's ::= "a" s',
        "s ::= s",
        "s ::= " + " | ".join(f'"word {i}"' for i in range(4000)),
        "s ::= " + '"a" ' * 250_000,
    ],
    ids=lambda grammar: grammar[:40],
)
def test_hostile_grammars_end_or_are_refused(engine: Engine, grammar: str) -> None:
    info = None
    try:
        [[event]] = play(engine, {"grammar": "root ::= s\n" + grammar, "n_predict": 20})
    except EngineError as error:
        info = error.info
    else:
        info = event.error if isinstance(event, Failed) else None
    assert info is None or info.type == "invalid_request_error"
    assert finish(engine, n_predict=2).n_decoded == 2


def test_too_many_costly_constraints_are_not_the_clients_fault(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TrialLanes, "enter", lambda _, entrant: entrant.fail(BusyError()))
    for _ in range(2):  # what failed is not kept
        with pytest.raises(EngineError, match="too many") as caught:
            finish(engine, json_schema='{"const": "busy"}')
        assert caught.value.info.type == "unavailable_error"
        assert caught.value.info.retry_after > 0
    monkeypatch.undo()
    assert finish(engine, json_schema='{"const": "busy"}').text == '"busy"'
