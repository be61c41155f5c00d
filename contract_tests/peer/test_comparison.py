"""The differential test itself: the differences that it finds, and its table."""

import re
from pathlib import Path
from typing import Any

import pytest

from contract_tests.peer import accepted
from contract_tests.peer.comparison import Difference, differences
from contract_tests.peer.report import Compared, counts, report
from contract_tests.peer.request import all_requests, post
from contract_tests.peer.row import Accepted, Extent
from contract_tests.peer.servers import STAGES, Answer

GREEDY = post("a", "/completion", {"prompt": "a", "temperature": 0})
DRAWN = post("a", "/completion", {"prompt": "a"})
JSON = {"Content-Type": "application/json"}
MORE = Difference("extra", "generation_settings.n_ctx")
STREAM = {"Content-Type": "text/event-stream"}


def _causes(ours: Any, theirs: Any, request: Any = GREEDY, headers: Any = JSON) -> list[str]:
    answers = (Answer(200, headers, each) for each in (ours, theirs))
    return [each.cause for each in differences(request, *answers)]


@pytest.mark.parametrize(
    ("ours", "theirs", "cause"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, "missing b"),
        ({"a": 1, "b": 2}, {"a": 1}, "extra b"),
        ({"a": 1}, {"a": "1"}, "type a"),
        ({"a": None}, {"a": "1"}, "type a"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, "value a[].b"),
        ({"a": [1]}, {"a": [1, 2]}, "length a"),
        ({"content": "x"}, {"content": "y"}, "value content"),
        ({"created": 1}, {"created": "1"}, "type created"),
        ({"error": {"message": "x"}}, {"error": {"message": "y"}}, "wording error.message"),
    ],
)
def test_it_finds(ours: Any, theirs: Any, cause: str) -> None:
    assert _causes(ours, theirs) == [cause]


def test_equal_answers_and_varying_values() -> None:
    assert not _causes({"a": [1, 2.0], "id": "x"}, {"a": [1, 2], "id": "y"})
    assert not _causes({"content": "x"}, {"content": "y"}, DRAWN)


def test_a_text_that_clients_search_for() -> None:
    theirs = {"error": {"message": "request exceeds the available context size"}}
    assert "searched error.message" in _causes({"error": {"message": "too long"}}, theirs)


def test_streams() -> None:
    first, last = ("message", {"content": "a"}), ("message", {"content": "", "stop": True})
    assert not _causes([first, last], [first, last], headers=STREAM)
    assert _causes([last], [first, last], headers=STREAM)[0] == "events count"
    assert "text stream" in _causes([last], [first, last], headers=STREAM)
    assert _causes([("a", {})], [("b", {})], headers=STREAM) == ["event name"]


def test_the_places_where_a_text_is_split_are_ignored() -> None:
    def chunks(*texts: str, **last: Any) -> list[Any]:
        deltas = [{"choices": [{"delta": {"content": text}}]} for text in texts]
        end = {"choices": [{"delta": {}, "finish_reason": "stop"}], **last}
        return [("message", each) for each in (*deltas, end)]

    assert not _causes(chunks("ab", "c"), chunks("a", "b", "c"), headers=STREAM)
    assert not _causes(chunks("ab", "c"), chunks("a", "bc"), headers=STREAM)
    assert "text stream" in _causes(chunks("ab"), chunks("a", "c"), headers=STREAM)
    assert _causes(chunks("ab"), chunks("a", "b", usage={}), headers=STREAM) == ["missing usage"]


def test_the_length_of_a_sampled_text_is_ignored() -> None:
    piece, last = ("message", {"content": "a"}), ("message", {"content": "", "stop": True})
    assert not _causes([piece, last], [piece, piece, last], DRAWN, headers=STREAM)
    assert _causes([("a", {}), last], [last], DRAWN, headers=STREAM)[0] == "events count"


def test_status_and_headers() -> None:
    found = differences(GREEDY, Answer(400, JSON, {}), Answer(200, JSON, {}))
    assert [each.cause for each in found] == ["status 400 for 200"]
    [spelt] = differences(
        GREEDY, Answer(200, {"content-type": "application/json"}, {}), Answer(200, JSON, {})
    )
    assert spelt.cause == "header spelt Content-Type"


def test_the_report_separates_reasons_from_the_rest() -> None:
    status, surprise = Difference("status", "400 for 500"), Difference("missing", "surprise")
    words = Difference("wording", "error.message")
    results = [Compared(GREEDY, []), *(Compared(GREEDY, [MORE, *rest]) for rest in
        ([], [words], [words, status], [surprise], [Difference("extra", "surprise")]))]  # fmt: skip
    assert counts(results) == {
        Extent.EQUAL: 1,
        Extent.KEYS: 1,
        Extent.WORDS: 1,
        Extent.VALUES: 1,
    }
    text = report(results, verbose=False)
    assert text.startswith("6 requests, of which\n     1 have equal answers\n")
    assert "2 differ without a reason" in text
    assert "missing surprise" in text
    assert "extra surprise" in text


def test_the_requests() -> None:
    requests = all_requests()
    assert len(requests) >= 300
    assert {each.stage for each in requests} == set(STAGES)
    assert all(each.path.startswith("/") for each in requests)


@pytest.mark.parametrize("row", accepted.ACCEPTED, ids=lambda row: row.title)
def test_the_requests_of_a_row_exist(row: Accepted) -> None:
    """After a request is renamed, its rows must be changed, too."""
    requests = [each for each in all_requests() if re.match(row.paths, each.path)]
    for choice in re.split(r"\|(?=[a-z-]+: )", row.requests):
        assert any(re.match(choice, each.name) for each in requests), choice


def test_the_counts_are_of_these_requests() -> None:
    assert sum(accepted.recorded().values()) == len(all_requests()), "run it with --record"


def test_a_row_without_a_difference_has_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Accepted("No more", "", "", "", r"value nothing")
    monkeypatch.setattr(accepted, "ACCEPTED", (*accepted.ACCEPTED, row))
    with pytest.raises(ValueError, match=r"No more$"):
        accepted.page()


def test_a_row_that_is_shown_sometimes_may_be_missing() -> None:
    shown = [row.title for row in accepted.ACCEPTED if not row.sometimes]
    assert accepted.without_difference(shown) == []
    assert accepted.without_difference(shown[1:]) == shown[:1]


def test_the_page_is_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "coming-from-llama-server.md"
    assert page.read_text("utf-8") == accepted.page()
