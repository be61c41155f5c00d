"""Downloads of models, against a server that stands in for the hub and has all its faults."""

import asyncio
import errno
import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from huggingface_hub import hf_hub_download, snapshot_download

from engine.catalog.download import child as fetching
from engine.catalog.download import download
from engine.catalog.download.http_errors import DownloadError
from engine.catalog.download.messages import Wanted, report_decoder
from engine.catalog.download.parent import FetchError, Transfer, fetch, wants_fetch
from engine.catalog.listing import cache_list
from engine.options import Options
from engine.processes.framing import HEADER, frame
from engine.shipped import model_path
from tests.support.hub import Hub, serving
from tests.support.options_support import model_options

MODEL = model_path().read_bytes()
PROJECTOR = MODEL[:20_000]  # any file that begins as GGUF does
REPOSITORY = "maker/tiny-GGUF"


def variant(number: int, size: int = len(MODEL)) -> bytes:
    """Another content that begins as GGUF does."""
    return MODEL[: size - 1] + bytes([number])


@pytest.fixture(scope="module")
def running_hub() -> Iterator[Hub]:
    with serving() as hub:
        yield hub


@pytest.fixture
def hub(running_hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """An empty hub without faults, and an empty cache in tmp_path."""
    running_hub.reset()
    for name in ("LLAMA_CACHE", "HF_HUB_CACHE", "HF_TOKEN", "HF_HUB_OFFLINE", "MODEL_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", running_hub.url)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "huggingface"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    return running_hub


def run(options: Options | None = None, /, **fields: Any) -> tuple[Options, list[Transfer]]:
    seen: list[Transfer] = []
    wanted = options or model_options(**{"hf_repo": REPOSITORY, **fields})
    found = asyncio.run(asyncio.wait_for(fetch(wanted, seen.append), 60))
    return found, seen


def failure(**fields: Any) -> str:
    with pytest.raises(FetchError) as caught:
        run(**fields)
    message = str(caught.value)
    assert message
    assert "\n" not in message
    assert "Traceback" not in message
    return message


def blobs(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "huggingface" / "hub").glob("models--*/blobs/*"))


# ---- what is downloaded ------------------------------------------------------------------


def test_a_model_and_its_projector(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL, "mmproj-F16.gguf": PROJECTOR, "README.md": b"#"})
    found, seen = run()
    assert Path(found.engine.model.model).read_bytes() == MODEL
    assert Path(found.media.mmproj).read_bytes() == PROJECTOR
    assert Path(found.engine.model.model).name == "tiny-Q8_0.gguf"
    total = len(MODEL) + len(PROJECTOR)
    assert seen[-1] == Transfer("mmproj-F16.gguf", total, total)
    counts = [transfer.n_done for transfer in seen]
    assert counts == sorted(counts)
    assert len(hub.downloads()) == 2


def test_the_cache_is_huggingface_hubs(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL})
    found, _ = run()
    before = len(hub.requests)
    cache = os.path.join(os.environ["HF_HOME"], "hub")
    names: dict[str, Any] = {"cache_dir": cache, "endpoint": hub.url, "local_files_only": True}
    assert hf_hub_download(REPOSITORY, "tiny-Q8_0.gguf", **names) == found.engine.model.model
    assert snapshot_download(REPOSITORY, **names) == os.path.dirname(found.engine.model.model)
    assert len(hub.requests) == before


def test_what_huggingface_hub_downloaded_is_not_downloaded_again(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL})
    cache = os.path.join(os.environ["HF_HOME"], "hub")
    path = hf_hub_download(REPOSITORY, "tiny-Q8_0.gguf", cache_dir=cache, endpoint=hub.url)
    n_before = len(hub.downloads())
    found, _ = run()
    assert found.engine.model.model == path
    assert len(hub.downloads()) == n_before


def test_a_cached_model_costs_one_question(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL})
    first, _ = run()
    hub.requests.clear()
    second, seen = run()
    assert second == first
    assert [asked.path for asked in hub.requests] == [f"/api/models/{REPOSITORY}"]
    assert seen[-1].n_done == seen[-1].n_total == len(MODEL)


def test_a_new_commit_is_fetched_and_what_stayed_the_same_is_not(hub: Hub) -> None:
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": MODEL, "mmproj.gguf": PROJECTOR})
    run()
    hub.add(REPOSITORY, {"tiny-Q8_0.gguf": variant(1), "mmproj.gguf": PROJECTOR})
    hub.requests.clear()
    found, _ = run()
    assert Path(found.engine.model.model).read_bytes() == variant(1)
    assert Path(found.media.mmproj).read_bytes() == PROJECTOR
    assert len(hub.downloads()) == 1
    offline, _ = run(offline=True)
    assert offline.engine.model.model == found.engine.model.model


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("", "x-Q4_K_M.gguf"),
        (":q8_0", "x-Q8_0.gguf"),
        (":IQ2_XS", "x-IQ2_XS-00001-of-00002.gguf"),
        (":BF16", "BF16/x-BF16-00001-of-00002.gguf"),
    ],
)
def test_the_quantization_chooses(hub: Hub, asked: str, name: str) -> None:
    files = {
        name: variant(number, 5000)
        for number, name in enumerate(
            [
                "BF16/x-BF16-00001-of-00002.gguf",
                "BF16/x-BF16-00002-of-00002.gguf",
                "imatrix-Q4_K_M.gguf",
                "mmproj-Q4_K_M.gguf",
                "x-IQ2_XS-00001-of-00002.gguf",
                "x-IQ2_XS-00002-of-00002.gguf",
                "x-IQ4_K_M.gguf",
                "x-Q4_K_M.gguf",
                "x-Q8_0.gguf",
            ]
        )
    }
    hub.add(REPOSITORY, files)
    found, _ = run(hf_repo=REPOSITORY + asked, mmproj_auto=False)
    assert found.engine.model.model.endswith("/" + name)
    assert found.media.mmproj == ""
    # All parts lie beside each other, and nothing else was downloaded.
    wanted = [name, name.replace("00001-of", "00002-of")] if "-of-" in name else [name]
    root = Path(found.engine.model.model.removesuffix(name))
    there = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*.gguf")}
    assert there == {part: files[part] for part in wanted}


def test_without_a_known_quantization_it_is_the_first_model(hub: Hub) -> None:
    hub.add(
        REPOSITORY, {"mmproj-a.gguf": PROJECTOR, "b-Q6_K.gguf": MODEL, "c-Q5_K.gguf": PROJECTOR}
    )
    assert Path(run()[0].engine.model.model).name == "b-Q6_K.gguf"


def test_the_named_file_wins_over_the_quantization(hub: Hub) -> None:
    hub.add(REPOSITORY, {"a/x-Q8_0.gguf": MODEL, "x-Q4_K_M.gguf": PROJECTOR})
    found, _ = run(hf_repo=REPOSITORY + ":Q4_K_M", hf_file="a/x-Q8_0.gguf")
    assert found.engine.model.model.endswith("/a/x-Q8_0.gguf")


def test_the_projector_beside_the_model_of_similar_precision(hub: Hub) -> None:
    names = ["mmproj-F32.gguf", "a/mmproj-BF16.gguf", "a/mmproj-Q8_0.gguf", "b/mmproj-Q4_0.gguf"]
    files = {name: variant(number, 5000) for number, name in enumerate(names)}
    hub.add(REPOSITORY, {**files, "a/x-Q4_K_M.gguf": MODEL})
    assert run()[0].media.mmproj.endswith("/a/mmproj-Q8_0.gguf")


def test_no_projector_is_looked_for_when_one_is_named(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x.gguf": MODEL, "mmproj.gguf": PROJECTOR})
    hub.plain["other.gguf"] = variant(7, 9000)
    assert run(mmproj="own.gguf")[0].media.mmproj == "own.gguf"
    found, seen = run(mmproj_url=hub.url + "/plain/other.gguf")
    assert Path(found.media.mmproj).read_bytes() == variant(7, 9000)
    assert seen[-1].n_total == len(MODEL) + 9000


def test_what_needs_fetching() -> None:
    assert wants_fetch(model_options(hf_repo="a/b"))
    assert wants_fetch(model_options(model_url="http://x/y.gguf"))
    assert wants_fetch(model_options(model="x.gguf", mmproj_url="http://x/y.gguf"))
    assert not wants_fetch(model_options())
    assert not wants_fetch(model_options(model="x.gguf", hf_repo="a/b"))


def test_a_projector_alone(hub: Hub) -> None:
    hub.plain["p.gguf"] = PROJECTOR
    found, _ = run(hf_repo="", model="x.gguf", mmproj_url=hub.url + "/plain/p.gguf")
    assert found.engine.model.model == "x.gguf"
    assert Path(found.media.mmproj).read_bytes() == PROJECTOR


# ---- broken, slow, cancelled -------------------------------------------------------------


def test_only_what_is_missing_is_asked_for_again(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.break_after, hub.faults.n_breaks = 600_000, 2
    found, _ = run()
    assert Path(found.engine.model.model).read_bytes() == MODEL
    last = len(MODEL) - 1
    ranges = [asked.range for asked in hub.downloads()]
    assert ranges == ["", f"bytes=600000-{last}", f"bytes=1200000-{last}"]


def test_a_stalled_connection_is_given_up_for_another(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.stall_after = 300_000
    assert Path(run()[0].engine.model.model).read_bytes() == MODEL
    assert [asked.range for asked in hub.downloads()][1:] == [f"bytes=300000-{len(MODEL) - 1}"]


def test_a_huge_file_is_asked_for_in_pieces(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.plain["x.gguf"] = MODEL
    monkeypatch.setattr(download, "PIECE", 1_000_000)
    target = tmp_path / "x.gguf"
    item = download.Item(
        name="x.gguf",
        url=hub.url + "/plain/x.gguf",
        target=target,
        partial=tmp_path / "x.part",
        lock=tmp_path / "x.lock",
        is_done=target.exists,
        is_complete=target.exists,
        on_arrival=lambda: None,
        size=len(MODEL),
        digest=hashlib.sha1(b"blob %d\0" % len(MODEL) + MODEL).hexdigest(),  # as git has it
    )
    with httpx2.Client() as client:
        download.obtain(client, item, lambda _: None)
    assert target.read_bytes() == MODEL
    ranges = [asked.range for asked in hub.requests]
    assert ranges == ["bytes=0-999999", f"bytes=1000000-{len(MODEL) - 1}"]


def test_a_busy_server_is_asked_again(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.n_unavailable = 2
    assert Path(run()[0].engine.model.model).read_bytes() == MODEL


def test_a_server_that_can_only_send_all(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.break_after, hub.faults.no_ranges = 600_000, True
    assert Path(run()[0].engine.model.model).read_bytes() == MODEL


def test_progress_of_a_slow_download(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.bytes_per_second = 2_000_000
    _, seen = run()
    counts = [transfer.n_done for transfer in seen]
    assert counts == sorted(counts)
    assert any(0 < count < len(MODEL) for count in counts)
    assert counts[-1] == len(MODEL)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stalled download stays as it is, instead of being tried again."""
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "600")


async def cancelled_when_stalled(options: Options, folder: Path, n_there: int) -> Path:
    """The file with the `n_there` bytes that came before."""

    async def partial() -> Path:
        while True:
            for path in folder.rglob("*"):
                unfinished = path.suffix in (".incomplete", ".part")
                if unfinished and path.stat().st_size == n_there:
                    return path
            await asyncio.sleep(0.02)

    task = asyncio.create_task(fetch(options, lambda _: None))
    found = await asyncio.wait_for(partial(), 60)
    assert children()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not children()
    return found


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children()
        if "engine.catalog.download.child" in " ".join(child.cmdline())
    ]


@pytest.mark.usefixtures("patient")
def test_a_cancelled_download_ends_at_once_and_is_gone_on_with(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.stall_after = 300_000
    options = model_options(hf_repo=REPOSITORY)
    partial = asyncio.run(cancelled_when_stalled(options, tmp_path, 300_000))
    assert partial.name == hashlib.sha256(MODEL).hexdigest() + ".incomplete"
    hub.requests.clear()
    found, seen = run()
    assert Path(found.engine.model.model).read_bytes() == MODEL
    assert [asked.range for asked in hub.downloads()] == [f"bytes=300000-{len(MODEL) - 1}"]
    assert seen[0].n_done >= 300_000


@pytest.mark.usefixtures("patient")
def test_a_killed_process_is_an_error(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.stall_after = 300_000

    async def killed() -> None:
        task = asyncio.create_task(fetch(model_options(hf_repo=REPOSITORY), lambda _: None))
        while not hub.downloads():
            await asyncio.sleep(0.02)
        for child in children():
            child.kill()
        with pytest.raises(FetchError, match="ended before it was done"):
            await task

    asyncio.run(asyncio.wait_for(killed(), 60))


def test_a_name_that_is_not_unicode() -> None:
    with pytest.raises(FetchError, match="not valid UTF-8"):
        asyncio.run(fetch(model_options(hf_repo="a/\udcff"), lambda _: None))


@pytest.mark.usefixtures("patient")
def test_the_process_ends_with_the_server(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.stall_after = 300_000
    command = [sys.executable, "-P", "-m", "engine.catalog.download.child"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(frame(Wanted(repository=REPOSITORY)))
        process.stdin.flush()
        (length,) = HEADER.unpack(process.stdout.read(HEADER.size))
        report = report_decoder.decode(process.stdout.read(length))
        assert isinstance(report, Transfer)
        process.stdin.close()
        assert process.wait(60) == 1


def test_two_downloads_of_the_same_file_share_the_work(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.bytes_per_second = 3_000_000

    async def both() -> list[Options]:
        options = model_options(hf_repo=REPOSITORY)
        return await asyncio.gather(*(fetch(options, lambda _: None) for _ in range(3)))

    found = asyncio.run(asyncio.wait_for(both(), 60))
    assert len({options.engine.model.model for options in found}) == 1
    assert Path(found[0].engine.model.model).read_bytes() == MODEL
    assert len(hub.downloads()) == 1


# ---- damaged and hostile -----------------------------------------------------------------


def test_what_arrives_damaged_is_fetched_again(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.n_damaged = 1
    assert Path(run()[0].engine.model.model).read_bytes() == MODEL
    assert len(hub.downloads()) == 2


def test_what_arrives_damaged_twice_is_deleted(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.n_damaged = 2
    assert "checksum" in failure()
    assert blobs(tmp_path) == []


def test_a_damaged_rest_of_an_earlier_download_is_not_kept(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    folder = tmp_path / "huggingface" / "hub" / "models--maker--tiny-GGUF" / "blobs"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(MODEL).hexdigest()
    (folder / f"{digest}.incomplete").write_bytes(b"GGUF" + bytes(1000))
    assert Path(run()[0].engine.model.model).read_bytes() == MODEL
    assert [asked.range for asked in hub.downloads()] == [f"bytes=1004-{len(MODEL) - 1}", ""]


def test_what_is_no_gguf_file_is_refused(hub: Hub, tmp_path: Path) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": b"<html>" + bytes(100_000)})
    assert "not a GGUF file" in failure()
    assert [path.stat().st_size for path in blobs(tmp_path)] == [0]


@pytest.mark.parametrize(
    "name",
    [
        "../../../../outside-Q4_K_M.gguf",
        "/outside-Q4_K_M.gguf",
        "..\\outside-Q4_K_M.gguf",
        "C:\\outside-Q4_K_M.gguf",
        "a/../../b-Q4_K_M.gguf",
        "a//b-Q4_K_M.gguf",
        "new\nline-Q4_K_M.gguf",
    ],
)
def test_hostile_names_are_passed_over(hub: Hub, tmp_path: Path, name: str) -> None:
    repository = hub.add(REPOSITORY, {"evil.gguf": PROJECTOR, "good-Q8_0.gguf": MODEL})
    repository.described_as["evil.gguf"] = name
    found, _ = run()
    assert found.engine.model.model.endswith("/good-Q8_0.gguf")
    cache = tmp_path / "huggingface"
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and cache not in p.parents]
    assert outside == []


def test_hostile_names_alone_are_no_model(hub: Hub) -> None:
    repository = hub.add(REPOSITORY, {"evil.gguf": MODEL})
    repository.described_as["evil.gguf"] = "../evil.gguf"
    assert "no GGUF files" in failure()
    assert hub.downloads() == []


@pytest.mark.parametrize("field", ["sha", "digest", "siblings"])
def test_a_hub_that_talks_nonsense(hub: Hub, tmp_path: Path, field: str) -> None:
    repository = hub.add(REPOSITORY, {"x.gguf": MODEL})
    repository.nonsense = field
    assert failure()
    assert hub.downloads() == []
    assert not (tmp_path / "huggingface" / "hub").exists()


# ---- refused, missing, offline -----------------------------------------------------------


def test_a_missing_quantization_tells_which_there_are(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL, "x-Q6_K.gguf": PROJECTOR})
    message = failure(hf_repo=REPOSITORY + ":Q2_K")
    assert "'Q2_K'" in message
    assert "Q6_K, Q8_0" in message
    assert hub.downloads() == []


def test_a_missing_file_tells_which_there_are(hub: Hub) -> None:
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


def test_offline_takes_what_is_in_the_cache(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL, "mmproj.gguf": PROJECTOR})
    online, _ = run()
    hub.requests.clear()
    offline, _ = run(offline=True)
    assert (offline.engine.model.model, offline.media.mmproj) == (
        online.engine.model.model,
        online.media.mmproj,
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


def test_an_unreachable_hub_leaves_what_is_in_the_cache(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    online, _ = run()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # "discard": nobody listens there
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
def test_errors_of_the_file_system_say_what_to_do(number: int, words: str) -> None:
    message = fetching.explain(OSError(number, os.strerror(number), "/cache/file"))
    assert words in message
    assert "\n" not in message


def test_too_little_space_is_told_before_the_download(tmp_path: Path) -> None:
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


# ---- plain URLs --------------------------------------------------------------------------


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


@pytest.mark.usefixtures("patient")
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


@pytest.mark.usefixtures("patient")
def test_what_may_have_changed_is_not_gone_on_with(hub: Hub, tmp_path: Path) -> None:
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


# ---- what is shown -----------------------------------------------------------------------


def test_the_list_of_the_cache(hub: Hub) -> None:
    assert cache_list(os.environ) == ["number of models in cache: 0"]
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL, "mmproj.gguf": PROJECTOR})
    run()
    hub.add("maker/another", {"y-Q4_0.gguf": PROJECTOR})
    run(hf_repo="maker/another")
    assert cache_list(os.environ) == [
        "number of models in cache: 2",
        "   1. maker/another:Q4_0 (19.5 KiB)",
        "   2. maker/tiny-GGUF:Q8_0 (1.6 MiB)",
    ]
