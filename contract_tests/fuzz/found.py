"""What fuzzing found in the server, the description and the kit, with the test of each."""

from typing import NamedTuple


class Finding(NamedTuple):
    """A fault that is mended. `test` is the file and the name of its test."""

    what: str
    whose: str
    test: str


FOUND = (
    Finding(
        "A value of the wrong type, nested more than 255 levels deep, was 500, or ended the "
        "process that checks large bodies",
        "server",
        "tests/engine/formats/test_schema_errors.py::test_a_wrong_value_may_be_nested_deeply",
    ),
    Finding(
        "`input_items` of a response in the background was 404 until it was complete",
        "server",
        "contract_tests/kit/chats/test_responses.py"
        "::test_a_response_in_the_background_has_its_input_from_the_start",
    ),
    Finding(
        "A word in the query of `GET /v1/stream` that it doesn't know was an error in the log",
        "server",
        "contract_tests/own/test_request_log.py::test_a_query_that_no_operation_knows_is_no_error",
    ),
    Finding(
        "Events with `response_fields` were found wrong",
        "kit",
        "contract_tests/fuzz/test_fuzz.py::test_events_are_judged_by_their_request",
    ),
    Finding(
        "A model that a body names after an example of the description, and that no hub has, was "
        "found an error in the log",
        "kit",
        "contract_tests/fuzz/test_fuzz.py::test_a_model_that_a_hub_does_not_have_is_no_fault",
    ),
    Finding(
        "A response repeated a whole number that was asked for as 3.0 with its fraction",
        "server",
        "contract_tests/kit/chats/test_responses.py"
        "::test_whole_numbers_may_be_written_as_fractions",
    ),
    Finding(
        "A text whose length an API doesn't read was waited for as a short one",
        "kit",
        "contract_tests/fuzz/test_fuzz.py::test_a_length_outside_of_the_options_is_none_for_ollama",
    ),
)
