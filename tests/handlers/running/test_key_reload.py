"""The keys of a running server: what a change of the keys file does."""

import asyncio
import logging
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from contract_tests.kit.server import SECONDS
from specllama.engine.options import OptionError
from specllama.handlers.http.api_keys import ApiKey
from specllama.handlers.options.tables.http import HttpOptions
from specllama.handlers.running.key_reload import MAX_SHOWN, ServerKeys

ALICE = "[keys.alice]\nkey = 'sk-alice'\n"
BOB = "[keys.bob]\nkey = 'sk-bob'\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    path.write_text(ALICE, "utf-8")
    path.chmod(0o600)
    return path


def names(keys: ServerKeys) -> list[str]:
    return sorted(key.name for key in keys.ring.keys)


def open_keys(file: Path, *api_keys: str) -> ServerKeys:
    return ServerKeys(HttpOptions(keys_file=str(file), api_key=api_keys))


def replace(file: Path, text: str) -> None:
    other = file.with_suffix(".new")
    other.write_text(text, "utf-8")
    other.chmod(0o600)
    other.replace(file)


def test_keys_of_the_file_and_of_the_command_line(file: Path) -> None:
    keys = open_keys(file, "root", "other")
    assert names(keys) == ["alice", "api-key-1", "api-key-2"]
    alice, root = keys.ring.find(b"sk-alice"), keys.ring.find(b"root")
    assert alice is not None
    assert root is not None
    assert (alice.id, alice.name) == ("key:alice", "alice")
    assert alice.access == {"generate", "embed", "read"}
    assert root.access == {"generate", "embed", "read", "admin"}
    assert keys.ring.find(b"sk-bob") is None


def test_a_change_replaces_all_keys(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = open_keys(file, "root")
    ring = keys.ring
    caplog.set_level(logging.INFO)
    keys.look_again()
    assert not caplog.messages
    replace(file, "[keys.alice]\nkey = 'sk-new'\n" + BOB)
    keys.look_again()
    assert keys.ring is ring
    assert names(keys) == ["alice", "api-key-1", "bob"]
    assert ring.find(b"sk-alice") is None
    assert ring.find(b"sk-new") is not None
    assert "1 added (bob), 1 changed (alice), 0 removed" in caplog.text
    replace(file, BOB)
    keys.look_again()
    assert "0 added, 0 changed, 1 removed (alice)" in caplog.text
    assert "sk-" not in caplog.text
    assert ring.find(b"root") is not None


@pytest.mark.parametrize(
    "broken", ["[keys.alice", "[keys.a]\nkey = 5", None, "[keys.a]\nkey = 'root'"]
)
def test_a_broken_file_keeps_the_old_keys(
    file: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    keys = open_keys(file, "root")
    if broken is None:
        file.unlink()
    else:
        replace(file, broken)
    keys.look_again()
    assert keys.ring.find(b"sk-alice") is not None
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "keys.toml" in record.getMessage()
    keys.look_again()
    assert len(caplog.records) == 1, "it is reported once"
    keys.look_again(is_asked=True)
    assert len(caplog.records) == 2
    replace(file, BOB)
    keys.look_again()
    assert names(keys) == ["api-key-1", "bob"]


def test_a_file_without_keys_opens_nothing(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = open_keys(file)
    replace(file, "# all are gone\n")
    keys.look_again()
    assert names(keys) == []
    assert keys.ring, "the server still needs a key"
    assert "has no key" in caplog.text
    assert open_keys(file).ring
    assert not ServerKeys(HttpOptions()).ring


def test_a_file_that_is_not_valid_at_the_start(file: Path) -> None:
    file.write_text("[keys.a]\nwieght = 1", "utf-8")
    with pytest.raises(OptionError, match="did you mean weight"):
        open_keys(file)


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
@pytest.mark.parametrize(("mode", "warns"), [(0o600, False), (0o640, False), (0o644, True)])
def test_a_file_that_all_can_read_is_reported(
    file: Path, mode: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    file.chmod(mode)
    assert stat.S_IMODE(file.stat().st_mode) == mode
    open_keys(file)
    assert ("all users" in caplog.text) is warns


def test_long_lists_of_names_are_cut(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = open_keys(file)
    caplog.set_level(logging.INFO)
    replace(file, "".join(f"[keys.k{i}]\nkey = 'x{i}'\n" for i in range(2 * MAX_SHOWN)))
    keys.look_again()
    assert f"{2 * MAX_SHOWN} added (k0, k1" in caplog.text
    assert ", ...), 0 changed" in caplog.text


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(SECONDS):
        while not condition():
            await asyncio.sleep(0)


def test_changes_are_found_by_looking(file: Path) -> None:
    async def run() -> None:
        keys = open_keys(file)
        watching = asyncio.create_task(keys.watch(poll=0))
        replace(file, BOB)
        await until(lambda: names(keys) == ["bob"])
        replace(file, "[keys.")
        replace(file, ALICE)
        await until(lambda: names(keys) == ["alice"])
        watching.cancel()

    asyncio.run(run())


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="SIGHUP")
def test_a_hangup_reads_the_file(file: Path) -> None:
    async def run() -> None:
        keys = open_keys(file)
        before = signal.getsignal(signal.SIGHUP)
        watching = asyncio.create_task(keys.watch(poll=SECONDS))
        await until(lambda: signal.getsignal(signal.SIGHUP) != before)
        replace(file, BOB)
        signal.raise_signal(signal.SIGHUP)
        await until(lambda: names(keys) == ["bob"])
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        assert signal.getsignal(signal.SIGHUP) == before

    asyncio.run(run())


def test_without_a_file_nothing_is_watched() -> None:
    asyncio.run(ServerKeys(HttpOptions(api_key=("a",))).watch())


def test_the_names_of_models() -> None:
    def allows(*patterns: str) -> Callable[..., bool]:
        key = ApiKey(name="a", id="a", digest=b"", models=frozenset(patterns))
        return lambda *names: key.may_use(names)

    assert ApiKey(name="a", id="a", digest=b"").may_use(["any"])
    assert not allows()("any")
    assert allows("a")("a")
    assert allows("a")("b", "a")
    assert not allows("a")("ab")
    assert allows("a*")("ab\n/c:Q4")
    assert allows("*b*")("abc")
    assert not allows("a?c", "[abc]", "a.c")("abc", "b")
    assert allows("[a]?")("[a]?")
