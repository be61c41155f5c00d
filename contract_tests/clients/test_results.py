"""The page about clients, its results, and the recordings."""

import json
from pathlib import Path

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from contract_tests.clients import results
from contract_tests.clients.library import Library, libraries
from contract_tests.clients.recorder import Recorder, serving
from contract_tests.kit.server import SECONDS
from contract_tests.peer.request import recorded


@pytest.mark.parametrize("library", libraries(), ids=lambda library: library.key)
def test_results_are_those_of_the_pinned_versions(library: Library) -> None:
    """After a version is raised, the tests have to run again."""
    found = results.stored()[library.key]
    assert found["packages"] == library.packages
    assert {results.kind(case) for case in found["cases"]} <= set(results.KINDS)


def test_the_page_is_up_to_date() -> None:
    assert results.PAGE.read_text("utf-8") == results.page()


def test_a_report_is_read(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(
        '<testsuites><testcase name="test_chat"/><testcase name="stream">'
        '<failure message="a&#10;b">trace</failure></testcase></testsuites>'
    )
    assert results.read(report) == {"chat": results.PASSED, "stream": "a b"}


def test_recordings_have_neither_keys_nor_addresses() -> None:
    assert len(recorded()) > 100
    for each in recorded():
        text = json.dumps(each.body) + json.dumps(dict(each.headers))
        for secret in ("127.0.0.1", "localhost", "authorization", "x-api-key", "user-agent"):
            assert secret not in text.lower(), each.name


async def _echo(scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive)
    seen = {"path": request.url.path, "body": json.loads(await request.body())}
    await JSONResponse(seen, 418)(scope, receive, send)


def test_the_recorder_forwards_and_keeps_requests() -> None:
    body = {"messages": [{"tool_call_id": "random"}, {"id": "other"}, {"id": "random"}]}
    plain = {"messages": [{"tool_call_id": "id_0"}, {"id": "id_1"}, {"id": "id_0"}]}
    with serving(_echo) as upstream:
        recorder = Recorder(upstream)
        with serving(recorder) as url, httpx.Client(base_url=url, timeout=SECONDS) as client:
            key = {"Authorization": "Bearer secret", "Anthropic-Version": "1"}
            for path in ("/recorded/some/chat/v1/chat?a=1", "/recorded/some/error/v1", "/v1"):
                answer = client.post(path, json=body, headers=key)
                assert answer.status_code == 418
                assert answer.json()["body"] == body
                assert answer.json()["path"].startswith("/v1")
    [kept] = recorder.kept["some"]
    assert (kept["case"], kept["method"], kept["path"]) == ("chat", "POST", "/v1/chat?a=1")
    assert kept["body"] == plain
    assert kept["headers"]["anthropic-version"] == "1"
    assert "authorization" not in kept["headers"]
