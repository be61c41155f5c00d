"""OpenAI's Responses API on a live server: answers, streams, and stored responses."""

import asyncio
import base64
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from contract_tests.kit import contract, rounding
from contract_tests.kit.bodies import NO_THOUGHT, RESPONSES, body, path
from contract_tests.kit.server import SECONDS, Server, Start, wait_until

COLOUR = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green"]}, "ripe": {"type": "boolean"}},
    "required": ["colour", "ripe"],
    "additionalProperties": False,
}
FORM = {"format": {"type": "json_schema", "name": "fruit", "schema": COLOUR, "strict": True}}
ENDS = {
    "reasoning": {"effort": "none"},
    "text": FORM,
    "max_output_tokens": 200,
}  # the answer ends by itself
Items = list[dict[str, Any]]


def ask(server: Server, **changes: Any) -> Any:
    return contract.check(server.post("/v1/responses", body("create_response", **changes)))


def events(server: Server, name: str = "create_response", **changes: Any) -> list[Any]:
    """Returns the validated documents of a whole stream, after checking event names and numbers."""
    found = server.events(path(name), body(name, **changes))
    documents = contract.check_stream(contract.operations()[name], found)
    assert [each.event for each in found] == [each["type"] for each in documents]
    assert [each["sequence_number"] for each in documents] == list(range(len(found)))
    return documents


def text_of(response: Any) -> str:
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
    )


def without_ids(value: Any) -> Any:
    """Returns a response without the parts that differ each time."""
    if isinstance(value, list):
        return [without_ids(each) for each in value]
    if not isinstance(value, dict):
        return value
    different = ("id", "item_id", "created_at", "completed_at", "timings")
    return {key: without_ids(each) for key, each in value.items() if key not in different}


def refusal(server: Server, status: int = 400, **changes: Any) -> str:
    response = server.post("/v1/responses", body("create_response", **changes))
    return str(contract.check(response, status)["error"]["message"])


# ---- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESPONSES)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"max_output_tokens": 24, "temperature": 0},
        {"n_predict": 0},
        {"stop": ["e", "a"], "max_output_tokens": 20},
        ENDS,
        {"top_logprobs": 2},
        {"include": ["message.output_text.logprobs"], **ENDS},
        {"n_probs": 1, "post_sampling_probs": True},
        {"timings_per_token": True},
        {"store": False},
        {"instructions": "You are short.", "metadata": {"a": "b"}, "user": "u"},
    ],
    ids=lambda changes: "-".join(changes) or "plain",
)
def test_a_stream_says_the_same_as_a_plain_answer(
    name: str, changes: dict[str, Any], server: Server
) -> None:
    request = {"cache_prompt": False, **changes}
    plain = contract.check(server.post(path(name), body(name, **request)))
    streamed = events(server, name, **request)
    kinds = [each["type"] for each in streamed]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == f"response.{plain['status']}"
    last, whole = without_ids(streamed[-1]["response"]), without_ids(plain)
    rounding.check_same(server, last["output"], whole["output"])
    assert last == whole
    assert streamed[0]["response"]["id"] == streamed[-1]["response"]["id"] != plain["id"]
    deltas = [each for each in streamed if each["type"] == "response.output_text.delta"]
    assert "".join(each["delta"] for each in deltas) == text_of(plain)
    [*_, message] = plain["output"]
    tokens = [token for each in deltas for token in each["logprobs"]]
    assert message["content"][0]["logprobs"][: len(tokens)] == tokens
    if "timings_per_token" in changes:
        assert all("timings" in each for each in deltas)


def test_whole_numbers_may_be_written_as_fractions(server: Server) -> None:
    asked = ask(server, max_output_tokens=3.0, max_tool_calls=2.0, top_logprobs=0.0)
    assert (asked["max_output_tokens"], asked["max_tool_calls"]) == (3, 2)


def test_fields_of_a_response(server: Server) -> None:
    first = ask(server, max_output_tokens=3, ignore_eos=True, model="some/name")
    assert first["status"] == "incomplete"
    assert first["incomplete_details"] == {"reason": "max_output_tokens"}
    assert first["completed_at"] is None
    assert first["usage"]["output_tokens"] == 3
    assert first["model"] == server.get("/v1/models").json()["data"][0]["id"]
    [item] = first["output"]
    assert item["status"] == "incomplete"
    whole = ask(server, temperature=0.25, **ENDS)
    assert whole["status"] == "completed"
    assert whole["incomplete_details"] is None
    assert whole["completed_at"] >= whole["created_at"]
    assert whole["temperature"] == 0.25
    assert json.loads(text_of(whole)).keys() == {"colour", "ripe"}
    assert whole["text"]["format"] == FORM["format"]


@pytest.mark.parametrize("name", RESPONSES)
def test_usage(name: str, server: Server) -> None:
    request = body(name, id_slot=2, input="Usage of the Responses API")
    server.ask(path(name), request)
    answer = contract.check(server.post(path(name), request))
    usage, timings = answer["usage"], answer["timings"]
    n_prompt = timings["cache_n"] + timings["prompt_n"]
    assert usage["input_tokens"] == n_prompt
    assert usage["input_tokens_details"] == {"cached_tokens": n_prompt - 1, "cache_write_tokens": 1}
    assert usage["total_tokens"] == n_prompt + usage["output_tokens"]
    counted = contract.check(server.post(f"{path(name)}/input_tokens", request))
    assert counted == {"object": "response.input_tokens", "input_tokens": n_prompt}


def test_a_response_is_a_chat_completion(server: Server) -> None:
    """The same model, template and samplers generate the same words."""
    options: dict[str, Any] = {
        "seed": 11,
        "temperature": 0.7,
        "n_predict": 16,
        "cache_prompt": False,
        **NO_THOUGHT,
    }
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
        {"type": "message", "role": "user", "content": "Tell me about llamas."},
    ]
    texts = ("Hello", "Hi.", "Tell me about llamas.")
    roles = ("user", "assistant", "user")
    messages = [{"role": "system", "content": "Be short."}]
    messages += [{"role": r, "content": t} for r, t in zip(roles, texts, strict=True)]
    chat = server.ask("/v1/chat/completions", {"messages": messages, **options})
    response = ask(server, input=items, instructions="Be short.", **options)
    assert text_of(response) == chat["choices"][0]["message"]["content"]
    assert response["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    counted = server.ask("/v1/chat/completions/input_tokens", {"messages": messages, **NO_THOUGHT})
    assert counted["input_tokens"] == chat["usage"]["prompt_tokens"]


def test_progress_of_the_prompt(server: Server) -> None:
    streamed = events(server, return_progress=True, cache_prompt=False)
    progress = [each["prompt_progress"] for each in streamed if "prompt_progress" in each]
    assert progress[-1]["processed"] == progress[-1]["total"]
    assert streamed[2]["type"] == "response.in_progress"


@pytest.mark.parametrize("n_items", [1000])
def test_many_items(n_items: int, own_server: Start) -> None:
    # The generated text doesn't matter here, and evaluating all items takes long.
    last = "{{ messages | length }} messages: {{ messages[-1].content }}"
    server = own_server("-np", "1", "--chat-template", last)
    both = ({"role": "user", "content": "{}?"}, {"role": "assistant", "content": "A"})
    items = [
        {**both[i % 2], "content": both[i % 2]["content"].format(i)} for i in range(n_items - 1)
    ]
    answer = contract.check(
        server.post("/v1/responses", {"input": items, "max_output_tokens": 2, "seed": 1})
    )
    seen: Items = []
    query = "?order=asc&limit=100"
    while True:
        where = f"/v1/responses/{answer['id']}/input_items{query}"
        page = contract.check(server.get(where))
        seen += page["data"]
        if not page["has_more"]:
            break
        query = f"?order=asc&limit=100&after={page['last_id']}"
    assert len(seen) == n_items - 1
    assert [each["content"][0]["text"] for each in seen[:3]] == ["0?", "A", "2?"]


# ---- stored responses ----------------------------------------------------------------------------


def test_a_response_is_kept(server: Server) -> None:
    made = ask(server, metadata={"topic": "llamas"}, top_logprobs=1)
    kept = contract.check(server.get(f"/v1/responses/{made['id']}"))
    assert kept == {key: made[key] for key in made if key != "timings"}
    streamed = events(server)[-1]["response"]
    assert contract.check(server.get(f"/v1/responses/{streamed['id']}")) == streamed
    for _ in range(2):
        where = f"/v1/responses/{made['id']}/input_items"
        page = contract.check(server.get(where))
        [item] = page["data"]
        assert item["content"] == [{"type": "input_text", "text": "Tell me about llamas."}]
        assert (page["first_id"], page["last_id"], page["has_more"]) == (
            item["id"], item["id"], False,
        )  # fmt: skip
    gone = contract.check(server.http.delete(f"/v1/responses/{made['id']}"))
    assert gone == {"id": made["id"], "object": "response", "deleted": True}
    for method, tail in (("GET", ""), ("DELETE", ""), ("GET", "/input_items")):
        response = server.http.request(method, f"/v1/responses/{made['id']}{tail}")
        assert made["id"] in contract.check(response, 404)["error"]["message"]


def test_store_false_keeps_no_response(server: Server) -> None:
    for made in (ask(server, store=False), events(server, store=False)[-1]["response"]):
        assert not made["store"]
        contract.check(server.get(f"/v1/responses/{made['id']}"), 404)
        assert made["id"] in refusal(server, previous_response_id=made["id"])


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_continues(stream: bool, server: Server) -> None:
    options: dict[str, Any] = {
        "seed": 3,
        "n_predict": 12,
        "cache_prompt": False,
        "ignore_eos": True,
    }
    first = ask(server, input="My name is Ann.", instructions="Be kind.", **options)
    changes = {"input": "What is it?", "previous_response_id": first["id"], **options}
    changes["instructions"] = "Be short."
    second = events(server, **changes)[-1]["response"] if stream else ask(server, **changes)
    assert second["previous_response_id"] == first["id"]
    # The instructions of the first request are not carried over.
    spelled = [
        {"role": "user", "content": "My name is Ann."},
        *first["output"],
        {"role": "user", "content": "What is it?"},
    ]
    same = ask(server, input=spelled, instructions="Be short.", **options)
    assert without_ids(same["output"]) == without_ids(second["output"])
    assert same["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    counted = server.ask("/v1/responses/input_tokens", body("create_response", **changes))
    assert counted["input_tokens"] == second["usage"]["input_tokens"]
    # References by the items' ids work, too.
    [item] = server.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    by_id = [{"type": "item_reference", "id": each["id"]} for each in (item, first["output"][0])]
    again = ask(server, input=[*by_id, spelled[-1]], instructions="Be short.", **options)
    assert without_ids(again["output"]) == without_ids(second["output"])
    third = ask(server, input="So?", previous_response_id=second["id"], **options)
    assert third["usage"]["input_tokens"] > second["usage"]["input_tokens"]
    server.http.delete(f"/v1/responses/{first['id']}")
    assert first["id"] in refusal(server, previous_response_id=third["id"])


# ---- in the background -----------------------------------------------------------------------

LONG = {"n_predict": 400, "ignore_eos": True, "max_output_tokens": 400}


def state(server: Server, id: str) -> Any:
    return contract.check(server.get(f"/v1/responses/{id}"))


def ended(server: Server, id: str) -> Any:
    """Waits until a response in the background has ended, and returns it."""
    wait_until(lambda: state(server, id)["status"] not in ("queued", "in_progress"), f"{id} ends")
    return state(server, id)


def test_a_response_in_the_background_equals_a_plain_answer(server: Server) -> None:
    plain = ask(server)
    begun = ask(server, background=True)
    assert (begun["status"], begun["output"], begun["usage"]) == ("queued", [], None)
    whole = ended(server, begun["id"])
    assert whole["background"]
    assert whole["status"] == plain["status"]
    assert without_ids(whole["output"]) == without_ids(plain["output"])
    page = contract.check(server.get(f"/v1/responses/{begun['id']}/input_items"))
    assert [each["role"] for each in page["data"]] == ["user"]
    again = ask(server, previous_response_id=begun["id"])
    assert again["usage"]["input_tokens"] > plain["usage"]["input_tokens"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_in_the_background_goes_on_without_its_client(
    stream: bool, server: Server
) -> None:
    asked = body("create_response", background=True, stream=stream, **LONG)
    if stream:
        with server.stream("/v1/responses", asked) as (_, found):
            first = json.loads(next(found).data)
        id = first["response"]["id"]
    else:
        id = ask(server, background=True, **LONG)["id"]
    whole = ended(server, id)
    assert whole["status"] == "incomplete"
    assert whole["usage"]["output_tokens"] == LONG["n_predict"]


def test_a_response_in_the_background_has_its_input_from_the_start(server: Server) -> None:
    asked = [{"role": "user", "content": each} for each in ("One.", "Two.")]
    id = ask(server, background=True, input=asked, **LONG)["id"]
    where = f"/v1/responses/{id}/input_items"
    page = contract.check(server.get(where))
    assert [each["content"][0]["text"] for each in page["data"]] == ["Two.", "One."]
    first = contract.check(server.get(where, params={"limit": 1, "order": "asc"}))
    assert (first["data"], first["has_more"]) == (page["data"][1:], True)
    contract.check(server.get(where, params={"after": "msg_0"}), 400)
    whole = contract.check(server.post(f"/v1/responses/{id}/cancel", None))
    assert whole["status"] in ("cancelled", "incomplete")  # it may have ended before
    assert contract.check(server.get(where)) == page


def test_a_response_in_the_background_is_cancelled(server: Server) -> None:
    running = [ask(server, background=True, **LONG)["id"] for _ in range(6)]
    for id in running:
        for _ in range(2):
            cancelled = contract.check(server.post(f"/v1/responses/{id}/cancel", None))
            assert cancelled["status"] in ("cancelled", "incomplete")  # it may have ended before
            assert state(server, id) == cancelled
    assert "cancelled" in {state(server, id)["status"] for id in running}
    server.wait_until_idle()
    done = ended(server, ask(server, background=True)["id"])
    assert contract.check(server.post(f"/v1/responses/{done['id']}/cancel", None)) == done


def test_a_response_in_the_background_is_deleted(server: Server) -> None:
    id = ask(server, background=True, **LONG)["id"]
    contract.check(server.http.delete(f"/v1/responses/{id}"))
    contract.check(server.get(f"/v1/responses/{id}"), 404)
    server.wait_until_idle()


def test_a_response_in_the_background_fails(server: Server) -> None:
    id = ask(server, background=True, input="word " * 20_000)["id"]
    failed = ended(server, id)
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "invalid_prompt"
    assert "context" in failed["error"]["message"]
    streamed = server.post("/v1/responses", body(
        "create_response", background=True, stream=True, input="word " * 20_000))  # fmt: skip
    assert contract.check(streamed, 400)["error"]["type"] == "exceed_context_size_error"


def test_the_end_of_the_server_cancels_background_responses(
    own_server: Start, tmp_path: Path
) -> None:
    file = str(tmp_path / "responses.db")
    server = own_server("--responses-db", file)
    running = [ask(server, background=True, **LONG)["id"] for _ in range(12)]
    server.stop()
    server = own_server("--responses-db", file)
    ends = [state(server, id)["status"] for id in running]
    assert set(ends) <= {"cancelled", "incomplete"}
    assert ends[-1] == "cancelled"


def test_many_at_once(server: Server) -> None:
    first = ask(server)

    async def run() -> list[httpx.Response]:
        async with httpx.AsyncClient(
            base_url=server.url, headers=server.auth, timeout=SECONDS
        ) as client:
            requests = [
                client.post(
                    "/v1/responses",
                    json=body("create_response", input=f"{n}", previous_response_id=first["id"]),
                )
                for n in range(12)
            ]
            return await asyncio.gather(*requests)

    ids = {contract.check(each)["id"] for each in asyncio.run(run())}
    assert len(ids) == 12
    for id in ids:
        assert (
            contract.check(server.get(f"/v1/responses/{id}"))["previous_response_id"]
            == (first["id"])
        )


def test_a_file_keeps_them_over_a_restart(own_server: Start, tmp_path: Path) -> None:
    file = str(tmp_path / "responses.db")
    server = own_server("--responses-db", file)
    first = ask(server, input="My name is Ann.")
    server.stop()
    server = own_server("--responses-db", file)
    assert contract.check(server.get(f"/v1/responses/{first['id']}"))["output"] == first["output"]
    second = ask(server, previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


def test_a_file_that_is_no_database(own_server: Start, tmp_path: Path) -> None:
    file = tmp_path / "responses.db"
    file.write_bytes(b"GGUF" * 1000)
    with pytest.raises(AssertionError, match=r"--responses-db .*responses.db: file is not a data"):
        own_server("--responses-db", str(file))


# ---- truncation ------------------------------------------------------------------------------


def test_truncation(own_server: Start) -> None:
    server = own_server("-c", "512", "-np", "1")
    turns = [{"role": "user", "content": f"{i} " + "word " * 20} for i in range(40)]
    response = server.post("/v1/responses", body("create_response", input=turns))
    assert contract.check(response, 400)["error"]["type"] == "exceed_context_size_error"
    options: dict[str, Any] = {
        "truncation": "auto",
        "instructions": "Be short.",
        "max_output_tokens": 8,
        **NO_THOUGHT,
    }
    answer = ask(server, input=turns, **options)
    counted = server.ask("/v1/responses/input_tokens", {"input": turns, **options})
    assert answer["usage"]["input_tokens"] == counted["input_tokens"] <= 512 - 8
    assert counted["input_tokens"] > 512 - 8 - 60, "more was left out than had to be"
    short = ask(server, input="Hello", **options)
    assert (
        short["usage"]["input_tokens"]
        == (ask(server, input="Hello", instructions="Be short.")["usage"]["input_tokens"])
    )
    too_long = server.post("/v1/responses", {"input": "word " * 600, **options})
    assert contract.check(too_long, 400)["error"]["type"] == "exceed_context_size_error"


# ---- bad input -------------------------------------------------------------------------------


def test_a_tool_in_a_namespace(server: Server) -> None:
    """Its calls have the tool's name and the namespace, streamed or not, and can be sent back."""
    city = {"type": "object", "properties": {"city": {"enum": ["Lima"]}}, "required": ["city"]}
    weather = {"type": "function", "name": "weather", "parameters": city}
    space = {"type": "namespace", "name": "mcp__sky", "description": "", "tools": [weather]}
    for choice in ("required", {**weather, "namespace": "mcp__sky"}, {**space, "tools": []}):
        asked: dict[str, Any] = {"tools": [space], "tool_choice": choice, "max_output_tokens": 64}
        answer = ask(server, input="How is the weather?", **asked)
        call = next(item for item in answer["output"] if item["type"] == "function_call")
        assert (call["namespace"], call["name"]) == ("mcp__sky", "weather")
        assert [tool["type"] for tool in answer["tools"]] == ["namespace"]
    done = [e["item"] for e in events(server, **asked) if e["type"] == "response.output_item.done"]
    assert {"mcp__sky"} == {item["namespace"] for item in done if item["type"] == "function_call"}
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "11 degrees"}
    ask(server, input=[{"role": "user", "content": "Weather?"}, call, result], tools=[space])


def test_mistakes_are_reported(server: Server) -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": "x"}
    user = {"role": "user", "content": "Hello"}
    image = base64.b64encode(b"\x89PNG").decode()
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{image}"}
    server.ask("/v1/responses", body("create_response", input=[user, output]))
    assert "c1" in refusal(server, input=[user, call])
    assert "resp_1" in refusal(server, previous_response_id="resp_1")
    assert "msg_1" in refusal(server, input=[{"type": "item_reference", "id": "msg_1"}])
    assert "input[1]" in refusal(server, input=[user, {"role": "user", "content": 5}])
    refused = refusal(server, 501, input=[{"role": "user", "content": [part]}])
    assert "input[0].content[0]: image input is not supported" in refused
    search = [{"type": "web_search"}]
    assert "web_search" in refusal(server, 501, tools=search, tool_choice="required")
    assert "web_search" in refusal(server, 501, tools=search, tool_choice=search[0])
    cyclic = {"$ref": "#"}
    form = {"format": {"type": "json_schema", "name": "x", "schema": cyclic}}
    assert "schema" in refusal(server, text=form)
    assert "together" in refusal(server, text=FORM, grammar='root ::= "a"')


# ---- ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_frees_its_slot(stream: bool, own_server: Start) -> None:
    server = own_server("-np", "1", "-c", "8192")
    endless = body("create_response", max_output_tokens=8000, ignore_eos=True, stream=stream)
    id = ""
    if stream:
        with server.stream("/v1/responses", endless) as (_, found):
            id = next(found).json["response"]["id"]
            next(found)
    else:
        raw = json.dumps(endless).encode()
        connection = server.raw(server.head("/v1/responses", len(raw)) + raw)
        server.wait_until_busy()
        connection.close()
    [slot] = server.wait_until_idle()
    assert slot["next_token"]["n_decoded"] < 7000, "it was served to its end"
    if stream:
        contract.check(server.get(f"/v1/responses/{id}"), 404)
    assert ask(server)["output"]


@pytest.mark.parametrize("name", RESPONSES)
def test_an_engine_that_dies(name: str, own_server: Start) -> None:
    server = own_server("-np", "1")
    request = body(name, max_output_tokens=6000, ignore_eos=True)
    with server.stream(path(name), request) as (_, stream):
        seen = [next(stream) for _ in range(6)]
        server.kill_engine()
        seen += stream
    *_, failed, error = contract.check_stream(contract.operations()[name], seen)
    assert (failed["type"], failed["response"]["status"]) == ("response.failed", "failed")
    assert failed["response"]["error"]["code"] == "server_error"
    assert error["error"]["type"] == error["code"] == "server_error"
    assert error["error"]["code"] == 500
    contract.check(server.get(f"/v1/responses/{failed['response']['id']}"), 404)
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, path(name), request)
        server.wait_until_busy()
        server.kill_engine()
        contract.check(asked.result(SECONDS), 500)
