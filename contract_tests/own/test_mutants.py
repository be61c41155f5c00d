"""Would the kit notice? A server is broken in one way after the other, and has to be caught."""

import re
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import handlers.apis.openai.format
from contract_tests.kit import checks
from contract_tests.kit.server import API_KEY, OwnServer, Server, Start
from contract_tests.own.mutants import EXERCISED, MUTANTS, _replace
from contract_tests.own.servers import ROOT, environment
from tools.models.zoo import Zoo

Check = Callable[[Server], None]


class Caught(NamedTuple):
    """A mutant, the check that has to fail, and what the failure has to say (a pattern).

    `lies` is whether all its answers are as described, so that only what they say is wrong.
    """

    mutant: str
    check: Check
    reason: str
    lies: bool = False


ACCEPTED = "expected 40[014], got .* 200"
"""The failure of a check where a request should have been refused."""

CAUGHT = [
    Caught(
        "malformed_json_is_an_empty_object",
        checks.malformed_json_is_refused,
        ACCEPTED,
    ),
    Caught(
        "malformed_json_is_a_server_error",
        checks.malformed_json_is_refused,
        "expected 400, got .* 500",
    ),
    Caught("bodies_are_not_validated", checks.errors_have_the_envelope, "500"),
    Caught("a_field_is_missing", checks.plain_answers_are_as_described, r"\$: .*index"),
    Caught("a_number_is_text", checks.streams_are_as_described, r"event \d+, .*\"stop\":true"),
    Caught("a_stop_text_is_shown", checks.stop_texts_are_never_shown, "==", lies=True),
    Caught("cached_tokens_are_not_counted", checks.counts_add_up, "==", lies=True),
    Caught("usage_is_off_by_one", checks.counts_add_up, "completion_tokens.*6.*5", lies=True),
    Caught("streams_end_with_their_clients", checks.streams_outlive_their_clients, "got 404"),
    Caught(
        "streams_come_back_from_the_beginning",
        checks.streams_outlive_their_clients,
        "==",
        lies=True,
    ),
    Caught("streams_have_no_end", checks.streams_are_as_described, "DONE"),
    Caught("streams_have_a_broken_event", checks.streams_are_as_described, "'a'} is not valid"),
    Caught("streams_are_announced_as_text", checks.streams_are_as_described, "text/plain"),
    Caught(
        "streams_repeat_a_piece",
        checks.streams_say_the_same_as_plain_answers,
        "create_openai_completion",
        lies=True,
    ),
    Caught("characters_are_broken", checks.characters_stay_whole, "UTF-8"),
    Caught("characters_are_replaced", checks.characters_stay_whole, "\ufffd", lies=True),
    Caught("errors_are_plain_text", checks.errors_have_the_envelope, "text/plain"),
    Caught(
        "errors_have_the_wrong_type", checks.errors_have_the_envelope, "expected not_found_error"
    ),
    Caught("bad_tokens_are_server_errors", checks.errors_have_the_envelope, "500"),
    Caught("every_key_is_right", checks.keys_are_wanted, ACCEPTED, lies=True),
    Caught("a_part_of_a_key_is_enough", checks.keys_are_wanted, ACCEPTED, lies=True),
    Caught(
        "refusals_do_not_say_how_to_authenticate",
        checks.keys_are_wanted,
        "without WWW-Authenticate",
        lies=True,
    ),
    Caught("slots_show_texts", checks.slots_keep_texts, "secret 5518", lies=True),
    Caught("ollama_gets_the_envelope", checks.ollamas_clients_are_served, "'string'", lies=True),
    Caught("slots_count_the_prompt_alone", checks.slots_count_what_they_hold, "==", lies=True),
    Caught("spaces_get_lost", checks.tokens_and_text_correspond, "two", lies=True),
]
ROUTERS = [
    Caught("every_model_is_the_default_one", checks.requests_reach_their_models, "model_alias|=="),
    Caught(
        "unknown_models_are_the_default_one",
        checks.unknown_models_are_refused,
        ACCEPTED,
    ),
    Caught(
        "everybody_may_look_for_models_again",
        checks.looking_for_models_needs_the_key,
        "expected 401",
    ),
    Caught("everything_can_be_removed", checks.what_is_no_download_stays, "expected 400"),
    Caught("everything_can_be_downloaded", checks.what_is_there_is_not_downloaded, "expected 400"),
    Caught("a_status_forgets_its_failure", checks.models_are_as_described, r"\$\.data\[0\]: "),
    Caught("events_tell_states_that_nobody_knows", checks.changes_of_models_are_told, "ready"),
]
"""Broken servers of many models."""
FUZZED = ("bodies_are_not_validated", "errors_are_plain_text", "every_key_is_right")
"""Mutants that Schemathesis alone has to find as well."""


def start_mutant(start: Start, name: str, *argv: str, **options: Any) -> OwnServer:
    launcher = ("-m", "contract_tests.own.mutants", name)
    return start(*argv, launcher=launcher, api_key=API_KEY, **options)


@pytest.fixture
def a_router(own_server: Start, zoo: Zoo, hub: dict[str, str]) -> Start:
    """Starts mutants of a router, by their names."""

    def starting(name: str) -> OwnServer:
        argv = (*zoo.arguments(), "--models-max", "2")
        return start_mutant(own_server, name, *argv, router=True, variables=hub)

    return starting


@pytest.mark.parametrize("each", CAUGHT, ids=[each.mutant for each in CAUGHT])
def test_a_mutant_is_caught(each: Caught, own_server: Start) -> None:
    caught_by(each, start_mutant(own_server, each.mutant))


@pytest.mark.parametrize("each", ROUTERS, ids=[each.mutant for each in ROUTERS])
def test_a_mutant_of_a_router_is_caught(each: Caught, a_router: Start) -> None:
    caught_by(each, a_router(each.mutant))


def caught_by(each: Caught, server: OwnServer) -> None:
    with pytest.raises(AssertionError) as caught:
        each.check(server)
    assert server.process.poll() is None, "the mutant died instead"
    assert re.search(each.reason, str(caught.value), re.DOTALL), caught.value
    assert EXERCISED in server.log.read_text("utf-8", "replace")
    if each.lies:
        checks.plain_answers_are_as_described(server)
        checks.streams_are_as_described(server)


def test_every_mutant_and_every_check_is_used() -> None:
    assert {"healthy", *(each.mutant for each in (*CAUGHT, *ROUTERS))} == MUTANTS.keys()
    assert {each.check for each in CAUGHT} == set(checks.ALL)
    assert {each.check for each in ROUTERS} == set(checks.OF_ROUTERS)


def test_what_replaces_a_function_has_its_parameters() -> None:
    """Another number of them would be a crash, and not the lie that is meant."""
    with pytest.raises(TypeError, match="usage takes"):
        _replace(handlers.apis.openai.format, "usage", lambda results: {})
    with pytest.raises(AttributeError):
        _replace(handlers.apis.openai.format, "no_such_function", lambda: None)


def test_a_healthy_server_passes_all_checks(own_server: Start) -> None:
    server = start_mutant(own_server, "healthy")
    for check in checks.ALL:
        check(server)


def test_a_healthy_router_passes_all_checks(a_router: Start) -> None:
    server = a_router("healthy")
    for check in checks.OF_ROUTERS:
        check(server)


def fuzz(server: OwnServer) -> subprocess.CompletedProcess[str]:
    """Schemathesis, and one operation, against a server that runs already."""
    options = ["--base-url", server.url, "--api-key", API_KEY, "--max-examples", "5"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", "contract_tests/kit/operations/test_schemathesis.py",
         *options, "-k", "/tokenize", "-p", "no:cacheprovider", "--tb=line", "-x"],
        cwd=ROOT, env=environment(), capture_output=True, encoding="utf-8", check=False,
        timeout=240,
    )  # fmt: skip


@pytest.mark.parametrize("name", FUZZED)
def test_schemathesis_finds_it(name: str, own_server: Start) -> None:
    done = fuzz(start_mutant(own_server, name))
    assert done.returncode == 1, done.stdout[-3000:] + done.stderr[-1000:]


def test_schemathesis_has_nothing_against_a_healthy_server(own_server: Start) -> None:
    done = fuzz(start_mutant(own_server, "healthy"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "2 passed" in done.stdout
