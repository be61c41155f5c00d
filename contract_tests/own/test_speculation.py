"""Proposed tokens from a client's view: the texts that they come from, and the reports about
them."""

from typing import Any

from contract_tests.kit import contract
from contract_tests.kit.server import OwnServer, Start
from specllama.engine.shipped import model_path

KEYS = ("key-of-one", "key-of-another")
REQUEST = {
    "prompt": "def read(self, path):\n    with open(path) as file:\n        return",
    "n_predict": 120,
    "temperature": 0,
    "ignore_eos": True,
}


def drafted(server: OwnServer, key: str, **more: Any) -> int:
    """Returns the number of tokens that were proposed for the request."""
    headers = {"Authorization": f"Bearer {key}"}
    response = server.post("/completion", {**REQUEST, **more}, headers=headers)
    timings = contract.check(response)["timings"]
    assert timings["predicted_n"] == REQUEST["n_predict"]
    return int(timings.get("draft_n", 0))


def drafted_at_last(server: OwnServer, key: str) -> int:
    """Repeats the request until tokens are proposed, and returns their number. Whether proposals
    pay is measured, so on a busy machine a text may get no proposals at first."""
    while not (n := drafted(server, key)):
        pass
    return n


def test_texts_of_one_key_are_never_proposed_to_another(own_server: Start) -> None:
    """A text of one key is never proposed to another key, however often it was generated."""
    one, another = KEYS
    server = own_server("--spec-type", "radix", "--api-key", another, api_key=one)
    assert drafted(server, one) == 0, "the text is new"
    assert drafted_at_last(server, one) > 0, "the text was generated before"
    assert drafted(server, another) == 0
    assert drafted_at_last(server, another) > 0, "now this key has a text, too"
    assert drafted(server, one, prompt="import os\nimport sys\nimport re\n" * 3) == 0


def test_without_keys_all_are_one_client(own_server: Start) -> None:
    server = own_server("--spec-type", "radix")
    assert drafted(server, "any") == 0
    assert drafted_at_last(server, "other") > 0


def test_made_up_acceptance(own_server: Start) -> None:
    """A draft model that is always right."""
    options = ("--model-draft", str(model_path()), "--spec-draft-n-max", "3")
    server = own_server(*options, "--spec-draft-p-min", "0", "--spec-synth-rates", "0,0,0")
    assert "texts are not the model's own" in server.log.read_text()
    n_drafted = 0
    while not n_drafted:  # whether proposals pay is measured, too
        timings = server.ask("/completion", REQUEST)["timings"]
        assert timings.get("draft_n_accepted", 0) == 0
        n_drafted += timings.get("draft_n", 0)
