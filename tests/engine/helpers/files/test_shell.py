"""Commands in the sandbox."""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import aclosing
from pathlib import Path
from typing import Any

import psutil
import pytest

from specllama.engine.helpers.files import shell
from specllama.engine.helpers.files.shell import MAX_OUTPUT, ShellCommand, problem, sandboxed

pytestmark = pytest.mark.slow
needs_sandbox = pytest.mark.skipif(bool(problem("/tmp")), reason=problem("/tmp") or "it works")


def run(root: Path, command: str, seconds: int = 60, most: int = MAX_OUTPUT) -> str:
    """Returns the output of a command and its end."""

    async def main() -> str:
        running = ShellCommand(str(root), str(root), command, seconds, most)
        output = "".join([piece async for piece in running.output()])
        return output + running.how_it_ended

    return asyncio.run(main())


@needs_sandbox
def test_a_command_works_in_its_directory(tmp_path: Path) -> None:
    found = run(tmp_path, "echo hello > made; cat made; pwd; echo problem >&2; exit 3")
    assert found == f"hello\n{tmp_path}\nproblem\n\n[exit code: 3]"
    assert (tmp_path / "made").read_text() == "hello\n"


@needs_sandbox
def test_other_files_are_not_there(tmp_path: Path) -> None:
    root, secret = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    secret.write_text("secret")
    os.symlink(secret, root / "link")
    found = run(root, f"cat {secret} link /etc/shadow; ls -A {tmp_path}; touch /usr/x /etc/x; true")
    assert "secret\n" not in found.replace(str(secret), "")
    assert "root" in found
    assert not Path("/usr/x").exists()


@needs_sandbox
def test_there_is_no_network(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        code = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
        (tmp_path / "connect.py").write_text(code)
        found = run(tmp_path, "cat /proc/net/dev; /usr/bin/env python3 connect.py")
    assert "eth" not in found
    assert "[exit code: 0]" not in found


@needs_sandbox
def test_variables_and_processes_of_the_server_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LLAMA_API_KEY", "s3cr3t")
    found = run(tmp_path, f"env; cat /proc/*/environ; ls -d /proc/{os.getpid()}; ls /proc")
    assert "s3cr3t" not in found
    assert f"cannot access '/proc/{os.getpid()}'" in found


def _descendants(mark: str) -> list[psutil.Process]:
    every = psutil.process_iter(["cmdline"])
    return [each for each in every if mark in " ".join(each.info["cmdline"] or ())]


@needs_sandbox
def test_all_processes_end_with_the_time(tmp_path: Path) -> None:
    command = f"setsid sleep 98765 & sleep 98765; echo {tmp_path}"
    assert run(tmp_path, command, 1) == "\n[exit code: -9] [exit due to timed out]"
    assert not _descendants("sleep 98765")


@needs_sandbox
def test_closing_the_output_ends_the_command(tmp_path: Path) -> None:
    async def main() -> None:
        running = ShellCommand(str(tmp_path), str(tmp_path), "echo a; sleep 98766", 60, MAX_OUTPUT)
        async with aclosing(running.output()) as output:
            assert await anext(output) == "a\n"
        assert not _descendants("sleep 98766")

    asyncio.run(main())


@needs_sandbox
def test_output_arrives_as_it_is_written(tmp_path: Path) -> None:
    async def main() -> None:
        os.mkfifo(tmp_path / "go")
        running = ShellCommand(str(tmp_path), str(tmp_path), "echo a; cat go", 60, MAX_OUTPUT)
        async with aclosing(running.output()) as output:
            assert await anext(output) == "a\n"
            (tmp_path / "go").write_text("b")
            assert [piece async for piece in output] == ["b"]

    asyncio.run(main())


@needs_sandbox
@pytest.mark.parametrize(
    ("command", "most", "expected"),
    [
        ("printf 123456789", 4, "1234\n[output truncated]\n[exit code: 0]"),
        ("printf 1234", 4, "1234\n[exit code: 0]"),
        ("printf 'h\\303\\251'", 2, "h\ufffd\n[output truncated]\n[exit code: 0]"),
        ("printf '\\377'", 9, "\ufffd\n[exit code: 0]"),
        ("printf x", -5, "\n[output truncated]\n[exit code: 0]"),
    ],
)
def test_output_has_a_limit(command: str, most: int, expected: str, tmp_path: Path) -> None:
    assert run(tmp_path, command, most=most) == expected


@needs_sandbox
def test_endless_output_ends_the_command(tmp_path: Path) -> None:
    found = run(tmp_path, "yes", most=1 << 30)
    assert found == "y\n" * (MAX_OUTPUT // 2) + "\n[output truncated]\n[exit code: -9]"


@needs_sandbox
def test_limits_of_a_process(tmp_path: Path) -> None:
    found = run(tmp_path, "ulimit -c; ulimit -v; ulimit -f")
    assert found.split() == ["0", str(shell.MEMORY), str(shell.FILE_BLOCKS), "[exit", "code:", "0]"]
    if os.getuid():  # Linux doesn't limit the processes of the administrator
        many = "for i in $(seq 1000); do sleep 60 & done; wait"
        assert "fork" in run(tmp_path, many, 20).lower()


def test_a_sandbox_without_its_program(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shell, "PROGRAM", "no-such-program-of-the-tests")
    assert problem(str(tmp_path)) == "needs bubblewrap (bwrap), which is not installed"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "for Linux alone" in problem(str(tmp_path))


@pytest.mark.parametrize("result", [1, OSError(), subprocess.TimeoutExpired("bwrap", 1)])
def test_a_sandbox_that_cannot_be_made(
    result: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def tried(*_: Any, **__: Any) -> Any:
        if isinstance(result, Exception):
            raise result
        return subprocess.CompletedProcess((), result, b"", b"bwrap: no permission\nmore")

    monkeypatch.setattr(shell, "PROGRAM", "sh")
    monkeypatch.setattr(subprocess, "run", tried)
    found = problem(str(tmp_path))
    assert "can't be run" in found or found.endswith(
        "can't make a sandbox here: bwrap: no permission"
    )


def test_the_command_is_one_word(tmp_path: Path) -> None:
    words = sandboxed("/r", "/r/d", "--bind / / ; x")
    assert words[-1] == "--bind / / ; x"
    assert words[words.index("--") :][:3] == ["--", "sh", "-c"]
    assert "--unshare-all" in words
    assert words[words.index("--bind") :][:3] == ["--bind", "/r", "/r"]
    assert words[words.index("--chdir") + 1] == "/r/d"
