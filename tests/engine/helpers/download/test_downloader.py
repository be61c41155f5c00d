"""Downloads that are broken, slow, cancelled or shared."""

import asyncio
import hashlib
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.helpers.download import download
from specllama.engine.helpers.download.download_jobs import Wanted, report_decoder
from specllama.engine.helpers.download.downloader import FetchError, Transfer, fetch
from specllama.engine.options import Options
from specllama.engine.wire.framing import HEADER, frame
from tests.support.downloads import (
    MODEL,
    REPOSITORY,
    cancelled_when_stalled,
    children,
    run,
)
from tests.support.hub import Hub
from tests.support.options_support import model_options

pytestmark = pytest.mark.slow


def test_only_the_missing_part_is_requested_again(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.break_after, hub.faults.n_breaks = 600_000, 2
    found, _ = run()
    assert Path(found.engine.model.model).read_bytes() == MODEL
    last = len(MODEL) - 1
    ranges = [asked.range for asked in hub.downloads()]
    assert ranges == ["", f"bytes=600000-{last}", f"bytes=1200000-{last}"]


def test_a_stalled_connection_is_given_up_for_another(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
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
    with httpx2.Client(timeout=SECONDS) as client:
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
    hub.faults.slow_from = len(MODEL) // 2
    counts: list[int] = []

    def on_progress(transfer: Transfer) -> None:
        counts.append(transfer.n_done)
        if counts[-1] > len(MODEL) // 2:
            hub.faults.slow_from = None

    asyncio.run(fetch(model_options(hf_repo=REPOSITORY), on_progress))
    assert counts == sorted(counts)
    assert any(0 < count < len(MODEL) for count in counts)
    assert counts[-1] == len(MODEL)


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


def test_a_killed_process_is_an_error(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.stall_after = 300_000

    async def killed() -> None:
        task = asyncio.create_task(fetch(model_options(hf_repo=REPOSITORY), lambda _: None))
        while not hub.downloads():
            await asyncio.sleep(0.02)
        for child in children():
            child.kill()
        with pytest.raises(FetchError, match="ended unexpectedly"):
            await task

    asyncio.run(killed())


def test_a_name_that_is_not_unicode() -> None:
    with pytest.raises(FetchError, match="not valid UTF-8"):
        asyncio.run(fetch(model_options(hf_repo="a/\udcff"), lambda _: None))


def test_the_process_ends_with_the_server(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.stall_after = 300_000
    command = [sys.executable, "-P", "-m", "specllama.engine.helpers.download.download_main"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(frame(Wanted(repository=REPOSITORY)))
        process.stdin.flush()
        (length,) = HEADER.unpack(process.stdout.read(HEADER.size))
        report = report_decoder.decode(process.stdout.read(length))
        assert isinstance(report, Transfer)
        process.stdin.close()
        assert process.wait(SECONDS) == 1


def test_two_downloads_of_the_same_file_share_the_work(hub: Hub) -> None:
    hub.add(REPOSITORY, {"x-Q8_0.gguf": MODEL})
    hub.faults.bytes_per_second = 3_000_000

    async def both() -> list[Options]:
        options = model_options(hf_repo=REPOSITORY)
        return await asyncio.gather(*(fetch(options, lambda _: None) for _ in range(3)))

    found = asyncio.run(both())
    assert len({options.engine.model.model for options in found}) == 1
    assert Path(found[0].engine.model.model).read_bytes() == MODEL
    assert len(hub.downloads()) == 1
