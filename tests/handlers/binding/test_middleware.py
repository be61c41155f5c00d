"""The headers that every answer to a request with an API key gets."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from specllama.handlers.binding.middleware import RateLimits
from specllama.handlers.http.api_keys import ApiKey, KeyRing
from specllama.handlers.options.keys_file import digest
from specllama.handlers.running.admission import Admission
from specllama.handlers.running.buckets import MemoryBuckets
from specllama.handlers.running.usage import UsageLog

KEY = ApiKey(name="alice", id="key:alice", digest=digest("sk"), requests_per_minute=3)


async def answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
    await send({"type": "http.response.body", "body": b"text"})


def headers(path: str, *, root: str = "", prefix: str = "", key: str = "sk") -> list[str]:
    """Returns the names of the headers of the answer to a request for `path`."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def run() -> None:
        admission = Admission(MemoryBuckets(), UsageLog())
        options = SimpleNamespace(http=SimpleNamespace(api_prefix=prefix))
        runtime = SimpleNamespace(api_keys=KeyRing([KEY]), admission=admission, options=options)
        scope = {
            "type": "http",
            "path": root + prefix + path,
            "root_path": root,
            "headers": [(b"authorization", f"Bearer {key}".encode())],
            "query_string": b"",
            "state": {"runtime": runtime},
        }
        await RateLimits(answer)(scope, receive, send)
        await admission.close()

    asyncio.run(run())
    start, body = sent
    assert body["body"] == b"text"
    return [name.decode() for name, _ in start["headers"]]


@pytest.mark.parametrize("root", ["", "/proxy"])
@pytest.mark.parametrize("prefix", ["", "/api", "/v1"])
@pytest.mark.parametrize(
    ("path", "is_anthropic"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages2", False),
        ("/v1/models", False),
        ("/slots", False),
    ],
)
def test_limits_have_the_names_of_the_paths_api(
    path: str, is_anthropic: bool, prefix: str, root: str
) -> None:
    names = [
        (f"anthropic-ratelimit-requests-{each}" if is_anthropic else f"x-ratelimit-{each}-requests")
        for each in ("limit", "remaining", "reset")
    ]
    assert headers(path, root=root, prefix=prefix) == ["a", *names]


def test_requests_without_a_key_have_no_limits() -> None:
    assert headers("/v1/models", key="other") == ["a"]
