"""Runs the examples of the documents in their order: shell commands and Python programs, unchanged
except for the port. An example that starts `specllama` starts the server for the following examples
of its page; examples before it use a plain server. `tools/docs/blocks.py` describes how an example
that can't run is marked."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from contract_tests.kit.server import SECONDS, OwnServer
from contract_tests.own import servers
from specllama.engine.shipped import model_path
from tools.docs.blocks import Block, all_blocks
from tools.docs.shell import starts
from tools.models.recipes import RECIPES

PORT = "8080"
"""The server's port in the documents."""

BLOCKS = [block for block in all_blocks() if block.is_executed]


def server_of(block: Block) -> list[str]:
    """Returns the options of the server that an example uses."""
    if "server" in block.marks:
        return shlex.split(block.marks["server"])
    before = [each for each in BLOCKS if each.document == block.document and each.line < block.line]
    started = [
        options
        for each in before
        if each.language == "bash"
        for _, options in starts(each.content)
        if options is not None
    ]
    return started[-1] if started else []


@dataclass
class Desk:
    """The directory with the files that the examples name, and the servers that they use: a plain
    one for all examples, and the last one with other options."""

    place: Path
    hub: dict[str, str]
    servers: dict[str, OwnServer] = field(default_factory=dict)

    @property
    def home(self) -> Path:
        return self.place / "home"

    def start(self, options: list[str]) -> OwnServer:
        key = shlex.join(options)
        if key not in self.servers:
            self.close(all_but="")
            self.servers[key] = servers.start(
                self.place, *map(self._word, options), "--port", "0",
                router=True, variables=self.hub, verify=False,
            )  # fmt: skip
        return self.servers[key]

    def _word(self, word: str) -> str:
        """Returns an option, or the path of the file that it names."""
        if word in RECIPES:
            return servers.model_file(word)
        path = self.place / word.replace("~", str(self.home))
        return str(path) if path.exists() else word

    def ported(self, text: str, options: list[str]) -> str:
        """Returns `text` with the port of the server with these options, if it uses one."""
        if PORT not in text:
            return text
        return text.replace(PORT, str(self.start(options).address[1]))

    def run(self, *command: str) -> str:
        """Returns what the command printed."""
        # `specllama doctor` checks whether its port is free.
        port = str(servers.free_port())
        environment = servers.environment(
            **self.hub,
            HOME=str(self.home),
            LLAMA_ARG_PORT=port,
            # An example that is a test needs only our plugin.
            PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
            PYTEST_PLUGINS="specllama.pytest_plugin",
        )
        programs = Path(sys.executable).parent
        environment["PATH"] = f"{programs}{os.pathsep}{environment['PATH']}"
        done = subprocess.run(
            command,
            env=environment,
            cwd=self.place,
            capture_output=True,
            encoding="utf-8",
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout

    def close(self, all_but: str | None = None) -> None:
        for key in [key for key in self.servers if key != all_but]:
            self.servers.pop(key).close()


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory, hub: dict[str, str]) -> Iterator[Desk]:
    desk = Desk(tmp_path_factory.mktemp("desk"), hub)
    models = desk.home / "models"
    models.mkdir(parents=True)
    for path in (desk.place / "model.gguf", models / "one.gguf", models / "two.gguf"):
        shutil.copyfile(model_path(), path)
    (desk.place / "models.ini").write_text(f"[small]\nmodel = {model_path()}\n", "utf-8")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(desk.place / "ca.pem")
    certificate = authority.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(desk.place / "key.pem")
    certificate.cert_chain_pems[0].write_to_path(desk.place / "cert.pem")
    # An error in an answer fails the example.
    (desk.home / ".curlrc").write_text("fail-with-body\nsilent\nshow-error\n", "utf-8")
    yield desk
    desk.close()


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.where)
def test_an_example_works(
    block: Block,
    desk: Desk,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = server_of(block)
    printed = ""
    if block.language == "bash":
        for text, options in starts(block.content):
            if options is not None:
                asked = options
                desk.start(options)
            elif text.strip():
                printed += desk.run("bash", "-euo", "pipefail", "-c", desk.ported(text, asked))
    elif "def test_" in block.content:
        path = desk.place / "test_example.py"
        path.write_text(block.content, "utf-8")
        desk.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path))
    else:
        monkeypatch.chdir(desk.place)
        code = compile(desk.ported(block.content, asked), block.where, "exec")
        exec(code, {"__name__": "__main__"})
        printed = capsys.readouterr().out
    assert block.marks.get("prints", "") in printed
