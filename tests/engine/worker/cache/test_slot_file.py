"""The container of saved slots: what goes in comes out, and nothing else is ever accepted."""

import os
import struct
import tempfile
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.errors import EngineError
from specllama.engine.wire.requests import check_name
from specllama.engine.worker.cache import slot_file
from specllama.engine.worker.cache.checkpoints import Checkpoint
from specllama.engine.worker.cache.slot_file import Origin
from tests.support.models import random_model

ORIGIN = Origin(b"model", {"--cache-type-k": "f16"}, [(b"adapter", 0.5)])
posix = pytest.mark.skipif(os.name != "posix", reason="links and pipes")


def save(
    directory: Path, name: str = "a.bin", n_tokens: int = 5, places: tuple[int, ...] = ()
) -> Path:
    tokens = np.arange(n_tokens, dtype=np.int32)
    state = np.arange(100, dtype=np.uint8)
    checkpoints = [Checkpoint(n, np.full(n, n, np.uint8)) for n in places]
    size = slot_file.write(str(directory), name, ORIGIN, tokens, state, checkpoints)
    assert size == (directory / name).stat().st_size
    return directory / name


def refusal(directory: Path, name: str) -> str:
    with pytest.raises(EngineError) as caught:
        slot_file.read(str(directory), name)
    assert caught.value.info.type == "invalid_request_error"
    return caught.value.info.message


# ---- there and back ------------------------------------------------------------------------


@given(
    st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50),
    st.binary(max_size=200),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
    st.lists(st.tuples(st.binary(max_size=9), st.floats(allow_nan=False)), max_size=3),
    st.dictionaries(st.integers(1, 50), st.binary(max_size=9), max_size=5),
)
@settings(deadline=None, max_examples=50)
def test_round_trip(
    tokens: list[int],
    state: bytes,
    there: dict[str, str],
    adapters: list[tuple[bytes, float]],
    kept: dict[int, bytes],
) -> None:
    checkpoints = [(n, kept[n]) for n in sorted(kept) if n <= len(tokens)]
    with tempfile.TemporaryDirectory() as directory:
        origin = Origin(b"m", there, adapters)
        data = np.frombuffer(state, np.uint8)
        states = [Checkpoint(n, np.frombuffer(held, np.uint8)) for n, held in checkpoints]
        n = slot_file.write(directory, "x", origin, np.array(tokens, np.int32), data, states)
        assert os.listdir(directory) == ["x"]
        saved = slot_file.read(directory, "x")
        assert (saved.origin, saved.n_bytes) == (origin, n)
        assert (saved.tokens.tolist(), saved.state.tobytes()) == (tokens, state)
        assert [(each.n, each.state.tobytes()) for each in saved.checkpoints] == checkpoints
        head = slot_file.read_head(directory, "x")
        assert (head[0], head[1].tolist()) == (origin, tokens)
        assert list(head[2]) == [n for n, _ in checkpoints]


def test_a_file_is_replaced(tmp_path: Path) -> None:
    save(tmp_path, n_tokens=50)
    save(tmp_path, n_tokens=3)
    assert len(slot_file.read(str(tmp_path), "a.bin").tokens) == 3


def test_a_text_without_checkpoints_is_in_the_old_format(tmp_path: Path) -> None:
    header = {"origin": ORIGIN, "n_tokens": 5, "n_state": 100}
    raw = msgspec.msgpack.encode(header)
    data = struct.pack("<8sII", slot_file.MAGIC, 1, len(raw)) + raw
    data += struct.pack("<5i", *range(5)) + bytes(range(100))
    data += blake2b(data, digest_size=32).digest()
    assert save(tmp_path).read_bytes() == data
    assert save(tmp_path, places=(2, 4)).read_bytes()[8] == slot_file.VERSION
    (tmp_path / "old").write_bytes(data)
    saved = slot_file.read(str(tmp_path), "old")
    assert (saved.origin, saved.checkpoints) == (ORIGIN, [])
    assert saved.tokens.tolist() == [*range(5)]


def test_the_states_of_checkpoints_do_not_hold_the_file(tmp_path: Path) -> None:
    save(tmp_path, places=(2, 4))
    for each in slot_file.read(str(tmp_path), "a.bin").checkpoints:
        assert each.state.base is None


# ---- damage --------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [(), (2, 4)])
def test_every_flipped_bit_is_noticed(tmp_path: Path, places: tuple[int, ...]) -> None:
    path = save(tmp_path, places=places)
    good = path.read_bytes()
    for i in range(len(good)):
        for bit in (1, 0x80):
            path.write_bytes(good[:i] + bytes([good[i] ^ bit]) + good[i + 1 :])
            assert refusal(tmp_path, "a.bin")


def test_every_truncation_and_extension_is_noticed(tmp_path: Path) -> None:
    path = save(tmp_path)
    good = path.read_bytes()
    for n in range(len(good)):
        path.write_bytes(good[:n])
        assert refusal(tmp_path, "a.bin")
    path.write_bytes(good + b"\0")
    assert "damaged" in refusal(tmp_path, "a.bin")


@given(st.binary(max_size=300), st.booleans())
@settings(deadline=None)
def test_noise_is_refused(noise: bytes, with_magic: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        head = slot_file.MAGIC + (1).to_bytes(4, "little") if with_magic else b""
        Path(directory, "x").write_bytes(head + noise)
        assert refusal(Path(directory), "x")


def test_lying_headers_with_right_digests_are_refused(tmp_path: Path) -> None:
    origin = {"model": b"m", "settings": {}}
    header: Any
    numbers = {"n_tokens": 0, "n_state": 0}
    lies = [[[0, 0]], [[1, 0]], [[0, 8], [0, -8]], [[-1, 0]], [[1, 4, 4]], [[1]], 7]
    for header in (
        {"origin": origin, "n_tokens": -1, "n_state": 4},
        {"origin": origin, "n_tokens": 2**62, "n_state": 0},
        {"origin": origin, "n_tokens": 0, "n_state": -(2**40)},
        {"origin": origin},
        {"origin": {"model": 1, "settings": {}}, "n_tokens": 0, "n_state": 0},
        [],
        *({"origin": origin, **numbers, "checkpoints": each} for each in lies),
    ):
        raw = msgspec.msgpack.encode(header)
        for version in (1, 2):
            data = struct.pack("<8sII", slot_file.MAGIC, version, len(raw)) + raw
            data += blake2b(data, digest_size=32).digest()
            (tmp_path / "x").write_bytes(data)
            assert "damaged" in refusal(tmp_path, "x")
            with pytest.raises(EngineError, match="damaged"):
                slot_file.read_head(str(tmp_path), "x")


def test_another_version_is_reported(tmp_path: Path) -> None:
    path = save(tmp_path)
    data = bytearray(path.read_bytes())
    data[8] = 3
    path.write_bytes(data)
    assert "version 3" in refusal(tmp_path, "a.bin")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "empty").touch()
    assert "not a slot file" in refusal(tmp_path, "empty")
    (tmp_path / "model").symlink_to(random_model())
    (tmp_path / "copy").write_bytes(random_model().read_bytes()[:4096])
    assert "not a slot file" in refusal(tmp_path, "copy")
    assert refusal(tmp_path, "directory")
    assert "No such file" in refusal(tmp_path, "missing")
    with pytest.raises(EngineError, match="not a regular file"):
        save(tmp_path, "directory")
    with pytest.raises(EngineError) as caught:
        save(tmp_path / "empty", "x")
    assert caught.value.info.type in ("server_error", "invalid_request_error")


@posix
def test_links_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    outside = save(tmp_path, "outside")
    before = outside.read_bytes()
    inside = tmp_path / "inside"
    (inside / "link").symlink_to("../outside")
    (inside / "dangling").symlink_to("../nowhere")
    os.mkfifo(inside / "pipe")
    for name in ("link", "dangling", "pipe"):
        assert refusal(inside, name)
        with pytest.raises(EngineError, match="not a regular file"):
            save(inside, name)
    assert outside.read_bytes() == before
    assert not (tmp_path / "nowhere").exists()


@posix
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_that_is_read_only_is_the_servers_fault(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(EngineError) as caught:
        save(tmp_path)
    assert caught.value.info.type == "server_error"


def test_a_directory_that_is_gone_is_the_servers_fault(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        save(tmp_path / "gone")
    assert caught.value.info.type == "server_error"


# ---- names ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "...", "a..b", "/etc/passwd", "../a", "a/b", "a\\b", "C:a", "a:b", "\0", "a\0",
     "a\nb", "\x7f", "\x85", " a", "a ", "a.", "*", "?", '"', "<", "|", "\u2215", "\u2216",
     "\uff0e\uff0e", "\ufffd", chr(0xD800), "nul", "CON.txt", "com1", "a" * 256, "é" * 128,
     "x" * 5000, "~/../a"],
)  # fmt: skip
def test_bad_names(name: str) -> None:
    with pytest.raises(EngineError) as caught:
        check_name(name)
    assert len(caught.value.info.message) < 200


@pytest.mark.parametrize(
    "name",
    ["a", "a.bin", ".hidden", "-rf", "$HOME", "~", "a b", "日本", "é" * 127, "a" * 255, "%2e"],
)
def test_good_names(name: str, tmp_path: Path) -> None:
    check_name(name)
    save(tmp_path, name)
    assert [each.name for each in tmp_path.iterdir()] == [name]
    assert slot_file.read(str(tmp_path), name).origin == ORIGIN


@given(st.text(max_size=40))
def test_a_name_that_passes_stays_in_its_directory(name: str) -> None:
    try:
        check_name(name)
    except EngineError:
        return
    path = Path("/base", name)
    assert path.parent == Path("/base")
    assert Path(os.path.normpath(path)) == path


# ---- fingerprints --------------------------------------------------------------------------


def test_a_fingerprint_distinguishes_files(tmp_path: Path) -> None:
    data = bytearray(os.urandom(3 << 20))
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    first = slot_file.fingerprint(str(path))
    assert slot_file.fingerprint(str(path)) == first
    for change in (0, 500_000, len(data) // 63 * 40 + 7, len(data) - 1):
        other = bytearray(data)
        other[change] ^= 1
        path.write_bytes(other)
        assert slot_file.fingerprint(str(path)) != first
    path.write_bytes(data[:-1])
    assert slot_file.fingerprint(str(path)) != first


def test_every_part_of_a_split_model_counts(tmp_path: Path) -> None:
    parts = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(b"GGUF" * 10)
    first = slot_file.fingerprint(str(parts[0]))
    parts[1].write_bytes(b"GGUF" * 11)
    assert slot_file.fingerprint(str(parts[0])) != first


def test_origins_are_compared() -> None:
    slot_file.check_origin("a", ORIGIN, b"model", {"--cache-type-k": "f16"})
    with pytest.raises(EngineError, match="another model"):
        slot_file.check_origin("a", ORIGIN, b"other", {"--cache-type-k": "f16"})
    for here in ({"--cache-type-k": "q8_0"}, {}, {"--cache-type-k": "f16", "--more": "1"}):
        with pytest.raises(EngineError, match="but here it is"):
            slot_file.check_origin("a", ORIGIN, b"model", here)
