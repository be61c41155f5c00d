"""The faults that fuzzing found in the server, the description and the kit, with their tests."""

from typing import NamedTuple


class Finding(NamedTuple):
    """A fixed fault. `test` is the file and the name of its test."""

    what: str
    whose: str
    test: str


FOUND = (
    Finding(
        "A value of the wrong type, nested more than 255 levels deep, caused a 500, or ended the "
        "process that validates large bodies",
        "server",
        "tests/engine/formats/test_schema_errors.py::test_a_wrong_value_may_be_nested_deeply",
    ),
    Finding(
        "`input_items` of a response in the background returned 404 until it was complete",
        "server",
        "contract_tests/kit/chats/test_responses.py"
        "::test_a_response_in_the_background_has_its_input_from_the_start",
    ),
    Finding(
        "An unknown word in the query of `GET /v1/stream` caused an error in the log",
        "server",
        "contract_tests/own/test_request_log.py::test_a_query_that_no_operation_knows_is_no_error",
    ),
    Finding(
        "Events with `response_fields` were reported as wrong",
        "kit",
        "contract_tests/fuzz/test_fuzz.py::test_events_are_judged_by_their_request",
    ),
    Finding(
        "The log error for a model of the description's examples, which no hub has, was reported "
        "as a fault",
        "kit",
        "contract_tests/fuzz/test_fuzz.py::test_a_model_that_a_hub_does_not_have_is_no_fault",
    ),
    Finding(
        "A response repeated a whole number with its fraction if the request had it as 3.0",
        "server",
        "contract_tests/kit/chats/test_responses.py"
        "::test_whole_numbers_may_be_written_as_fractions",
    ),
    Finding(
        "The client waited for a long text as for a short one if the API ignored its length",
        "kit",
        "contract_tests/fuzz/test_fuzz.py::test_ollama_has_the_length_in_its_options",
    ),
)
