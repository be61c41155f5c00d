"""Checks of generation: limits, seeds, schemas, probabilities, counts. See `checks`."""

import json
from typing import Any

import jsonschema_rs
import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import MESSAGES, PROMPT, body, path
from contract_tests.kit.chat import SWITCH
from contract_tests.kit.events import text_of
from contract_tests.kit.server import Server

CHAT = path("create_chat_completion")
ENDLESS: dict[str, Any] = {"ignore_eos": True}


def limits_of_tokens_hold(server: Server) -> None:
    """In every API, the answer has as many tokens as requested, and its reason is the limit."""
    for n in (1, 7):
        native = server.ask("/completion", {"prompt": PROMPT, "n_predict": n, **ENDLESS})
        assert (native["tokens_predicted"], native["stop_type"]) == (n, "limit")
        text = server.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": n, **ENDLESS})
        ended = text["usage"]["completion_tokens"], text["choices"][0]["finish_reason"]
        assert ended == (n, "length"), "create_openai_completion"
        chat = server.ask(CHAT, {"messages": MESSAGES, "max_tokens": n, **ENDLESS})
        ended = chat["usage"]["completion_tokens"], chat["choices"][0]["finish_reason"]
        assert ended == (n, "length"), "create_chat_completion"
        last = [event for event in server.events(CHAT, body("create_chat_completion",
                max_tokens=n, **ENDLESS)) if event.data != "[DONE]"][-1].json  # fmt: skip
        assert last["choices"][0]["finish_reason"] == "length", "a stream of chat completions"


def limits_of_conversations_hold(server: Server) -> None:
    """Limits hold in Anthropic's and Ollama's APIs and in the Responses API."""
    for n in (1, 7):
        request = {"messages": MESSAGES, "max_tokens": n, **ENDLESS}
        message = server.ask("/v1/messages", request)
        ended = message["usage"]["output_tokens"], message["stop_reason"]
        assert ended == (n, "max_tokens"), "create_message"
        response = server.ask("/v1/responses", {"input": PROMPT, "max_output_tokens": n, **ENDLESS})
        assert (response["usage"]["output_tokens"], response["status"]) == (n, "incomplete")
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        request = body("create_ollama_generation", options={"num_predict": n, "seed": 7})
        ollama = server.ask("/api/generate", request)
        assert ollama["eval_count"] <= n
        if ollama["eval_count"] < n:
            assert ollama["done_reason"] == "stop"
        assert ollama["done_reason"] in ("stop", "length")


def seeds_decide(server: Server) -> None:
    """The same seed gives the same text, and different seeds give different ones."""
    request = {"prompt": PROMPT, "n_predict": 16, "temperature": 3, "cache_prompt": False}

    def text(seed: int) -> str:
        return str(server.ask("/completion", {**request, **ENDLESS, "seed": seed})["content"])

    assert text(11) == text(11), "the same seed"
    assert len({text(seed) for seed in range(4)}) > 1, "all seeds give the same text"


def texts_are_as_many_as_asked_for(server: Server) -> None:
    limited = {"n_predict": 3, **ENDLESS}
    whole = server.ask("/v1/completions", {"prompt": PROMPT, "n": 3, **limited})
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2]
    assert whole["usage"]["completion_tokens"] == 9
    prompts = [PROMPT, "The bus leaves"]
    several = server.ask("/completion", {"prompt": prompts, **limited})
    assert [answer["index"] for answer in several] == [0, 1]
    for prompt, answer in zip(prompts, several, strict=True):
        assert prompt in answer["prompt"], (
            f"the answer to {prompt!r} is one to {answer['prompt']!r}"
        )
    chat = server.ask(CHAT, {"messages": MESSAGES, "n": 2, **limited})
    assert [choice["index"] for choice in chat["choices"]] == [0, 1]
    events = server.events(CHAT, {"messages": MESSAGES, "n": 2, **limited})
    seen = {c["index"] for each in events if each.data != "[DONE]" for c in each.json["choices"]}
    assert seen == {0, 1}


def temperatures_of_zero_are_greedy(server: Server) -> None:
    """The likeliest token is chosen, whatever the seed."""
    # The end-of-text token counts as a token here; where it is ruled out, the next one is chosen.
    request = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, "n_probs": 2}
    for seed in (1, 2):
        answer = server.ask("/completion", {**request, "seed": seed})
        assert answer["completion_probabilities"]
        for entry in answer["completion_probabilities"]:
            likeliest = entry["top_logprobs"][0]
            assert entry["logprob"] >= likeliest["logprob"] - 1e-3, entry


def probabilities_belong_to_the_text(server: Server) -> None:
    """Every token has an entry. The entries' bytes add up to the text, and rivals are in order."""
    # If one token were repeated, the entry of another one would look right.
    varied = {**ENDLESS, "seed": 7, "presence_penalty": 2.0}
    request = {"prompt": PROMPT, "n_predict": 6, "n_probs": 3, "return_tokens": True, **varied}
    native = contract.check(server.post("/completion", request))
    entries = native["completion_probabilities"]
    assert [entry["id"] for entry in entries] == native["tokens"]
    _check_probabilities(entries, native["content"], 3)
    events = server.events("/completion", {**request, "cache_prompt": False})
    entries = [
        entry for event in events for entry in event.json.get("completion_probabilities", ())
    ]
    _check_probabilities(entries, "".join(text_of(event.json) for event in events), 3)
    chat = {"messages": MESSAGES, "max_tokens": 6, "logprobs": True, "top_logprobs": 2}
    choice = server.ask(CHAT, {**chat, **varied})["choices"][0]
    if not choice["message"].get("reasoning_content"):
        _check_probabilities(choice["logprobs"]["content"], choice["message"]["content"], 2)
    text = {"prompt": PROMPT, "max_tokens": 6, "logprobs": 2, **varied}
    choice = server.ask("/v1/completions", text)["choices"][0]
    _check_probabilities(choice["logprobs"]["content"], choice["text"], 2)


def _check_probabilities(entries: list[Any], text: str, n_top: int) -> None:
    said = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert said.decode("utf-8", "ignore") == text, "the tokens with probabilities are not the text"
    for entry in entries:
        values = [rival["logprob"] for rival in entry["top_logprobs"]]
        assert len(values) == n_top, f"{len(values)} rivals in the place of {n_top}: {entry}"
        assert values == sorted(values, reverse=True), f"rivals are not in order: {entry}"
        assert all(value <= 0 for value in (*values, entry["logprob"])), f"above 1: {entry}"


def schemas_are_followed(server: Server) -> None:
    """Constrained output matches its schema, in every API."""
    options = {"temperature": 1, "seed": 7}
    native = {"prompt": PROMPT, "json_schema": SWITCH, "n_predict": 300, **options}
    _follows(server.ask("/completion", native)["content"], "create_completion")
    streamed = "".join(text_of(event.json) for event in server.events("/completion", native))
    _follows(streamed, "a stream of create_completion")
    schema = {"name": "switch", "schema": SWITCH, "strict": True}
    chat: dict[str, Any] = {
        "messages": MESSAGES,
        "max_tokens": 300,
        "reasoning_budget_tokens": 0,
        **options,
    }
    chat["chat_template_kwargs"] = {"enable_thinking": False}
    form = {"type": "json_schema", "json_schema": schema}
    answer = server.ask(CHAT, {**chat, "response_format": form})
    _follows(answer["choices"][0]["message"]["content"], "create_chat_completion")
    words = {"prompt": PROMPT, "grammar": 'root ::= "yes" | "no"', "n_predict": 40, **options}
    assert server.ask("/completion", words)["content"] in ("yes", "no"), "a grammar"


def _follows(text: str, name: str) -> None:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise AssertionError(f"{name}: constrained output is not JSON: {text!r:.300}") from error
    assert jsonschema_rs.is_valid(SWITCH, value), f"{name}: not by the schema: {text!r:.300}"


def biases_are_applied(server: Server) -> None:
    """A forbidden token is never generated."""
    request = {"prompt": PROMPT, "n_predict": 1, "temperature": 0, "return_tokens": True, **ENDLESS}
    [first] = server.ask("/completion", request)["tokens"]
    for bias in ([[first, False]], [[first, -1000.0]]):
        [other] = server.ask("/completion", {**request, "logit_bias": bias})["tokens"]
        assert other != first, bias


def gaps_are_filled_between_both_texts(server: Server) -> None:
    """The prompt of an infill request has the text before the gap and the text after it, in this
    order."""
    request = body("create_infill", input_prefix="alpha = 1\n", input_suffix="\nomega = 2\n")
    answer = contract.check(server.post(path("create_infill"), request))
    prompt = answer["prompt"]
    assert "alpha = 1" in prompt, f"the prompt lacks the text before the gap: {prompt!r}"
    assert "omega = 2" in prompt, f"the prompt lacks the text after the gap: {prompt!r}"
    again = contract.check(server.post(path("create_infill"), {**request, "stream": True}))
    assert again[-1]["prompt"] == prompt


def cached_tokens_are_the_same_everywhere(server: Server) -> None:
    """Every format's count of cached tokens agrees with `timings`."""
    chat = body("create_chat_completion", **ENDLESS)
    text = body("create_openai_completion", **ENDLESS)
    for where, request in ((CHAT, chat), ("/v1/completions", text)):
        for _ in range(2):
            answer = server.ask(where, request)
            details = answer["usage"]["prompt_tokens_details"]
            assert details["cached_tokens"] == answer["timings"]["cache_n"], where
    native = body("create_completion", **ENDLESS)
    cold = server.ask("/completion", {**native, "cache_prompt": False})
    assert cold["timings"]["cache_n"] == 0, "tokens are cached, but the request disables the cache"
    warm = server.ask("/completion", native)
    assert warm["timings"]["cache_n"] < warm["tokens_evaluated"], "no token is left to evaluate"


def timings_follow_from_each_other(server: Server) -> None:
    """Rates are counts divided by times."""
    request = body("create_completion", n_predict=8, **ENDLESS)
    timings = server.ask("/completion", request)["timings"]
    total = timings["prompt_n"] * timings["prompt_per_token_ms"]
    assert abs(total - timings["prompt_ms"]) <= 1e-3 * total, timings
    for name in ("prompt", "predicted"):
        per_token, per_second = timings[f"{name}_per_token_ms"], timings[f"{name}_per_second"]
        if per_token and per_second:
            assert abs(per_token * per_second / 1000 - 1) < 1e-3, timings


ORIGINS = ("cache_kv_n", "cache_ram_n", "cache_disk_n")


def cached_tokens_have_an_origin(server: Server) -> None:
    """The cached tokens are those of the caches together, and there is a reason for the first token
    that isn't cached."""
    request = body("create_completion", **ENDLESS)
    for fields in ({"cache_prompt": False}, {}):
        timings = server.ask("/completion", {**request, **fields})["timings"]
        if "cache_miss_reason" not in timings:
            pytest.skip("the server doesn't say where cached tokens come from")
        origins = [timings[name] for name in ORIGINS]
        assert sum(origins) == timings["cache_n"], f"origins of cached tokens: {origins}"
        reason = timings["cache_miss_reason"]
        assert (reason == "disabled") == bool(fields), f"the reason is {reason}"


FIRST_LIMIT = 50
"""The first time limit in ms. It is doubled as long as the server needs more time to begin."""


def time_limits_end_texts(server: Server) -> None:
    """A text that takes longer than `timeout_ms` ends with the tokens that it has, and the answer
    names the limit."""
    if "timeout_ms" not in server.get("/openapi.json").text:
        pytest.skip("the server doesn't describe time limits")
    for limit in (FIRST_LIMIT << doubled for doubled in range(10)):
        request = body("create_completion", n_predict=500, timeout_ms=limit, **ENDLESS)
        response = server.post("/completion", request)
        if response.status_code != 503:
            break
    answer = contract.check(response)
    taken = answer["timings"]["prompt_ms"] + answer["timings"]["predicted_ms"]
    if "deadline" not in answer:
        assert taken < limit, f"a text without `deadline` took longer than its {limit} ms"
    else:
        assert (answer["deadline"], answer["stop_type"]) == ("timeout_ms", "limit")


def streams_end_once(server: Server) -> None:
    """Exactly one event of a text is marked as its last; all chunks of a stream have one id."""
    ends = [each.json["stop"] for each in server.events("/completion", body("create_completion"))]
    assert ends == [False] * (len(ends) - 1) + [True], f"`stop` in a stream: {ends}"
    for name in ("create_openai_completion", "create_chat_completion"):
        events = [e for e in server.events(path(name), body(name)) if e.data != "[DONE]"]
        reasons = [c["finish_reason"] for e in events for c in e.json["choices"]]
        assert reasons[:-1] == [None] * (len(reasons) - 1), f"{name}: {reasons}"
        assert reasons[-1], f"{name}: {reasons}"
        ids = {event.json["id"] for event in events}
        assert len(ids) == 1, f"{name}: a stream with the ids {ids}"


OF_GENERATION = (
    limits_of_tokens_hold,
    limits_of_conversations_hold,
    seeds_decide,
    texts_are_as_many_as_asked_for,
    temperatures_of_zero_are_greedy,
    probabilities_belong_to_the_text,
    schemas_are_followed,
    biases_are_applied,
    gaps_are_filled_between_both_texts,
    cached_tokens_are_the_same_everywhere,
    timings_follow_from_each_other,
    cached_tokens_have_an_origin,
    time_limits_end_texts,
    streams_end_once,
)
