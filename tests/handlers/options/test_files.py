"""Options of the server that name files, which are looked at before anything is started."""

from pathlib import Path

import pytest

from specllama.engine.options import OptionError
from specllama.handlers.options import parse
from tests.support.options_support import error, server_options


def test_api_keys_are_merged(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# comment\n\nfrom-file\r\n  spaced \nboth\n", encoding="utf-8")
    options = parse(["--api-key", 'both,"with,comma"', "--api-key-file", str(file)], {})
    assert options.http.api_keys() == ["both", "with,comma", "from-file", "spaced"]
    assert server_options().http.api_keys() == []
    file.write_text("# no key\n", encoding="utf-8")
    assert "contains no key" in error("--api-key-file", str(file))
    file.write_text('[[keys]]\nname = "me"\nkey = "secret"\n', encoding="utf-8")
    assert "is a TOML file" in error("--api-key-file", str(file))
    file.write_text("[secret\nc2VjcmV0=\nname=1\n", encoding="utf-8")
    assert parse(["--api-key-file", str(file)], {}).http.api_keys() == [
        "[secret",
        "c2VjcmV0=",
        "name=1",
    ]
    file.write_bytes(b"\xff\xfe")
    assert "UTF-8" in error("--api-key-file", str(file))
    file.unlink()
    with pytest.raises(OptionError):
        options.http.api_keys()


def test_tls_needs_a_certificate_and_its_key(tmp_path: Path) -> None:
    file = tmp_path / "file.pem"
    file.write_text("not PEM", encoding="utf-8")
    assert "--ssl-cert-file as well" in error("--ssl-key-file", str(file))
    assert "--ssl-key-file as well" in error("--ssl-cert-file", str(file))
    both = ["--ssl-key-file", str(file), "--ssl-cert-file", str(file)]
    assert "PEM" in error(*both)
    file.unlink()
    assert "No such file" in error(*both)


def test_the_log_file_can_be_written(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing" / "file")
    assert "No such file" in error("--log-file", missing)
    parse(["--log-file", missing, "--log-disable"], {})
