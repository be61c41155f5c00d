"""The allowed keys in a preset file of a repository on the hub."""

from pathlib import Path

import pytest

from specllama.engine.catalog.presets import ALLOWED, Presets, read
from specllama.engine.options import OptionError, Options, Setting
from specllama.engine.options.declaration import fields
from specllama.handlers.options import NAMES
from tests.support.preset_files import written

REPOSITORY = "maker/presets"
FIELDS = fields(Options)


def remote(text: str, directory: Path) -> Presets:
    return read(written(text, directory), NAMES, REPOSITORY)


def test_all_are_options_of_models() -> None:
    assert FIELDS.keys() >= ALLOWED


def test_none_names_a_file_or_is_a_secret() -> None:
    assert not [name for name in ALLOWED if FIELDS[name].opt.file or FIELDS[name].opt.secret]


REACHES_OUT = ("file", "path", "dir", "url", "host", "rpc", "token", "disk")


def test_none_sounds_as_if_it_reached_out() -> None:
    odd = {name for name in ALLOWED if any(word in name.split("_") for word in REACHES_OUT)}
    assert odd == {"hf_file"}, "which is a file of the repository"


def test_allowed_keys_are_read(tmp_path: Path) -> None:
    found = remote("[*]\nc = 512\n[a]\nhf-repo = u/r\nno-mmap = 1\nstop-timeout = 3\n", tmp_path)
    assert not found.refused
    assert not found.warnings
    assert found.sections["a"].stop_timeout == 3
    assert found.sections["a"].place == f"{REPOSITORY}/preset.ini:3: [a]"


@pytest.mark.parametrize("name", sorted(FIELDS.keys() - ALLOWED))
def test_every_other_option_refuses_its_preset(tmp_path: Path, name: str) -> None:
    """By whatever name of it, before its value counts."""
    field = FIELDS[name]
    keys = [form.lstrip("-") for form in (*field.names, *field.negative_names)] + [*field.variables]
    for key in keys:
        found = remote(f"[bad]\nhf-repo = u/r\n{key} = \n[good]\nhf-repo = u/r\n", tmp_path)
        assert [*found.sections] == ["good"]
        assert found.refused["bad"].layer.settings == (Setting("hf-repo", "u/r", 2),)
        assert found.refused["bad"].reason.startswith(f"{REPOSITORY}/preset.ini:3: {key} ")


@pytest.mark.parametrize("key", ["port", "LLAMA_ARG_PORT", "log-file", "models-dir", "ctx-sze"])
def test_so_does_an_option_of_the_server_or_an_unknown_one(tmp_path: Path, key: str) -> None:
    found = remote(f"[bad]\n{key} = 1\n", tmp_path)
    assert [*found.refused] == ["bad"]


@pytest.mark.parametrize("key", ["host", "api-key", "LLAMA_ARG_SSL_KEY_FILE", "cors-originz"])
def test_keys_that_protect_the_server_end_the_start(tmp_path: Path, key: str) -> None:
    with pytest.raises(OptionError, match="protect"):
        remote(f"[bad]\n{key} = x\n", tmp_path)


def test_for_all_models_it_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="be set by a file from another machine"):
        remote("[*]\nlora = x.gguf\n", tmp_path)
