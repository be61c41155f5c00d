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

DRAFTED = ("draft_n", "draft_n_accepted")


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
    """A draft model that is always right: its tokens are proposed even where they don't pay."""
    options = ("--model-draft", str(model_path()), "--spec-draft-n-max", "3")
    server = own_server(*options, "--spec-draft-p-min", "0", "--spec-synth-rates", "0,0,0")
    assert "texts are not the model's own" in server.log.read_text()
    timings = server.ask("/completion", REQUEST)["timings"]
    assert timings["draft_n"] >= timings["predicted_n"] - 2, "one or more for each token"
    assert timings["draft_n_accepted"] == 0


def test_made_up_acceptance_is_the_same_each_time(own_server: Start) -> None:
    options = ("--model-draft", str(model_path()), "--spec-draft-n-max", "3", "-np", "1")
    server = own_server(*options, "--spec-draft-p-min", "0", "--spec-synth-len", "2")
    request = {**REQUEST, "temperature": 1, "seed": 7, "cache_prompt": False}
    answers = [server.ask("/completion", request) for _ in range(2)]
    numbers = [[each["timings"][name] for name in DRAFTED] for each in answers]
    assert numbers[0] == numbers[1]
    assert 0 < numbers[0][1] < numbers[0][0]
    assert answers[0]["content"] == answers[1]["content"]
