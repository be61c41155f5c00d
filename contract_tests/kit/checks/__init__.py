"""Checks that hold for every server of this API. Each checks a server and fails with a reason.

The tests run them against the server under test, and `mutants` against broken ones.
"""

import json
import secrets
from collections.abc import Sequence
from typing import Any

from contract_tests.kit import contract
from contract_tests.kit.bodies import NO_THOUGHT, PROMPT, body, path, with_query
from contract_tests.kit.checks.chats import OF_CHATS
from contract_tests.kit.checks.generation import OF_GENERATION
from contract_tests.kit.checks.media import OF_MEDIA
from contract_tests.kit.checks.quotas import OF_LIMITED_KEYS
from contract_tests.kit.checks.servers import OF_SERVERS
from contract_tests.kit.checks.vectors import OF_EMBEDDERS, OF_RERANKERS
from contract_tests.kit.events import Event, read_events, text_of
from contract_tests.kit.routers import LOADED, UNLOADED, following, models, set_status
from contract_tests.kit.server import Server, needs_key, wait_until

MALFORMED = (
    b"{",
    b'{"prompt": "a"',
    b"[1, 2,]",
    b"{'prompt': 'a'}",
    b"nonsense",
    b'{"prompt": NaN}',
    b'{"prompt": "a"} {}',
    b"",
)
STREAMS = ("create_completion", "create_openai_completion", "create_chat_completion")


def plain_answers_are_as_described(server: Server) -> None:
    for name in (*STREAMS, "tokenize", "detokenize", "apply_template"):
        contract.check(server.post(path(name), body(name)))
    for name in ("list_models", "get_props", "list_slots", "get_health"):
        contract.check(server.get(path(name)))


def malformed_json_is_refused(server: Server) -> None:
    for raw in MALFORMED:
        for name in ("create_completion", "tokenize"):
            response = server.post(
                path(name), content=raw, headers={"Content-Type": "application/json"}
            )
            contract.check(response, 400)


def errors_have_the_envelope(server: Server) -> None:
    contract.check_envelope(server.get("/no/such/path"), 404, "not_found_error")
    contract.check_envelope(server.http.delete("/props"), 405, "invalid_request_error")
    wrong = body("create_completion", n_predict="many")
    contract.check_envelope(server.post("/completion", wrong), 400, "invalid_request_error")
    n_vocab = server.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
    response = server.post("/detokenize", {"tokens": [n_vocab]})
    contract.check_envelope(response, 400, "invalid_request_error")
    contract.check(response, 400)


def keys_are_wanted(server: Server) -> None:
    """A server that has a key rejects missing and wrong keys."""
    key = needs_key(server)
    for headers in (
        {"Authorization": ""},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {key}x"},
        {"Authorization": f"Bearer {key[:-1]}"},
        {"Authorization": f"Basic {key}"},
        {"Authorization": "", "x-api-key": "wrong"},
    ):
        contract.check(server.get("/props", headers=headers), 401)
        contract.check(server.post("/tokenize", {"content": "a"}, headers=headers), 401)
    right = {"Authorization": "", "x-api-key": key}
    contract.check(server.get("/props", headers=right))


def stream(server: Server, name: str, **changes: Any) -> list[Event]:
    return server.events(path(name), body(name, **changes))


def streams_are_as_described(server: Server) -> None:
    for name in STREAMS:
        contract.check(server.post(path(name), body(name, n_predict=16, stream=True)))


def streams_say_the_same_as_plain_answers(server: Server) -> None:
    for name in STREAMS:
        events = stream(server, name, n_predict=24, cache_prompt=False)
        operation = contract.operations()[name]
        streamed = "".join(map(text_of, contract.check_stream(operation, events)))
        plain = server.ask(path(name), body(name, n_predict=24, cache_prompt=False))
        assert streamed == plain_text(plain), name


def streams_outlive_their_clients(server: Server) -> None:
    """A client that counts its received bytes gets the rest of its stream later."""
    name, conversation = "create_completion", secrets.token_hex(16)
    asked = body(name, n_predict=48, ignore_eos=True, cache_prompt=False)
    with server.http.stream(
        "POST",
        path(name),
        json={**asked, "stream": True},
        headers={"X-Conversation-Id": conversation},
    ) as response:
        begin = next(response.iter_raw())
    query = {"conv_id": conversation, "from": len(begin)}
    rest = server.get("/v1/stream", params=query)
    assert rest.status_code == 200, f"expected 200, got {rest.status_code}: {rest.text:.300}"
    events = [*read_events([begin + rest.content])]
    streamed = "".join(map(text_of, contract.check_stream(contract.operations()[name], events)))
    assert streamed == plain_text(server.ask(path(name), asked))


def plain_text(answer: Any) -> str:
    """Returns the text of an answer in any format."""
    if "content" in answer:
        return str(answer["content"])
    choice = answer["choices"][0]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def characters_stay_whole(server: Server) -> None:
    """No event ends inside a character, whatever bytes the model's tokens are."""
    for forced in (split_character(server), tokens_of(server, "é"), tokens_of(server, "日本")):
        events = forced_stream(server, forced)
        documents = contract.check_stream(contract.operations()["create_completion"], events)
        text = "".join(map(text_of, documents))
        whole = server.ask("/completion", forced_body(forced))["content"]
        assert text == whole, (text, whole)


def tokens_of(server: Server, text: str) -> list[int]:
    tokens: list[int] = server.ask("/tokenize", {"content": text})["tokens"]
    return tokens


def split_character(server: Server) -> list[int]:
    """Returns the tokens of a character that hardly any vocabulary has as one token."""
    return tokens_of(server, "\U0001f999")


def forced_body(tokens: Sequence[int], **changes: Any) -> dict[str, Any]:
    """Returns a request whose text consists of `tokens` only, in an order that the model
    chooses."""
    bias = [[token, 1000.0] for token in dict.fromkeys(tokens)]
    request: dict[str, Any] = body(
        "create_completion",
        logit_bias=bias,
        n_predict=32,
        temperature=5,
        ignore_eos=True,
        cache_prompt=False,
        **changes,
    )
    return request


def forced_stream(server: Server, tokens: Sequence[int], **changes: Any) -> list[Event]:
    return server.events("/completion", forced_body(tokens, **changes))


def stop_texts_are_never_shown(server: Server) -> None:
    """A stop text is not shown, in whole or in part, even if it spans two tokens."""
    request = body("create_completion", n_predict=40, temperature=0, ignore_eos=True)
    documents = [event.json for event in server.events("/completion", request)]
    pieces = [document["content"] for document in documents if document["content"]]
    text = "".join(pieces)
    at = len(pieces[0])
    straddling = text[at - 1 : at + 2]
    inside = text[len(text) // 2 : len(text) // 2 + 4]
    for stop in (straddling, inside):
        expected = text[: text.index(stop)]
        plain = server.ask("/completion", {**request, "stop": [stop, "never \x00 said"]})
        assert plain["content"] == expected, stop
        assert (plain["stop_type"], plain["stopping_word"]) == ("word", stop)
        shown = [event.json for event in server.events("/completion", {**request, "stop": stop})]
        assert "".join(document["content"] for document in shown) == expected, stop
        assert shown[-1]["stop_type"] == "word"


def counts_add_up(server: Server) -> None:
    """Every token count in every format agrees with /tokenize."""
    n_prompt = len(server.ask("/tokenize", {"content": PROMPT, "add_special": True})["tokens"])
    request = {"prompt": PROMPT, "n_predict": 5, "ignore_eos": True, "return_tokens": True}
    for _ in range(2):  # the second time most of the prompt is cached
        native = server.ask("/completion", request)
        timings = native["timings"]
        assert native["tokens_evaluated"] == n_prompt
        assert native["tokens_predicted"] == len(native["tokens"]) == timings["predicted_n"] == 5
        assert native["tokens_cached"] == timings["cache_n"]
        assert timings["cache_n"] + timings["prompt_n"] == n_prompt
    counts = {"prompt_tokens": n_prompt, "completion_tokens": 5, "total_tokens": n_prompt + 5}
    usage = server.ask("/v1/completions", request)["usage"]
    assert {name: usage[name] for name in counts} == counts
    [*_, last, end] = server.events("/v1/completions", request)
    assert end.data == "[DONE]"
    assert {name: last.json["usage"][name] for name in counts} == counts

    chat = body("create_chat_completion", max_tokens=5, ignore_eos=True)
    rendered = server.ask("/apply-template", {"messages": chat["messages"], **NO_THOUGHT})["prompt"]
    n_chat = len(server.ask("/tokenize", {"content": rendered, "add_special": True})["tokens"])
    usage = server.ask("/v1/chat/completions", chat)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (n_chat, 5)
    assert usage["total_tokens"] == n_chat + 5
    [*_, last, end] = server.events(
        "/v1/chat/completions", {**chat, "stream_options": {"include_usage": True}}
    )
    assert last.json["choices"] == []
    assert last.json["usage"]["total_tokens"] == n_chat + 5


def ollamas_clients_are_served(server: Server) -> None:
    """Lines in Ollama's format add up to the plain answer, and errors are texts."""
    request = body("create_ollama_generation", stream=True)
    *pieces, last = contract.check(server.post("/api/generate", request))
    whole = contract.check(server.post("/api/generate", {**request, "stream": False}))
    assert "".join(piece["response"] for piece in pieces) == whole["response"]
    assert last["context"] == whole["context"]
    contract.check(server.post("/api/generate", {"prompt": 5}), 400)


def slots_keep_texts(server: Server) -> None:
    """Slots don't show texts unless an option switches that on."""
    request = body("create_completion", prompt="secret 5518", stop=["never 5518"])
    server.ask("/completion", request)
    shown = json.dumps(server.slots())
    at = shown.find("5518")
    assert at < 0, f"the slots show what a client has written: {shown[max(at - 30, 0) : at + 30]}"


def slots_count_what_they_hold(server: Server) -> None:
    """A slot counts the prompt and the generated tokens without the last one."""
    server.ask("/completion", body("create_completion", n_predict=5, ignore_eos=True))
    slot = max(server.wait_until_idle(), key=lambda slot: int(slot.get("id_task", -1)))
    n_prompt = slot["n_prompt_tokens_processed"] + slot["n_prompt_tokens_cache"]
    assert slot["next_token"]["n_decoded"] == 5
    assert slot["n_prompt_tokens"] == n_prompt + 4


def tokens_and_text_correspond(server: Server) -> None:
    """Tokens and text correspond if the model's tokenizer loses nothing."""
    for text in ("Hello world", "  two\n\n\tlines ", "naïve \U0001f999 日本", "<|im_start|>", ""):
        tokens = server.ask("/tokenize", {"content": text})["tokens"]
        assert server.ask("/detokenize", {"tokens": tokens})["content"] == text
        pieces = server.ask("/tokenize", {"content": text, "with_pieces": True})["tokens"]
        assert [piece["id"] for piece in pieces] == tokens
        joined = b"".join(
            piece["piece"].encode() if isinstance(piece["piece"], str) else bytes(piece["piece"])
            for piece in pieces
        )
        assert joined.decode() == text, json.dumps(pieces)
        assert all(
            isinstance(piece["piece"], str) or not _is_utf8(bytes(piece["piece"]))
            for piece in pieces
        ), "a piece that is valid text is sent as bytes"


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


# ---- of a router ---------------------------------------------------------------------------


def models_are_as_described(server: Server) -> None:
    for name in ("list_models", "list_ollama_models"):
        contract.check(server.get(path(name)))


def requests_reach_their_models(server: Server) -> None:
    """Every model has its own properties and its own name in answers; unknown names are
    rejected."""
    for name, model in models(server).items():
        props = contract.check(server.get(with_query("get_props", model=name)))
        assert props["model_alias"] == name
        assert props["model_path"] == model["path"]
        capabilities = [each["capabilities"] for each in server.get("/models").json()["models"]
                        if each["name"] == name]  # fmt: skip
        if "completion" in capabilities[0]:
            answer = server.ask("/completion", body("create_completion", model=name))
            assert answer["model"] == name


def unknown_models_are_refused(server: Server) -> None:
    """A server with several models rejects unknown names; with one model it accepts any name."""
    expected = dict.fromkeys(("create_completion", "create_chat_completion", "tokenize"), 400)
    for operation, status in {**expected, "load_model": 404}.items():
        response = server.post(path(operation), body(operation, model="contract-tests-missing"))
        if len(models(server)) > 1:
            contract.check(response, status)


def looking_for_models_needs_the_key(server: Server) -> None:
    needs_key(server)
    wrong = {"Authorization": "Bearer no"}
    contract.check(server.http.get("/models", headers=wrong))
    contract.check(server.http.get("/models?reload=1", headers=wrong), 401)
    contract.check(server.get("/models?reload=1"))


def only_downloads_can_be_removed(server: Server) -> None:
    for name, model in models(server).items():
        if not model["can_remove"]:
            refused = server.http.request("DELETE", "/models", params={"model": name})
            contract.check(refused, 400)


def present_models_are_not_downloaded(server: Server) -> None:
    for name in models(server):
        contract.check(server.post("/models", {"model": name}), 400)


def changes_of_models_are_announced(server: Server) -> None:
    """Unloading and loading the default model are announced as events."""
    name = contract.check(server.get("/props"))["model_alias"]
    with following(server) as events:
        for value in (LOADED, UNLOADED, LOADED):
            set_status(server, name, value)
        wait_until(
            lambda: events.states(name)[-4:] == [LOADED, UNLOADED, "loading", LOADED],
            "the changes are announced",
        )


OF_ROUTERS = (
    models_are_as_described,
    requests_reach_their_models,
    unknown_models_are_refused,
    looking_for_models_needs_the_key,
    only_downloads_can_be_removed,
    present_models_are_not_downloaded,
    changes_of_models_are_announced,
)
ALL = (
    streams_outlive_their_clients,
    plain_answers_are_as_described,
    malformed_json_is_refused,
    errors_have_the_envelope,
    keys_are_wanted,
    slots_keep_texts,
    ollamas_clients_are_served,
    slots_count_what_they_hold,
    streams_are_as_described,
    streams_say_the_same_as_plain_answers,
    characters_stay_whole,
    stop_texts_are_never_shown,
    counts_add_up,
    tokens_and_text_correspond,
    *OF_GENERATION,
    *OF_CHATS,
    *OF_SERVERS,
    *OF_MEDIA,
    *OF_EMBEDDERS,
    *OF_RERANKERS,
    *OF_LIMITED_KEYS,
)
"""Checks of operations that a server doesn't offer are skipped."""
