"""Downloads from registries of containers."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.catalog.registry_cache import registry_models
from specllama.engine.formats.oci_names import Reference
from specllama.engine.helpers.download import oci_registry
from specllama.engine.helpers.download.download import obtain
from specllama.engine.helpers.download.downloader import Transfer
from specllama.engine.helpers.download.http_errors import DownloadError
from specllama.engine.helpers.download.oci_registry import MAX_MANIFEST, MAX_TOKEN
from specllama.engine.helpers.download.oci_source import open_registry_model
from tests.support import downloads
from tests.support.downloads import MODEL, cancelled_when_stalled, variant
from tests.support.options_support import model_options
from tests.support.registry import DOCKER, INDEX, MANIFEST, Registry, digest

pytestmark = pytest.mark.slow

PATH = "org.cncf.model.filepath"


def add(registry: Registry, data: bytes = MODEL, name: str = "me/tiny:latest") -> str:
    license_layer = ("application/vnd.docker.ai.license", b"free", None)
    return registry.add(name, license_layer, (DOCKER, data, None))


def pull(registry: Registry, name: str = "me/tiny", **fields: Any) -> tuple[Path, list[Transfer]]:
    """Downloads as a server does, in a separate process."""
    found, seen = downloads.run(hf_repo="", docker_repo=f"{registry.host}/{name}", **fields)
    return Path(found.engine.model.model), seen


def pull_here(
    registry: Registry, cache: Path, name: str = "me/tiny", *, offline: bool = False
) -> tuple[Path, list[str]]:
    """Downloads in this process, and returns the messages for the user."""
    notices: list[str] = []
    with httpx2.Client(follow_redirects=True, timeout=SECONDS) as client:
        files = open_registry_model(
            client, f"{registry.host}/{name}", cache, offline=offline, notify=notices.append
        )
        for item in files.items:
            obtain(client, item, lambda _: None)
        files.finish()
    return files.first, notices


def failure(registry: Registry, cache: Path, name: str = "me/tiny", **options: Any) -> str:
    with pytest.raises(DownloadError) as caught:
        pull_here(registry, cache, name, **options)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert len(message) < 400
    return message


# ---- downloads ---------------------------------------------------------------------------


def test_a_model_is_downloaded_once_and_again_when_its_tag_moved(
    registry: Registry, tmp_path: Path
) -> None:
    add(registry)
    first, seen = pull(registry)
    assert first.read_bytes() == MODEL
    assert first.is_relative_to(tmp_path / "cache" / "specllama" / "downloads" / "registries")
    assert seen[-1] == Transfer(
        "model.gguf", len(MODEL), len(MODEL), digest(MODEL).removeprefix("sha256:")
    )
    registry.requests.clear()
    assert pull(registry)[0] == first
    assert [asked.path for asked in registry.requests] == ["/v2/me/tiny/manifests/latest"]
    assert MANIFEST in registry.requests[0].accept
    assert INDEX in registry.requests[0].accept
    add(registry, variant(7))
    second, _ = pull(registry)
    assert second.read_bytes() == variant(7)
    assert first.read_bytes() == MODEL
    assert pull(registry, offline=True)[0] == second


def test_the_same_content_in_another_manifest_is_there(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    pull_here(registry, tmp_path)
    registry.add("me/tiny:other", (DOCKER, MODEL, {PATH: "other.gguf"}))
    registry.requests.clear()
    other, _ = pull_here(registry, tmp_path, "me/tiny:other")
    assert other.name == "other.gguf"
    assert other.read_bytes() == MODEL
    assert not registry.downloads()


def test_repositories_and_tags_that_look_alike(registry: Registry, tmp_path: Path) -> None:
    names = ["a/b:x", "a/b:X", "a_b:x", "a--b:x"]
    for i, name in enumerate(names):
        add(registry, variant(i, 5000), name)
    for _ in range(2):
        found = [pull_here(registry, tmp_path, name)[0].read_bytes() for name in names]
        assert found == [variant(i, 5000) for i in range(4)]


def test_a_digest_needs_no_network_once_it_is_there(registry: Registry, tmp_path: Path) -> None:
    name = f"me/tiny@{add(registry)}"
    add(registry, variant(1))
    first, _ = pull_here(registry, tmp_path, name)
    assert first.read_bytes() == MODEL
    registry.requests.clear()
    assert pull_here(registry, tmp_path, name)[0] == first
    assert not registry.requests


def test_all_parts_of_a_model(registry: Registry, tmp_path: Path) -> None:
    parts = {f"x-0000{i}-of-00003.gguf": variant(i, 5000) for i in (1, 2, 3)}
    layers = [(DOCKER, data, {PATH: name}) for name, data in parts.items()]
    registry.add("me/tiny:latest", *layers)
    found, seen = pull(registry)
    assert found.name == "x-00001-of-00003.gguf"
    assert {path.name: path.read_bytes() for path in found.parent.iterdir()} == parts
    assert seen[-1].n_total == 15_000


def test_of_an_index_the_first_manifest_with_a_model_is_taken(
    registry: Registry, tmp_path: Path
) -> None:
    kinds = ("application/vnd.oci.image.layer.v1.tar+gzip", DOCKER, DOCKER)
    children = [
        registry.add(f"me/tiny:{i}", (kind, variant(i, 5000), None)) for i, kind in enumerate(kinds)
    ]
    described = [{"mediaType": MANIFEST, "digest": child, "size": 1} for child in children]
    registry.push("me/tiny:latest", {"mediaType": INDEX, "manifests": described})
    found, _ = pull_here(registry, tmp_path)
    assert found.read_bytes() == variant(1, 5000)
    registry.faults.status = 500
    assert pull_here(registry, tmp_path)[0] == found
    assert pull_here(registry, tmp_path, offline=True)[0] == found


def test_a_download_that_was_broken_off_goes_on(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    registry.faults.asks_token = True
    registry.faults.stall_after = 300_000
    options = model_options(docker_repo=f"{registry.host}/me/tiny")
    asyncio.run(cancelled_when_stalled(options, tmp_path, 300_000))
    registry.requests.clear()
    assert pull(registry)[0].read_bytes() == MODEL
    assert [asked.range for asked in registry.downloads()] == [f"bytes=300000-{len(MODEL) - 1}"]


def test_a_connection_that_ends_is_made_again(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    registry.faults.break_after = 300_000
    assert pull_here(registry, tmp_path)[0].read_bytes() == MODEL
    assert [asked.range for asked in registry.downloads()][1:] == [f"bytes=300000-{len(MODEL) - 1}"]


def test_damaged_data_is_fetched_again(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    registry.faults.n_damaged = 1
    assert pull_here(registry, tmp_path)[0].read_bytes() == MODEL
    registry.faults.n_damaged = 2
    add(registry, variant(3))
    assert "damaged twice" in failure(registry, tmp_path)
    assert not [path for path in tmp_path.rglob("*") if path.name == digest(variant(3))[7:]]


# ---- tokens --------------------------------------------------------------------------------


def test_a_token_is_sent_only_to_the_registry(registry: Registry) -> None:
    add(registry)
    registry.faults.asks_token = True
    assert pull(registry, hf_token="hf_secret")[0].read_bytes() == MODEL
    asked = [(each.path, each.authorization) for each in registry.requests]
    layer = digest(MODEL)
    assert asked == [
        ("/v2/me/tiny/manifests/latest", ""),
        ("/token", ""),
        ("/v2/me/tiny/manifests/latest", "Bearer me/tiny#1"),
        (f"/v2/me/tiny/blobs/{layer}", "Bearer me/tiny#1"),
        (f"/cdn/{layer}", ""),
    ]
    assert registry.requests[1].query == {"scope": "repository:me/tiny:pull", "service": "here"}
    assert registry.requests[-1].host == "127.0.0.1"


@pytest.fixture
def numbered(registry: Registry) -> Registry:
    """A registry that asks for tokens."""
    add(registry)
    registry.faults.asks_token = True
    return registry


def test_a_token_that_has_expired_is_renewed(numbered: Registry, tmp_path: Path) -> None:
    numbered.faults.n_expired = 1
    assert pull_here(numbered, tmp_path)[0].read_bytes() == MODEL
    assert len([each for each in numbered.requests if each.path == "/token"]) == 2
    assert len({each.authorization for each in numbered.requests}) == 3


def test_tokens_are_not_asked_for_without_end(numbered: Registry, tmp_path: Path) -> None:
    numbered.faults.n_expired = 1000
    assert "rejects the token that it issued" in failure(numbered, tmp_path)
    assert len(numbered.requests) < 20


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"", "no valid token"),
        (b"<html>", "no valid token"),
        (b"{}", "no valid token"),
        (b'{"token": 3}', "no valid token"),
        (b'{"token": "a b"}', "no valid token"),
        (b'{"token": "a\\r\\nx: y"}', "no valid token"),
        (b"[" * 60_000, "no valid token"),
        (b" " * (MAX_TOKEN + 1), "sends more than"),
        (b'{"access_token": "wrong"}', "refuses"),
    ],
)
def test_a_token_server_that_gives_none(
    numbered: Registry, tmp_path: Path, answer: bytes, reason: str
) -> None:
    numbered.faults.token = answer
    assert reason in failure(numbered, tmp_path)


@pytest.mark.parametrize(
    "challenge",
    [
        "Basic realm=here",
        "Bearer",
        "Bearer nonsense",
        'Bearer realm=""',
        'Bearer realm="ftp://h/token"',
        'Bearer realm="file:///etc/passwd"',
        'Bearer realm="http://h:x/"',
        'Bearer realm="http://a..b/"',
        'Bearer realm="//host/token"',
    ],
)
def test_an_impossible_challenge(numbered: Registry, tmp_path: Path, challenge: str) -> None:
    numbered.faults.challenge = challenge
    message = failure(numbered, tmp_path)
    assert "private repositories" in message or "of a token server" in message
    assert len(numbered.requests) == 1


def test_redirects_of_a_token_server_are_refused(numbered: Registry, tmp_path: Path) -> None:
    numbered.faults.token_elsewhere = True
    assert "status 307" in failure(numbered, tmp_path)


def test_only_a_registry_of_this_machine_has_a_token_server_without_tls() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(str(request.url))
        headers = {"WWW-Authenticate": 'Bearer realm="http://127.0.0.1:1/admin"'}
        return httpx2.Response(401, headers=headers)

    seen: list[str] = []
    named = Reference("far.example", "me/tiny", "latest", "")
    with httpx2.Client(transport=httpx2.MockTransport(answer)) as client:
        registry = oci_registry.Registry(client, named)
        with pytest.raises(DownloadError, match="no https address"):
            registry.manifest("latest", "it")
    assert seen == ["https://far.example/v2/me/tiny/manifests/latest"]


@pytest.mark.parametrize("host", ["a..b", "b" * 300])
def test_a_redirect_to_no_host(registry: Registry, tmp_path: Path, host: str) -> None:
    add(registry)
    registry.faults.cdn_host = host
    assert "an invalid address" in failure(registry, tmp_path)


# ---- what goes wrong -----------------------------------------------------------------------


def test_missing_models_of_the_registry(registry: Registry, tmp_path: Path) -> None:
    assert "status 404" in failure(registry, tmp_path)
    add(registry)
    registry.blobs.clear()
    assert "status 404" in failure(registry, tmp_path)


def test_a_registry_that_is_busy_is_asked_again(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    registry.faults.n_busy = 3
    assert pull_here(registry, tmp_path)[0].read_bytes() == MODEL
    registry.faults.n_busy = 1000
    assert "status 429" in failure(registry, tmp_path / "other")


@pytest.mark.parametrize("status", [401, 403])
def test_a_content_network_that_refuses_gets_no_token(
    numbered: Registry, tmp_path: Path, status: int
) -> None:
    numbered.faults.cdn_status = status
    assert "127.0.0.1 refuses" in failure(numbered, tmp_path)
    assert len(numbered.downloads()) == 1


@pytest.mark.parametrize(
    ("manifest", "reason"),
    [
        (b"<html>", "invalid manifest"),
        (b"", "invalid manifest"),
        (b"{}", "no GGUF model"),
        ({"layers": []}, "no GGUF model"),
        ({"layers": [{"mediaType": "x"}]}, "no GGUF model"),
        ({"layers": [{"mediaType": DOCKER, "digest": "../../x", "size": 3}]}, "digest"),
        ({"manifests": [{"digest": "../../x"}]}, "digest"),
        ({"manifests": [{"digest": "sha256:" + "0" * 64}]}, "status 404"),
        (b" " * (MAX_MANIFEST + 1), "sends more than"),
    ],
)
def test_a_manifest_that_is_of_no_model(
    registry: Registry, tmp_path: Path, manifest: Any, reason: str
) -> None:
    registry.push("me/tiny:latest", manifest)
    assert reason in failure(registry, tmp_path)
    assert not list(tmp_path.rglob("*.gguf"))


def test_an_index_of_itself_ends(registry: Registry, tmp_path: Path) -> None:
    inner = registry.push("me/tiny:inner", {"manifests": [{"digest": "sha256:" + "0" * 64}]})
    registry.push("me/tiny:latest", {"manifests": [{"digest": inner}] * 5000})
    assert "no GGUF model" in failure(registry, tmp_path)
    assert len(registry.requests) < 50


def test_another_manifest_than_asked_for(registry: Registry, tmp_path: Path) -> None:
    wanted = add(registry)
    registry.manifests[f"me/tiny:{wanted}"] += b" "
    assert "another manifest" in failure(registry, tmp_path, f"me/tiny@{wanted}")


def test_files_that_are_no_model(registry: Registry, tmp_path: Path) -> None:
    add(registry, b"PK" * 3000)
    assert "not a GGUF file" in failure(registry, tmp_path)


def test_a_model_for_which_there_is_no_room(registry: Registry) -> None:
    layer = registry.layer(DOCKER, MODEL) | {"size": 1 << 50}
    registry.push("me/tiny:latest", {"layers": [layer]})
    message = downloads.failure(hf_repo="", docker_repo=f"{registry.host}/me/tiny")
    assert "are free" in message
    assert not registry.downloads()


# ---- without the registry ------------------------------------------------------------------


def test_without_the_registry_downloads_are_used(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    first, _ = pull_here(registry, tmp_path)
    for fault in (500, 429, 404, 403):
        registry.faults.status = fault
        again, notices = pull_here(registry, tmp_path)
        assert again == first
        assert notices[0].endswith("; the earlier download is used")
    registry.requests.clear()
    assert pull_here(registry, tmp_path, offline=True) == (first, [])
    assert not registry.requests


def test_offline_only_downloads_are_used(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    add(registry, variant(1), "me/tiny:other")
    pull_here(registry, tmp_path)
    message = failure(registry, tmp_path, "me/tiny:other", offline=True)
    assert message.endswith("has not been downloaded; downloads are disabled by offline mode")


@pytest.mark.parametrize("kind", ["manifests", "versions"])
def test_a_cache_that_somebody_has_changed(registry: Registry, tmp_path: Path, kind: str) -> None:
    add(registry)
    first, _ = pull_here(registry, tmp_path)
    for garbage in (b"", b"../../x", b"\xff", b"0" * 64):
        for path in tmp_path.glob(f"*/{kind}/*"):
            path.write_bytes(garbage)
        assert "has not been downloaded" in failure(registry, tmp_path, offline=True)
        assert pull_here(registry, tmp_path)[0] == first
        assert pull_here(registry, tmp_path, offline=True)[0] == first


def test_a_model_whose_name_was_not_kept_is_listed_once_it_is_used(
    registry: Registry, tmp_path: Path
) -> None:
    add(registry)
    first, _ = pull_here(registry, tmp_path)
    [version] = tmp_path.glob("*/versions/*")
    version.write_bytes(version.read_bytes().partition(b"\n")[0])
    assert registry_models(tmp_path) == []
    assert pull_here(registry, tmp_path, offline=True)[0] == first
    assert [model.path for model in registry_models(tmp_path)] == [str(first)]


def test_a_file_that_was_deleted_is_downloaded_again(registry: Registry, tmp_path: Path) -> None:
    add(registry)
    first, _ = pull_here(registry, tmp_path)
    first.resolve().unlink()
    assert "has not been downloaded" in failure(registry, tmp_path, offline=True)
    assert pull_here(registry, tmp_path)[0].read_bytes() == MODEL


def test_the_cache_may_be_read_only_once_the_model_is_there(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(registry)
    first, _ = pull_here(registry, tmp_path)
    registry.push("me/tiny:copy", registry.manifests["me/tiny:latest"])

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "read-only")

    monkeypatch.setattr(Path, "write_bytes", refuse)
    assert pull_here(registry, tmp_path, "me/tiny:copy")[0] == first
