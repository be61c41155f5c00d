"""Provokes each documented status of each operation: by `PROVOKED` for operation and status,
otherwise by `BY_STATUS`, or `BY_STATUS_OWN` on a server in a certain state."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from contract_tests.kit import contract
from contract_tests.kit.bodies import (
    ANTHROPIC,
    BODIES,
    CONVERSATIONS,
    COUNTING,
    EMBEDDING,
    ENDLESS,
    FORMS,
    GEMINI,
    GENERATING,
    KEPT,
    NAMED,
    NAMING,
    OLLAMA_EMBEDDING,
    REFUSED,
    RERANKING,
    RESPONSES,
    STORED,
    STREAMING,
    TOOLS,
    body,
    path,
    with_query,
    with_text,
)
from contract_tests.kit.provocations_of_bodies import bad_request
from contract_tests.kit.provocations_of_conversations import (
    bad_conversation,
    bad_lookup,
    bad_response,
    no_conversation,
    no_response,
    no_stream,
    no_such_conversation,
    nothing_to_control,
    of_conversation,
    of_response,
    of_stream,
    other_media,
    replay,
    unknown_conversation,
)
from contract_tests.kit.provocations_of_gemini import (
    bad_content,
    bad_pages,
    no_such_model,
    not_supported_by_gemini,
    pages,
    pieces,
    too_long_a_path,
    too_long_content,
    unknown_model_in_path,
)
from contract_tests.kit.provocations_of_media import (
    bad_form,
    bad_recording,
    killed_while_hearing,
    no_ears,
    no_form,
    stalled_form,
    too_large_a_form,
    transcribed,
)
from contract_tests.kit.provocations_of_ollama import (
    images,
    nothing_to_pull,
    pulled_lines,
    template,
    to_a_browser,
    too_long_options,
)
from contract_tests.kit.provocations_of_routers import (
    bad_download,
    bad_model_change,
    events_of_models,
    in_router,
    in_routers_list,
    listed_models,
    models_fail,
    no_model,
    no_model_of_router,
    not_removable,
    nothing_to_remove,
    of_no_router,
    ok_with_cache,
    stream_of_loading_model,
    too_long_a_name,
    unknown_model,
    without_key,
)
from contract_tests.kit.provocations_of_tools import (
    bad_call,
    listed_tools,
    no_runtime,
    no_tool,
    tools_off,
    tools_run,
)
from contract_tests.kit.server import Server, needs_key
from contract_tests.kit.situations import N_CTX, Situations, send, send_with_query
from contract_tests.kit.sockets import plain, shaken

MIB = 1 << 20
Provoke = Callable[[Server, str], list[httpx.Response]]
ProvokeOwn = Callable[[Situations, str], list[httpx.Response]]


def ok(server: Server, name: str) -> list[httpx.Response]:
    responses = [send(server, name)]
    if name in STREAMING:
        responses.append(send(server, name, stream=True))
    return responses


def too_long(situations: Situations, name: str) -> list[httpx.Response]:
    return [
        send(situations.small, name, **with_text(name, "word " * N_CTX, stream=stream))
        for stream in (False, True)
    ]


def ok_in_mode(situations: Situations, name: str) -> list[httpx.Response]:
    return ok(situations.for_mode_of(name), name)


def bad_input(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends bad input to an operation that needs other options than the default ones."""
    server = situations.for_mode_of(name)
    many = ["a"] * 100_000
    if name in RERANKING:
        changes: list[dict[str, Any]] = [
            {"documents": many},
            {"documents": []},
            {"documents": None},
            {"documents": "a"},
            {"documents": [1]},
            {"query": None},
            {"query": 5},
            {"query": ["a"]},
            {"top_n": -1},
            {"top_n": 1.5},
        ]
    else:
        n_vocab = server.get("/v1/models").json()["data"][0]["meta"]["n_vocab"]
        wrong: tuple[Any, ...] = (
            many,
            [],
            [[]],
            [""],
            "",
            [-1],
            [n_vocab],
            [["a"], [n_vocab]],
            [True],
            [None],
            {},
        )
        changes = [{"input": value} for value in wrong]
        changes += [{"dimensions": value} for value in (0, -1, 1_000_000, "many")]
        changes += [{"embd_normalize": value} for value in (-2, 0.5, "L2")]
        changes += [{"encoding_format": "hex"}]
    refused = [send(server, name, **change) for change in changes]
    return [*bad_request(server, name), *refused]


def bad_ollama_input(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends wrong inputs, too many numbers, and without `truncate` a text that is too long."""
    server = situations.for_mode_of(name)
    odd: tuple[Any, ...] = ({}, [], True)
    refused = [send(server, name, keep_alive=value) for value in odd]
    if name == "embed_ollama_inputs":
        wrong: tuple[Any, ...] = ([""], [["a"]], [5], ["a"] * 5000, {}, 5)
        refused += [send(server, name, input=value) for value in wrong]
        refused += [send(server, name, dimensions=value) for value in (0, -1, 1_000_000, "many")]
        refused.append(send(server, name, input="word " * N_CTX, truncate=False))
    return [*bad_request(server, name), *refused]


def too_long_in_mode(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.for_mode_of(name)
    return [server.post(path(name), with_text(name, "word " * N_CTX))]


def other_mode(situations: Situations, name: str) -> list[httpx.Response]:
    """Requests operations from a server that was started for another purpose."""
    servers = [situations.small]
    if name in RERANKING:
        servers.append(situations.embedder)
    responses = [send(server, name) for server in servers]
    for response in responses:
        assert "Start it with" in contract.message(response)
    return responses


def does_not_generate(situations: Situations, name: str) -> list[httpx.Response]:
    servers = (situations.embedder, situations.reranker)
    responses = [send(server, name, stream=s) for server in servers for s in (False, True)]
    for response in responses:
        message = contract.message(response)
        assert message.startswith("This server does not support completions.")
    return responses


def unauthorized(server: Server, name: str) -> list[httpx.Response]:
    needs_key(server)
    wrong = ({"Authorization": ""}, {"Authorization": "Bearer no"}, {"Authorization": "Basic no"})
    method = contract.operations()[name].method
    return [
        server.http.request(method, path(name), json=BODIES.get(name), headers=headers)
        for headers in wrong
    ]


def _asset(name: str, asset: str) -> str:
    return path(name).rpartition("/")[0] + f"/{asset}"


def no_asset(server: Server, name: str) -> list[httpx.Response]:
    return [server.get(_asset(name, "nothing.js"))]


def no_asset_name(server: Server, name: str) -> list[httpx.Response]:
    return [server.get(_asset(name, each)) for each in ("..%00x", "a" * 200)]


def unchanged_asset(server: Server, name: str) -> list[httpx.Response]:
    tag = server.get(path(name)).headers["etag"]
    known = (tag, f"W/{tag}", f'"a", {tag}')
    return [server.get(path(name), headers={"If-None-Match": each}) for each in known]


def bad_query(server: Server, name: str) -> list[httpx.Response]:
    """Sends a bad query to an operation that can name a model."""
    wrong = [{"model": "x" * 4097}]
    if name not in ("get_metrics", "get_loads", "get_load"):  # they load no model
        wrong += [{"autoload": value} for value in ("maybe", "", "2")]
    if name == "list_slots":
        wrong += [{"fail_on_no_slot": value} for value in ("2", "yes", "-1", "1.5")]
    if name == "get_loads":
        wrong += [{"dp_rank": value} for value in ("-1", "x", "1.5", "2147483648")]
    return [send_with_query(server, name, **query) for query in wrong]


def bad_slot_action(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.open
    good = {"filename": "a.bin"}
    assert server.post("/slots/0?action=save", good).status_code == 200
    names = ("..", "../a.bin", "/etc/passwd", "a/b", "a\\b", "a\0", "x" * 5000, "", " a", "nul")
    wrong: tuple[Any, ...] = ([], "text", 7, {"filename": 7}, {}, {"filename": None})
    responses = [
        server.post(f"/slots/0?action={action}", {"filename": filename})
        for action in ("save", "restore")
        for filename in names
    ]
    responses += [server.post("/slots/0?action=save", each) for each in wrong]
    responses += [
        server.post(where, good)
        for where in (
            "/slots/9999?action=save",
            "/slots/9999?action=restore",
            "/slots/9999?action=erase",
            f"/slots/{10**12}?action=erase",
            "/slots/0?action=forget",
            "/slots/0",
        )
    ]
    return [*responses, server.post("/slots/0?action=restore", {"filename": "missing"})]


def slot_actions(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.open
    good = {"filename": "good.bin"}
    actions = [server.post(f"/slots/1?action={each}", good) for each in ("save", "restore")]
    return [*actions, server.post("/slots/1?action=erase")]


def no_number(server: Server, name: str) -> list[httpx.Response]:
    good = {"filename": "a.bin"}
    return [server.post(f"/slots/{each}?action=save", good) for each in ("x", "1.5", "0x1")]


def no_json(situations: Situations, name: str) -> list[httpx.Response]:
    where, headers = path(name), {"Content-Type": "application/json"}
    malformed = (b"{", b"\xff\xfe", b"NaN", b'{"a": 1}}', b"7", b'"a"')
    return [situations.open.post(where, content=raw, headers=headers) for raw in malformed]


def bad_scales(server: Server, name: str) -> list[httpx.Response]:
    good = {"id": 0, "scale": 1}
    bodies: list[Any] = [{}, good, "text", None, [7], [[]]]
    wrong: list[Any] = ["0", True, [], {}]
    bodies += [[{**good, field: value}] for field in good for value in wrong]
    bodies += [[good] * 1025]
    headers = {"Content-Type": "application/json"}
    raw = [json.dumps(each).encode() for each in bodies] + [b"", b"[", b"[NaN]"]
    return [server.post(path(name), content=each, headers=headers) for each in raw]


def ok_own(situations: Situations, name: str) -> list[httpx.Response]:
    return [send(situations.open, name)]


def predicted(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends instances that succeed, fail, and stand for no operation."""
    chat = BODIES[name]["instances"][0]
    lists: list[list[Any]] = [[], [chat, {}, {"@requestFormat": "no"}, {**chat, "messages": 5}]]
    return [send(situations.open, name, instances=each) for each in lists]


def bad_instances(server: Server, name: str) -> list[httpx.Response]:
    wrong: list[Any] = [None, [5], [None], ["text"], [[]], [{"@requestFormat": 5}], [{}] * 129]
    return [send(server, name, instances=each) for each in wrong]


def stalled(situations: Situations, name: str) -> list[httpx.Response]:
    return [situations.stalled[name]]


def too_large(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.narrow
    large = json.dumps(with_text(name, "a" * MIB)).encode()
    headers = {"Content-Type": "application/json"}
    chunks = (large[i : i + 65536] for i in range(0, len(large), 65536))
    return [
        server.post(path(name), content=content, headers=headers) for content in (large, chunks)
    ]


def wrong_media_type(server: Server, name: str) -> list[httpx.Response]:
    raw = json.dumps(BODIES[name]).encode()
    return [
        server.post(path(name), content=raw, headers={"Content-Type": kind})
        for kind in ("text/html", "application/xml", "multipart/form-data; boundary=x")
    ]


def bad_parameters(server: Server, name: str) -> list[httpx.Response]:
    method, where = contract.operations()[name].method, path(name)
    queries = {
        "get_response": ["?stream=maybe"],
        "delete_response": [],
        "cancel_response": [],
        "list_response_input_items": ["?limit=0", "?limit=101", "?limit=x", "?order=up"],
    }
    responses = [server.http.request(method, where.replace("resp_0", "x" * 1025))]
    responses += [server.get(where + query) for query in queries[name]]
    if name == "list_response_input_items":
        [right] = of_response(server, name)
        responses += [server.get(f"{right.request.url.path}?after={id}") for id in ("msg_0", "")]
    if name == "cancel_response":
        plain = server.ask("/v1/responses", body("create_response"))
        responses.append(server.post(where.replace("resp_0", plain["id"]), None))
    return responses


def foreign_origin(server: Server, name: str) -> list[httpx.Response]:
    method, where = contract.operations()[name].method, path(name)
    origins = ("https://a.example", "http://a.example:8080", "null", "http://localhost.a.example")
    return [
        server.http.request(method, where, json=BODIES.get(name), headers={"Origin": origin})
        for origin in origins
    ]


def not_allowed(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends the request with a key that lacks the operation's group, and one that is invalid: the
    key is checked first."""
    operation, server = contract.operations()[name], situations.limited
    group = operation.definition["x-access"]
    headers = {"Authorization": f"Bearer no-{group}"}
    where, method = path(name), operation.method
    return [
        server.http.request(method, where, json=BODIES.get(name), headers=headers),
        server.http.request(method, where, content=b"{", headers=headers),
    ]


def not_allowed_to_reload(situations: Situations, name: str) -> list[httpx.Response]:
    headers = {"Authorization": "Bearer no-admin"}
    return [situations.limited.get(with_query(name, reload="1"), headers=headers)]


def over_limit(situations: Situations, name: str) -> list[httpx.Response]:
    """Sends requests until the key has used all that it may send in a minute."""
    operation, server = contract.operations()[name], situations.limited
    headers = {"Authorization": "Bearer alice"}
    form: dict[str, Any] = {"files": {"file": b"a"}} if name in FORMS else {"json": BODIES[name]}
    while True:
        response = server.http.request(operation.method, path(name), headers=headers, **form)
        if response.status_code == 429:
            assert 1 <= int(response.headers["retry-after"]) <= 60
            return [response]


def bad_usage_query(server: Server, name: str) -> list[httpx.Response]:
    wrong = [
        {"since": "-1"},
        {"since": "yesterday"},
        {"until": "1.5"},
        {"until": str(1 << 60)},
        {"group_by": ""},
        {"group_by": "day"},
        {"group_by": "key,model,hour,key"},
        {"limit": "0"},
        {"limit": "1001"},
        {"offset": "-1"},
    ]
    return [send_with_query(server, name, **query) for query in wrong]


def store_fails(situations: Situations, name: str) -> list[httpx.Response]:
    return [situations.without_tables[name]]


def store_is_away(situations: Situations, name: str) -> list[httpx.Response]:
    return [situations.without_store[name]]


def engine_killed(situations: Situations, name: str) -> list[httpx.Response]:
    return [situations.killed[name]]


UNSERVED = [
    ("prompt", {"id": "pmpt_1"}),
    ("tool_choice", {"type": "file_search"}),
    ("input", [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]),
    ("input", [{"role": "user", "content": [{"type": "input_file", "file_id": "file_1"}]}]),
]
"""Fields of the Responses API that are not supported."""
UNSUPPORTED = {"image_data": [{"data": "", "id": 1}]}


def not_supported(server: Server, name: str) -> list[httpx.Response]:
    if name == "apply_template" or (name in COUNTING and "chat" in name):
        image = {"type": "image_url", "image_url": {"url": "data:,"}}
        return [send(server, name, messages=[{"role": "user", "content": [image]}])]
    if "compact" in name:
        parts = [
            {"type": "input_image", "image_url": "data:,"},
            {"type": "input_image", "file_id": "file-1"},
        ]
        inputs = [[{"role": "user", "content": [part]}] for part in parts]
        return [send(server, name, input=each) for each in inputs]
    place = {"prompt": "[img-1]"} if "prompt" in BODIES[name] else {}
    responses = [
        send(server, name, **place, **{field: value}) for field, value in UNSUPPORTED.items()
    ]
    for (field, _), response in zip(UNSUPPORTED.items(), responses, strict=True):
        assert field in contract.message(response), "the message doesn't name the field"
    if "response" in name:
        responses += [send(server, name, **{field: value}) for field, value in UNSERVED]
    return [*responses, send(server, name, stream=True, **place, **UNSUPPORTED)]


def not_of_this_server(server: Server, name: str) -> list[httpx.Response]:
    """Requests features that only Anthropic's server has; the error message names them."""
    picture = {"type": "image", "source": {"type": "url", "url": "http://a.example/a.png"}}
    paper = {"type": "document", "source": {"type": "url", "url": "http://a.example/a.pdf"}}
    archive = {"type": "base64", "media_type": "application/zip", "data": "UEsDBBQAAAAIAP8="}
    asked: list[tuple[str, dict[str, Any]]] = [
        (
            "web_search_20250305",
            {
                "tools": [{"type": "web_search_20250305", "name": "search"}],
                "tool_choice": {"type": "any"},
            },
        ),
        (
            "mcp_toolset",
            {"tools": [{"type": "mcp_toolset"}], "tool_choice": {"type": "any"}},
        ),
        ("thread", {"thread": {"type": "create"}}),
        ("image", with_text(name, [picture])),
        ("URLs", with_text(name, [paper])),
        ("documents", with_text(name, [{"type": "document", "source": archive}])),
    ]
    if name in STREAMING:
        asked += [
            ("image", {**with_text(name, [picture]), "stream": True}),
            ("image_data", {**UNSUPPORTED, "stream": True}),
        ]
    responses = [send(server, name, **changes) for _, changes in asked]
    for (word, _), response in zip(asked, responses, strict=True):
        assert word in contract.message(response)
    return responses


def switched_off(situations: Situations, name: str) -> list[httpx.Response]:
    return [send(situations.narrow, name)]


def unavailable(situations: Situations, name: str) -> list[httpx.Response]:
    return [situations.loading[name]]


def all_busy(situations: Situations, name: str) -> list[httpx.Response]:
    server = situations.small
    endless = body("create_completion", n_predict=200, ignore_eos=True)
    with server.stream("/completion", endless) as (_, events):
        next(events)
        busy = server.get("/slots?fail_on_no_slot=1")
        assert server.get("/slots?fail_on_no_slot=0").status_code == 200
    server.wait_until_idle()
    assert server.get("/slots?fail_on_no_slot=1").status_code == 200
    return [busy, *unavailable(situations, name)]


def is_documented(name: str, status: int) -> bool:
    return str(status) in contract.operations()[name].definition["responses"]


ADDING = ["create_conversation", "create_conversation_items"]
"""The operations that add items to a conversation."""
GEMINI_ANSWERS = [name for name in GEMINI if "count" not in name]

OWN_PAGES_ONLY = [
    name
    for name, each in contract.operations().items()
    if each.definition.get("x-refuses-foreign-origins")
]


def _is_admin(name: str) -> bool:
    return bool(contract.operations()[name].definition["x-access"] == "admin")


BY_STATUS: dict[int, list[Provoke]] = {
    101: [shaken],
    200: [ok],
    204: [],
    400: [bad_request],
    401: [unauthorized],
    403: [],
    404: [],
    415: [wrong_media_type],
    426: [plain],
    501: [not_supported],
}
BY_STATUS_OWN: dict[int, list[ProvokeOwn]] = {
    403: [not_allowed],
    404: [unknown_model],
    408: [stalled],
    413: [too_large],
    429: [over_limit],
    500: [engine_killed],
    503: [unavailable],
}
PROVOKED: dict[tuple[str, int], tuple[list[Provoke], list[ProvokeOwn]]] = {
    **{(name, 400): ([bad_request], [too_long]) for name in GENERATING},
    **{(name, 501): ([not_supported], [does_not_generate]) for name in (*GENERATING, *RESPONSES)},
    **{(name, 400): ([bad_request, bad_response], [too_long]) for name in RESPONSES},
    **{(name, 400): ([bad_request, bad_response], []) for name in COUNTING if "response" in name},
    **{(name, 200): ([of_response], []) for name in STORED},
    **{(name, 400): ([bad_parameters], []) for name in STORED},
    **{(name, 404): ([no_response], []) for name in STORED},
    **{(name, 500): ([], [store_fails]) for name in STORED},
    **{(name, 503): ([], [store_is_away]) for name in STORED},
    **{
        (name, 404): ([unknown_conversation], [])
        for name in (*RESPONSES, *COUNTING)
        if "response" in name
    },
    **{(name, 200): ([of_conversation], []) for name in CONVERSATIONS},
    **{(name, 400): ([bad_conversation], []) for name in CONVERSATIONS},
    **{(name, 404): ([no_such_conversation], []) for name in CONVERSATIONS},
    **{(name, 500): ([], [store_fails]) for name in ("create_conversation", *CONVERSATIONS)},
    **{(name, 501): ([other_media], []) for name in ADDING},
    **{(name, 503): ([], [store_is_away]) for name in ("create_conversation", *CONVERSATIONS)},
    ("create_conversation", 400): ([bad_conversation], []),
    **{(name, 400): ([no_conversation], []) for name in KEPT},
    ("get_usage", 400): ([bad_usage_query], []),
    ("get_usage", 500): ([], [store_fails]),
    ("get_stream", 200): ([of_stream], []),
    ("get_stream", 404): ([no_stream], []),
    ("get_stream", 503): ([], [stream_of_loading_model]),
    ("delete_stream", 204): ([of_stream, no_stream], []),
    ("control_chat_completion", 400): ([bad_request, nothing_to_control], []),
    ("lookup_streams", 400): ([bad_lookup], []),
    ("get_response", 501): ([replay], []),
    **{(name, 501): ([not_of_this_server], []) for name in ANTHROPIC},
    ("create_message", 400): ([bad_request], [too_long]),
    ("create_message", 501): ([not_of_this_server], [does_not_generate]),
    **{(name, 400): ([bad_content], []) for name in GEMINI},
    **{(name, 404): ([], [unknown_model_in_path]) for name in GEMINI},
    **{(name, 501): ([not_supported_by_gemini], []) for name in GEMINI},
    **{(name, 200): ([pieces], []) for name in GEMINI if "stream" in name},
    **{(name, 400): ([bad_content], [too_long_content]) for name in GEMINI_ANSWERS},
    **{(name, 501): ([not_supported_by_gemini], [does_not_generate]) for name in GEMINI_ANSWERS},
    ("list_gemini_models", 200): ([pages], []),
    ("list_gemini_models", 400): ([bad_pages], []),
    ("get_gemini_model", 400): ([too_long_a_path], []),
    ("get_gemini_model", 404): ([no_such_model], [unknown_model_in_path]),
    **{(name, 200): ([], [ok_in_mode]) for name in (*EMBEDDING, *RERANKING)},
    **{(name, 400): ([], [bad_input, too_long_in_mode]) for name in (*EMBEDDING, *RERANKING)},
    **{(name, 501): ([], [other_mode]) for name in (*EMBEDDING, *RERANKING)},
    **{(name, 200): ([], [ok_in_mode]) for name in OLLAMA_EMBEDDING},
    **{(name, 400): ([], [bad_ollama_input]) for name in OLLAMA_EMBEDDING},
    **{(name, 501): ([], [other_mode]) for name in OLLAMA_EMBEDDING},
    ("create_ollama_generation", 400): ([bad_request], [too_long_options]),
    ("create_ollama_generation", 501): ([images, template], [does_not_generate]),
    ("get_root", 200): ([to_a_browser], []),
    ("get_page_asset", 304): ([unchanged_asset], []),
    ("get_page_asset", 400): ([no_asset_name], []),
    ("get_page_asset", 404): ([no_asset], []),
    ("pull_ollama_model", 200): ([pulled_lines], []),
    ("pull_ollama_model", 500): ([], [models_fail]),
    ("pull_ollama_model", 503): ([], [nothing_to_pull]),
    **{(name, 400): ([bad_query], []) for name in NAMING},
    ("get_docs_asset", 400): ([no_asset_name], []),
    ("get_docs_asset", 404): ([no_asset], []),
    **{(name, 200): ([events_of_models], []) for name in ENDLESS},
    ("load_model", 200): ([], [in_router]),
    ("load_model", 400): ([], [bad_model_change]),
    ("load_model", 501): ([of_no_router], []),
    ("unload_model", 200): ([], [in_router]),
    ("unload_model", 400): ([], [bad_model_change]),
    ("unload_model", 501): ([of_no_router], []),
    **{(name, 403): ([foreign_origin], [not_allowed]) for name in OWN_PAGES_ONLY},
    **{(name, 403): ([foreign_origin, tools_off], [not_allowed]) for name in TOOLS},
    ("list_server_tools", 200): ([], [listed_tools]),
    ("run_server_tool", 200): ([], [tools_run]),
    ("run_server_tool", 400): ([bad_call], []),
    ("run_server_tool", 404): ([], [no_tool]),
    ("run_server_tool", 501): ([], [no_runtime]),
    **{(name, 403): ([ok], [not_allowed]) for name in REFUSED if _is_admin(name)},
    **{(name, 404): ([ok], []) for name in REFUSED if is_documented(name, 404)},
    **{(name, 501): ([ok], []) for name in REFUSED if is_documented(name, 501)},
    ("get_model", 200): ([listed_models], [in_routers_list]),
    ("get_model", 400): ([too_long_a_name], []),
    ("get_model", 404): ([no_model], [no_model_of_router]),
    **{(name, 401): ([without_key], []) for name in ("list_models", "list_openai_models")},
    **{
        (name, 403): ([], [not_allowed_to_reload]) for name in ("list_models", "list_openai_models")
    },
    **{(name, 500): ([], [models_fail]) for name in ("list_models", "list_openai_models")},
    ("download_model", 200): ([], [ok_with_cache]),
    ("download_model", 400): ([], [bad_download]),
    ("download_model", 500): ([], [models_fail]),
    ("download_model", 501): ([of_no_router], []),
    ("remove_model", 200): ([], [ok_with_cache]),
    ("remove_model", 400): ([], [not_removable]),
    ("remove_model", 404): ([], [nothing_to_remove]),
    ("remove_model", 500): ([], [models_fail]),
    ("remove_model", 501): ([of_no_router], []),
    ("list_slots", 501): ([], [switched_off]),
    ("list_queue", 501): ([], [switched_off]),
    ("act_on_slot", 200): ([], [slot_actions]),
    ("act_on_slot", 400): ([], [bad_slot_action, no_json]),
    ("act_on_slot", 404): ([no_number], []),
    ("act_on_slot", 501): ([], [switched_off]),
    ("set_props", 200): ([], [ok_own]),
    ("set_props", 400): ([], [no_json]),
    ("set_props", 501): ([], [switched_off]),
    ("predict", 200): ([], [ok_own, predicted]),
    ("predict", 400): ([bad_request, bad_instances], []),
    ("predict", 501): ([], [switched_off]),
    ("get_metrics", 200): ([], [ok_own]),
    ("get_metrics", 501): ([], [switched_off]),
    ("set_lora_adapters", 400): ([bad_scales, bad_query], []),
    ("list_slots", 503): ([], [all_busy]),
    **{(name, 200): ([], [transcribed]) for name in FORMS},
    **{(name, 400): ([bad_form], [bad_recording]) for name in FORMS},
    **{(name, 408): ([], [stalled_form]) for name in FORMS},
    **{(name, 413): ([], [too_large_a_form]) for name in FORMS},
    **{(name, 415): ([no_form], []) for name in FORMS},
    **{(name, 500): ([], [killed_while_hearing]) for name in FORMS},
    **{(name, 501): ([no_ears], []) for name in FORMS},
}
"""Provocations for operations where the status alone is not enough."""


def provoked(name: str, status: int) -> tuple[list[Provoke], list[ProvokeOwn]]:
    general = (BY_STATUS.get(status, []), BY_STATUS_OWN.get(status, []))
    shared, own = PROVOKED.get((name, status), general)
    if status == 400 and name in NAMED and "ollama" not in name:  # Ollama's answer 404
        own = [*own, unknown_model]
    return shared, own
