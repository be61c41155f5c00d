"""Digests that tell model files apart."""

import hashlib
import os
from pathlib import Path

from specllama.engine.helpers.inspect import digest
from specllama.engine.helpers.inspect.digest import digest_in_cache, file_digest, model_digest
from specllama.engine.helpers.inspect.inspect_jobs import FileMetadata
from specllama.engine.helpers.inspect.inspect_main import inspect
from specllama.engine.shipped import model_path
from tools.models.zoo import split_model

LARGE = digest.WHOLE + 12_345  # bytes


def sparse(path: Path, size: int, changes: dict[int, bytes]) -> str:
    """A file of zeros, except for `changes` by their places."""
    with open(path, "wb") as file:
        file.truncate(size)
        for at, data in changes.items():
            file.seek(at)
            file.write(data)
    return str(path)


def metadata(path: Path) -> FileMetadata:
    found = inspect(str(path))
    assert isinstance(found, FileMetadata)
    return found


def test_small_files_have_their_sha256(tmp_path: Path) -> None:
    for size in (0, 1, digest.WHOLE):
        path = tmp_path / "a"
        path.write_bytes(os.urandom(size))
        assert file_digest(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_large_files_have_different_digests(tmp_path: Path) -> None:
    places = (0, LARGE - 1)
    paths = [sparse(tmp_path / f"{at}", LARGE, {at: b"x"}) for at in places]
    paths.append(sparse(tmp_path / "longer", LARGE + 1, {}))
    paths.append(sparse(tmp_path / "zeros", LARGE, {}))
    found = [file_digest(path) for path in paths]
    assert len(set(found)) == len(paths)
    assert all(len(each) == 64 and int(each, 16) >= 0 for each in found)


def test_neither_names_nor_times_matter(tmp_path: Path) -> None:
    one, other = (sparse(tmp_path / name, LARGE, {7: b"x"}) for name in "ab")
    os.utime(other, (1, 1))
    assert file_digest(one) == file_digest(other)


def test_every_sample_counts(tmp_path: Path) -> None:
    zeros = file_digest(sparse(tmp_path / "zeros", LARGE, {}))
    for index in range(digest.SAMPLES):
        at = (LARGE - digest.SAMPLE_SIZE) * index // (digest.SAMPLES - 1)
        for place in (at, at + digest.SAMPLE_SIZE - 1):
            assert file_digest(sparse(tmp_path / "changed", LARGE, {place: b"x"})) != zeros


def test_the_cache_has_digests_of_links(tmp_path: Path) -> None:
    name = "ab" * 32
    (tmp_path / name).write_bytes(b"whatever")
    (tmp_path / "model.gguf").symlink_to(name)
    (tmp_path / "other.gguf").symlink_to(tmp_path / "model.gguf")
    (tmp_path / "nowhere.gguf").symlink_to("nothing")
    for link in ("model.gguf", "other.gguf"):
        assert digest_in_cache(str(tmp_path / link)) == file_digest(str(tmp_path / link)) == name
    assert digest_in_cache(str(tmp_path / name)) == ""  # a name alone says nothing
    assert digest_in_cache(str(tmp_path / "nowhere.gguf")) == digest_in_cache("") == ""


def test_a_model_of_several_parts(tmp_path: Path) -> None:
    parts = split_model(model_path(), tmp_path, "x", 3)
    found = model_digest(map(str, parts))
    assert metadata(parts[0]).digest == found
    assert found not in map(file_digest, map(str, parts))
    assert found != model_digest(map(str, reversed(parts)))
    expected = hashlib.sha256(model_path().read_bytes()).hexdigest()
    assert metadata(model_path()).digest == model_digest([str(model_path())]) == expected
