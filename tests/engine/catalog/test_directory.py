"""The models of a directory (`--models-dir`)."""

import logging
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.engine.catalog.directory import models_in
from specllama.engine.formats.gguf_names import part
from specllama.engine.options import OptionError
from tests.support.model_files import write


def in_directory(directory: Path) -> dict[str, tuple[str, str]]:
    """File and projector of each model, relative to the directory."""
    return {
        model.name: (
            os.path.relpath(model.path, directory),
            os.path.relpath(model.projector, directory) if model.projector else "",
        )
        for model in models_in(str(directory))
    }


def test_models_in_files_and_folders(models: Path) -> None:
    write(models, "a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf")
    write(models, "one/whatever.gguf", "seeing/m.gguf", "seeing/mmproj-m.gguf")
    write(models, "parts/p-00001-of-00002.gguf", "parts/p-00002-of-00002.gguf")
    write(models, "two/a-Q4_0.gguf", "two/b.gguf")
    assert in_directory(models) == {
        "a": ("a.gguf", ""),
        "b": ("b-00001-of-00002.gguf", ""),
        "one": ("one/whatever.gguf", ""),
        "parts": ("parts/p-00001-of-00002.gguf", ""),
        "seeing": ("seeing/m.gguf", "seeing/mmproj-m.gguf"),
        "two/a-Q4_0": ("two/a-Q4_0.gguf", ""),
        "two/b": ("two/b.gguf", ""),
    }


def test_other_files_are_skipped(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(models, "mmproj.gguf", "mtp-x.gguf", "imatrix.gguf", ".x.gguf", "read.me", "a/b/c.gguf")
    (models / "empty").mkdir()
    assert in_directory(models) == {}
    assert caplog.messages == []


def test_each_unusable_file_is_reported(models: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(models, "good.gguf", "part-00001-of-00003.gguf", "part-00003-of-00003.gguf")
    write(models, "good/other.gguf", "last-00002-of-00002.gguf", "two\nlines.gguf")
    (models / "nowhere.gguf").symlink_to(models / "gone")
    (models / "circle.gguf").symlink_to(models / "circle.gguf")
    os.mkfifo(models / "fifo.gguf")
    with open(os.fsencode(models) + b"/\xff.gguf", "wb"):
        pass
    assert list(in_directory(models)) == ["good"]
    logged = "\n".join(caplog.messages)
    assert len(caplog.messages) == 8
    for text in ("part-00002", "last-00001", "good/other", "two\\nlines", "nowhere", "circle"):
        assert text in logged
    for text in ("fifo", "\\udcff"):
        assert text in logged


def test_links_are_followed(models: Path, tmp_path: Path) -> None:
    write(tmp_path, "elsewhere/x.gguf")
    (models / "file.gguf").symlink_to(tmp_path / "elsewhere/x.gguf")
    (models / "folder").symlink_to(tmp_path / "elsewhere")
    (models / "itself").symlink_to(models)
    assert in_directory(models).keys() == {"file", "folder", "itself"}


def test_huge_directories_are_cut(
    models: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.engine.catalog.directory.MAX_FILES", 10)
    write(models, *(f"{number}.gguf" for number in range(20)))
    assert len(in_directory(models)) == 10
    assert "more than 10 files" in caplog.text


def test_many_parts_cost_nothing(models: Path) -> None:
    write(models, *(f"{number}-00001-of-99999.gguf" for number in range(500)))
    assert in_directory(models) == {}


def test_a_directory_that_is_not_there(models: Path) -> None:
    with pytest.raises(OptionError, match="--models-dir"):
        models_in(str(models / "missing"))


_file_names = st.text("abQ480_-./\n\udcff", max_size=8).map(lambda s: s.replace("/", "-"))
_suffixes = st.sampled_from(
    [".gguf", ".GGUF", "-00001-of-00002.gguf", "-00002-of-00002.gguf", "", "-mmproj.gguf"]
)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["", "f/", "g/"]), _file_names, _suffixes), max_size=12))
def test_any_directory_gives_files_that_are_there(names: list[tuple[str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for folder, file, suffix in names:
            (directory / folder).mkdir(exist_ok=True)
            if file + suffix not in ("", ".", ".."):
                path = directory / folder / (file + suffix)
                if not path.is_dir():
                    path.write_bytes(b"")
        logging.disable(logging.WARNING)
        try:
            found = models_in(name)
        finally:
            logging.disable(logging.NOTSET)
        assert len({model.name for model in found}) == len(found)
        for model in found:
            assert os.path.isfile(model.path)
            assert model.name.isprintable()
            split = part(model.path)
            assert split is None or all(map(os.path.isfile, split.file_names()))
