"""Every event of every kind of stream."""

import os
from typing import Any

import pytest

from contract_tests.kit import checks, contract
from contract_tests.kit.bodies import BODIES, GENERATING, PROMPT, body, path
from contract_tests.kit.events import Event, check_events, read_events, text_of
from contract_tests.kit.server import Server, Start

CHAT = [name for name in GENERATING if "chat" in name]
TEXT = [name for name in GENERATING if "chat" not in name]
NATIVE = [name for name in TEXT if "openai" not in name]


def documents(server: Server, name: str, **changes: Any) -> list[Any]:
    """Returns the validated documents of a whole stream."""
    events = server.events(path(name), body(name, **changes))
    return contract.check_stream(contract.operations()[name], events)


def is_last(document: Any, index: int = 0) -> bool:
    """True if this event ends the text of prompt `index`."""
    if "choices" not in document:
        return bool(document["stop"] and document["index"] == index)
    return any(c["index"] == index and c["finish_reason"] for c in document["choices"])


@pytest.mark.parametrize("name", GENERATING)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"timings_per_token": True},
        {"return_tokens": True},
        {"stream_options": {"include_usage": True}},
        {"n_predict": 0},
        {"n_predict": 1},
        {"stop": ["e", "a"], "n_predict": 20},
        {"temperature": 0, "n_predict": 12, "ignore_eos": True},
    ],
    ids=lambda changes: "-".join(changes) or "plain",
)
def test_stream(name: str, changes: dict[str, Any], server: Server) -> None:
    request = {"n_predict": 8, "cache_prompt": False, **changes}
    streamed = documents(server, name, **request)
    assert sum(map(is_last, streamed)) == 1
    plain = server.ask(path(name), body(name, **request))
    assert "".join(map(text_of, streamed)) == checks.plain_text(plain)
    if request.get("timings_per_token"):
        assert all("timings" in each for each in streamed if text_of(each))
        counts = [each["timings"]["predicted_n"] for each in streamed if "timings" in each]
        assert counts == sorted(counts)
        assert counts[-1] <= 8


@pytest.mark.parametrize("name", NATIVE)
def test_tokens_of_all_events_are_those_of_the_text(name: str, server: Server) -> None:
    request = {"n_predict": 12, "cache_prompt": False, "ignore_eos": True}
    streamed = documents(server, name, **request)
    tokens = [token for document in streamed for token in document["tokens"]]
    plain = server.ask(path(name), body(name, **request, return_tokens=True))
    assert tokens == plain["tokens"]
    assert len(tokens) == 12
    last = {**streamed[-1], "content": plain["content"], "tokens": tokens}
    different = {name for name in plain if plain[name] != last[name]}
    assert different <= {"timings", "generation_settings", "id_slot"}


@pytest.mark.parametrize("name", TEXT)
@pytest.mark.parametrize("changes", [{"n_predict": 4}, {"stop": ["e", "a"], "n_predict": 40}])
def test_the_last_event_has_no_text(name: str, changes: dict[str, Any], server: Server) -> None:
    *most, last = documents(server, name, ignore_eos=True, n_probs=1, **changes)
    assert text_of(last) == ""
    if name in NATIVE:
        assert last["tokens"] == []
        assert sum(len(each["tokens"]) for each in most) == last["tokens_predicted"]
        assert "completion_probabilities" not in last
    else:
        assert last["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("prompt", ["A text, ", [12, "and", 34]])
def test_an_echo_comes_first(prompt: Any, server: Server) -> None:
    name = "create_openai_completion"
    request = {"prompt": prompt, "n_predict": 6, "cache_prompt": False, "seed": 3, "n": 2}
    pieces = [prompt] if isinstance(prompt, str) else prompt
    texts = [
        piece
        if isinstance(piece, str)
        else server.ask("/detokenize", {"tokens": [piece]})["content"]
        for piece in pieces
    ]
    plain = server.ask(path(name), body(name, **request))
    echoed = server.ask(path(name), body(name, **request, echo=True))
    for before, after in zip(plain["choices"], echoed["choices"], strict=True):
        assert after["text"] == "".join(texts) + before["text"]
    assert echoed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    streamed = documents(server, name, **request, echo=True)
    for index, choice in enumerate(echoed["choices"]):
        assert "".join(text_of(document, index) for document in streamed) == choice["text"]


@pytest.mark.parametrize("name", [name for name in TEXT if "prompt" in BODIES[name]])
def test_several_prompts(name: str, server: Server) -> None:
    prompts = [PROMPT, [12, 34, "and", 56], "Another one", [7, 8]]
    request = {"prompt": prompts, "n_predict": 6, "cache_prompt": False, "seed": 3}
    streamed = documents(server, name, **request)
    plain = server.ask(path(name), body(name, **request))
    results = plain if isinstance(plain, list) else plain["choices"]
    assert [result["index"] for result in results] == list(range(len(prompts)))
    for index, result in enumerate(results):
        assert sum(is_last(document, index) for document in streamed) == 1
        text = "".join(text_of(document, index) for document in streamed)
        assert text == result["text" if "text" in result else "content"]
        alone = server.ask(path(name), body(name, **{**request, "prompt": prompts[index]}))
        assert text == checks.plain_text(alone)
    if "usage" in plain:
        assert streamed[-1]["usage"] == plain["usage"]


@pytest.mark.parametrize("name", CHAT)
def test_a_chat_stream_begins_with_the_role(name: str, server: Server) -> None:
    first, *rest = documents(server, name)
    [choice] = first["choices"]
    assert choice["delta"] == {"role": "assistant", "content": None}
    assert not any("role" in c["delta"] for each in rest for c in each["choices"])
    assert {each["id"] for each in rest} == {first["id"]}


@pytest.mark.parametrize("name", CHAT)
@pytest.mark.parametrize("include_usage", [True, False])
def test_usage_comes_when_it_is_asked_for(name: str, include_usage: bool, server: Server) -> None:
    options: dict[str, Any] = {"include_usage": include_usage}
    *most, last = documents(server, name, stream_options=options)
    assert ("usage" in last) == include_usage
    assert (last["choices"] == []) == include_usage
    assert not any("usage" in each for each in most)


def test_responses_are_event_streams(server: Server) -> None:
    for name in GENERATING:
        with server.stream(path(name), body(name)) as (response, events):
            assert response.headers["content-type"].startswith("text/event-stream")
            assert "content-length" not in response.headers
            list(events)


@pytest.mark.parametrize("name", GENERATING)
def test_a_silent_stream_has_comments(name: str, own_server: Start) -> None:
    server = own_server("-np", "1", "--sse-ping-interval", "1")
    engine = server.engine()
    request = {**body(name, n_predict=200, max_tokens=200, ignore_eos=True), "stream": True}
    with server.http.stream("POST", path(name), json=request) as response:
        pieces = response.iter_raw()
        seen = [next(pieces)]
        engine.suspend()
        while b":\n\n" not in seen[-1]:
            seen.append(next(pieces))
        engine.resume()
        seen += pieces
    events = list(read_events(seen))
    assert contract.check_stream(contract.operations()[name], events)


def test_characters_stay_whole(server: Server) -> None:
    """Tests OpenAI's formats; `checks` tests the native one."""
    forced = checks.split_character(server)
    for name in ("create_openai_completion", "create_chat_completion"):
        request = checks.forced_body(forced)
        changes = {key: request[key] for key in request if key not in ("prompt", "seed")}
        texts = map(text_of, documents(server, name, **changes))
        plain = server.ask(path(name), body(name, **changes))
        assert "".join(texts) == checks.plain_text(plain)


@pytest.mark.parametrize("name", GENERATING)
def test_an_engine_that_dies_ends_streams_with_an_error(name: str, own_server: Start) -> None:
    server = own_server("-np", "2")
    request = body(name, n_predict=6000, max_tokens=6000, ignore_eos=True)
    with server.stream(path(name), request) as (response, stream):
        seen = [next(stream) for _ in range(3)]
        server.kill_engine()
        seen += stream
    assert response.status_code == 200
    *most, last = contract.check_stream(contract.operations()[name], seen)
    assert last["error"]["type"] == "server_error"
    assert last["error"]["code"] == 500
    assert not any("error" in each for each in most)
    assert documents(server, name), "the next request finds a working engine"


# ---- the reader itself ---------------------------------------------------------------------


def test_reader() -> None:
    raw = b': hi\n\ndata: {"a":\ndata: 1}\r\n\r\nevent: error\ndata:x\n\n' + os.linesep.encode()
    expected = [Event('{"a":\n1}'), Event("x", "error")]
    assert list(read_events([raw])) == expected
    assert list(read_events(raw[i : i + 1] for i in range(len(raw)))) == expected


@pytest.mark.parametrize(
    "raw", [b"data: x", b"data: x\n", b"data: \xc3\n\ndata: \xa9\n\n", b"text\n\n", b"<html>\n\n"]
)
def test_reader_is_strict(raw: bytes) -> None:
    with pytest.raises(AssertionError):
        list(read_events([raw]))


@pytest.mark.parametrize(
    "data",
    [
        [],
        ["[DONE]", "[DONE]"],
        ['{"a": 1}'],
        ['{"a": 1}', "[DONE]"],
        ['{"error": 1}', "[DONE]"],
        ['{"error": 1}', '{"error": 1}'],
        ["nonsense", "[DONE]"],
        ['{"error": 2}'],
    ],
)
def test_validation_is_strict(data: list[str]) -> None:
    media = {
        "schema": {"type": "object", "required": ["data"]},
        "x-event-data-schema": {"type": "object", "properties": {"error": {"enum": [1]}},
                                "required": ["error"]},
        "x-event-end": "[DONE]",
    }  # fmt: skip
    assert check_events(media, [Event('{"error": 1}')])
    with pytest.raises(AssertionError):
        check_events(media, [Event(each) for each in data])
