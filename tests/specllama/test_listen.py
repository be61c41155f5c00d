"""The program that listens on a port."""

import os
import socket
import sys
from pathlib import Path

import pytest

from specllama.listen import listener


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux's kernel reports it")
def test_the_process_that_listens_is_found() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        assert listener(sock.getsockname()[1]).endswith(f" (process {os.getpid()})")


def test_a_connection_is_no_listener(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    line = "0: 0100007F:1F90 00000000:0000 {} 0:0 0:0 0 0 0 77 1"
    process = tmp_path / "12"
    (process / "fd").mkdir(parents=True)
    (process / "fd" / "3").symlink_to("socket:[77]")
    (process / "comm").write_text("one\n")
    for state, expected in (("01", ""), ("0A", "one (process 12)")):
        (tmp_path / "net" / "tcp").write_text("head\n" + line.format(state) + "\n")
        assert listener(8080, tmp_path) == expected
    assert listener(8081, tmp_path) == ""


def test_nothing_is_found_where_the_system_does_not_tell(tmp_path: Path) -> None:
    assert listener(8080, tmp_path) == ""
