"""Models, slots, properties and tokens of a server with a paper engine."""

import time

import pytest

from specllama.engine.wire.replies import WaitingState
from tests.support.paper_server import INFO, Server, serve

pytestmark = pytest.mark.slow


def test_tokenize(server: Server) -> None:
    assert server.post("/tokenize", content="A").json() == {"tokens": [0, 1, 65]}
    flags = {"add_special": True, "parse_special": False}
    assert server.post("/tokenize", content="A", **flags).json() == {"tokens": [1, 0, 65]}
    pieces = server.post("/tokenize", content="A", with_pieces=True).json()
    assert pieces == {"tokens": [{"id": id, "piece": [195]} for id in (0, 1, 65)]}


def test_detokenize(server: Server) -> None:
    assert server.post("/detokenize", tokens=[65, 66.0]).json() == {"content": "AB"}
    assert server.post("/detokenize", tokens=[]).json() == {"content": ""}
    assert server.post("/detokenize", tokens=[300]).status_code == 400


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
def test_models(server: Server, path: str) -> None:
    [model] = server.get(path).json()["data"]
    assert (model["id"], model["aliases"]) == ("a", ["a", "b"])
    assert model["created"] <= time.time()
    assert model["meta"]["n_vocab"] == 300


def test_models_while_loading(server: Server) -> None:
    server.supervisor.info = None
    try:
        assert server.get("/models").json()["data"][0]["meta"] is None
    finally:
        server.supervisor.info = INFO


def test_props(server: Server) -> None:
    props = server.get("/props").json()
    assert props["total_slots"] == 2
    assert props["default_generation_settings"]["params"]["temperature"] == 0.800000011920929
    assert props["chat_template_caps"]["supports_system_role"]


def test_slots(server: Server) -> None:
    unused, used = server.get("/slots").json()
    assert set(unused) == {"id", "n_ctx", "speculative", "is_processing"}
    assert (used["id_task"], used["params"]["seed"]) == (5, 3)
    assert server.get("/slots", fail_on_no_slot=1).status_code == 200
    server.engine.busy = True
    assert server.get("/slots").status_code == 200
    assert server.get("/slots", fail_on_no_slot=1).status_code == 503


def test_slots_and_the_queue_have_the_names_of_keys() -> None:
    for server in serve():
        for place, name in enumerate(["alice", "", "carol"], 1):
            server.engine.waiting.append(
                WaitingState(
                    id=place,
                    place=place,
                    key_name=name,
                    n_tokens=9,
                    n_uncached=8,
                    age_ms=1,
                    wait_ms=2,
                )
            )
        queue = server.get("/queue").json()
        assert queue["n_waiting"] == 3
        assert [(each["place"], each["key_name"]) for each in queue["waiting"]] == [
            (1, "alice"),
            (2, ""),
            (3, "carol"),
        ]
        assert [slot.get("key_name") for slot in server.get("/slots").json()] == [None, "bob"]


def test_slots_show_texts_only_by_option(server: Server) -> None:
    private = {"stop", "grammar", "json_schema", "logit_bias", "dry_sequence_breakers"}
    slot = server.get("/slots").json()[1]
    assert not {"prompt", "generated"} & slot.keys()
    assert not private & slot["params"].keys()
    for telling in serve(slots_text=True):
        slot = telling.get("/slots").json()[1]
        assert {"prompt", "generated"} <= slot.keys()
        assert private <= slot["params"].keys()


def test_no_slots() -> None:
    for server in serve(slots=False):
        assert server.get("/slots").status_code == 501
        assert not server.get("/props").json()["endpoint_slots"]
