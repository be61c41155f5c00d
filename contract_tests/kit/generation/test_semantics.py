"""Numbers and texts are right to the token."""

import asyncio
import itertools
import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract, rounding
from contract_tests.kit.bodies import GENERATING, MESSAGES, PROMPT, body, path
from contract_tests.kit.checks import plain_text
from contract_tests.kit.server import SECONDS, Launcher, Server, Start, wait_until

N_CTX = 256
ENDLESS = {"n_predict": -1, "ignore_eos": True}


def complete(server: Server, prompt: Any = PROMPT, **options: Any) -> Any:
    return server.ask("/completion", {"prompt": prompt, "n_predict": 6, **options})


def tokens_of(server: Server, text: str, **options: Any) -> list[int]:
    tokens: list[int] = server.ask("/tokenize", {"content": text, **options})["tokens"]
    return tokens


def a_word(server: Server) -> tuple[str, int]:
    """Returns a text that is one token, whatever the vocabulary."""
    for text in (" is", " the", "a", " a", "e"):
        if len(tokens := tokens_of(server, text)) == 1:
            return text, tokens[0]
    pytest.fail("no word is one token")


def new_prompt() -> str:
    """Returns a prompt whose beginning is in no cache."""
    return f"{uuid.uuid4()} is the number of this text, and it goes on like that."


@pytest.fixture(scope="module")
def small(module_server: Start) -> Server:
    """A server with one slot and a small context."""
    return module_server("-c", str(N_CTX), "-np", "1", "--slots-text", "--metrics")


@pytest.fixture(scope="module")
def spm(module_server: Start, launcher: Launcher) -> Server:
    """A server whose model adds a token at the beginning of each text."""
    return module_server("-m", launcher.model_file("tiny-spm"))


# ---- the cache -----------------------------------------------------------------------------


def test_a_prompt_is_evaluated_once(server: Server) -> None:
    prompt = new_prompt()
    n = len(tokens_of(server, prompt, add_special=True))
    first = complete(server, prompt)
    assert first["tokens_evaluated"] == n
    assert first["tokens_cached"] < n // 2
    second = complete(server, prompt, id_slot=first["id_slot"])
    assert second["tokens_evaluated"] == n
    assert second["tokens_cached"] == second["timings"]["cache_n"] == n - 1
    assert second["timings"]["prompt_n"] == 1
    longer = complete(server, prompt + first["prompt"][-5:], id_slot=first["id_slot"])
    assert longer["tokens_cached"] >= n - 2


def test_the_cache_can_be_left_alone(server: Server) -> None:
    prompt = new_prompt()
    n = len(tokens_of(server, prompt, add_special=True))
    for _ in range(2):
        answer = complete(server, prompt, cache_prompt=False, id_slot=0)
        assert (answer["tokens_cached"], answer["timings"]["prompt_n"]) == (0, n)


def test_nothing_generated_leaves_the_prompt_in_the_cache(server: Server) -> None:
    prompt = new_prompt()
    n = len(tokens_of(server, prompt, add_special=True))
    answer = complete(server, prompt, n_predict=0, id_slot=1)
    assert (answer["content"], answer["tokens_predicted"]) == ("", 0)
    assert (answer["stop_type"], answer["truncated"]) == ("limit", False)
    assert complete(server, prompt, id_slot=1)["tokens_cached"] == n - 1


def test_the_cache_changes_no_answer(server: Server) -> None:
    prompt = new_prompt()
    options: dict[str, Any] = {"seed": 5, "n_predict": 16}
    without = complete(server, prompt, cache_prompt=False, **options)["content"]
    for _ in range(2):
        assert complete(server, prompt, **options)["content"] == without


@pytest.mark.parametrize("name", GENERATING)
def test_usage_counts_cached_tokens(name: str, server: Server) -> None:
    request = body(name, id_slot=2)
    server.ask(path(name), request)
    answer = server.ask(path(name), request)
    n_prompt = answer["timings"]["cache_n"] + answer["timings"]["prompt_n"]
    assert answer["timings"]["prompt_n"] == 1
    if "usage" in answer:
        assert answer["usage"]["prompt_tokens"] == n_prompt
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == n_prompt - 1
    else:
        assert (answer["tokens_evaluated"], answer["tokens_cached"]) == (n_prompt, n_prompt - 1)


# ---- where a text ends ---------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_text_goes_on_until_the_context_is_full(small: Server, stream: bool) -> None:
    request = {"prompt": PROMPT, **ENDLESS}
    if stream:
        answer = small.events("/completion", request)[-1].json
    else:
        answer = small.ask("/completion", request)
    assert answer["truncated"]
    assert answer["stop_type"] == "limit"
    assert answer["tokens_evaluated"] + answer["tokens_predicted"] == N_CTX
    usage = small.ask("/v1/completions", request)
    assert usage["usage"]["total_tokens"] == N_CTX
    assert usage["choices"][0]["finish_reason"] == "length"


def test_the_longest_prompt(small: Server) -> None:
    token = tokens_of(small, "word")[0]
    answer = complete(small, [token] * (N_CTX - 1), n_predict=-1, ignore_eos=True)
    assert (answer["tokens_evaluated"], answer["tokens_predicted"]) == (N_CTX - 1, 1)
    assert answer["truncated"]
    response = small.post("/completion", {"prompt": [token] * N_CTX, "n_predict": 1})
    error = contract.check(response, 400)["error"]
    assert error["type"] == "exceed_context_size_error"
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (N_CTX, N_CTX)


def test_limits(server: Server) -> None:
    answer = complete(server, n_predict=3, ignore_eos=True)
    assert (answer["tokens_predicted"], answer["stop_type"]) == (3, "limit")
    assert not answer["truncated"]
    for name in ("max_tokens", "max_completion_tokens"):
        request = {"messages": MESSAGES, name: 3, "ignore_eos": True}
        usage = server.ask("/v1/chat/completions", request)["usage"]
        assert usage["completion_tokens"] == 3
    request = {"messages": MESSAGES, "max_tokens": 9, "max_completion_tokens": 7, "n_predict": 2}
    usage = server.ask("/v1/chat/completions", {**request, "ignore_eos": True})["usage"]
    assert usage["completion_tokens"] == 2


def test_the_end_of_a_text(server: Server) -> None:
    spelled = server.get("/props").json()["eos_token"]
    [eos] = tokens_of(server, spelled, parse_special=True)
    forced = {"logit_bias": [[eos, 1000]], "n_predict": 8, "return_tokens": True}
    answer = complete(server, **forced)
    assert (answer["stop_type"], answer["content"]) == ("eos", "")
    assert (answer["tokens"], answer["tokens_predicted"]) == ([eos], 1)
    request = {"prompt": PROMPT, **forced}
    assert server.ask("/v1/completions", request)["choices"][0]["finish_reason"] == "stop"
    ignored = complete(server, **forced, ignore_eos=True)
    assert eos not in ignored["tokens"]
    assert (ignored["tokens_predicted"], ignored["stop_type"]) == (8, "limit")


def test_has_new_line(server: Server) -> None:
    [line] = tokens_of(server, "\n")
    [word] = tokens_of(server, "a")
    with_it = complete(server, logit_bias=[[line, 1000]])
    without = complete(server, logit_bias=[[word, 1000]])
    assert "\n" in with_it["content"]
    assert "\n" not in without["content"]
    assert (with_it["has_new_line"], without["has_new_line"]) == (True, False)


@pytest.mark.parametrize("name", GENERATING)
def test_stop_texts(name: str, server: Server) -> None:
    """For every text that begins in the first part of a longer one."""
    request = body(name, n_predict=30, temperature=0, ignore_eos=True)
    whole = plain_text(server.ask(path(name), request))
    for at, length in itertools.product(range(0, len(whole) // 2, 7), (1, 2, 5, 9)):
        stop = whole[at : at + length]
        answer = server.ask(path(name), {**request, "stop": ["\x00", stop]})
        assert plain_text(answer) == whole[: whole.index(stop)], stop


def test_the_first_of_several_stop_texts(server: Server) -> None:
    request = {"prompt": PROMPT, "n_predict": 30, "temperature": 0, "ignore_eos": True}
    whole = server.ask("/completion", request)["content"]
    # A long stop text ends late, even in a text that repeats itself.
    late, early = whole[8:], whole[4:8]
    answer = server.ask("/completion", {**request, "stop": [late, early]})
    assert answer["content"] == whole[: whole.index(early)]
    assert answer["stopping_word"] == early
    nothing = server.ask("/completion", {**request, "stop": ["", "\x00"]})
    assert (nothing["content"], nothing["stopping_word"]) == (whole, "")


# ---- chance --------------------------------------------------------------------------------


def test_same_seed_same_text(server: Server) -> None:
    options: dict[str, Any] = {
        "n_predict": 24,
        "cache_prompt": False,
        "temperature": 1.5,
        "ignore_eos": True,
    }
    texts = [complete(server, seed=11, **options)["content"] for _ in range(3)]
    others = {complete(server, seed=seed, **options)["content"] for seed in range(4)}
    assert len(others) > 1
    drawn = [complete(server, seed=-1, **options) for _ in range(3)]
    assert len({answer["content"] for answer in drawn}) > 1
    rounding.check_same(server, texts, [texts[0]] * 3)


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_the_same_text_with_busy_slots(server: Server, temperature: float) -> None:
    request = {"n_predict": 40, "seed": 11, "temperature": temperature, "cache_prompt": False}
    alone = complete(server, **request)["content"]
    stop = False

    def keep_busy(number: int) -> int:
        n = 0
        while not stop:
            complete(server, f"{number} {n} others talk, too", n_predict=30, ignore_eos=True)
            n += 1
        return n

    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(keep_busy, number) for number in range(3)]
        try:
            server.wait_until_busy(2)
            together = {complete(server, **request)["content"] for _ in range(5)}
        finally:
            stop = True
        assert all(other.result(SECONDS) for other in others)
    assert together == {alone}


def test_greedy(server: Server) -> None:
    greedy = [
        complete(server, n_predict=20, cache_prompt=False, seed=seed, **options)["content"]
        for seed, options in enumerate(
            ({"temperature": 0}, {"temperature": 0}, {"top_k": 1}, {"temperature": -1})
        )
    ]
    assert len(set(greedy)) == 1


def test_settings_are_echoed(server: Server) -> None:
    options: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 7,
        "seed": 9,
        "stop": ["x"],
        "min_p": 0.25,
    }
    settings = complete(server, **options)["generation_settings"]
    assert {name: settings[name] for name in options} == options
    assert settings["n_predict"] == 6
    default = server.get("/props").json()["default_generation_settings"]["params"]
    assert settings["top_p"] == default["top_p"]
    assert (
        complete(server, temperature=None)["generation_settings"]["temperature"]
        == default["temperature"]
    )


# ---- biases --------------------------------------------------------------------------------

FORMS: dict[str, Callable[[int, str, Any], Any]] = {
    "pair": lambda token, text, bias: [[token, bias]],
    "pair-text": lambda token, text, bias: [[text, bias]],
    "object": lambda token, text, bias: [{"token": token, "bias": bias}],
    "object-text": lambda token, text, bias: [{"token": text, "bias": bias}],
    "mapping": lambda token, text, bias: {str(token): bias},
    "mapping-text": lambda token, text, bias: {text: bias},
}


@pytest.mark.parametrize("form", FORMS)
def test_logit_bias(form: str, server: Server) -> None:
    text, token = a_word(server)
    options: dict[str, Any] = {"temperature": 0, "return_tokens": True, "ignore_eos": True}
    make = FORMS[form]
    forced = complete(server, logit_bias=make(token, text, 1000), **options)
    assert forced["tokens"] == [token] * 6
    both = [[token, 1000], *([[token, False]] if form == "pair" else [])]
    if form == "pair":
        assert token not in complete(server, logit_bias=both, **options)["tokens"]
    # A second bias forbids almost all other tokens, so that only the first one keeps it away.
    likely = complete(server, logit_bias=[[token, 50]], **options)["tokens"]
    assert token in likely
    for bias in (False, -1000):
        biased = complete(server, logit_bias=make(token, text, bias), **options)
        assert token not in biased["tokens"]


@pytest.mark.parametrize(
    "bias",
    [
        [[1]],
        [[1, 2, 3]],
        [1, 2],
        [[1, "x"]],
        [[1, True]],
        [{"token": 1}],
        [{"bias": 1}],
        [[1.5, 1]],
        [[-1, 1]],
        [[None, 1]],
        {"1": "x"},
        {"1": None},
        {"1": True},
    ],
    ids=repr,
)
def test_a_wrong_bias_has_no_effect(bias: Any, server: Server) -> None:
    answer = complete(server, logit_bias=bias)
    assert answer["generation_settings"]["logit_bias"] == []


@pytest.mark.parametrize("bias", ["text", 7])
def test_wrong_types_of_biases_are_refused(bias: Any, server: Server) -> None:
    response = server.post("/completion", body("create_completion", logit_bias=bias))
    contract.check(response, 400)


def test_a_bias_outside_the_vocabulary_has_no_effect(server: Server) -> None:
    n_vocab = server.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    options: dict[str, Any] = {"seed": 4, "cache_prompt": False}
    without = complete(server, **options)["content"]
    for token in (n_vocab, 2**31 - 1):
        for bias in ([[token, 9]], {str(token): 9}, [{"token": token, "bias": False}]):
            answer = complete(server, logit_bias=bias, **options)
            assert answer["content"] == without
            assert answer["generation_settings"]["logit_bias"] == []


# ---- slots ---------------------------------------------------------------------------------


def test_id_slot(server: Server) -> None:
    n_slots = server.get("/props").json()["total_slots"]
    assert len(server.slots()) == n_slots
    for slot in range(n_slots):
        assert complete(server, id_slot=slot)["id_slot"] == slot
        assert server.slots()[slot]["id_task"] >= 0
    for slot in (n_slots, 2**40, -7):
        answer = complete(server, id_slot=slot)
        assert answer["generation_settings"]["id_slot"] == -1
        assert 0 <= answer["id_slot"] < n_slots


def test_slots_show_their_work(small: Server) -> None:
    request = {"prompt": PROMPT, "n_predict": 200, "ignore_eos": True, "top_k": 3}
    n = len(tokens_of(small, PROMPT, add_special=True))
    with small.stream("/completion", request) as (_, events):
        next(events)
        [slot] = contract.check(small.get("/slots"))
        list(events)
    assert slot["is_processing"]
    assert slot["prompt"] == PROMPT
    assert slot["params"]["top_k"] == 3
    assert slot["n_prompt_tokens"] >= n, "the prompt and the generated tokens"
    assert slot["n_prompt_tokens_cache"] + slot["n_prompt_tokens_processed"] == n
    assert slot["next_token"]["has_next_token"]
    assert slot["next_token"]["n_decoded"] + slot["next_token"]["n_remain"] == 200
    [slot] = small.wait_until_idle()
    assert slot["next_token"]["n_decoded"] == 200
    assert slot["next_token"]["n_remain"] == -1, "nothing is left of the budget of a past request"
    assert slot["n_prompt_tokens"] == n + 199, "the last token was not read again"


def test_more_requests_than_slots_wait_in_order(small: Server) -> None:
    async def run() -> list[int]:
        done: list[int] = []

        async def ask(client: httpx.AsyncClient, number: int) -> None:
            request = {"prompt": f"{number}", "n_predict": 60 if not number else 3}
            answer = await client.post("/completion", json={**request, "ignore_eos": True})
            assert answer.status_code == 200, answer.text
            done.append(number)

        async def n_there(client: httpx.AsyncClient) -> int:
            """Returns the number of requests that have reached the engine's queue."""
            n = len(done)  # read first: a request that ends meanwhile is missed, not counted twice
            text = (await client.get("/metrics")).text
            counts = re.findall(r"^llamacpp:requests_(?:processing|deferred) (\d+)", text, re.M)
            return n + sum(map(int, counts))

        async with httpx.AsyncClient(base_url=small.url, timeout=SECONDS) as client:
            tasks = []
            for number in range(8):
                tasks.append(asyncio.create_task(ask(client, number)))
                while await n_there(client) <= number:
                    pass
            await asyncio.gather(*tasks)
        return done

    assert asyncio.run(run()) == list(range(8))


def test_many_requests_at_once(own_server: Start) -> None:
    server = own_server("-np", "2")
    limits = httpx.Limits(max_connections=200)

    async def run() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=SECONDS, limits=limits) as client:
            requests = [
                client.post("/completion", json={"prompt": f"No. {n}", "n_predict": 3, "seed": n})
                for n in range(200)
            ]
            return await asyncio.gather(*requests)

    responses = asyncio.run(run())
    for n, response in enumerate(responses):
        assert contract.check(response)["prompt"] == f"No. {n}"
    assert len(server.wait_until_idle()) == 2
    again = complete(server, "No. 7", n_predict=3, seed=7, cache_prompt=False)
    assert again["content"] == responses[7].json()["content"]


@pytest.mark.parametrize("name", GENERATING)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_its_slot(
    name: str, stream: bool, module_server: Start, gone: Server
) -> None:
    endless = body(name, n_predict=8000, max_tokens=8000, ignore_eos=True, stream=stream)
    with httpx.Client(base_url=gone.url, timeout=SECONDS) as client, ThreadPoolExecutor(1) as pool:
        if stream:
            with client.stream("POST", path(name), json=endless) as response:
                next(response.iter_raw())
        else:
            request = pool.submit(client.post, path(name), json=endless)
            gone.wait_until_busy()
            close_connections(client)
            assert isinstance(request.exception(SECONDS), httpx.TransportError)
    [slot] = gone.wait_until_idle()
    assert 0 < slot["next_token"]["n_decoded"] < 7000, "it was served to its end"
    assert complete(gone)["tokens_predicted"]


def close_connections(client: httpx.Client) -> None:
    """Closes the sockets of a request that another thread waits for."""
    import socket

    transport: Any = client._transport
    for connection in transport._pool.connections:
        stream = connection._connection._network_stream
        stream.get_extra_info("socket").shutdown(socket.SHUT_RDWR)


@pytest.fixture(scope="module")
def gone(module_server: Start) -> Server:
    return module_server("-np", "1", "-c", "8192")


def test_a_client_that_goes_away_while_its_prompt_is_evaluated(gone: Server) -> None:
    prompt = "word " * 8000
    with httpx.Client(base_url=gone.url, timeout=SECONDS) as client, ThreadPoolExecutor(1) as pool:
        request = pool.submit(
            client.post, "/completion", json={"prompt": prompt, "n_predict": 8000}
        )
        wait_until(
            lambda: request.done() or gone.slots()[0]["is_processing"], "the prompt is evaluated"
        )
        close_connections(client)
        request.exception(SECONDS)
    gone.wait_until_idle()
    assert complete(gone)["tokens_predicted"]


# ---- prompts and tokens --------------------------------------------------------------------


def test_forms_of_a_prompt(server: Server) -> None:
    text = "The first part, and the second."
    tokens = tokens_of(server, text)
    options: dict[str, Any] = {"temperature": 0, "cache_prompt": False}
    expected = complete(server, text, **options)
    assert expected["prompt"] == text
    head = server.ask("/detokenize", {"tokens": tokens[:4]})["content"]
    tail = server.ask("/detokenize", {"tokens": tokens[4:]})["content"]
    for prompt in (tokens, [head, *tokens[4:]], [*tokens[:4], tail], {"prompt_string": text}):
        answer = complete(server, prompt, **options)
        assert answer["content"] == expected["content"], prompt
        assert answer["tokens_evaluated"] == len(tokens)
    several = complete(server, [text, tokens, [head, *tokens[4:]]], **options)
    assert [answer["content"] for answer in several] == [expected["content"]] * 3
    assert isinstance(complete(server, [text], **options), dict | list)


def test_an_empty_prompt(server: Server) -> None:
    answer = contract.check(server.post("/completion", {"prompt": "", "n_predict": 3}))
    assert answer["tokens_evaluated"] == 0 or answer["tokens_predicted"] <= 3


def test_special_tokens_in_texts(server: Server) -> None:
    eos = server.get("/props").json()["eos_token"]
    assert len(tokens_of(server, eos)) == 1
    assert len(tokens_of(server, eos, parse_special=False)) > 1


def test_add_special(spm: Server, server: Server) -> None:
    bos = spm.get("/props").json()["bos_token"]
    with_it = tokens_of(spm, "Hello", add_special=True)
    without = tokens_of(spm, "Hello", add_special=False)
    assert with_it[1:] == without
    assert spm.ask("/detokenize", {"tokens": with_it[:1]})["content"].strip() == bos
    assert complete(spm, "Hello")["tokens_evaluated"] == len(with_it)
    assert complete(spm, without)["tokens_evaluated"] == len(without)
    assert complete(spm, ["Hello"])["tokens_evaluated"] == len(with_it)
    mixed = complete(spm, [*without, "Hello"])
    assert mixed["tokens_evaluated"] == 2 * len(without)


def test_bytes_as_pieces(spm: Server) -> None:
    pieces = spm.ask("/tokenize", {"content": "é", "with_pieces": True})["tokens"]
    raw = b"".join(
        each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"])
        for each in pieces
    )
    assert raw.decode().strip() == "é"
    assert [195] in [each["piece"] for each in pieces]


# ---- chat templates and the command line ---------------------------------------------------

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<{{ who | default('assistant') }}>{% endif %}"
)
RENDERED = "<user>Tell me about llamas.<assistant>"


def test_chat_template(own_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "template.jinja"
    file.write_text(TEMPLATE)
    ways = (["--chat-template", TEMPLATE], ["--chat-template-file", str(file)])
    for arguments in ways:
        server = own_server(*arguments)
        assert server.get("/props").json()["chat_template"] == TEMPLATE
        request: dict[str, Any] = {"messages": MESSAGES}
        assert server.ask("/apply-template", request)["prompt"] == RENDERED
        request["chat_template_kwargs"] = {"who": "llama"}
        other = RENDERED.replace("assistant", "llama")
        assert server.ask("/apply-template", request)["prompt"] == other
        options = {"temperature": 0, "n_predict": 5, "cache_prompt": False}
        chat = server.ask("/v1/chat/completions", {"messages": MESSAGES, **options})
        assert plain_text(chat) == complete(server, RENDERED, **options)["content"]
    server = own_server(*ways[0], "--chat-template-kwargs", '{"who": "alpaca"}')
    prompt = server.ask("/apply-template", {"messages": MESSAGES})["prompt"]
    assert prompt == RENDERED.replace("assistant", "alpaca")


def test_api_prefix(own_server: Start) -> None:
    server = own_server("--api-prefix", "/llm/v9", api_key="key")
    contract.check(server.get("/health"))
    contract.check(server.post("/v1/completions", {"prompt": "a", "max_tokens": 2}))
    assert server.get("/openapi.json").json()["servers"][0]["url"] == "/llm/v9"
    outside = server.url.removesuffix("/llm/v9")
    known = {"Authorization": "Bearer key"}
    for where in ("/health", "/v1/models", "/llm/health"):
        response = httpx.get(outside + where, headers=known, timeout=SECONDS)
        contract.check_envelope(response, 404, "not_found_error")
        response = httpx.get(outside + where, timeout=SECONDS)
        contract.check_envelope(response, 401, "authentication_error")


def test_alias(own_server: Start) -> None:
    server = own_server("--alias", "zebra,llama")
    [model] = contract.check(server.get("/v1/models"))["data"]
    assert model["id"] == "llama"
    assert set(model["aliases"]) == {"llama", "zebra"}
    assert complete(server)["model"] == "llama"
    answer = server.ask("/v1/completions", {"prompt": "a", "max_tokens": 1, "model": "zebra"})
    assert answer["model"] == "llama"


def test_defaults_from_the_command_line(own_server: Start) -> None:
    server = own_server("-n", "3", "--temp", "0", "--top-k", "9", "-np", "2", "-c", "512")
    answer = server.ask("/completion", {"prompt": PROMPT, "ignore_eos": True})
    assert answer["tokens_predicted"] == 3
    settings = answer["generation_settings"]
    assert (settings["temperature"], settings["top_k"], settings["n_ctx"]) == (0, 9, 256)
    props = contract.check(server.get("/props"))
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["n_ctx"] == 256
    assert props["default_generation_settings"]["params"]["top_k"] == 9
