"""Lazy grammars and shown control tokens: in the search for triggers, in the allowed texts, and in
generations of the shipped model."""

import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.params import GenerationParams, GrammarTrigger, Thoughts
from specllama.engine.wire.replies import Finished
from specllama.engine.wire.requests import Submit
from specllama.engine.worker.backend import Model
from specllama.engine.worker.constraints.lazy import Guide, TriggerSearch
from specllama.engine.worker.generation.engine import Engine
from tests.support.options_support import engine_options
from tests.support.playing import stepped

pytestmark = pytest.mark.slow

FIM = "<|fim_prefix|>"  # a control token of the shipped model that doesn't end a text
HIDDEN = "<|fim_suffix|>"  # another one
CALL = 'root ::= "<go>" [0-9]+ "."'
VALID = re.compile(r"<go>[0-9]+\.")


@pytest.fixture(scope="module")
def engine(model: Model) -> Iterator[Engine]:
    engine = Engine(model, engine_options(flash_attn="off", cache_type_k="f32", cache_type_v="f32"))
    yield engine
    engine.close()


# ---- the search --------------------------------------------------------------------------


def search(pieces: Sequence[bytes], *triggers: str, **options: Any) -> bytes | None:
    """The trigger and the rest of its piece."""
    at_start = options.pop("at_start", False)
    wanted = [GrammarTrigger(text=text, at_start=at_start) for text in triggers]
    found = TriggerSearch(wanted, Thoughts(**options) if options else None)
    for piece in pieces:
        if (text := found.feed(piece)) is not None:
            return text
    return None


TRIGGERS = st.lists(st.text("ab<", min_size=1, max_size=5), min_size=1, max_size=3)


@given(st.lists(st.text("ab<c", min_size=1, max_size=4)), TRIGGERS)
def test_the_first_trigger_is_found_wherever_tokens_end(
    pieces: list[str], triggers: list[str]
) -> None:
    expected = None
    text = ""
    for piece in pieces:
        text += piece
        if found := [at for trigger in triggers if (at := text.find(trigger)) >= 0]:
            expected = text[min(found) :].encode()
            break
    assert search([piece.encode() for piece in pieces], *triggers) == expected


@given(TRIGGERS, st.text("ab<c", max_size=9))
def test_partial_triggers_are_known(triggers: list[str], text: str) -> None:
    found = TriggerSearch([GrammarTrigger(text=trigger) for trigger in triggers], None)
    if found.feed(text.encode()) is None and text:
        ends = {(t, n) for t in triggers for n in range(1, len(t)) if text.endswith(t[:n])}
        assert {(p.text.decode(), p.length) for p in found.partial} == ends


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<think>a<go></think>b", False),
        ("<think>a</think>\n<go>", True),
        ("\n<think>a</think>b<go>", True),
        ("a<think><go>", True),  # thoughts come first or not at all
        ("<go>", True),
    ],
)
def test_triggers_in_thoughts_do_not_count(text: str, found: bool) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    thoughts: dict[str, Any] = {"begin": "<think>\n", "end": "\n</think>\n\n", "open": False}
    assert (search(pieces, "<go>", **thoughts) is not None) == found
    begun = text.partition("<think>")
    if not begun[0].strip() and begun[1]:
        pieces = [bytes([byte]) for byte in begun[2].encode()]
        assert (search(pieces, "<go>", **thoughts | {"open": True}) is not None) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<go>", True),
        (" \n<go>", True),
        ("x<go>", False),
        ("<gx<go>", False),
        ("<think>a</think>\n<go>", True),
        ("<think>a</think>x<go>", False),
    ],
)
def test_triggers_that_count_at_the_start(text: str, found: bool) -> None:
    pieces = [bytes([byte]) for byte in text.encode()]
    thoughts = {"begin": "<think>", "end": "</think>", "open": False}
    assert (search(pieces, "<go>", at_start=True, **thoughts) is not None) == found


def test_no_trigger_reaches_over_a_hidden_token() -> None:
    assert search([b"<g", b"", b"o>"], "<go>") is None
    assert search([b"", b"<g", b"o>"], "<go>") == b"<go>"


# ---- allowed texts ------------------------------------------------------------------


def lazy(**options: Any) -> GenerationParams:
    triggers = [GrammarTrigger(text="<go>")]
    return GenerationParams(
        **{"grammar": CALL, "grammar_lazy": True, "grammar_triggers": triggers, **options}
    )


def walk(guide: Guide, model: Model, seed: int, likely: Sequence[int]) -> bytes:
    """A text of allowed tokens, many of them among the `likely`."""
    draw = random.Random(seed)
    text = b""
    for _ in range(40):
        if guide.ended:
            break
        allowed = range(model.n_vocab) if guide.allowed is None else guide.allowed.ids.tolist()
        some = sorted(set(likely) & set(allowed))
        token = draw.choice(some if some and draw.random() < 0.8 else allowed)
        if token in model.eog:
            break
        text += model.piece(token, special=False)
        if guide.advance(token):
            break
    return text


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 10**6))
def test_text_after_a_trigger_is_valid(engine: Engine, model: Model, seed: int) -> None:
    likely = [
        token
        for token in range(model.n_vocab)
        if (piece := model.piece(token, special=False))
        and (piece in b"<go>12." or b">" in piece or b"<g" in piece)
    ]
    guide = engine.preparation.compiler.guided(lazy()).guide
    assert guide is not None
    text = walk(guide, model, seed, likely)
    _, trigger, rest = text.partition(b"<go>")
    if trigger and rest.endswith(b"."):
        assert VALID.fullmatch((trigger + rest).decode())
    elif trigger:
        assert re.fullmatch(rb"[0-9]*", rest)


def test_waiting_forbids_only_wrong_tokens(engine: Engine, model: Model) -> None:
    guide = engine.preparation.compiler.guided(lazy()).guide
    assert guide is not None
    assert guide.allowed is None
    for token in model.tokenize(b"<go", add_special=False, parse_special=False):
        guide.advance(int(token))
    wrong = {
        token
        for token in range(model.n_vocab)
        if re.match(rb">[0-9]*[^0-9.]|>\.|>[0-9]+\..", model.piece(token, special=False))
    }
    assert wrong
    assert guide.allowed is not None
    assert set(range(model.n_vocab)) - set(guide.allowed.ids.tolist()) == wrong


def test_schemas_may_be_lazy_too(engine: Engine, model: Model) -> None:
    triggers = [GrammarTrigger(text='{"a"')]
    schema = '{"type": "object", "properties": {"a": {"const": 7}}, "required": ["a"]}'
    params = lazy(grammar="", json_schema=schema, grammar_triggers=triggers)
    guide = engine.preparation.compiler.guided(params).guide
    assert guide is not None
    for token in model.tokenize(b'So: {"a": 7', add_special=False, parse_special=False):
        assert not guide.advance(int(token))
    assert guide.allowed is not None
    assert {model.piece(int(token), special=False)[:1] for token in guide.allowed.ids} <= {
        *(b" ", b"\n", b",", b"}")
    }


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (lazy(grammar_triggers=[]), "needs grammar_triggers"),
        (lazy(grammar_triggers=[GrammarTrigger(text="x")]), "no text begins with the trigger 'x'"),
        (lazy(grammar_triggers=[GrammarTrigger(token=99_999)]), "there is no token 99999"),
        (lazy(grammar_triggers=[GrammarTrigger(text=FIM)]), "control token"),
        (lazy(grammar="root ::= ("), "Failed to parse grammar"),
    ],
)
def test_wrong_triggers(engine: Engine, params: GenerationParams, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        engine.preparation.compiler.guided(params)


# ---- generations -------------------------------------------------------------------------


def finish(engine: Engine, **params: Any) -> Finished:
    asked = GenerationParams(**{"n_predict": 40, "seed": 1, **params})
    request = engine.preparation.prepare(Submit(0, ["Once upon a time"], asked))
    events = list(engine.submit(request))
    while engine.has_work:
        events += stepped(engine)
    event = events[-1]
    assert isinstance(event, Finished), event
    return event


def test_no_trigger_no_effect(engine: Engine) -> None:
    assert finish(engine, **fields(lazy())).text == finish(engine).text


def fields(params: GenerationParams) -> dict[str, Any]:
    names = ("grammar", "grammar_lazy", "grammar_triggers", "preserved_tokens", "answer")
    return {name: getattr(params, name) for name in names}


def test_a_trigger_in_a_text(engine: Engine) -> None:
    bias = [("<", 20.0), (">", 5.0)]
    assert "<<<" in finish(engine, logit_bias=bias).text
    options = lazy(grammar='root ::= "<<<" "[" [0-9]{3} "]"', grammar_triggers=[trigger("<<<")])
    result = finish(engine, **fields(options), logit_bias=bias)
    assert re.fullmatch(r".*?<<<\[[0-9]{3}\]", result.text, re.DOTALL)
    assert result.stop_type == "eos"


def trigger(text: str) -> GrammarTrigger:
    return GrammarTrigger(text=text)


def test_a_token_as_trigger(engine: Engine, model: Model) -> None:
    [token] = model.tokenize(FIM.encode(), add_special=False, parse_special=True).tolist()
    options = lazy(
        grammar=f'root ::= "{FIM}" [0-9]{{3}}', grammar_triggers=[GrammarTrigger(token=token)]
    )
    bias = [(token, 100.0)]
    result = finish(engine, **fields(options), logit_bias=bias)
    assert re.fullmatch("[0-9]{3}", result.text)
    by_id = lazy(grammar=f"root ::= <[{token}]> [0-9]", grammar_triggers=options.grammar_triggers)
    assert re.fullmatch("[0-9]", finish(engine, **fields(by_id), logit_bias=bias).text)


def test_preserved_tokens_show(engine: Engine, model: Model) -> None:
    tokens = [
        int(model.tokenize(text.encode(), add_special=False, parse_special=True)[0])
        for text in (FIM, HIDDEN)
    ]
    bias = [(token, 100.0) for token in tokens]
    result = finish(engine, preserved_tokens=[f"a {FIM} b"], logit_bias=bias)
    assert FIM in result.text
    assert HIDDEN not in result.text
    assert result.params.preserved_tokens == [tokens[0]]
    assert finish(engine, logit_bias=bias).text == ""


def test_preserved_tokens_are_text_for_a_grammar(engine: Engine) -> None:
    grammar = f'root ::= "{FIM}" [0-9] "{HIDDEN}"'
    result = finish(engine, grammar=grammar, preserved_tokens=[FIM, HIDDEN])
    assert re.fullmatch(re.escape(FIM) + "[0-9]" + re.escape(HIDDEN), result.text)
    triggers = [trigger(FIM)]
    forced = {"logit_bias": [(FIM, 0.0)], "grammar": f'root ::= "{FIM}" [0-9]'}
    [token] = engine.model.tokenize(FIM.encode(), add_special=False, parse_special=True).tolist()
    forced["logit_bias"] = [(token, 100.0)]
    result = finish(
        engine,
        **forced,
        grammar_lazy=True,
        grammar_triggers=triggers,
        preserved_tokens=[FIM],
    )
    assert re.fullmatch(re.escape(FIM) + "[0-9]", result.text)


def test_tokens_that_end_a_text_never_show(engine: Engine, model: Model) -> None:
    end = model.piece(min(model.eog), special=True).decode()
    result = finish(engine, preserved_tokens=[end], logit_bias=[(min(model.eog), 100.0)])
    assert (result.text, result.params.preserved_tokens) == ("", [])


def test_an_invalid_lazy_grammar_is_the_request_s_fault(engine: Engine) -> None:
    with pytest.raises(EngineError, match="needs grammar_triggers"):
        finish(engine, **fields(lazy(grammar_triggers=[])))
