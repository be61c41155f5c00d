"""A server of many models: every request reaches the model that it names."""

import json
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contract_tests.kit import contract
from contract_tests.kit.bodies import (
    ANTHROPIC,
    BODIES,
    COUNTING,
    EMBEDDING,
    GENERATING,
    NAMED,
    NAMING,
    OLLAMA_EMBEDDING,
    RERANKING,
    RESPONSES,
    ROUTING,
    STREAMING,
    body,
    path,
    with_query,
)
from contract_tests.kit.events import text_of
from contract_tests.kit.routers import (
    LOADED,
    UNLOADED,
    lasting_list,
    loaded,
    models,
    set_status,
    status,
)
from contract_tests.kit.server import OwnServer, Server, Start
from contract_tests.kit.situations import send, send_with_query
from contract_tests.own.launching import outcome
from contract_tests.own.servers import MODEL, start_connexion
from tools.models.build import ensure_adapter
from tools.models.zoo import CHAT, EMBEDDER, FIM, NAMES, OTHER_CHAT, PRESETS, RERANKER, Zoo

COMPACTING = ("compact_response", "compact_response_alias")
PAIRS: dict[str, tuple[str, str]] = {
    **dict.fromkeys((*GENERATING, *RESPONSES, *COUNTING, *ANTHROPIC), (CHAT, OTHER_CHAT)),
    **dict.fromkeys(EMBEDDING, (EMBEDDER, CHAT)),
    **dict.fromkeys(RERANKING, (RERANKER, EMBEDDER)),
    **dict.fromkeys(("tokenize", "detokenize"), (CHAT, EMBEDDER)),
    "apply_template": (CHAT, OTHER_CHAT),
    "create_infill": (FIM, OTHER_CHAT),
    "create_ollama_chat": (CHAT, OTHER_CHAT),
    "create_ollama_generation": (CHAT, OTHER_CHAT),
    **dict.fromkeys(OLLAMA_EMBEDDING, (EMBEDDER, CHAT)),
    "show_ollama_model": (CHAT, FIM),
}
"""Two models with different answers, for each operation. Models with other weights differ in their
texts; models with another vocabulary or template differ in everything else."""
APART = "lora-init-without-apply"
"""An option for an adapter that has no effect until a request scales it."""
NOT_GENERATING = (*EMBEDDING, *OLLAMA_EMBEDDING, *RERANKING)
IN_QUERY = [*NAMING, "act_on_slot", "set_lora_adapters"]
"""Operations with the model in their query, which have separate tests."""


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ensure_adapter("lora-random-a", tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module")
def options(zoo: Zoo, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Options of a router whose models have aliases, one of them with an adapter."""
    directory = tmp_path_factory.mktemp("router")
    presets = PRESETS
    for name in (CHAT, OTHER_CHAT, FIM):
        presets += f"[{name}]\n"
    presets = presets.replace(
        f"[{OTHER_CHAT}]", f"[{OTHER_CHAT}]\nlora = {adapter}\n{APART} = true"
    )
    for name in NAMES:
        presets = presets.replace(f"[{name}]", f"[{name}]\nalias = {alias(name)}\ntags = a, b")
    (directory / "models.ini").write_text(presets, "utf-8")
    files = ["--models-dir", str(zoo.directory), "--models-preset", str(directory / "models.ini")]
    slots = ["--slot-save-path", str(directory), "--slot-prompt-similarity", "0"]
    return [*files, "--models-shipped", "--metrics", *slots, "--models-max", "0"]


def alias(name: str) -> str:
    return f"alias-of-{name}:1b"


@pytest.fixture(scope="module")
def router(module_server: Start, options: list[str], hub: Mapping[str, str]) -> OwnServer:
    return module_server(*options, "--slots-text", router=True, variables=hub, api_key="key")


Alone = Mapping[tuple[str, str], Any]


@pytest.fixture(scope="module")
def alone(module_server: Start, zoo: Zoo, adapter: Path) -> Alone:
    """Returns the answers of a server with this model only, by model and operation."""
    own_options = {
        OTHER_CHAT: ["--lora", str(adapter), f"--{APART}"],
        EMBEDDER: ["--embedding"],
        RERANKER: ["--reranking"],
    }
    servers = {
        name: module_server(
            *("-m", str(zoo.path(name)), "--alias", name, "-c", "512", "-np", "1"),
            *own_options.get(name, []),
            api_key="key",
            wait=False,
        )
        for name in NAMES
    }

    def ask(name: str) -> dict[tuple[str, str], Any]:
        server = servers[name]
        server.wait_until_ready()
        wanted = [operation for operation, pair in PAIRS.items() if name in pair]
        return {(name, operation): answers(server, operation, name) for operation in wanted}

    with ThreadPoolExecutor(2) as pool:
        found = {key: answer for part in pool.map(ask, NAMES) for key, answer in part.items()}
    for server in servers.values():
        server.close()
    return found


def answers(server: Server, operation: str, name: str | None, **query: str) -> list[Any]:
    """Returns the answers of the operation for the model `name`, plain and streamed."""
    where = with_query(operation, **query) if query else path(operation)
    requests = [body(operation, model=name)]
    if operation in STREAMING:
        requests.append(body(operation, model=name, stream=True))
    if operation.startswith("count_"):
        [counted] = [server.post(where, request) for request in requests]
        return [(counted.status_code, counted.json())]
    outcomes = [outcome(server, "POST", where, {"json": request}) for request in requests]
    return [(code, without_model(content)) for code, _, content in outcomes]


def without_model(value: Any) -> Any:
    """Returns `value` without names and paths of models: they may be right even if the text is
    another model's."""
    if isinstance(value, dict):
        named = ("model", "modelfile", "modified_at", "general.name")
        return {k: without_model(v) for k, v in value.items() if k not in named}
    return [without_model(each) for each in value] if isinstance(value, list) else value


def test_every_operation_that_can_name_a_model_is_tested() -> None:
    elsewhere = {"pull_ollama_model"}  # test_ollama_router.py
    elsewhere |= {*COMPACTING}
    assert {*NAMED} - elsewhere == PAIRS.keys() | {*IN_QUERY}


@pytest.mark.parametrize("operation", COMPACTING)
def test_a_compaction_is_made_by_the_model_that_it_names(operation: str, router: OwnServer) -> None:
    """The answers are sealed, so they can't be compared."""
    for name in (CHAT, OTHER_CHAT):
        contract.check(router.post(path(operation), body(operation, model=name)))
        assert status(router, name)["value"] == "loaded"
    contract.check(router.post(path(operation), body(operation, model="missing")), 400)


@pytest.mark.parametrize("operation", PAIRS)
def test_a_request_reaches_the_model_that_it_names(
    operation: str, router: OwnServer, alone: Alone
) -> None:
    for name in PAIRS[operation]:
        expected = alone[name, operation]
        for spelling in (name, alias(name), f"{name}:latest", name):
            assert answers(router, operation, spelling) == expected, spelling
    one, other = (alone[name, operation] for name in PAIRS[operation])
    assert one != other, "equal answers prove nothing"
    assert one[0][0] == 200


@pytest.mark.parametrize("operation", PAIRS)
def test_a_request_without_a_name_goes_to_the_default_model(
    operation: str, router: OwnServer
) -> None:
    expected = answers(router, operation, MODEL)
    assert expected[0][0] == (501 if operation in NOT_GENERATING else 200)
    assert answers(router, operation, None) == expected
    if operation != "show_ollama_model":  # it requires a name
        raw = {name: value for name, value in BODIES[operation].items() if name != "model"}
        response = router.post(path(operation), raw)
        assert response.status_code == expected[0][0]


def test_the_answer_names_the_model(router: OwnServer) -> None:
    for operation in GENERATING:
        for name in (CHAT, OTHER_CHAT):
            whole = router.ask(path(operation), body(operation, model=name))
            assert whole["model"] == name
            events = router.events(path(operation), body(operation, model=name))
            documents = contract.check_stream(contract.operations()[operation], events)
            assert {document.get("model", name) for document in documents} == {name}
            assert any(text_of(document) for document in documents)


def test_a_conversation_can_go_on_with_another_model(router: OwnServer) -> None:
    first = router.ask("/v1/responses", body("create_response", model=CHAT))
    more = body("create_response", model=OTHER_CHAT, previous_response_id=first["id"])
    second = router.ask("/v1/responses", more)
    assert (first["model"], second["model"]) == (CHAT, OTHER_CHAT)
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]


# ---- models named in the query --------------------------------------------------------------


def test_props(router: OwnServer, zoo: Zoo) -> None:
    for name in (CHAT, EMBEDDER):
        for spelling in (name, alias(name)):
            props = contract.check(router.get(with_query("get_props", model=spelling)))
            assert props["model_alias"] == name
            assert props["model_path"] == str(zoo.path(name))
            assert props["role"] == "router"
    plain = contract.check(router.get("/props"))
    assert plain["model_alias"] == MODEL
    assert plain["max_instances"] == 0
    assert plain["models_autoload"] is True


def test_slots(router: OwnServer) -> None:
    for name in (CHAT, OTHER_CHAT):
        router.ask("/completion", {"prompt": f"Here is {name}", "n_predict": 2, "model": name})
    for name in (CHAT, OTHER_CHAT):
        [slot] = contract.check(router.get(with_query("list_slots", model=name)))
        assert f"Here is {name}" in slot["prompt"]


def test_slot_actions(router: OwnServer) -> None:
    counts = {}
    for name, text in ((CHAT, "short"), (OTHER_CHAT, "a text that is somewhat longer")):
        router.ask("/completion", {"prompt": text, "n_predict": 1, "model": name})
        saved = contract.check(send_with_query(router, "act_on_slot", model=name))
        again = contract.check(send(router, "act_on_slot", model=alias(name)))
        assert saved["n_saved"] == again["n_saved"]
        counts[name] = saved["n_saved"]
    assert counts[CHAT] < counts[OTHER_CHAT]
    erased = router.http.post(f"/slots/0?action=erase&model={CHAT}")
    assert contract.check(erased)["n_erased"] == counts[CHAT]
    [kept] = contract.check(router.get(with_query("list_slots", model=OTHER_CHAT)))
    assert "somewhat longer" in kept["prompt"]


def test_adapters(router: OwnServer) -> None:
    def adapters(name: str) -> Any:
        return contract.check(router.get(with_query("list_lora_adapters", model=name)))

    assert adapters(CHAT) == []
    [adapter] = adapters(OTHER_CHAT)
    where = with_query("set_lora_adapters", model=OTHER_CHAT)
    contract.check(router.post(where, [{"id": 0, "scale": 0.25}]))
    assert adapters(OTHER_CHAT) == [{**adapter, "scale": 0.25}]
    assert adapters(alias(OTHER_CHAT)) == adapters(OTHER_CHAT)
    wrong = with_query("set_lora_adapters", model=CHAT)
    contract.check(router.post(wrong, [{"id": 0, "scale": 0.25}]))  # an unknown adapter
    assert adapters(CHAT) == []
    contract.check(router.post(where, []))
    assert adapters(OTHER_CHAT) == [{**adapter, "scale": 0}]


def test_metrics(router: OwnServer) -> None:
    def predicted(name: str) -> float:
        text = contract.check(router.get(with_query("get_metrics", model=name))).decode()
        lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")
        return float(lines["llamacpp:tokens_predicted_total"])

    for name in (CHAT, OTHER_CHAT):
        set_status(router, name, LOADED)
    before = {name: predicted(name) for name in (CHAT, OTHER_CHAT)}
    request = {"prompt": "a", "n_predict": 7, "ignore_eos": True}
    router.ask("/completion", {**request, "model": CHAT})
    assert predicted(CHAT) == before[CHAT] + 7
    assert predicted(OTHER_CHAT) == before[OTHER_CHAT]
    set_status(router, FIM, UNLOADED)
    contract.check(router.get(with_query("get_metrics", model=FIM)), 503)
    assert FIM not in loaded(router)


def test_loads(router: OwnServer) -> None:
    """Metrics and loads of all loaded models, or of the one that the query names."""

    def slots(**query: str) -> int:
        answer = contract.check(router.get(with_query("get_loads", **query)))
        return int(answer["loads"][0]["max_running_requests"])

    def labelled(**query: str) -> set[str]:
        text = contract.check(router.get(with_query("get_metrics", **query))).decode()
        return set(re.findall(r'^vllm:num_requests_running\{model_name="(.+)"\}', text, re.M))

    for name in (CHAT, OTHER_CHAT):
        set_status(router, name, LOADED)
    each = {name: slots(model=name) for name in (CHAT, OTHER_CHAT)}
    assert all(each.values())
    assert slots() >= sum(each.values())
    assert labelled(model=OTHER_CHAT) == {OTHER_CHAT}
    assert labelled() >= {CHAT, OTHER_CHAT}
    set_status(router, FIM, UNLOADED)
    assert slots(model=FIM) == 0
    for operation in ("get_loads", "get_load"):
        contract.check(router.get(with_query(operation, model="no such model")), 400)
    assert contract.check(router.get(with_query("get_loads", dp_rank="1")))["loads"] == []
    assert FIM not in loaded(router)


# ---- unknown names -------------------------------------------------------------------

ODD = ["\x00", "x" * 4096, "../../etc/passwd", "\U0001f999", "%s{}", f"{CHAT}\n", f" {CHAT}",
       CHAT.upper(), f"{CHAT}:latest:latest", "'; DROP TABLE models", "-m"]  # fmt: skip


def unknown(operation: str) -> int:
    """Returns the status for an unknown model. Ollama's clients expect a 404."""
    return 404 if "ollama" in operation or operation == "load_model" else 400


@pytest.mark.parametrize("operation", [*PAIRS, *ROUTING])
def test_odd_names(operation: str, router: OwnServer) -> None:
    before = loaded(router)
    # Without this field the request would be one of OpenAI's chats.
    form: dict[str, Any] = {"options": {}} if operation == "create_ollama_chat" else {}
    for name in ODD:
        response = send(router, operation, model=name, **form)
        message = contract.check(response, unknown(operation))
        assert len(json.dumps(message)) < 1000
    assert loaded(router) == before


def test_the_error_for_an_unknown_model_has_the_format_of_the_api(router: OwnServer) -> None:
    near = "chatt"
    usual = router.post("/v1/chat/completions", body("create_chat_completion", model=near))
    error = contract.check_envelope(usual, 400, "invalid_request_error")
    assert f"model '{near}' not found" in error["message"]
    assert CHAT in error["message"].split("one of these")[1]
    anthropic = router.post("/v1/messages", body("create_message", model=near)).json()
    assert anthropic["type"] == "error"
    expected = {"type": "invalid_request_error", "message": error["message"], "code": 400}
    assert anthropic["error"] == expected
    ollama = {"model": near, "messages": BODIES["create_ollama_chat"]["messages"]}
    response = router.post("/api/chat", {**ollama, "options": {"num_predict": 2}})
    assert response.status_code == 404
    assert response.json() == {"error": error["message"]}


# ---- lists of models --------------------------------------------------------------


def test_the_list(router: OwnServer, zoo: Zoo) -> None:
    set_status(router, FIM, UNLOADED)
    set_status(router, CHAT, LOADED)
    listed = lasting_list(router, "/models")
    assert lasting_list(router, "/v1/models") == listed
    assert lasting_list(router, "/api/tags") == listed
    assert [model["id"] for model in listed["data"]] == sorted([MODEL, *NAMES])
    assert [model["name"] for model in listed["models"]] == sorted([MODEL, *NAMES])
    found = models(router)
    for name in NAMES:
        model = found[name]
        assert model["aliases"] == [alias(name)]
        assert model["tags"] == ["a", "b"]
        assert (model["source"], model["in_cache"]) == ("preset", False)
        assert model["path"] == str(zoo.path(name))
        args = model["status"]["args"]
        assert args[args.index("--model") + 1] == model["path"]
        assert args[args.index("--ctx-size") + 1] == "512"
        assert ("--embedding" in args) == (name == EMBEDDER)
        assert model["meta"]["n_vocab"] > 0, "the file has it"
    assert found[MODEL]["source"] == "shipped"
    assert found[FIM]["status"]["value"] == UNLOADED
    assert found[FIM]["status"]["progress"] == 0
    assert "n_ctx" not in found[FIM]["meta"]
    assert found[CHAT]["status"]["value"] == LOADED
    assert found[CHAT]["status"]["progress"] == 1
    assert found[CHAT]["meta"]["n_ctx"] == 512
    assert not any(model["status"]["failed"] for model in found.values())
    assert "key" not in json.dumps([model["status"] for model in found.values()])
    capabilities = {model["name"]: model["capabilities"] for model in listed["models"]}
    assert "completion" in capabilities[CHAT]
    assert "insert" in capabilities[FIM]
    assert capabilities[EMBEDDER] == ["embedding"]
    assert capabilities[RERANKER] == ["rerank"]


# ---- loading, or not -------------------------------------------------------------------------


NEVER_LOADING = {"get_metrics", "get_loads", "get_load"}


@pytest.mark.parametrize("operation", sorted({*PAIRS, *IN_QUERY} - NEVER_LOADING))
def test_without_autoload_nothing_is_loaded(operation: str, router: OwnServer) -> None:
    set_status(router, FIM, UNLOADED)
    where = {"autoload": "false"}
    if operation in PAIRS:
        requests = [body(operation, model=FIM)]
        if operation in STREAMING:
            requests.append(body(operation, model=FIM, stream=True))
        responses = [router.post(with_query(operation, **where), each) for each in requests]
    else:
        responses = [send_with_query(router, operation, model=FIM, **where)]
    for response in responses:
        contract.check(response, 400)
        assert FIM in contract.message(response)
    assert status(router, FIM)["value"] == UNLOADED
    if operation in PAIRS:  # a loaded model is used
        name = PAIRS[operation][0]
        set_status(router, name, LOADED)
        assert answers(router, operation, name, **where)[0][0] == 200


def test_no_models_autoload(own_server: Start, options: list[str], hub: Mapping[str, str]) -> None:
    server = own_server(*options, "--no-models-autoload", router=True, variables=hub)
    request = body("create_completion", model=CHAT)
    contract.check(server.post("/completion", request), 400)
    contract.check(server.get(with_query("get_props", model=CHAT)), 400)
    assert contract.check(server.get("/props"))["models_autoload"] is False
    assert loaded(server) <= {MODEL}
    set_status(server, CHAT, LOADED)
    contract.check(server.post("/completion", request))
    contract.check(server.post("/completion?autoload=true", {**request, "model": OTHER_CHAT}))


def test_the_list_in_the_form_of_lm_studio(router: OwnServer) -> None:
    set_status(router, CHAT, LOADED)
    set_status(router, OTHER_CHAT, UNLOADED)
    listed = {each["id"]: each for each in contract.check(router.get("/api/v0/models"))["data"]}
    plain = models(router)
    assert [*listed] == [*plain]
    for name, entry in listed.items():
        assert (entry["type"] == "embeddings") is (name in (EMBEDDER, RERANKER))
        assert entry["max_context_length"] == plain[name]["meta"]["n_ctx_train"]
    assert listed[CHAT]["state"] == "loaded"
    assert listed[CHAT]["loaded_context_length"] == plain[CHAT]["meta"]["n_ctx"]
    assert listed[OTHER_CHAT]["state"] == "not-loaded"
    assert "loaded_context_length" not in listed[OTHER_CHAT]


# ---- presets ---------------------------------------------------------------------------------


def test_precedence_of_options(own_server: Start, zoo: Zoo, tmp_path: Path) -> None:
    """The command line, then a model's own section, then the section for all, then variables."""
    presets = tmp_path / "models.ini"
    presets.write_text(
        "[*]\nLLAMA_ARG_CTX_SIZE = 256\nparallel = 1\ntop-p = 0.3\ntop-k = 33\ntemp = 0.3\n"
        f"[{CHAT}]\ntop-k = 22\ntemp = 0.2\nload-on-startup = true\n",
        "utf-8",
    )
    files = ["--models-dir", str(zoo.directory), "--models-preset", str(presets)]
    environment = {"LLAMA_ARG_TOP_K": "44", "LLAMA_ARG_N_PREDICT": "5", "LLAMA_ARG_CTX_SIZE": "99"}
    environment["HF_HUB_CACHE"] = str(tmp_path / "hub")
    server = own_server(*files, "--temp", "0.1", router=True, variables=environment)
    for name, top_k in ((CHAT, 22), (OTHER_CHAT, 33)):
        props = contract.check(server.get(with_query("get_props", model=name)))
        settings = props["default_generation_settings"]
        params = settings["params"]
        assert params["temperature"] == pytest.approx(0.1)
        assert params["top_k"] == top_k
        assert params["top_p"] == pytest.approx(0.3)
        assert params["n_predict"] == 5
        assert settings["n_ctx"] == 256
        answer = server.ask("/completion", {"prompt": "a", "ignore_eos": True, "model": name})
        assert answer["tokens_predicted"] == 5
    # The model that is loaded on startup is the default, and the shipped model isn't loaded.
    assert server.get("/props").json()["model_alias"] == CHAT
    assert server.ask("/completion", {"prompt": "a"})["model"] == CHAT
    assert loaded(server) == {CHAT, OTHER_CHAT}


# ---- `connexion run` -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def connexion(module_server: Start, options: list[str], hub: Mapping[str, str]) -> OwnServer:
    values = dict(zip(options[0:4:2], options[1:4:2], strict=True))
    variables = {
        "LLAMA_API_KEY": "key",
        "LLAMA_ARG_MODEL": "",
        "LLAMA_ARG_MODELS_SHIPPED": "1",
        "LLAMA_ARG_MODELS_DIR": values["--models-dir"],
        "LLAMA_ARG_MODELS_PRESET": values["--models-preset"],
        **hub,
    }
    return module_server(how=lambda directory: start_connexion(directory, **variables))


def test_connexion_run_is_the_same_router(connexion: OwnServer, alone: Alone) -> None:
    for operation in ("create_completion", "create_openai_embeddings", "create_rerank"):
        name = PAIRS[operation][0]
        assert answers(connexion, operation, name) == alone[name, operation]
    contract.check(send(connexion, "create_completion", model="chatt"), 400)
    contract.check(send(connexion, "unload_model", model=RERANKER))
    assert models(connexion).keys() == {MODEL, *NAMES}


@pytest.fixture(autouse=True)
def nothing_dies(request: pytest.FixtureRequest) -> Iterator[None]:
    """Checks that no test of the shared router ends an engine by accident."""
    yield
    if "router" in request.fixturenames:
        router: OwnServer = request.getfixturevalue("router")
        assert router.process.poll() is None
        assert "a new one is started" not in router.log.read_text()
