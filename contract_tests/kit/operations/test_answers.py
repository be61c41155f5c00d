"""Additions to the text of an answer (probabilities, several texts, progress, selected fields), and
limits that end a text early."""

import math
from typing import Any

import pytest

from contract_tests.kit import contract, lint, rounding
from contract_tests.kit.bodies import GENERATING, PROMPT, body, path, with_text
from contract_tests.kit.checks import forced_body, split_character
from contract_tests.kit.events import text_of
from contract_tests.kit.server import Server, Start

CHAT = [name for name in GENERATING if "chat" in name]
TEXT = [name for name in GENERATING if "chat" not in name]
NATIVE = [name for name in TEXT if "openai" not in name]
PROMPTED = [name for name in TEXT if name != "create_infill"]  # may have several prompts
OPENAI = [name for name in GENERATING if name not in NATIVE]

Tokens = list[dict[str, Any]]


def with_probs(name: str, n: int, **changes: Any) -> dict[str, Any]:
    """Returns a request for probabilities in the format of the operation."""
    asked: dict[str, Any] = {"logprobs": n}
    if name in NATIVE:
        asked = {"n_probs": n}
    elif name in CHAT:
        asked = {"logprobs": True, "top_logprobs": n}
    request: dict[str, Any] = body(name, cache_prompt=False, **asked, **changes)
    return request


def probs_of(document: Any, index: int = 0) -> Tokens:
    """Returns the probabilities in an answer or an event."""
    if "choices" not in document:
        right = document["index"] == index
        return document.get("completion_probabilities", []) if right else []
    found: Tokens = []
    for choice in document["choices"]:
        if choice["index"] == index and choice.get("logprobs"):
            found += choice["logprobs"]["content"]
    return found


def documents(server: Server, name: str, request: dict[str, Any]) -> list[Any]:
    events = server.events(path(name), request)
    return contract.check_stream(contract.operations()[name], events)


def text_in(document: Any, index: int = 0) -> str:
    """Returns the text of a plain answer."""
    if "choices" not in document:
        return str(document["content"])
    choice = document["choices"][index]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def whole(tokens: Tokens) -> str:
    return bytes(b for token in tokens for b in token["bytes"]).decode("utf-8", "replace")


# ---- probabilities -------------------------------------------------------------------------


@pytest.mark.parametrize("name", GENERATING)
def test_log_probabilities(name: str, server: Server) -> None:
    request = with_probs(name, 5, n_predict=8, ignore_eos=True)
    answer = contract.check(server.post(path(name), request))
    tokens = probs_of(answer)
    assert len(tokens) == 8
    assert whole(tokens) == text_in(answer)
    for token in tokens:
        values = [rival["logprob"] for rival in token["top_logprobs"]]
        assert len(values) == len({rival["id"] for rival in token["top_logprobs"]}) == 5
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-6
        same = [rival for rival in token["top_logprobs"] if rival["id"] == token["id"]]
        assert {rival["logprob"] for rival in same} <= {token["logprob"]}
        assert same or token["logprob"] <= values[-1]
        for each in (token, *token["top_logprobs"]):
            assert bytes(each["bytes"]).decode("utf-8", "ignore").startswith(each["token"])


@pytest.mark.parametrize("name", GENERATING)
def test_the_greedy_token_is_the_likeliest(name: str, server: Server) -> None:
    tokens = probs_of(server.ask(path(name), with_probs(name, 2, n_predict=6, temperature=0)))
    assert tokens
    for token in tokens:
        first, second = token["top_logprobs"]
        assert (first["id"], first["logprob"]) == (token["id"], token["logprob"])
        assert first["logprob"] >= second["logprob"]


def test_probabilities_of_the_model_are_not_those_of_the_samplers(server: Server) -> None:
    options: dict[str, Any] = {"n_predict": 4, "ignore_eos": True, "seed": 3, "temperature": 0.9}
    asked = with_probs("create_completion", 1024, **options)
    plain = server.ask("/completion", asked)
    for token in plain["completion_probabilities"]:
        total = math.fsum(math.exp(rival["logprob"]) for rival in token["top_logprobs"])
        assert 0.5 < total < 1 + 1e-4  # 1024 of some thousand tokens
    left = server.ask("/completion", {**asked, "post_sampling_probs": True, "top_k": 7})
    assert len(left["completion_probabilities"]) == 4
    for token in left["completion_probabilities"]:
        assert "logprob" not in token
        assert "top_logprobs" not in token
        values = [rival["prob"] for rival in token["top_probs"]]
        assert values == sorted(values, reverse=True)
        assert len(values) <= 7
        assert math.fsum(values) == pytest.approx(1, abs=1e-4)
        assert token["prob"] in values
    greedy = server.ask("/completion", {**asked, "post_sampling_probs": True, "temperature": 0})
    for token in greedy["completion_probabilities"]:
        assert [(rival["id"], rival["prob"]) for rival in token["top_probs"]] == [(token["id"], 1)]
    other = server.ask("/completion", {**asked, "temperature": 30, "top_k": 7, "n_predict": 1})
    first, again = (each["completion_probabilities"][0]["top_logprobs"] for each in (plain, other))
    rounding.check_close(server, again, first)


@pytest.mark.parametrize("name", GENERATING)
@pytest.mark.parametrize("post", [False, True])
def test_probabilities_change_no_text(name: str, post: bool, server: Server) -> None:
    options: dict[str, Any] = {
        "n_predict": 12,
        "seed": 9,
        "temperature": 1.2,
        "cache_prompt": False,
    }
    blind = server.ask(path(name), body(name, **options))
    del options["cache_prompt"]
    asked = with_probs(name, 3, post_sampling_probs=post, **options)
    assert text_in(server.ask(path(name), asked)) == text_in(blind)


def _leading_space(text: str) -> int:
    """Returns the number of white space bytes at the beginning of `text`."""
    return len(text) - len(text.lstrip(" \t\r\n"))


@pytest.mark.parametrize("name", GENERATING)
@pytest.mark.parametrize("stop", [[], ["e"], ["s", "\n", "er", " t"]])
def test_events_have_the_tokens_of_their_text(name: str, stop: list[str], server: Server) -> None:
    requests = [
        with_probs(name, 2, n_predict=24, stop=stop, seed=seed, temperature=1.5)
        for seed in range(3)
    ]
    found = []
    for request in requests:
        streamed = documents(server, name, request)
        tokens = [token for document in streamed for token in probs_of(document)]
        text = "".join(map(text_of, streamed))
        found.append((tokens, text))
        # Chats of a model that may reason begin without white space.
        dropped = 0 if whole(tokens).startswith(text) else _leading_space(whole(tokens))
        assert whole(tokens)[dropped:].startswith(text)
        shown, n_bytes = "", -dropped
        for document in streamed:
            shown += text_of(document)
            if probs_of(document):
                # The text of each token before the last one has been shown completely.
                *before, _ = probs_of(document)
                n_bytes += sum(len(token["bytes"]) for token in before)
                assert n_bytes <= len(shown.encode())
                n_bytes += len(probs_of(document)[-1]["bytes"])
            assert max(n_bytes, 0) >= len(shown.encode())
    plain = [server.ask(path(name), request) for request in requests]
    rounding.check_same(server, [(probs_of(each), text_in(each)) for each in plain], found)


def test_tokens_that_are_parts_of_a_character(server: Server) -> None:
    forced = split_character(server)
    request = forced_body(forced, n_probs=1)
    plain = server.ask("/completion", {**request, "return_tokens": True})
    tokens = plain["completion_probabilities"]
    assert [token["id"] for token in tokens] == plain["tokens"]
    assert whole(tokens) == plain["content"]
    if len(forced) > 1:
        assert any(token["token"] == "" for token in tokens)
    streamed = documents(server, "create_completion", request)
    for document in streamed:
        ids = [token["id"] for token in probs_of(document)]
        assert ids == document["tokens"]
    rounding.check_same(server, [each for one in streamed for each in probs_of(one)], tokens)


def test_documented_properties_of_openais_logprobs(server: Server) -> None:
    chat = body("create_chat_completion", logprobs=True)
    [choice] = contract.check(server.post("/v1/chat/completions", chat))["choices"]
    assert [len(token["top_logprobs"]) for token in choice["logprobs"]["content"]][:1] == [20]
    chat["top_logprobs"] = 0
    [choice] = server.ask("/v1/chat/completions", chat)["choices"]
    assert [len(token["top_logprobs"]) for token in choice["logprobs"]["content"]][:1] == [0]
    for wrong in ({"top_logprobs": 3}, {"logprobs": False, "top_logprobs": 3}):
        response = server.post("/v1/chat/completions", body("create_chat_completion", **wrong))
        assert "top_logprobs" in contract.check(response, 400)["error"]["message"]
    [choice] = server.ask("/v1/chat/completions", body("create_chat_completion"))["choices"]
    assert choice["logprobs"] is None
    text = server.ask("/v1/completions", body("create_openai_completion", logprobs=0))
    assert text["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("name", GENERATING)
def test_the_token_that_ends_a_text_is_reported(name: str, server: Server) -> None:
    spelled = server.get("/props").json()["eos_token"]
    [eos] = server.ask("/tokenize", {"content": spelled, "parse_special": True})["tokens"]
    request = with_probs(name, 1, logit_bias=[[eos, 1000]])
    answer = server.ask(path(name), request)
    streamed = documents(server, name, request)
    again = [each for document in streamed for each in probs_of(document)]
    if name in CHAT:  # it is not in the content
        assert (probs_of(answer), again) == ([], [])
        return
    [token] = probs_of(answer)
    assert (token["id"], token["token"], token["bytes"]) == (eos, "", [])
    assert [(each["id"], each["token"], each["bytes"]) for each in again] == [(eos, "", [])]
    rounding.check_close(server, again, [token])


# ---- several texts -------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROMPTED)
@pytest.mark.parametrize("field", ["n", "n_cmpl"])
def test_several_texts_for_each_prompt(name: str, field: str, server: Server) -> None:
    prompts = [PROMPT, "Another one"]
    # No token is cut off, and the temperature is so high that even a confident model varies.
    request = body(
        name, prompt=prompts, seed=40, n_predict=8, temperature=3, ignore_eos=True,
        cache_prompt=False, top_k=0, top_p=1, min_p=0,
    )  # fmt: skip
    answer = contract.check(server.post(path(name), {**request, field: 3}))
    results = answer["choices"] if name in OPENAI else answer
    assert [result["index"] for result in results] == list(range(6))
    texts = [result["text" if "text" in result else "content"] for result in results]
    assert len(set(texts)) == 6
    streamed = documents(server, name, {**request, field: 3})
    if "usage" in answer:
        of_one = server.ask(path(name), request)["usage"]
        for usage in (answer["usage"], streamed[-1]["usage"]):
            assert usage["prompt_tokens"] == of_one["prompt_tokens"]
            assert usage["completion_tokens"] == 6 * 8
    for index, text in enumerate(texts):
        rounding.check_same(
            server, "".join(text_of(document, index) for document in streamed), text
        )
        seed = {"prompt": prompts[index // 3], "seed": 40 + index % 3}
        alone = text_in(server.ask(path(name), {**request, **seed}))
        rounding.check_same(server, text, alone)


def test_several_texts_for_a_gap(server: Server) -> None:
    request = body("create_infill", n_predict=6, seed=3, temperature=1.5, cache_prompt=False)
    answers = contract.check(server.post("/infill", {**request, "n": 3}))
    assert [answer["index"] for answer in answers] == [0, 1, 2]
    streamed = documents(server, "create_infill", {**request, "n": 3})
    for index, answer in enumerate(answers):
        alone = server.ask("/infill", {**request, "seed": 3 + index})
        assert answer["content"] == alone["content"]
        assert "".join(text_of(each, index) for each in streamed) == alone["content"]


@pytest.mark.parametrize("name", CHAT)
def test_several_answers_in_a_chat(name: str, server: Server) -> None:
    request = body(name, n=3, max_tokens=6, seed=5, ignore_eos=True, cache_prompt=False)
    answer = contract.check(server.post(path(name), request))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert answer["usage"]["completion_tokens"] == 18
    one = server.ask(path(name), {**request, "n": 1})
    assert answer["usage"]["prompt_tokens"] == one["usage"]["prompt_tokens"]
    request["stream_options"] = {"include_usage": True}
    streamed = documents(server, name, request)
    for index in range(3):
        assert "".join(text_of(each, index) for each in streamed) == text_in(answer, index)
        choices = [c for each in streamed for c in each["choices"] if c["index"] == index]
        assert choices[0]["delta"] == {"role": "assistant", "content": None}
        assert [c["finish_reason"] for c in choices if c["finish_reason"]] == ["length"]
        assert choices[-1]["finish_reason"] == "length"
    with_usage = [each for each in streamed if "usage" in each]
    assert with_usage == streamed[-1:]
    assert with_usage[0]["usage"]["total_tokens"] == answer["usage"]["total_tokens"]


def test_too_many_texts_are_refused(server: Server) -> None:
    for name in PROMPTED:
        request = body(name, prompt=[PROMPT] * 5, n_cmpl=1000)
        assert "4096" in contract.check(server.post(path(name), request), 400)["error"]["message"]
    for name in GENERATING:
        for wrong in (0, -1, 1025, "2"):
            contract.check(server.post(path(name), body(name, n=wrong)), 400)


def test_the_best_of_several(server: Server) -> None:
    request = body("create_openai_completion", logprobs=1, seed=1, n_predict=6, temperature=2)
    every = server.ask("/v1/completions", {**request, "n": 6})
    best = contract.check(server.post("/v1/completions", {**request, "n": 2, "best_of": 6}))

    def mean(choice: Any) -> float:
        values = [token["logprob"] for token in choice["logprobs"]["content"]]
        return float(sum(values) / len(values))

    ranked = sorted(every["choices"], key=mean, reverse=True)
    texts = [choice["text"] for choice in best["choices"]]
    assert [choice["index"] for choice in best["choices"]] == [0, 1]
    assert best["usage"]["prompt_tokens"] == every["usage"]["prompt_tokens"]
    del request["logprobs"]
    unasked = server.ask("/v1/completions", {**request, "n": 2, "best_of": 6})
    for wrong in ({"n": 3, "best_of": 2}, {"best_of": 2, "stream": True}):
        response = server.post("/v1/completions", {**request, **wrong})
        assert "best_of" in contract.check(response, 400)["error"]["message"]
    rounding.check_same(server, texts, [choice["text"] for choice in ranked[:2]])
    rounding.check_same(server, [choice["text"] for choice in unasked["choices"]], texts)
    assert best["usage"]["completion_tokens"] == every["usage"]["completion_tokens"]


# ---- fields --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NATIVE)
def test_selected_fields(name: str, server: Server) -> None:
    fields = ["content", "generation_settings/n_predict", "timings/nothing", "stop", "x"]
    request = body(name, response_fields=fields, n_predict=3, temperature=0)
    answer = contract.check(server.post(path(name), request))
    full = server.ask(path(name), {**request, "response_fields": []})
    assert answer == {
        "content": full["content"],
        "generation_settings/n_predict": 3,
        "stop": True,
    }
    several = contract.check(server.post(path(name), {**request, "n": 2}))
    assert [list(each) for each in several] == [list(answer)] * 2
    assert contract.check(server.post(path(name), {**request, "response_fields": ["x"]})) == {}

    events = [event.json for event in server.events(path(name), request)]
    schema = contract.answers(contract.operations()[name], 200)[lint.EVENT_STREAM]
    for event in events:
        assert not list(lint.errors(schema["x-event-data-schema"], event, request))
    assert "".join(event["content"] for event in events) == full["content"]
    assert events[-1].keys() == answer.keys()
    assert all("id_slot" in event for event in events[:-1])


@pytest.mark.parametrize("name", OPENAI)
def test_the_native_answer_inside(name: str, server: Server) -> None:
    request = with_probs(name, 1, verbose=True, n_predict=3, temperature=0)
    answer = contract.check(server.post(path(name), request))
    native = answer["__verbose"]
    assert native["content"] == text_in(answer)
    assert native["prompt"]
    assert native["tokens_predicted"] == answer["usage"]["completion_tokens"]
    assert native["completion_probabilities"] == probs_of(answer)
    streamed = documents(server, name, request)
    assert any("__verbose" in each for each in streamed)
    assert [each["__verbose"]["stop"] for each in streamed if "__verbose" in each][-1]
    plain = server.ask(path(name), {**request, "verbose": False})
    assert "__verbose" not in plain


# ---- progress ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own(module_server: Start) -> Server:
    """A server that evaluates prompts 64 tokens at a time."""
    return module_server("-b", "64", "-ub", "64", "-np", "1", "-c", "4096")


@pytest.mark.parametrize("name", GENERATING)
def test_progress_of_the_prompt(name: str, own: Server, server: Server) -> None:
    long = " ".join(f"word{i}" for i in range(60))
    request = with_text(name, long, return_progress=True, cache_prompt=False)
    request["timings_per_token"] = True
    streamed = documents(own, name, request)
    progress = [each["prompt_progress"] for each in streamed if "prompt_progress" in each]
    n_prompt = progress[0]["total"]
    assert len(progress) == 1 + math.ceil(n_prompt / 64)
    assert [each["processed"] for each in progress] == [*range(0, n_prompt, 64), n_prompt]
    assert {(each["total"], each["cache"]) for each in progress} == {(n_prompt, 0)}
    if name in ("create_completion", "create_infill"):
        assert {each["tokens_evaluated"] for each in streamed} == {n_prompt}
    times = [each["time_ms"] for each in progress]
    assert times == sorted(times)
    timings = [each["timings"] for each in streamed if {"prompt_progress", "timings"} <= {*each}]
    if timings:  # they are of the tokens that are evaluated already
        assert [each["prompt_n"] for each in timings] == [each["processed"] for each in progress]
        assert (timings[0]["prompt_ms"], timings[0]["prompt_per_token_ms"]) == (0, 0)
        assert {(each["predicted_n"], each["predicted_ms"]) for each in timings} == {(0, 0)}
    spoken = [i for i, each in enumerate(streamed) if text_of(each)]
    last_told = max(i for i, each in enumerate(streamed) if "prompt_progress" in each)
    assert last_told < min(spoken, default=len(streamed))

    again = documents(own, name, {**request, "cache_prompt": True, "id_slot": 0})
    again = documents(own, name, {**request, "cache_prompt": True, "id_slot": 0})
    progress = [each["prompt_progress"] for each in again if "prompt_progress" in each]
    assert [(each["cache"], each["processed"]) for each in progress] == [
        (n_prompt - 1, n_prompt - 1),
        (n_prompt - 1, n_prompt),
    ]
    assert "prompt_progress" not in server.ask(path(name), body(name, return_progress=True))


# ---- ends ----------------------------------------------------------------------------------


def tokens_of(server: Server, text: str) -> list[int]:
    tokens: list[int] = server.ask("/tokenize", {"content": text})["tokens"]
    return tokens


@pytest.mark.parametrize("name", GENERATING)
def test_a_text_ends_at_a_new_line_when_its_time_is_over(name: str, server: Server) -> None:
    [line] = tokens_of(server, "\n")
    forced = {"logit_bias": [[line, 1000]], "n_predict": 3000, "cache_prompt": False}
    answer = contract.check(server.post(path(name), body(name, t_max_predict_ms=1, **forced)))
    text = text_in(answer)
    assert set(text) <= {"\n"}
    # Chats of a model that may reason begin without white space.
    usage = answer.get("usage", {}).get("completion_tokens", answer.get("eval_count"))
    assert 0 < (len(text) if usage is None else usage) < 3000
    if "stop_type" in answer:
        assert answer["stop_type"] == "limit"
        assert answer["generation_settings"]["t_max_predict_ms"] == 1
        assert answer["timings"]["predicted_ms"] > 1
    else:
        assert answer["choices"][0]["finish_reason"] == "length"


def test_time_matters_at_new_lines_only(server: Server) -> None:
    [word] = tokens_of(server, "word")[:1]
    forced = {"logit_bias": [[word, 1000]], "n_predict": 50, "t_max_predict_ms": 1}
    answer = server.ask("/completion", body("create_completion", **forced))
    assert answer["tokens_predicted"] == 50
    for off in (0, -1):
        [line] = tokens_of(server, "\n")
        forced = {"logit_bias": [[line, 1000]], "n_predict": 50, "t_max_predict_ms": off}
        answer = server.ask("/completion", body("create_completion", **forced))
        assert answer["tokens_predicted"] == 50


@pytest.mark.parametrize("name", GENERATING)
def test_a_text_ends_where_a_line_is_not_indented(name: str, server: Server) -> None:
    # Every token is a new line or something else, so a line with too few blanks comes soon.
    bias = [[token, 6] for token in tokens_of(server, "\n")]
    request = body(
        name, n_predict=200, logit_bias=bias, temperature=1, ignore_eos=True, cache_prompt=False
    )
    free = text_in(server.ask(path(name), request))
    assert "\n" in free
    # Code is indented by four blanks; a model that is good at code begins each line with them.
    n_indent = next(n for n in range(4, 200) if ends_indented(free, n) != free)
    expected = ends_indented(free, n_indent)
    limited = {**request, "n_indent": n_indent, **({} if name in OPENAI else {"n_probs": 1})}
    answer = contract.check(server.post(path(name), limited))
    assert text_in(answer) == expected
    if "stop_type" in answer:
        assert answer["stop_type"] == "limit"
        assert not answer["truncated"]
        assert whole(answer["completion_probabilities"]).startswith(expected)
    streamed = documents(server, name, limited)
    assert "".join(map(text_of, streamed)) == expected


def ends_indented(text: str, n: int) -> str:
    shown, lines = text.split("\n", 1)[0], text.split("\n")[1:]
    for i, line in enumerate(lines):
        shown += "\n"
        blanks = len(line) - len(line.lstrip(" \t"))
        over = blanks < len(line) or i < len(lines) - 1  # something follows the blanks
        if blanks < n and over:
            return shown + line[:blanks]
        shown += line
    return shown


# ---- samplers and the command line ---------------------------------------------------------


def test_adaptive_p(server: Server) -> None:
    likely = range(1000, 1050)
    asked = {
        "return_tokens": True,
        "n_predict": 48,
        "ignore_eos": True,
        "seed": 2,
        "cache_prompt": False,
        "logit_bias": [[token, 7] for token in likely],
    }

    def share(**options: Any) -> float:
        """Returns the number of generated tokens that are likely ones."""
        answer = server.ask("/completion", body("create_completion", **{**asked, **options}))
        settings = answer["generation_settings"]
        assert settings["samplers"] == ["adaptive_p"]
        assert settings["adaptive_target"] == options["adaptive_target"]
        return sum(token in likely for token in answer["tokens"]) / len(answer["tokens"])

    for samplers in (["adaptive_p"], "a", ["adaptive-p"]):
        common, rare = ({"samplers": samplers, "adaptive_target": target} for target in (1, 0))
        assert share(**common) > share(**rare)
    for wrong in ({"adaptive_target": "1"}, {"adaptive_decay": 1.0}, {"samplers": [None]}):
        contract.check(server.post("/completion", body("create_completion", **wrong)), 400)


def test_options_are_defaults_of_requests(own_server: Start) -> None:
    server = own_server(
        "-np", "1", "--samplers", "top_k;adaptive_p", "--adaptive-target", "0.25",
        "--adaptive-decay", "0.5", "-r", r"e", "-r", r"\n", "--special", "-v",
        "--logit-bias", "7-inf",
    )  # fmt: skip
    request = body("create_completion", n_predict=100, temperature=1.5)
    answer = contract.check(server.post("/completion", request))
    settings = answer["generation_settings"]
    assert settings["samplers"] == ["top_k", "adaptive_p"]
    assert (settings["adaptive_target"], settings["adaptive_decay"]) == (0.25, 0.5)
    assert settings["stop"] == ["e", "\n"]
    assert settings["logit_bias"] == [{"token": 7, "bias": None}]
    assert answer["stop_type"] == "word"
    assert answer["stopping_word"] in ("e", "\n")
    own = server.ask("/completion", {**request, "stop": ["a"], "logit_bias": []})
    assert own["generation_settings"]["stop"] == ["a"]
    assert own["generation_settings"]["logit_bias"] == []

    spelled = server.get("/props").json()["eos_token"]
    [eos] = server.ask("/tokenize", {"content": spelled, "parse_special": True})["tokens"]
    forced = {"logit_bias": [[eos, 1000]], "stop": ["\x01"], "n_probs": 1, "samplers": []}
    ended = server.ask("/completion", {**request, **forced})
    assert (ended["content"], ended["stop_type"]) == (spelled, "eos")
    assert ended["completion_probabilities"][0]["token"] == spelled
    for name in OPENAI:
        answer = contract.check(server.post(path(name), body(name)))
        assert answer["__verbose"]["generation_settings"]["stop"] == ["e", "\n"]
        assert "__verbose" not in server.ask(path(name), body(name, verbose=False))


def test_no_escape_and_ignore_eos(own_server: Start) -> None:
    server = own_server("-np", "1", "--no-escape", "-r", r"\n", "--ignore-eos")
    spelled = server.get("/props").json()["eos_token"]
    [eos] = server.ask("/tokenize", {"content": spelled, "parse_special": True})["tokens"]
    request = body("create_completion", n_predict=20, logit_bias=[[eos, 1000]])
    answer = server.ask("/completion", request)
    assert answer["generation_settings"]["stop"] == ["\\n"]
    assert (answer["tokens_predicted"], answer["stop_type"]) == (20, "limit")
    assert server.ask("/completion", {**request, "ignore_eos": False})["stop_type"] == "eos"
