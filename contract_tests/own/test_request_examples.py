"""Every example of a request works with a server that was started without options, and `/docs`
sends it."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from contract_tests.kit import contract, lint
from contract_tests.kit.bodies import CONVERSATIONS, ENDLESS, KEPT, REFUSED, STORED, TOOLS, body
from contract_tests.kit.routers import set_status
from contract_tests.kit.server import OwnServer, Server, Start

Example = tuple[str, str, Any]

OPTION = "x-option"
ELSEWHERE = {"download_model", "remove_model"}
"""Operations that need the Hugging Face hub, or a download from it: test_router_changes.py."""


def examples() -> Iterator[Example]:
    """Yields (operationId, name of the example, body) of all requests; None for operations without
    a body."""
    for name, operation in contract.operations().items():
        bodies = [each for each in lint.media(operation) if each.status is None]
        found = [pair for each in bodies for pair in lint.examples(each.definition)]
        for label, value in found or [("no body", None)]:
            if name not in (*ENDLESS, *ELSEWHERE):
                yield name, label, value


def address(operation: lint.Operation, kept: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Returns path and query with the examples of all parameters; `kept` has the ids of what is
    stored, by their parameters."""
    where, query = operation.path, {}
    for parameter in operation.definition.get("parameters", ()):
        name, shown = parameter["name"], [value for _, value in lint.examples(parameter)]
        if parameter["in"] == "path":
            where = where.replace(f"{{{name}}}", str(kept.get(name, shown[0])))
        elif parameter["in"] == "query" and shown:
            query[name] = str(shown[0]).lower() if isinstance(shown[0], bool) else shown[0]
    return where, query


def stored(server: Server, name: str, asked: Callable[[str], Any]) -> dict[str, str]:
    """Returns the path parameters of what an operation needs, which is stored now. `asked` returns
    the body for the operation that stores it."""
    if name in STORED:
        question = {**asked("create_response"), "background": name == "cancel_response"}
        return {"response_id": server.ask("/v1/responses", question)["id"]}
    if name in CONVERSATIONS:
        id = server.ask("/v1/conversations", asked("create_conversation"))["id"]
        [item] = contract.check(server.get(f"/v1/conversations/{id}/items"))["data"]
        return {"conversation_id": id, "item_id": item["id"]}
    return {}


@pytest.fixture(scope="module")
def plain(module_server: Start, hub: dict[str, str]) -> OwnServer:
    """A server without options, which has only the shipped model."""
    return module_server(router=True, variables=hub)


@pytest.mark.parametrize(
    ("name", "label", "content"),
    list(examples()),
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_an_example_works(name: str, label: str, content: Any, plain: OwnServer) -> None:
    operation = contract.operations()[name]
    where, query = address(operation, stored(plain, name, body))
    if name in KEPT:
        asked = body("create_chat_completion", stream=True)
        headers = {"X-Conversation-Id": query["conv_id"]}
        assert plain.post("/v1/chat/completions", asked, headers=headers).status_code == 200
    if name in ("load_model", "unload_model"):  # an error if the model is in that state already
        set_status(plain, content["model"], "unloaded" if name == "load_model" else "loaded")
    sent: dict[str, Any] = {"json": content}
    if contract.is_form(operation):
        fields = {key: value for key, value in content.items() if key != "file"}
        sent = {"files": {"file": b"RIFF"}, "data": fields}
    response = plain.http.request(operation.method, where, params=query, **sent)
    if name in REFUSED:
        statuses = {int(each) for each in operation.definition["responses"]} - {401}
        assert response.status_code in statuses
        contract.check(response, response.status_code)
    elif "x-websocket" in operation.definition:  # test_responses_socket.py shakes hands
        contract.check(response, 426)
    elif option := operation.definition.get(OPTION):
        contract.check(response, 403 if name in TOOLS else 501)
        assert option in contract.message(response)
    else:
        contract.check(response, 204 if name == "delete_stream" else 200)


def test_descriptions_name_the_required_option() -> None:
    for name, operation in contract.operations().items():
        if option := operation.definition.get(OPTION):
            is_alias = operation.definition["summary"].startswith("Alias of ")
            assert is_alias or option in operation.definition["description"], name
            assert ("403" if name in TOOLS else "501") in operation.definition["responses"], name


def test_docs_sends_the_first_example(plain: OwnServer) -> None:
    """Swagger UI makes a body from its schema, or from the schema's own example."""
    document = plain.get("/openapi.json").json()

    def followed(node: Any) -> Any:
        while "$ref" in node:
            section, name = node["$ref"].split("/")[-2:]
            node = document["components"][section][name]
        return node

    described = {
        operation["operationId"]: followed(operation["requestBody"])["content"]
        for item in document["paths"].values()
        for operation in item.values()
        if isinstance(operation, dict) and "requestBody" in operation
    }
    assert described
    for name, content in described.items():
        for media in content.values():
            [_, first], *_ = lint.examples(media)
            assert followed(media["schema"])["example"] == first, name


def test_docs_sends_examples_of_parameters() -> None:
    """Every required parameter has an example."""
    for operation in contract.operations().values():
        for parameter in operation.definition.get("parameters", ()):
            if parameter.get("required"):
                assert list(lint.examples(parameter)), f"{operation.name} {parameter['name']}"
