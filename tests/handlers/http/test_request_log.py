"""Ids of requests, their lines in the log, and the formats of these."""

import asyncio
import json
import logging
import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from starlette.types import Message, Receive, Scope, Send

from contract_tests.kit.server import SECONDS
from specllama import logs
from specllama.engine.errors import unavailable
from specllama.engine.formats.schema_errors import sentence
from specllama.engine.wire.replies import Timings
from specllama.engine.wire.stats import MissReason
from specllama.handlers.http.log_fields import MAX_ID, LogFields, log_fields_of, request_id
from specllama.handlers.http.request_log import MAX_ERROR, RequestLog, escaped, request_line
from specllama.handlers.options import parse
from specllama.handlers.running.batch import log_token_counts
from tests.support.http_support import handlers_module, serving, small_app

pytestmark = pytest.mark.slow

VISIBLE = st.characters(min_codepoint=0x21, max_codepoint=0x7E)

# ---- ids -------------------------------------------------------------------------------------


@given(st.text(VISIBLE, min_size=1, max_size=MAX_ID))
def test_a_sane_id_is_kept(id: str) -> None:
    assert request_id([(b"host", b"a"), (b"x-request-id", id.encode())]) == id


@given(st.binary(max_size=2 * MAX_ID))
def test_any_other_is_replaced(value: bytes) -> None:
    id = request_id([(b"x-request-id", value), (b"x-request-id", b"second")])
    sane = 0 < len(value) <= MAX_ID and all(0x21 <= byte <= 0x7E for byte in value)
    assert (id.encode() == value) is sane
    assert re.fullmatch(r"[!-~]{1,128}", id)
    assert id != "second"


# ---- the middleware ----------------------------------------------------------------------------


def logged(
    caplog: pytest.LogCaptureFixture, app: Any, path: str = "/a", method: str = "GET"
) -> list[tuple[str, dict[str, Any]]]:
    """(level, fields) of the lines about one request to `app`."""
    scope: Scope = {
        "type": "http", "method": method, "path": path, "raw_path": path.encode(),
        "headers": [(b"x-request-id", b"i")], "state": {},
    }  # fmt: skip
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    caplog.set_level(logging.DEBUG, "http")
    caplog.clear()
    with suppress(asyncio.CancelledError):
        asyncio.run(RequestLog(app)(scope, receive, send))
    if sent:
        assert (b"x-request-id", b"i") in sent[0]["headers"]
    return [(each.levelname, each.fields) for each in caplog.records]  # type: ignore[attr-defined]


def answering(code: int, *, more: bool = False, **noted: Any) -> Any:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in noted.items():
            setattr(log_fields_of(scope), name, value)
        await send({"type": "http.response.start", "status": code, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": more})

    return app


def test_levels(caplog: pytest.LogCaptureFixture) -> None:
    def level(path: str, app: Any, method: str = "GET") -> str:
        [(name, _)] = logged(caplog, app, path, method)
        return name

    for path in ("/health", "/prefix/v1/health", "/metrics"):
        assert level(path, answering(200)) == "DEBUG"
        assert level(path, answering(503)) == "DEBUG"
        assert level(path, answering(200, more=True)) == "DEBUG"
        assert level(path, answering(401)) == "INFO"
        assert level(path, answering(500)) == "WARNING"
    assert level("/a", answering(200), "OPTIONS") == "DEBUG"
    assert level("/a", answering(405), "OPTIONS") == "INFO"
    assert level("/a", answering(404)) == "INFO"
    assert level("/a", answering(500)) == "WARNING"
    assert level("/a", answering(200, status=500, error="in the stream")) == "WARNING"
    caplog.set_level(logging.WARNING, "http")


def test_who_went_away(caplog: pytest.LogCaptureFixture) -> None:
    async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
        pass

    async def cancelled(scope: Scope, receive: Receive, send: Send) -> None:
        raise asyncio.CancelledError

    for app, status in (
        (nothing, 499),
        (cancelled, 499),
        (answering(400, gone=True), 499),
        (answering(200, more=True), 200),
    ):
        [(_, fields)] = logged(caplog, app)
        assert (fields["status"], fields["client_gone"]) == (status, True)
    [(_, fields)] = logged(caplog, answering(200))
    assert "client_gone" not in fields


@given(st.text(), st.text())
def test_a_line_never_becomes_two(model: str, error: str) -> None:
    fields = {"method": "GET", "path": "/", "status": 400, "model": model, "ms": 1.0}
    line = request_line({**fields, "error": escaped(error, MAX_ERROR)})
    assert line.isprintable()
    assert line.startswith("GET / 400 model=")
    assert len(line) < 12 * (len(model) + MAX_ERROR) + 100


def test_words_with_spaces_are_quoted() -> None:
    fields = {"method": "GET", "path": "/", "status": 200, "client_gone": True}
    assert request_line({**fields, "model": "a b"}) == 'GET / 200 client=gone model="a b"'
    assert request_line({"error": 'a"b\\', **fields}) == r'GET / 200 error="a\"b\\" client=gone'


def test_counts_of_several_texts() -> None:
    def timings(cache: int, prompt: int, predicted: int, ms: float) -> Timings:
        return Timings(cache, prompt, 1.0, predicted, ms)

    noted = LogFields("i")
    log_token_counts(noted, [timings(2, 3, 5, 40.0), timings(4, 1, 6, 90.0), None, None], 2)
    assert (noted.n_prompt, noted.n_cached, noted.n_predicted) == (5, 2, 11)
    assert noted.predicted_per_second == pytest.approx(100.0)
    assert noted.missed == ""
    noted = LogFields("i")
    log_token_counts(noted, [timings(0, 7, 1, 0.0)], 1)
    assert (noted.n_prompt, noted.n_predicted, noted.predicted_per_second) == (7, 1, 0.0)
    reasons: list[MissReason | None] = [None, "new", "edited"]
    prompts = [Timings(1, 2, 1.0, 1, 0.0, cache_miss_reason=reason) for reason in reasons]
    log_token_counts(noted, prompts, 1)
    assert noted.missed == "new", "the first reason"


# ---- reasons -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    async def fail(how: str) -> None:
        raise ValueError("a secret") if how == "bug" else unavailable(f"no\n\x1b[31m{how}")

    handlers = handlers_module(fail=fail)
    with (
        serving(small_app(tmp_path_factory.mktemp("api"), handlers)) as (host, port),
        httpx.Client(base_url=f"http://{host}:{port}", timeout=SECONDS) as client,
    ):
        yield client


def fields_of(caplog: pytest.LogCaptureFixture, response: httpx.Response) -> dict[str, Any]:
    id = response.headers["x-request-id"]
    while True:  # another thread writes the line, after the answer
        for record in list(caplog.records):
            fields: dict[str, Any] = getattr(record, "fields", {})
            if fields.get("request_id") == id:
                return fields


def test_reasons(client: httpx.Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    found_fields = fields_of(caplog, client.get("/fail/busy"))
    assert (found_fields["status"], found_fields["error"]) == (503, "no\\n\\x1b[31mbusy")
    found_fields = fields_of(caplog, client.get("/fail/bug"))
    assert (found_fields["status"], found_fields["error"]) == (
        500,
        "the server failed to answer this request; its log says why",
    )
    found_fields = fields_of(caplog, client.post("/echo", json={"text": {"a": "private"}}))
    assert (found_fields["status"], found_fields["error"]) == (
        400,
        "text: the value is not a string",
    )
    found_fields = fields_of(caplog, client.get("/echo?n=private"))
    assert (found_fields["path"], found_fields["status"]) == ("/echo", 400)
    assert "private" not in found_fields["error"]
    assert fields_of(caplog, client.get("/no/such"))["error"] == "there is no path /no/such"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-99, 99) | st.just("private"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=5,
)
SCHEMA = {
    "type": "object",
    "required": ["a"],
    "additionalProperties": False,
    "properties": {
        "a": {"anyOf": [{"type": "string", "enum": ["x", "y"]}, {"type": "array", "maxItems": 1}]},
        "b": {"type": "string", "maxLength": 3, "pattern": "^p"},
    },
}


@given(st.dictionaries(st.sampled_from(["a", "b", "private"]), JSON))
def test_the_discreet_sentence_has_nothing_of_the_client(instance: dict[str, Any]) -> None:
    validator = Draft202012Validator(SCHEMA)
    if not validator.is_valid(instance):
        found_fields = sentence(validator, instance)
        assert "private" not in found_fields.discreet
        assert found_fields.isprintable()
        assert found_fields.discreet.isprintable()


# ---- formats -------------------------------------------------------------------------------------


@pytest.fixture
def root() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    logging.getLogger("uvicorn.error").filters.clear()


@pytest.mark.usefixtures("root")
def test_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "log"
    logs.configure(parse(["--log-format", "json", "--log-file", str(file)], {}).log)
    before = datetime.now(UTC)
    log = logging.getLogger("test")
    log.info("two\nlines \ud800 %s", "ä", extra={"fields": {"model": "m", "n": 1}})
    try:
        raise ValueError("no")
    except ValueError:
        log.exception("it failed")
    log.debug("not this")
    text = capsys.readouterr().err
    assert text == file.read_text("utf-8")
    one, two = [json.loads(line) for line in text.splitlines()]
    assert before.timestamp() - 1 <= datetime.fromisoformat(one["time"]).timestamp()
    assert one.pop("time").endswith("Z")
    assert one == {
        "level": "info", "logger": "test", "message": "two\nlines \\ud800 ä", "model": "m", "n": 1,
    }  # fmt: skip
    assert (two["level"], two["message"]) == ("error", "it failed")
    assert two["traceback"].endswith("ValueError: no")


@pytest.mark.usefixtures("root")
def test_the_variable_and_the_file_in_the_banner(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert parse([], {"LLAMA_ARG_LOG_FORMAT": "json"}).log.log_format == "json"
    assert parse([], {"LLAMA_LOG_PREFIX": "0"}).log.log_prefix is False
    file = tmp_path / "log"
    logs.configure(parse(["--log-file", str(file)], {}).log)
    logging.getLogger("test").info("ready", extra={"in_banner": True})
    assert capsys.readouterr().err == ""
    assert file.read_text("utf-8") == "INFO test: ready\n"
