"""Malformed and extreme input. Each request gets the right answer or the documented error, and the
server keeps working."""

import json
import math
from collections.abc import Iterator
from functools import cache
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import (
    ANTHROPIC,
    BODIES,
    COUNTING,
    GEMINI,
    GENERATING,
    MESSAGES,
    OLLAMA,
    POSTS,
    STEERING,
    STREAMING,
    body,
    path,
    with_text,
)
from contract_tests.kit.fuzzing import in_full, settings, with_bounded_answer
from contract_tests.kit.server import Server

DOCUMENTED_REFUSALS = (400, 404, 501)
REFERENCE = {"prompt": "How are you?", "n_predict": 4, "temperature": 0, "cache_prompt": False}


@pytest.fixture(autouse=True)
def goes_on(server: Server) -> Iterator[None]:
    """Checks before and after each test that the same request gets the same answer."""
    before = server.ask("/completion", REFERENCE)["content"]
    yield
    server.wait_until_idle()
    assert server.get("/health").json() == {"status": "ok"}
    assert server.ask("/completion", REFERENCE)["content"] == before


def right_or_refused(response: httpx.Response) -> Any:
    """Checks that the answer is as described: a success, or a rejection."""
    assert response.status_code in (200, *DOCUMENTED_REFUSALS), response.text[:500]
    return contract.check(response, response.status_code)


def refused(response: httpx.Response) -> None:
    contract.check(response, 400)


def post_raw(server: Server, name: str, raw: bytes) -> httpx.Response:
    headers = {"Content-Type": "application/json"}
    return server.post(path(name), content=raw, headers=headers)


@cache
def fields(name: str) -> dict[str, Any]:
    """Returns all documented fields of the operation's body, with their schemas."""
    definition = contract.operations()[name].definition["requestBody"]["content"]
    found: dict[str, Any] = {}
    pending = [definition["application/json"]["schema"]]
    while pending:
        schema = pending.pop()
        found |= schema.get("properties", {})
        pending += schema.get("allOf", ())
    return found


WRONG: list[Any] = [
    None, True, False, 0, -1, 1, 1.5, -1e9, 2**31, 2**32, 2**53, 2**63, -(2**63) - 1, 10**30, 1e30,
    1e308, -1e308, 1e-300, "", "text", "\x00", "-1", [], [None], [[]], [{}], [True], [-1], ["", 1],
    [2**31], {}, {"": None}, {"a": {"b": [1]}}, {"type": None},
]  # fmt: skip


def values_for(name: str, field: str) -> list[Any]:
    """Returns the values of `WRONG` for one field of an operation. If three or more operations have
    the same field, each value is sent to two of them, unless the run is in full."""
    having = [other for other in in_full(POSTS) if fields(other).get(field) == fields(name)[field]]
    if settings.in_full or len(having) < 3:
        return WRONG
    turn = having.index(name) + sum(field.encode())
    return [value for n, value in enumerate(WRONG) if (n + turn) % len(having) < 2]


@pytest.mark.parametrize("name", in_full(POSTS))
def test_every_field_with_every_kind_of_value(name: str, server: Server) -> None:
    for field, schema in fields(name).items():
        for value in values_for(name, field):
            request = with_bounded_answer(name, body(name, **{field: value}))
            response = server.post(path(name), request)
            if response.status_code == 503 and "ms" in field:
                contract.check(response, 503)  # a time limit that is too short
            else:
                right_or_refused(response)
            if any(lint.errors(schema, value)):
                where = f"{field}={value!r}: {response.text[:200]}"
                assert response.status_code == 400, where


@pytest.mark.parametrize("name", POSTS)
@pytest.mark.parametrize("constant", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "0x10"])
def test_numbers_that_json_does_not_have(name: str, constant: str, server: Server) -> None:
    for field in (*BODIES[name], "temperature", "unknown"):
        raw = json.dumps(body(name, **{field: 0})).replace(
            f'"{field}": 0', f'"{field}": {constant}'
        )
        response = post_raw(server, name, raw.encode())
        if "e999" in constant and field == "unknown":
            right_or_refused(response)  # its JSON grammar is valid
        else:
            refused(response)


@pytest.mark.parametrize("name", POSTS)
def test_deep_nesting(name: str, server: Server) -> None:
    for depth in (1000, 50_000):
        for deep in ("[" * depth + "]" * depth, '{"a":' * depth + "1" + "}" * depth):
            for field in (*BODIES[name], "unknown"):
                raw = json.dumps(body(name, **{field: 0}))
                raw = raw.replace(f'"{field}": 0', f'"{field}": {deep}')
                response = post_raw(server, name, raw.encode())
                assert right_or_refused(response)
                assert field == "unknown" or response.status_code == 400
        refused(post_raw(server, name, ("[" * depth).encode()))


@pytest.mark.parametrize("name", POSTS)
def test_invalid_unicode(name: str, server: Server) -> None:
    raw = json.dumps(with_text(name, "TEXT")).encode()
    if b"TEXT" not in raw:
        raw = b'{"tokens": ["TEXT"]}'
    for wrong in (b"\xff", b"\xc3(", b"\xed\xa0\x80", b"\xf8\x88\x80\x80\x80", b"\xc0\x80"):
        refused(post_raw(server, name, raw.replace(b"TEXT", wrong)))
    for wrong in (rb"\u12", rb"\x", b"\n"):
        refused(post_raw(server, name, raw.replace(b"TEXT", wrong)))
    for half in (rb"\ud800", rb"\udc00", rb"\ud800\ud800"):  # from agents that cut texts
        right_or_refused(post_raw(server, name, raw.replace(b"TEXT", half)))
    for encoding in ("utf-16", "utf-32", "utf-8-sig"):
        right_or_refused(post_raw(server, name, raw.decode().encode(encoding)))


TEXTS = ["\x00", "a\x00b", "\U0010ffff", "\ufffe", "\u202e", "\r", "e\u0301" * 50, "\U0001f999"]


@pytest.mark.parametrize("name", [name for name in POSTS if name != "detokenize"])
@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_odd_texts(name: str, text: str, server: Server) -> None:
    answer = contract.check(server.post(path(name), with_text(name, text)))
    if name == "tokenize":
        assert server.ask("/detokenize", answer)["content"] == text
    if name == "apply_template":
        assert text.strip() in answer["prompt"]


@pytest.mark.parametrize(
    "name",
    in_full([n for n in POSTS if n not in ("detokenize", *STEERING, *ANTHROPIC, *GEMINI, *OLLAMA)]),
)
def test_a_text_of_10_megabytes(name: str, server: Server) -> None:
    text = "lorem ipsum " * 850_000
    response = server.post(path(name), with_text(name, text))
    if name in STREAMING:
        error = contract.check(response, 400)["error"]
        assert error["type"] == "exceed_context_size_error"
        assert error["n_prompt_tokens"] > 1_000_000
    elif name in COUNTING:
        assert contract.check(response)["input_tokens"] > 1_000_000
    elif name == "create_conversation":
        [item] = contract.check(server.get(f"{path(name)}/{response.json()['id']}/items"))["data"]
        assert item["content"][0]["text"] == text
    elif "compact" in name:
        [item] = contract.check(response)["output"]
        assert item["left_out"], "the text is longer than the context"
    else:  # too much for the validator, which is in Python
        assert response.status_code == 200
        [(field, value)] = response.json().items()
        assert field in ("tokens", "prompt")
        assert len(value) > 1_000_000


def test_a_word_of_a_megabyte(server: Server) -> None:
    answer = server.ask("/tokenize", {"content": "a" * 1_000_000})
    text = server.ask("/detokenize", answer)["content"]
    assert text == "a" * 1_000_000


@pytest.mark.parametrize("name", [name for name in POSTS if not name.startswith("stream_")])
def test_unknown_fields_are_ignored(name: str, server: Server) -> None:
    unknown: dict[str, Any] = {
        "unheard_of": 1,
        "": None,
        "x" * 1000: [],
        "\U0001f999": {"a": []},
        "__class__": 1,
    }
    request = body(name, cache_prompt=False) if name in STREAMING else body(name)
    without = contract.check(server.post(path(name), request))
    answer = contract.check(server.post(path(name), {**request, **unknown}))
    if isinstance(answer, list):
        assert answer == without
        return
    ignored = {"id", "created", "timings", "id_slot", "created_at", "completed_at", "output"}
    if "compact" in name:
        ignored.add("usage")  # of a summary, which the cache may change
    ignored |= {"total_duration", "load_duration", "prompt_eval_duration", "eval_duration"}
    ignored |= {"responseId", "usageMetadata"}
    assert {key: answer[key] for key in answer.keys() - ignored} == {
        key: without[key] for key in without.keys() - ignored
    }


@pytest.mark.parametrize("name", GENERATING)
def test_tokens_outside_the_vocabulary(name: str, server: Server) -> None:
    n_vocab = server.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    wrong = (-1, n_vocab, 2**31 - 1, 2**31, 2**64, -(2**31), 1.5, math.pi)
    for token in wrong:
        if "prompt" in BODIES[name]:
            for prompt in ([token], [1, token], ["a", token], [[1], [token]], [["a", token]]):
                for stream in (False, True):
                    refused(server.post(path(name), body(name, prompt=prompt, stream=stream)))
        refused(server.post("/detokenize", {"tokens": [1, token]}))


@pytest.mark.parametrize("name", GENERATING)
def test_many_stop_texts(name: str, server: Server) -> None:
    many = [f"stop number {n}" for n in range(10_000)]
    answer = contract.check(server.post(path(name), body(name, stop=many)))
    without = contract.check(server.post(path(name), body(name)))
    assert answer.keys() == without.keys()
    too_many = [str(n) for n in range(20_000)]
    refused(server.post(path(name), body(name, stop=too_many)))
    refused(server.post(path(name), body(name, stop=["a" * 100_000])))


EXTREMES: list[dict[str, Any]] = [
    {"temperature": 1e6},
    {"temperature": 1e-300},
    {"temperature": -1},
    {"dynatemp_range": 1e6, "dynatemp_exponent": 1000},
    {"top_k": 2**31 - 1},
    {"top_k": -1, "top_p": 0, "min_p": 1, "typical_p": 0},
    {"top_p": 0},
    {"min_p": 1},
    {"typical_p": 0},
    {"top_n_sigma": 0},
    {"top_n_sigma": 1e-30},
    {"xtc_probability": 1, "xtc_threshold": 0},
    {"min_keep": 2**31 - 1},
    {"repeat_penalty": 1e6, "repeat_last_n": -1},
    {"repeat_penalty": 1e-6, "repeat_last_n": 2**31 - 1},
    {"presence_penalty": 1e6, "frequency_penalty": -1e6},
    {"dry_multiplier": 1e6, "dry_base": 1e6, "dry_allowed_length": 0},
    {"dry_multiplier": 1, "dry_penalty_last_n": 2**31 - 1, "dry_allowed_length": 2**31 - 1},
    {"dry_multiplier": 1, "dry_sequence_breakers": ["\U0001f999" * 200, "\x00"]},
    {"mirostat": 1, "mirostat_tau": 0, "mirostat_eta": 50},
    {"mirostat": 2, "mirostat_tau": 50, "mirostat_eta": 0, "temperature": 1e6},
    {"mirostat": 1, "temperature": 0},
    {"samplers": []},
    {"samplers": ["temperature"] * 64},
    {"samplers": ["infill"] * 8, "min_keep": 2**31 - 1},
    {"samplers": "iti", "dry_multiplier": 1, "dry_sequence_breakers": [""]},
    {"temperature": 1e308, "dynatemp_range": 1e308, "dynatemp_exponent": -1e308},
    {"frequency_penalty": 1e308, "presence_penalty": -1e308, "repeat_penalty": 1e308},
    {"dry_multiplier": -1e308, "dry_base": 1e308, "top_n_sigma": 1e308},
    {"mirostat": 1, "mirostat_tau": 1e308, "mirostat_eta": 1e308},
    {"lora": [{"id": 10**30, "scale": 1e308}, {}], "id_slot": 10**30, "seed": -(10**30)},
    {"samplers": "edskypmxt", "seed": 2**32 - 1},
    {"logit_bias": [[n, False] for n in range(4096)]},
    {"logit_bias": [[n, -1e9] for n in range(4096)]},
    {"logit_bias": [[n, 1e9] for n in range(4096)]},
    {"logit_bias": [["a" * 1024, 1e9]]},
    {"n_keep": 2**31 - 1, "n_discard": 2**31 - 1},
    {"stop": ""},
    {"stop": [""] * 100},
]


@pytest.mark.parametrize("options", EXTREMES, ids=lambda options: str(options)[:50])
def test_extreme_but_valid_settings(options: dict[str, Any], server: Server) -> None:
    for name in ("create_completion", "create_chat_completion"):
        for stream in (False, True):
            request = body(name, n_predict=5, stream=stream, **options)
            contract.check(server.post(path(name), request))


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": "1"},
        {"repeat_penalty": 0},
        {"repeat_penalty": -1},
        {"n_probs": 1025},
        {"n_predict": -2},
        {"n_predict": 1e30},
        {"seed": "1"},
        {"dry_sequence_breakers": []},
        {"repeat_last_n": -2},
        {"samplers": [1]},
        {"id_slot": "1"},
        {"stop": [None]},
        {"stop": 1},
        {"prompt": None},
        {"prompt": {}},
        {"prompt": {"prompt_string": 1}},
        {"prompt": [[[1]]]},
        {"prompt": [1.5]},
        {"prompt": [True]},
        {"prompt": [None]},
    ],
    ids=str,
)
def test_values_out_of_bounds(options: dict[str, Any], server: Server) -> None:
    for stream in (False, True):
        refused(server.post("/completion", body("create_completion", stream=stream, **options)))


MESSAGE_LISTS: list[Any] = [
    [],
    [{}],
    [{"role": "user"}],
    [{"role": "unknown", "content": "a"}],
    [{"role": 1, "content": "a"}],
    [{"content": "a"}],
    [{"role": "user", "content": 1}],
    [{"role": "user", "content": [1]}],
    [{"role": "user", "content": [{}]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"type": "nothing", "text": "a"}]}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": []}],
    [{"role": "assistant", "content": None}],
    [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
    [{"role": "system", "content": "a"}] * 3,
    [{"role": "tool", "content": "a"}],
    [{"role": "user", "content": "{{ 1 / 0 }}{% raw %}<|im_end|>"}],
    ["text"],
    "text",
    MESSAGES * 5000,
]


@pytest.mark.parametrize("messages", MESSAGE_LISTS, ids=lambda messages: str(messages)[:60])
def test_odd_conversations(messages: Any, server: Server) -> None:
    for name in ("create_chat_completion", "apply_template"):
        right_or_refused(server.post(path(name), body(name, messages=messages)))


@pytest.mark.parametrize(
    "variables",
    [{"messages": 1}, {"enable_thinking": "x"}, {"bos_token": []}, {"": {}}, {"raise": [[]]},
     {"add_generation_prompt": None}, {"x": "a" * 100_000}],
    ids=lambda variables: str(variables)[:40],
)  # fmt: skip
def test_odd_template_variables(variables: dict[str, Any], server: Server) -> None:
    for name in ("create_chat_completion", "apply_template"):
        right_or_refused(server.post(path(name), body(name, chat_template_kwargs=variables)))


# ---- connections ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", POSTS)
def test_half_a_body_and_gone(name: str, server: Server) -> None:
    raw = json.dumps(BODIES[name]).encode()
    for sent in (0, 1, len(raw) // 2, len(raw) - 1):
        server.raw(server.head(path(name), len(raw)) + raw[:sent]).close()
    contract.check(server.post(path(name), BODIES[name]))


@pytest.mark.parametrize("name", GENERATING)
def test_gone_in_mid_stream(name: str, server: Server) -> None:
    for n_events in range(4):
        request = body(name, n_predict=1500, max_tokens=1500, ignore_eos=True)
        with server.stream(path(name), request) as (_, events):
            for _ in range(n_events):
                next(events)


@pytest.mark.parametrize(
    "raw",
    [
        b"\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00" * 1000,
    ],
    ids=lambda raw: ascii(raw)[:30],
)
def test_bytes_that_are_not_http(raw: bytes, server: Server) -> None:
    connection = server.raw(b"")
    connection.settimeout(2)
    try:
        connection.sendall(raw)
        connection.recv(1000)
    except OSError:
        pass  # closed without an answer, or waiting for more: both are fine
    finally:
        connection.close()


@pytest.mark.parametrize("name", POSTS)
def test_unsupported_features_are_refused_rather_than_ignored(name: str, server: Server) -> None:
    candidates = [*WRONG, 2, 0.5, ["text", "audio"], [{"id": 0, "scale": 1}], {"type": "json"}]
    for field, schema in fields(name).items():
        if (supported := schema.get("x-supported-values")) is None:
            continue
        for value in (None, *supported):
            contract.check(server.post(path(name), body(name, **{field: value})))
        for value in candidates:
            if value is not None and value not in supported and not any(lint.errors(schema, value)):
                response = server.post(path(name), body(name, **{field: value}))
                error = contract.check(response, 501)["error"]
                assert field in error["message"], (field, value, error)
