"""Downloads that are refused or impossible, and what their messages say to do."""

import errno
import os
from pathlib import Path

import pytest

from specllama.engine.helpers.download import download
from specllama.engine.helpers.download import download_main as fetching
from specllama.engine.helpers.download.http_errors import DownloadError
from tests.support.downloads import MODEL, PROJECTOR, REPOSITORY, failure, run
from tests.support.hub import Hub

pytestmark = pytest.mark.slow


def test_the_error_for_a_missing_quantization_lists_the_others(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL, "x-Q6_K.gguf": PROJECTOR})
    message = failure(hf_repo=REPOSITORY + ":Q2_K")
    assert "'Q2_K'" in message
    assert "Q6_K, Q8_0" in message
    assert hub.downloads() == []


def test_the_error_for_a_missing_file_lists_the_others(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    message = failure(hf_file="y.gguf")
    assert "'y.gguf'" in message
    assert "x-Q8_0.gguf" in message


def test_a_missing_part_is_named(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-00001-of-00002.gguf": MODEL})
    assert "x-00002-of-00002.gguf" in failure()
    assert hub.downloads() == []


def test_an_unknown_repository(hub: Hub) -> None:
    message = failure(hf_repo="maker/nothing")
    assert "maker/nothing" in message
    assert "--hf-token" in message  # it may be private
    assert "404" in failure(hf_repo="maker/nothing", hf_token="hf_" + 34 * "x")


def test_a_gated_repository(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.gated = True
    message = failure()
    assert "gated" in message
    assert "--hf-token" in message


@pytest.mark.parametrize("by_variable", [False, True])
def test_the_token_is_for_the_hub_alone(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.token = token = "hf_" + 34 * "x"
    assert "--hf-token" in failure()
    if by_variable:
        monkeypatch.setenv("HF_TOKEN", token)
        run()
    else:
        run(hf_token=token)
    by_host = {asked.host: asked.authorization for asked in hub.requests}
    assert by_host == {"127.0.0.1": f"Bearer {token}", "localhost": ""}


def test_offline_uses_the_cache(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL, "mmproj.gguf": PROJECTOR})
    online, _ = run()
    hub.requests.clear()
    offline, _ = run(offline=True)
    assert (offline.engine.model.model, offline.engine.media.mmproj) == (
        online.engine.model.model,
        online.engine.media.mmproj,
    )
    assert hub.requests == []
    message = failure(hf_repo=REPOSITORY + ":Q4_0", offline=True)
    assert "'Q4_0'" in message
    assert "Q8_0" in message
    assert hub.requests == []


def test_offline_without_a_cache(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    message = failure(offline=True)
    assert REPOSITORY in message
    assert "offline" in message
    message = failure(hf_repo="", model_url=hub.url + "/plain/x.gguf", offline=True)
    assert "has not been downloaded" in message
    assert hub.requests == []


def test_without_the_hub_the_cache_is_used(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    online, _ = run()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # "discard": no server listens there
    found, _ = run()
    assert found.engine.model.model == online.engine.model.model
    assert "can't connect to 127.0.0.1" in caplog.text
    assert "can't connect to 127.0.0.1" in failure(hf_repo="maker/other")


def test_llama_cpps_variables(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.plain["y.gguf"] = PROJECTOR
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("MODEL_ENDPOINT", hub.url + "/")
    assert Path(run()[0].engine.model.model).is_relative_to(tmp_path / "own")
    of_url, _ = run(hf_repo="", model_url=hub.url + "/plain/y.gguf")
    assert Path(of_url.engine.model.model).is_relative_to(tmp_path / "own")
    assert not (tmp_path / "huggingface").exists()


def test_a_cache_that_cannot_be_made(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "file"))
    assert "the cache can't be used" in failure()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "permissions"),
        (errno.EROFS, "LLAMA_CACHE"),
    ],
)
def test_errors_of_the_file_system_have_a_remedy(number: int, words: str) -> None:
    message = fetching.explain(OSError(number, os.strerror(number), "/cache/file"))
    assert words in message
    assert "\n" not in message


def test_too_little_space_is_reported_before_the_download(tmp_path: Path) -> None:
    item = download.Item(
        name="x.gguf",
        url="http://127.0.0.1:9/x.gguf",
        target=tmp_path / "not" / "yet" / "x.gguf",
        partial=tmp_path / "x.part",
        lock=tmp_path / "x.lock",
        is_done=lambda: False,
        is_complete=lambda: False,
        on_arrival=lambda: None,
        size=1 << 60,
    )
    with pytest.raises(DownloadError, match=r"1048576\.0 TiB more.*are free"):
        fetching.check_space([item])
