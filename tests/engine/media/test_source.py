"""Sources of media from texts of requests."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.media.source import MediaSource, from_base64, from_data_url

DATA = bytes(range(251, 256)) + b"x"  # has + and / in base64


@pytest.mark.parametrize("url", ["http://a/b", "HTTPS://a/b", "file://x", "File:///x"])
def test_urls_stay_as_they_are(url: str) -> None:
    assert MediaSource.from_text(url, "image", "p") == MediaSource(url, "image", "p")


@pytest.mark.parametrize(
    "head", ["data:image/png;base64,", "DATA:;BASE64,", "data:a/b;x=y;base64,"]
)
def test_data_urls(head: str) -> None:
    text = head + base64.b64encode(DATA).decode()
    assert MediaSource.from_text(text) == MediaSource(DATA)
    assert from_data_url(text) == DATA


@given(st.binary())
def test_base64_in_its_forms(data: bytes) -> None:
    plain, safe = base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()
    for text in (plain, safe, plain.rstrip("="), "\r\n ".join(plain), f" {plain}\n"):
        assert from_base64(text) == data


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("data:image/png;base64", "without a comma"),
        ("data:image/png,AAAA", "that is not base64"),
        ("data:image/png;base64,A", "neither a URL nor valid base64"),
        ("data:image/png;base64,AA!A", "neither a URL nor valid base64"),
        ("\u00e4\u00e4\u00e4\u00e4", "neither a URL nor valid base64"),
        ("ftp://a/b", "neither a URL nor valid base64"),
    ],
)
def test_invalid_values(text: str, reason: str) -> None:
    with pytest.raises(EngineError, match=rf"^messages\[0\]: it is .*{reason}") as caught:
        MediaSource.from_text(text, place="messages[0]")
    assert caught.value.info.type == "invalid_request_error"


@given(st.text() | st.text().map("data:{}".format))
def test_any_text_is_a_source_or_an_error(text: str) -> None:
    try:
        found = MediaSource.from_text(text)
    except EngineError as e:
        assert e.info.type == "invalid_request_error"  # noqa: PT017
    else:
        assert isinstance(found.content, bytes | str)
