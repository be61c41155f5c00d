"""The files of prompts (`--log-prompts-dir`)."""

import asyncio
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from specllama.engine.options import OptionError
from specllama.engine.wire.requests import Infill
from specllama.handlers.running import prompt_log
from specllama.handlers.running.prompt_log import PlainPrompt, PromptLog, content_of


def write(directory: Path, *prompts: PlainPrompt) -> None:
    log = PromptLog(str(directory))

    async def all_of_them() -> None:
        for prompt in prompts:
            log.add(prompt)
        await log.stop()

    asyncio.run(all_of_them())


def test_each_prompt_has_a_file_in_the_order_of_arrival(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "prompts"
    prompts: list[PlainPrompt] = [[f"text {i}, ", "ü"] for i in range(12)]
    write(directory, *prompts)
    files = sorted(directory.iterdir())
    assert [each.read_text("utf-8") for each in files] == [f"text {i}, ü" for i in range(12)]
    assert all(each.name.endswith(".txt") and len(each.name) == 24 for each in files)


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_only_the_user_can_read_them(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write(tmp_path / "prompts", ["text"])
    finally:
        os.umask(before)
    [file] = (tmp_path / "prompts").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "prompts").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("prompt", "content"),
    [
        ([], ""),
        (["a", "b"], "ab"),
        (["../../etc\0"], "../../etc\0"),
        (["\ud800"], "\\ud800"),
    ],
)
def test_texts(prompt: PlainPrompt, content: str, tmp_path: Path) -> None:
    write(tmp_path, prompt)
    [file] = tmp_path.iterdir()
    assert file.read_text("utf-8") == content


def test_tokens_and_gaps_are_json() -> None:
    assert json.loads(content_of([1, "\ud800", 2])) == [1, "\ud800", 2]
    gap = Infill([1, "before"], ["after"], "middle", [("name", "text")])
    assert json.loads(content_of(gap)) == {
        "input_prefix": [1, "before"],
        "input_suffix": ["after"],
        "prompt": "middle",
        "input_extra": [{"filename": "name", "text": "text"}],
    }


def test_other_files_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 5_000_000)
    names = [f"{5:013d}-{number:06d}.txt" for number in (1, 2, 3)]
    (tmp_path / names[0]).write_text("another server's")
    (tmp_path / names[1]).symlink_to(tmp_path / "elsewhere")
    write(tmp_path, ["ours"])
    assert (tmp_path / names[0]).read_text() == "another server's"
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / names[2]).read_text() == "ours"


def test_a_full_disk_harms_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real, n_failures = os.fdopen, 3

    def failing(file: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal n_failures
        opened = real(file, *args, **kwargs)
        n_failures -= 1
        if n_failures >= 0:
            opened.close()
            raise OSError(28, "No space left on device")
        return opened

    monkeypatch.setattr(prompt_log, "open", failing, raising=False)
    caplog.set_level(logging.WARNING)
    write(tmp_path, ["1"], ["2"], ["3"], ["4"])
    assert [each.read_text() for each in tmp_path.iterdir()] == ["4"], "no empty files"
    [record] = caplog.records
    assert record.getMessage().endswith("a prompt is not written: No space left on device")


def test_a_directory_that_is_gone_harms_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "prompts"
    log = PromptLog(str(directory))
    directory.rmdir()

    async def all_of_them() -> None:
        log.add(["1"])
        await log.stop()

    asyncio.run(all_of_them())
    assert "No such file" in caplog.text


def test_too_many_that_wait_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prompt_log, "MAX_WAITING", 5)
    write(tmp_path, ["123456"], [1, 2, 3, 4, 5, 6], Infill(["123"], ["456"]), ["12345"])
    assert [each.read_text() for each in tmp_path.iterdir()] == ["12345"]
    assert "too many wait for the disk" in caplog.text


def test_a_directory_that_can_not_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/below", "a\0b"):
        with pytest.raises(OptionError, match="--log-prompts-dir: cannot create the directory"):
            PromptLog(str(tmp_path / name))
