"""Downloads from plain URLs."""

import asyncio
from pathlib import Path

import pytest

from specllama.engine.helpers.download.downloader import Transfer
from tests.support.downloads import (
    MODEL,
    PROJECTOR,
    cancelled_when_stalled,
    failure,
    run,
    variant,
)
from tests.support.hub import Hub
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow


def test_a_url_is_downloaded_once_and_again_when_it_changed(hub: Hub, tmp_path: Path) -> None:
    hub.plain["a/x.gguf"] = MODEL
    url = hub.url + "/plain/a/x.gguf"
    first, seen = run(hf_repo="", model_url=url + "?signature=1")
    assert Path(first.engine.model.model).read_bytes() == MODEL
    assert Path(first.engine.model.model).name == "x.gguf"
    assert Path(first.engine.model.model).is_relative_to(tmp_path / "cache" / "specllama")
    assert seen[-1] == Transfer("x.gguf", len(MODEL), len(MODEL))
    hub.requests.clear()
    assert (
        run(hf_repo="", model_url=url + "?signature=2")[0].engine.model.model
        == first.engine.model.model
    )
    assert [asked.range for asked in hub.requests] == ["bytes=0-3"]
    hub.plain["a/x.gguf"] = variant(9)
    second, _ = run(hf_repo="", model_url=url)
    assert second.engine.model.model == first.engine.model.model
    assert Path(second.engine.model.model).read_bytes() == variant(9)
    offline, _ = run(hf_repo="", model_url=url, offline=True)
    assert offline.engine.model.model == first.engine.model.model


def test_files_of_one_name_from_two_places(hub: Hub) -> None:
    hub.plain |= {"a/x.gguf": MODEL, "b/x.gguf": PROJECTOR}
    a, b = (
        run(hf_repo="", model_url=f"{hub.url}/plain/{d}/x.gguf")[0].engine.model.model for d in "ab"
    )
    assert Path(a).read_bytes() == MODEL
    assert Path(b).read_bytes() == PROJECTOR


def test_all_parts_of_a_url(hub: Hub) -> None:
    parts = {f"x-0000{i}-of-00003.gguf": variant(i, 5000) for i in (1, 2, 3)}
    hub.plain |= parts
    found, seen = run(hf_repo="", model_url=hub.url + "/plain/x-00002-of-00003.gguf?s=1")
    folder = Path(found.engine.model.model).parent
    assert Path(found.engine.model.model).name == "x-00001-of-00003.gguf"
    assert {path.name: path.read_bytes() for path in folder.glob("*.gguf")} == parts
    assert seen[-1].n_total == 15_000


def test_a_broken_url_is_gone_on_with_unless_it_changed(hub: Hub, tmp_path: Path) -> None:
    hub.plain["x.gguf"] = MODEL
    hub.faults.stall_after = 300_000
    options = model_options(model_url=hub.url + "/plain/x.gguf")
    asyncio.run(cancelled_when_stalled(options, tmp_path, 300_000))
    hub.requests.clear()
    assert Path(run(options)[0].engine.model.model).read_bytes() == MODEL
    assert hub.requests[-1].range == f"bytes=300000-{len(MODEL) - 1}"
    hub.plain["x.gguf"] = variant(1)
    hub.faults.n_stalls = 1
    asyncio.run(cancelled_when_stalled(options, tmp_path, 300_000))
    hub.plain["x.gguf"] = variant(2)
    found, _ = run(options)
    assert Path(found.engine.model.model).read_bytes() == variant(2)
    assert hub.requests[-1].range == ""
    assert not list(Path(found.engine.model.model).parent.glob("*.part"))


def test_a_file_that_may_have_changed_is_not_resumed(hub: Hub, tmp_path: Path) -> None:
    hub.plain["x.gguf"] = MODEL
    hub.faults.no_validators = True
    hub.faults.stall_after = 300_000
    options = model_options(model_url=hub.url + "/plain/x.gguf")
    asyncio.run(cancelled_when_stalled(options, tmp_path, 300_000))
    hub.plain["x.gguf"] = variant(2)
    assert Path(run(options)[0].engine.model.model).read_bytes() == variant(2)


def test_a_url_that_has_nothing(hub: Hub) -> None:
    message = failure(
        hf_repo="", model_url=hub.url.replace("//", "//me:secret@") + "/plain/no.gguf?s=t"
    )
    assert "404" in message
    assert "secret" not in message
    assert "s=t" not in message


def test_the_token_is_not_sent_to_other_servers(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.plain["x.gguf"] = MODEL
    monkeypatch.setenv("HF_ENDPOINT", "https://huggingface.co")
    run(hf_repo="", model_url=hub.url + "/plain/x.gguf", hf_token="hf_secret")
    assert {asked.authorization for asked in hub.requests} == {""}
