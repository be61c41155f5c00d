"""Every code block of the documents is executed, parsed, or has a reason why it isn't.
contract_tests/own/test_documented_examples.py executes blocks."""

import configparser
import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from specllama.engine.catalog.presets import read
from specllama.handlers.options import NAMES, parse
from tools.docs.blocks import (
    EXECUTED,
    PARSED,
    ROOT,
    SHOWN,
    Block,
    all_blocks,
    blocks_of,
    documents,
)
from tools.docs.shell import starts

pytestmark = pytest.mark.slow

BLOCKS = all_blocks()


def _in(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages]


def _named(block: Block) -> str:
    return block.where


def test_documents_are_found() -> None:
    names = {path.name for path in documents()}
    assert {"README.md", "ARCHITECTURE.md", "options.md", "index.md"} <= names
    assert {block.document for block in BLOCKS} >= {"README.md", "docs/index.md"}


@pytest.mark.parametrize("block", BLOCKS, ids=_named)
def test_a_block_has_its_language_and_the_reason_why_it_is_not_run(block: Block) -> None:
    assert block.language, (
        f"{block.where} is indented or has no language: write ```bash, ```text, ..."
    )
    if block.language not in EXECUTED | PARSED | SHOWN:
        assert "not run" in block.marks, (
            f"{block.where}: nothing executes {block.language}: "
            "write <!-- not run: REASON --> in front of it"
        )


@pytest.mark.parametrize("block", _in("json"), ids=_named)
def test_json_can_be_read(block: Block) -> None:
    json.loads(block.content)


@pytest.mark.parametrize("block", _in("yaml"), ids=_named)
def test_yaml_can_be_read(block: Block) -> None:
    assert yaml.safe_load(block.content)


@pytest.mark.parametrize("block", _in("toml"), ids=_named)
def test_toml_can_be_read(block: Block) -> None:
    tomllib.loads(block.content)


@pytest.mark.parametrize("block", _in("ini"), ids=_named)
def test_ini_can_be_read(block: Block, tmp_path: Path) -> None:
    if block.content.startswith("version = "):
        path = tmp_path / "models.ini"
        path.write_text(block.content, "utf-8")
        presets = read(str(path), NAMES)
        assert presets.sections
        assert not presets.refused
        assert not presets.warnings
    else:  # a unit, which may have a key several times
        reader = configparser.ConfigParser(strict=False, interpolation=None)
        reader.read_string(block.content)
        assert reader.sections()


@pytest.mark.parametrize("block", _in("python"), ids=_named)
def test_python_can_be_compiled(block: Block) -> None:
    compile(block.content, block.where, "exec")


@pytest.mark.parametrize("block", _in("bash"), ids=_named)
def test_bash_can_be_parsed(block: Block, tmp_path: Path) -> None:
    script = tmp_path / "block.sh"
    script.write_text(block.content, "utf-8")
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert not done.stderr, f"{block.where}: {done.stderr}"


WRITTEN = re.compile(r"cat > (\S+) <<'(\w+)'\n(.*?)\n\2$", re.DOTALL | re.MULTILINE)
"""A file that a block writes."""


@pytest.mark.parametrize("block", _in("bash"), ids=_named)
def test_options_exist(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also the options of servers that aren't started."""
    monkeypatch.chdir(tmp_path)
    for name, _, text in WRITTEN.findall(block.content):
        (tmp_path / name).write_text(text)
    for _, options in starts(block.content):
        if options and "not run" in block.marks:
            parse(options, {})


def test_the_version_of_llama_cpp_is_the_pinned_one() -> None:
    pinned = set(re.findall(r"llama-cpp-python==([\d.]+)", (ROOT / "pyproject.toml").read_text()))
    assert len(pinned) == 1
    for path in documents():
        versions = re.findall(r"llama-cpp-python==([\d.]+)", path.read_text("utf-8"))
        assert set(versions) <= pinned, path


def test_marks_belong_to_the_next_block() -> None:
    text = """
<!-- server: --embeddings
     --pooling mean -->

```bash
one
```

- In a list:
  <!-- not run: it is only shown -->
  ```go
  two
  ```

<!-- not run: a paragraph comes first -->

Words.

```python
three
```

    four
"""
    one, two, three, four = blocks_of(text, "x.md")
    assert one.marks == {"server": "--embeddings --pooling mean"}
    assert (one.language, one.line, one.is_executed) == ("bash", 5, True)
    assert two.marks == {"not run": "it is only shown"}
    assert not two.is_executed
    assert three.is_executed
    assert not three.marks
    assert four.language == ""
