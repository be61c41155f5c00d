"""Conversations of a server with a paper engine: who finds them, and when they grow."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.paper_server import Server, serve

pytestmark = pytest.mark.slow

ONE, OTHER = ({"Authorization": f"Bearer {key}"} for key in ("one", "other"))
WHERE = "/v1/conversations"


@pytest.fixture(scope="module")
def locked() -> Iterator[Server]:
    yield from serve(api_key=("one", "other"))


def sent(server: Server, method: str, path: str, body: Any = None, **options: Any) -> Any:
    """Returns the JSON of an answer with the expected status."""
    status = options.pop("status", 200)
    answer = server.http.request(method, path, json=body, headers=options.pop("headers", ONE))
    assert answer.status_code == status, answer.text
    return answer.json()


def texts(server: Server, id: str) -> list[str]:
    page = sent(server, "GET", f"{WHERE}/{id}/items?order=asc")
    return [part["text"] for item in page["data"] for part in item["content"]]


def test_another_key_never_sees_a_conversation(locked: Server) -> None:
    item = {"role": "user", "content": "My secret is 7."}
    id = sent(locked, "POST", WHERE, {"items": [item]})["id"]
    place = sent(locked, "GET", f"{WHERE}/{id}/items")["last_id"]
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"metadata": {"a": 1}}),
        ("DELETE", "", None),
        ("GET", "/items", None),
        ("POST", "/items", {"items": [item]}),
        ("GET", f"/items/{place}", None),
        ("DELETE", f"/items/{place}", None),
    ):
        found = sent(locked, method, f"{WHERE}/{id}{path}", body, headers=OTHER, status=404)
        assert "secret" not in str(found)
    asked = {"input": "What is it?", "conversation": id}
    for path in ("/v1/responses", "/v1/responses/input_tokens"):
        sent(locked, "POST", path, asked, headers=OTHER, status=404)
    reference = {"input": [{"type": "item_reference", "id": place}]}
    sent(locked, "POST", "/v1/responses", reference, headers=OTHER, status=400)
    sent(locked, "POST", "/v1/responses", reference)
    assert texts(locked, id) == ["My secret is 7."]


def test_the_prompt_has_the_items_of_the_conversation(locked: Server) -> None:
    id = sent(locked, "POST", WHERE, {"items": [{"role": "user", "content": "A"}]})["id"]
    for stored in (False, True):
        made = sent(
            locked,
            "POST",
            "/v1/responses",
            {"input": "B", "conversation": {"id": id}, "store": stored},
        )
        assert made["conversation"] == {"id": id}
        assert locked.engine.generations[-1].prompt == ["[user]A[user]B[assistant]"]
        n = 1 + (1 + len(made["output"]) if stored else 0)
        assert len(sent(locked, "GET", f"{WHERE}/{id}/items")["data"]) == n
    sent(locked, "POST", "/v1/responses", {"conversation": id, "store": False})
    prompt: Any = locked.engine.generations[-1].prompt
    assert prompt[0].startswith("[user]A[user]B[assistant]")


def test_what_fails_adds_nothing(locked: Server) -> None:
    id = sent(locked, "POST", WHERE, {})["id"]
    bad = {"conversation": id, "input": "A", "n": 2}
    sent(locked, "POST", "/v1/responses", bad, status=400)
    assert texts(locked, id) == []


def test_a_deleted_item_is_no_longer_in_the_prompt(locked: Server) -> None:
    items = [{"role": "user", "content": text} for text in ("A", "B")]
    id = sent(locked, "POST", WHERE, {"items": items})["id"]
    listed = sent(locked, "GET", f"{WHERE}/{id}/items?order=asc&limit=1")
    assert listed["has_more"]
    sent(locked, "DELETE", f"{WHERE}/{id}/items/{listed['last_id']}")
    sent(locked, "POST", "/v1/responses", {"input": "C", "conversation": id})
    assert locked.engine.generations[-1].prompt == ["[user]B[user]C[assistant]"]
