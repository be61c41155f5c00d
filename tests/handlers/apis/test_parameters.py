"""Conversion of request bodies to prompts and parameters: forms, bounds, refusals."""

import math
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from connexion.spec import Specification
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.params import (
    RANDOM_SEED,
    SAMPLER_LETTERS,
    GenerationParams,
    GrammarTrigger,
    Speculative,
)
from specllama.engine.wire.replies import Timings
from specllama.handlers.apis.anthropic import request as anthropic
from specllama.handlers.apis.gemini import request as gemini
from specllama.handlers.apis.generate import NO_IMAGES, refuse_unsupported
from specllama.handlers.apis.native.request import parse_prompts
from specllama.handlers.apis.openai import request as openai
from specllama.handlers.apis.parameters import (
    CLAMPED,
    INT32_MAX,
    LORA_ID,
    LORA_SCALE,
    generation_params,
    parse_logit_bias,
    parse_samplers,
)
from specllama.handlers.apis.responses import request as responses
from specllama.handlers.apis.results import float32, settings_json, timings_json
from specllama.handlers.apis.wishes import RANGES
from specllama.handlers.http.json_answer import encode
from specllama.handlers.running.media import MediaInput, media_marker

pytestmark = pytest.mark.slow

DEFAULTS = GenerationParams(temperature=0.5, n_predict=77, stop=["###"])

token_ids = st.integers(0, INT32_MAX)
id_lists = st.lists(token_ids, min_size=1)
mixed_lists = st.lists(token_ids | st.text(), min_size=1)
single_prompts = st.text() | id_lists


def refused(type_: str, match: str | None = None) -> Any:
    return pytest.raises(EngineError, match=match, check=lambda error: error.info.type == type_)


# ---- prompts -----------------------------------------------------------------------------


@given(st.text())
def test_a_text_is_one_prompt(text: str) -> None:
    assert parse_prompts(text) == [[text]]
    assert parse_prompts({"prompt_string": text}) == [[text]]


@given(mixed_lists.filter(lambda prompt: any(isinstance(e, int) for e in prompt)))
def test_a_list_with_a_number_is_one_prompt(prompt: list[int | str]) -> None:
    assert parse_prompts(prompt) == [prompt]


@given(st.lists(st.text(), min_size=1))
def test_a_list_of_texts_is_a_prompt_for_each(texts: list[str]) -> None:
    assert parse_prompts(texts) == [[text] for text in texts]


@given(st.lists(st.text() | mixed_lists | st.text().map(lambda t: {"prompt_string": t})))
def test_every_element_of_other_lists_is_a_prompt(elements: list[Any]) -> None:
    if not elements:
        with refused("invalid_request_error"):
            parse_prompts(elements)
        return
    alone = [parse_prompts([element])[0] for element in elements]
    assert parse_prompts(elements) == alone
    assert all(alone)


def test_whole_floats_are_token_ids() -> None:
    [prompt] = parse_prompts([1.0, "a", 2])
    assert prompt == [1, "a", 2]
    assert [type(e) for e in prompt] == [int, str, int]


@pytest.mark.parametrize(
    "prompt",
    [
        [],
        [[]],
        ["a", []],
        None,
        7,
        True,
        {},
        [None],
        [{}],
        [1, [2]],
        [1, None],
        [1, True],
        [1.5],
        [-1],
        [INT32_MAX + 1],
        [10**30],
        [1, float("nan")],
        [float("inf")],
        [[1], [-2]],
        {"prompt_string": []},
    ],
)
def test_invalid_prompts(prompt: Any) -> None:
    with refused("invalid_request_error"):
        parse_prompts(prompt)


def test_without_media_a_marker_is_text() -> None:
    text = f"a{media_marker()}[img-1]"
    nothing: list[dict[str, Any]] = [{}, {"multimodal_data": []}, {"multimodal_data": None}]
    for data in nothing:
        assert parse_prompts({"prompt_string": text, **data}) == [[text]]
    assert parse_prompts(text, images=[]) == [[text]]


def test_media_at_their_markers() -> None:
    m = media_marker()
    first = MediaInput("AAAA", "prompt[1].multimodal_data[0]")
    second = MediaInput("BBBB", "prompt[1].multimodal_data[1]")
    data = {"multimodal_data": ["AAAA", "BBBB"]}
    for string, parts in (
        (f"{m}a{m}", [first, "a", second]),
        (f"a{m}{m}b", ["a", first, second, "b"]),
        ([f"{m}", 5, f"b{m}"], [first, 5, "b", second]),
    ):
        given = ["<__media__>", {"prompt_string": string, **data}]
        assert parse_prompts(given) == [["<__media__>"], parts]


@pytest.mark.parametrize("n_markers", [0, 1, 3])
def test_as_many_media_as_markers(n_markers: int) -> None:
    string = "a".join([media_marker()] * n_markers)
    with refused("invalid_request_error", "2 elements for"):
        parse_prompts({"prompt_string": string, "multimodal_data": ["AAAA", "BBBB"]})


def test_images_at_their_numbers() -> None:
    images: list[dict[str, Any]] = [{"data": "AAAA", "id": 12}, {"data": "BBBB", "id": 2}]
    first, second = (
        MediaInput(image["data"], f"image_data[{i}]", "image") for i, image in enumerate(images)
    )
    asked = ["USER:[img-12]b[img-3][img-x]", "[img-2][img-12][img-2]"]
    made = parse_prompts(asked, images=images)
    assert made == [["USER:", first, "b[img-3][img-x]"], [second, first, second]]
    assert parse_prompts(["[img-2]", 7, "[img-12]"], images=images) == [[second, 7, first]]


@pytest.mark.parametrize(
    ("prompt", "ids", "message"),
    [
        ("none", [1], r"image_data\[0\].*\[img-1\]"),
        ("[img-1]", [1, 2], r"image_data\[1\].*\[img-2\]"),
        ("[img-1]", [1, 1], r"image_data\[1\].*id 1"),
    ],
)
def test_images_without_a_place(prompt: str, ids: list[int], message: str) -> None:
    with refused("invalid_request_error", message):
        parse_prompts(prompt, images=[{"data": "", "id": id} for id in ids])


# ---- logit bias --------------------------------------------------------------------------

biases = st.floats(-1e9, 1e9) | st.integers(-(10**9), 10**9) | st.just(False)
tokens = token_ids | st.text()


def expected_bias(bias: Any) -> float:
    return -math.inf if bias is False else float(bias)


@given(st.lists(st.tuples(tokens, biases)))
def test_logit_bias_lists(entries: list[tuple[int | str, Any]]) -> None:
    expected = [(token, expected_bias(bias)) for token, bias in entries]
    assert parse_logit_bias([list(entry) for entry in entries]) == expected
    assert parse_logit_bias([{"token": t, "bias": b} for t, b in entries]) == expected


@given(st.dictionaries(token_ids, biases))
def test_numeral_keys_are_ids(entries: dict[int, Any]) -> None:
    expected = [(token, expected_bias(bias)) for token, bias in entries.items()]
    assert parse_logit_bias({str(token): bias for token, bias in entries.items()}) == expected


@given(st.dictionaries(st.text().filter(lambda t: not any(c in "0123456789" for c in t)), biases))
def test_other_keys_are_texts(entries: dict[str, Any]) -> None:
    expected = [(text, expected_bias(bias)) for text, bias in entries.items()]
    assert parse_logit_bias(entries) == expected


def test_a_numeral_in_a_list_is_a_text() -> None:
    assert parse_logit_bias([["12", 1.0]]) == [("12", 1.0)]


@pytest.mark.parametrize(
    "value",
    [
        [[1, True]],
        [[1, None]],
        [[1, "x"]],
        [[1]],
        [[1, 2, 3]],
        [5],
        [[True, 1]],
        [[False, False]],
        [[1.5, 1]],
        [[-1, 1]],
        [[2**31, 1]],
        {"-3": 1},
        {"99999999999": 1},
        {"a": None},
        {"a": True},
    ],
)
def test_invalid_logit_biases_are_left_out(value: Any) -> None:
    assert parse_logit_bias(value) == []


def test_a_bias_out_of_bounds_is_brought_into_them() -> None:
    assert parse_logit_bias([[5, 1e300], [6, -(10**400)]]) == [(5, 1e9), (6, -1e9)]


# ---- samplers ----------------------------------------------------------------------------


def test_samplers_by_letter_and_by_name() -> None:
    assert parse_samplers("kpmt") == ["top_k", "top_p", "min_p", "temperature"]
    assert parse_samplers(["Top-K", "nucleus", "minp", "temp"]) == parse_samplers("kpmt")
    assert parse_samplers("") == parse_samplers([]) == []
    assert parse_samplers("kk") == ["top_k", "top_k"]


@pytest.mark.parametrize(
    ("value", "left"),
    [
        ("kZ", ["top_k"]),
        (["top_k", "tfs_z"], ["top_k"]),
        (["k"], []),
        ("kpi", ["top_k", "top_p", "infill"]),
    ],
)
def test_an_unknown_sampler_is_passed_over(value: Any, left: list[str]) -> None:
    assert parse_samplers(value) == left


# ---- parameters --------------------------------------------------------------------------


def test_null_and_absent_mean_the_default() -> None:
    names = msgspec.structs.asdict(GenerationParams()).keys() - {"answer", "thinking", "unset"}
    assert generation_params({}, DEFAULTS) == DEFAULTS
    assert generation_params(dict.fromkeys(names), DEFAULTS) == DEFAULTS


def test_every_parameter_can_be_set() -> None:
    wanted: dict[str, Any] = {}
    for field in msgspec.structs.fields(GenerationParams):
        match field.default:
            case bool():
                wanted[field.name] = not field.default
            case int() | float():
                low, high = CLAMPED.get(field.name, (0, math.inf))
                wanted[field.name] = low if field.default == high else min(field.default + 1, high)
    wanted |= {"seed": 3, "stop": ["a"], "samplers": ["xtc"], "logit_bias": [[1, 2.0]]}
    wanted |= {"dry_sequence_breakers": ["b"], "grammar": 'root ::= "a"'}
    wanted |= {"lora": [{"id": 1, "scale": 0.5}], "preserved_tokens": ["<a>"]}
    wanted |= {"generation_prompt": "<think>", "grammar_type": "tool_calls"}
    wanted |= {"json_whitespace": "spaced"}
    wanted |= {"grammar_triggers": [{"type": 1, "value": "x"}, {"type": 0, "token": 7}]}
    params = msgspec.structs.asdict(generation_params(wanted, DEFAULTS))
    changed = {"logit_bias": [(1, 2.0)], "json_schema": None, "lora": [(1, 0.5)]}
    triggers = [GrammarTrigger(text="x"), GrammarTrigger(token=7)]
    made = {"grammar_triggers": triggers, "answer": None, "thinking": None, "unset": []}
    assert params == wanted | changed | made | {"speculative": Speculative()}


def test_proposals_are_bounded_by_those_of_the_server() -> None:
    server = Speculative("radix", n_max=16, p_min=0.5)
    defaults = GenerationParams(speculative=server)
    named = {"speculative.n_max": 40, "speculative.n_min": 3.7, "speculative.p_min": 2}
    assert generation_params({}, defaults).speculative == server
    asked = generation_params(named, defaults).speculative
    assert asked == Speculative("radix", n_max=16, n_min=3, p_min=1.0)
    assert generation_params({"speculative.n_max": 0}, defaults).speculative.n_max == 0
    assert generation_params(named, GenerationParams()).speculative == Speculative()


def test_unknown_fields_change_nothing() -> None:
    assert generation_params({"x": 1, "prompt": "a", "messages": []}, DEFAULTS) == DEFAULTS


def test_numbers_get_the_parameter_s_type() -> None:
    params = generation_params({"top_k": 5.0, "temperature": 1, "n_predict": 3.0}, DEFAULTS)
    assert (type(params.top_k), type(params.temperature)) == (int, float)
    assert type(params.n_predict) is int


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"max_tokens": 3}, 3),
        ({"max_completion_tokens": 4, "max_tokens": 3}, 4),
        ({"n_predict": 0, "max_completion_tokens": 4, "max_tokens": 3}, 0),
        ({"n_predict": None, "max_tokens": 3}, 3),
        ({"n_predict": -1}, -1),
        ({"max_tokens": None}, 77),
    ],
)
def test_names_of_n_predict(body: dict[str, Any], expected: int) -> None:
    assert generation_params(body, DEFAULTS).n_predict == expected


@pytest.mark.parametrize(
    ("seed", "expected"),
    [
        (-1, RANDOM_SEED),
        (0, 0),
        (2**32 - 1, 2**32 - 1),
        (2**32 + 5, 5),
        (-5, 2**32 - 5),
        (1.9, 1),
        (2**70 + 3, 3),
        (1e30, int(1e30) % 2**32),
    ],
)
def test_seeds(seed: float, expected: int) -> None:
    assert generation_params({"seed": seed}, DEFAULTS).seed == expected


@pytest.mark.parametrize(
    ("stop", "expected"),
    [("a", ["a"]), (["a", "", "b"], ["a", "b"]), ([], ["###"]), ("", ["###"]), ([""], ["###"])],
)
def test_stop(stop: Any, expected: list[str]) -> None:
    assert generation_params({"stop": stop}, DEFAULTS).stop == expected


def test_dry_base_below_one_is_the_default() -> None:
    assert generation_params({"dry_base": 0.5}, DEFAULTS).dry_base == DEFAULTS.dry_base
    assert generation_params({"dry_base": 1}, DEFAULTS).dry_base == 1.0


def test_dry_needs_a_sequence_breaker() -> None:
    with refused("invalid_request_error"):
        generation_params({"dry_sequence_breakers": []}, DEFAULTS)


def test_defaults_are_not_shared_with_requests() -> None:
    generation_params({"stop": ["x"], "top_k": 1}, DEFAULTS)
    assert DEFAULTS.stop == ["###"]
    assert DEFAULTS.top_k == 40


# ---- settings and timings ----------------------------------------------------------------


def test_settings_can_be_written_as_json() -> None:
    params = GenerationParams(logit_bias=[(5, -math.inf), (6, 0.1)], n_predict=9)
    settings = msgspec.json.decode(encode(settings_json(params, 512, "m", "auto")))
    assert settings["temperature"] == 0.800000011920929
    assert settings["logit_bias"] == [
        {"token": 5, "bias": None},
        {"token": 6, "bias": float32(0.1)},
    ]
    assert settings["max_tokens"] == settings["n_predict"] == 9
    assert (settings["n_ctx"], settings["model"]) == (512, "m")


def test_float32_of_numbers_beyond_single_precision() -> None:
    assert float32(1e300) == math.inf
    assert float32(0.5) == 0.5


def test_timings_count_steps_between_tokens() -> None:
    timings = timings_json(Timings(7, 3, 30.0, 5, 40.0))
    assert timings["prompt_per_token_ms"] == 10.0
    assert timings["prompt_per_second"] == 100.0
    assert timings["predicted_per_token_ms"] == 10.0
    assert timings["predicted_per_second"] == 100.0


def test_timings_have_the_origin_of_each_token() -> None:
    given = Timings(9, 3, 1.0, 0, 0.0, cache_ram_n=4, cache_disk_n=3, cache_miss_reason="edited")
    timings = timings_json(given)
    origins = [timings[f"cache_{place}_n"] for place in ("kv", "ram", "disk")]  # type: ignore[literal-required]
    assert origins == [2, 4, 3]
    assert (timings["cache_miss_reason"], timings["cache_miss_at"]) == ("edited", 9)
    whole = timings_json(Timings(9, 1, 1.0, 0, 0.0))
    assert (whole["cache_miss_reason"], whole["cache_miss_at"]) == (None, None)


@given(st.integers(0, 1), st.sampled_from([0.0, 1.0]))
def test_rates_of_nothing_are_zero(n: int, ms: float) -> None:
    timings = timings_json(Timings(0, 0, ms, n, ms))
    assert timings["prompt_per_token_ms"] == timings["prompt_per_second"] == 0.0
    assert timings["predicted_per_token_ms"] == timings["predicted_per_second"] == 0.0


# ---- refusals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        {"modalities": ["audio"]},
        {"image_data": [{"id": 1, "data": ""}]},
    ],
)
def test_unsupported_fields_that_would_change_the_answer_are_rejected(body: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match=next(iter(body))) as error:
        refuse_unsupported(body, openai.SUPPORTED)
    assert error.value.info.type == "not_supported_error"


def test_off_values_pass() -> None:
    for fields in (NO_IMAGES, openai.SUPPORTED, responses.SUPPORTED):
        refuse_unsupported(dict.fromkeys(name.split(".")[0] for name in fields), fields)
        for name, values in fields.items():
            head, _, tail = name.partition(".")
            for value in values:
                refuse_unsupported({head: {tail: value} if tail else value}, fields)


# ---- in step with the description --------------------------------------------------------


@cache
def schemas() -> dict[str, Any]:
    """Returns the request schema of each operation, by operationId."""
    path = Path(__file__).parents[3] / "openapi" / "server.yaml"
    found = {}
    paths: dict[str, Any] = Specification.load(path).spec["paths"]
    for item in paths.values():
        for operation in item.values():
            if isinstance(operation, dict) and "requestBody" in operation:
                for media in operation["requestBody"]["content"].values():
                    found[operation["operationId"]] = media["schema"]
    return found


def properties(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = dict(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found |= properties(part)
    return found


@pytest.mark.parametrize(
    ("operation", "fields"),
    [
        ("create_completion", {}),
        ("create_openai_completion", {}),
        ("create_infill", NO_IMAGES),
        ("create_chat_completion", openai.SUPPORTED),
        ("apply_template", {}),
        ("create_response", responses.SUPPORTED),
        ("create_message", anthropic.SUPPORTED),
        ("count_message_tokens", anthropic.INPUT_SUPPORTED),
        ("generate_gemini_content", gemini.SUPPORTED),
    ],
)
def test_refusals_are_those_of_the_description(operation: str, fields: Any) -> None:
    described = {}
    for name, schema in properties(schemas()[operation]).items():
        if "x-supported-values" in schema:
            described[name] = schema["x-supported-values"]
        for inner, inner_schema in properties(schema).items():
            if "x-supported-values" in inner_schema:
                described[f"{name}.{inner}"] = inner_schema["x-supported-values"]
    assert dict(fields) == described


def test_defaults_are_those_of_the_description() -> None:
    described = properties(schemas()["create_completion"])
    defaults = msgspec.structs.asdict(GenerationParams())
    defaults["seed"] = -1
    # Fields that no request has, or several fields have.
    del defaults["answer"], defaults["thinking"], defaults["unset"], defaults["speculative"]
    assert defaults.keys() <= described.keys()
    assert {name: described[name]["x-default"] for name in defaults} == defaults


def test_sampler_names_are_those_of_the_description() -> None:
    samplers = properties(schemas()["create_completion"])["samplers"]
    for name in samplers["anyOf"][0]["items"]["anyOf"][0]["enum"]:
        assert parse_samplers([name])
    for letter, name in SAMPLER_LETTERS.items():
        assert f"`{letter}` {name}" in " ".join(samplers["description"].split())


def test_ranges_are_those_of_the_description() -> None:
    described = properties(schemas()["create_completion"])
    ranges = {
        name: tuple(schema["x-clamped"])
        for name, schema in described.items()
        if "x-clamped" in schema and not name.startswith("speculative")
    }
    assert ranges == {**CLAMPED, **RANGES}
    lora = described["lora"]["items"]["properties"]
    assert tuple(lora["id"]["x-clamped"]) == LORA_ID
    assert tuple(lora["scale"]["x-clamped"]) == LORA_SCALE


def test_whole_numbers_are_those_of_the_description() -> None:
    described = properties(schemas()["create_completion"])
    defaults = msgspec.structs.asdict(GenerationParams())
    for name, value in defaults.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            assert described[name].get("x-whole", False) == isinstance(value, int), name


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers())
def test_numbers_out_of_their_range_are_brought_into_it(value: float) -> None:
    body = dict.fromkeys(CLAMPED, value)
    params = msgspec.structs.asdict(generation_params(body, DEFAULTS))
    for name, (low, high) in CLAMPED.items():
        got = params[name]
        if name == "dry_base" and value < 1:
            assert got == DEFAULTS.dry_base
        elif type(got) is int:
            assert got == int(min(max(value, low), high))
        else:
            assert got == min(max(value, low), high)
