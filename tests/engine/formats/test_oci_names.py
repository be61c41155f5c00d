"""Names of what registries hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.formats.oci_names import HUB, Reference, reference, spelled

DIGEST = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "host", "repository", "version"),
    [
        ("gemma3", HUB, "ai/gemma3", "latest"),
        ("gemma3:4B-Q4_K_M", HUB, "ai/gemma3", "4B-Q4_K_M"),
        ("me/model", HUB, "me/model", "latest"),
        ("docker.io/gemma3", HUB, "ai/gemma3", "latest"),
        ("index.docker.io/me/model:x", HUB, "me/model", "x"),
        ("localhost/model", "localhost", "model", "latest"),
        ("localhost:5000/model:a.b-c", "localhost:5000", "model", "a.b-c"),
        ("box:5000/model", "box:5000", "model", "latest"),
        ("GHCR.io/me/a--b__c/d.e", "ghcr.io", "me/a--b__c/d.e", "latest"),
        (f"me/model@sha256:{DIGEST.upper()}", HUB, "me/model", f"sha256:{DIGEST}"),
        (f"me/model:tag@sha256:{DIGEST}", HUB, "me/model", f"sha256:{DIGEST}"),
    ],
)
def test_names(text: str, host: str, repository: str, version: str) -> None:
    found = reference(text)
    assert (found.host, found.repository, found.version) == (host, repository, version)
    again = reference(spelled(found))
    assert (again.host, again.repository, again.version) == (host, repository, version)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "@",
        "/",
        "a:",
        "a/",
        "/a",
        "a//b",
        "a:b:c",
        "a b",
        "a\n",
        "Gemma",
        "ä",
        "a/../b",
        "a/.",
        "_a",
        "a_",
        "a___b",
        "a..b",
        "http://h.io/x",
        "h.io:x/a",
        "h.io:0/a",
        "h.io:65536/a",
        "-h.io/a",
        "h..io/a",
        "u@h.io/a",
        "h.io/a?x",
        "a" * 300,
        "a:" + "t" * 129,
        "a@sha256:12",
        "a@md5:" + DIGEST,
        f"a@sha256:{DIGEST}0",
        f"a@{DIGEST}",
        "[::1]:5000/a",
    ],
)
def test_invalid_names(text: str) -> None:
    with pytest.raises(ValueError, match=r"^(a|the) "):
        reference(text)


@given(st.text("ab./:@_-%\\\n0ä", max_size=30))
def test_nothing_leaves_its_place_in_an_address(text: str) -> None:
    try:
        found = reference(text)
    except ValueError:
        return
    for part in (found.repository, found.version):
        assert not set(part) & set("%\\\n?#ä")
        assert ".." not in found.repository
    assert Reference(*found) == found
