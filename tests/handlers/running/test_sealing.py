"""Sealed texts: changed, foreign and oversized ones, and the files of keys."""

import asyncio
import base64
import os
import stat
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine.options import OptionError
from specllama.handlers.running.sealing import (
    MAX_BYTES,
    MIN_SECRET,
    Seal,
    Sealing,
    key_of_file,
    key_of_user,
)
from specllama.handlers.running.stores import StoreError
from tests.support.http_support import small_runtime

SEAL = Seal(b"k" * 32)


@given(st.text(), st.binary(max_size=2000))
def test_the_same_data_comes_back(kind: str, payload: bytes) -> None:
    assert SEAL.open(kind, SEAL.seal(kind, payload)) == payload


@given(st.binary(min_size=1, max_size=200))
def test_the_text_is_not_readable(payload: bytes) -> None:
    raw = base64.urlsafe_b64decode(SEAL.seal("a", payload))
    others = {base64.urlsafe_b64decode(SEAL.seal("a", payload)) for _ in range(3)}
    assert zlib.compress(payload) not in raw
    assert len({raw, *others}) == 4, "equal data give different texts"


@given(st.binary(max_size=200), st.data())
def test_a_changed_text_is_not_opened(payload: bytes, data: st.DataObject) -> None:
    raw = bytearray(base64.urlsafe_b64decode(SEAL.seal("a", payload)))
    index = data.draw(st.integers(0, len(raw) - 1))
    raw[index] ^= data.draw(st.integers(1, 255))
    assert SEAL.open("a", base64.urlsafe_b64encode(raw).decode()) is None


@pytest.mark.parametrize("length", [0, 1, 32, 33, 40])
def test_a_text_that_was_cut_is_not_opened(length: int) -> None:
    raw = base64.urlsafe_b64decode(SEAL.seal("a", b"data"))
    assert SEAL.open("a", base64.urlsafe_b64encode(raw[:length]).decode()) is None


@given(st.text())
def test_any_text_may_be_sent(token: str) -> None:
    assert SEAL.open("a", token) is None


def test_neither_another_kind_nor_another_key_opens_a_text() -> None:
    token = SEAL.seal("a", b"data")
    assert SEAL.open("b", token) is None
    assert Seal(b"l" * 32).open("a", token) is None


def test_the_boundary_of_the_kind_is_part_of_the_code() -> None:
    class Plain(Seal):
        """Seals data as it is."""

        def token(self, kind: str, body: bytes) -> str:
            return base64.urlsafe_b64encode(b"\x01" + self._code(kind, body) + body).decode()

    seal = Plain(b"k" * 32)
    assert seal.token("ab", b"c") != seal.token("a", b"bc")
    assert seal.open("a", seal.token("a", b"no compressed data")) is None


def test_the_size_of_the_data_is_bounded() -> None:
    token = SEAL.seal("a", b"0" * 1000)
    assert len(token) < 100
    assert SEAL.open("a", token, 1000) == b"0" * 1000
    assert SEAL.open("a", token, 999) is None
    assert SEAL.open("a", token, -1) is None
    assert SEAL.open("a", SEAL.seal("a", b""), 0) == b""
    with pytest.raises(ValueError, match="too many"):
        SEAL.seal("a", bytes(MAX_BYTES + 1))


def test_a_file_is_created_once_for_this_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with ThreadPoolExecutor(8) as pool:
        keys = set(pool.map(lambda _: key_of_file(str(path)), range(32)))
    assert len(keys) == 1
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["key"]


def test_files_with_the_same_secret_have_the_same_key(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("s" * MIN_SECRET)
    (tmp_path / "b").write_text("s" * MIN_SECRET + "\n")
    assert key_of_file(str(tmp_path / "a")) == key_of_file(str(tmp_path / "b"))
    (tmp_path / "b").write_text("t" * MIN_SECRET)
    assert key_of_file(str(tmp_path / "a")) != key_of_file(str(tmp_path / "b"))


def test_an_unusable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("s" * (MIN_SECRET - 1))
    for path in (tmp_path / "short", tmp_path, tmp_path / "missing" / "key"):
        with pytest.raises(OptionError, match=path.name):
            key_of_file(str(path))


def test_the_file_of_the_option(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--responses-key-file"):
        small_runtime(responses_key_file=str(tmp_path))
    path = str(tmp_path / "key")
    sealing = small_runtime(responses_key_file=path).sealing
    token = asyncio.run(sealing.get()).seal("a", b"data")
    assert Seal(key_of_file(path)).open("a", token) == b"data"


def test_the_users_key_survives_a_restart(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path), "LOCALAPPDATA": str(tmp_path)}
    assert key_of_user(environ) == key_of_user(environ)


def test_without_a_cache_the_key_is_random(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    environ = {"XDG_CACHE_HOME": str(tmp_path / "file"), "LOCALAPPDATA": str(tmp_path / "file")}
    assert key_of_user(environ) != key_of_user(environ)
    assert "after a restart" in caplog.text


def test_servers_with_one_store_share_its_first_key() -> None:
    kept = list[bytes]()

    async def share(key: bytes) -> bytes:
        await asyncio.sleep(0)
        kept.append(key)
        return kept[0]

    async def run() -> None:
        first, second = (Sealing(lambda: b"1" * 32, share), Sealing(lambda: b"2" * 32, share))
        seals = await asyncio.gather(first.get(), first.get(), second.get())
        assert seals[2].open("a", seals[0].seal("a", b"data")) == b"data"
        assert seals[0] is seals[1]
        assert kept == [b"1" * 32, b"2" * 32]
        alone = await Sealing(lambda: b"2" * 32).get()
        assert alone.open("a", seals[0].seal("a", b"data")) is None

    asyncio.run(run())


def test_a_store_that_fails_is_asked_again() -> None:
    asked = list[bytes]()

    async def share(key: bytes) -> bytes:
        asked.append(key)
        if len(asked) == 1:
            raise StoreError("it fails")
        return key

    async def run() -> None:
        sealing = Sealing(lambda: b"1" * 32, share)
        with pytest.raises(StoreError):
            await sealing.get()
        await sealing.get()
        await sealing.get()

    asyncio.run(run())
    assert len(asked) == 2
