"""The disabled rules of other linters."""

from pathlib import Path

import pytest
import yaml

import tools.spec_lint

FILES = sorted(Path(tools.spec_lint.__file__).parent.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_exception_has_a_reason(file: Path) -> None:
    lines = file.read_text("utf-8").splitlines()
    exceptions = yaml.safe_load("\n".join(lines))["rules"]
    assert exceptions
    for name in exceptions:
        place = lines.index(f"  {name}: off")
        assert lines[place - 1].startswith("  # "), name


def test_both_are_there() -> None:
    assert [file.stem for file in FILES] == ["redocly", "spectral"]
