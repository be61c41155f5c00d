"""Preset files in tests."""

from collections.abc import Sequence
from pathlib import Path

from specllama.engine.catalog.presets import Presets, read
from specllama.engine.options import Options
from specllama.handlers.options import NAMES
from tests.support.options_support import layered


def written(text: str, directory: Path) -> str:
    path = directory / "models.ini"
    path.write_bytes(text.encode())
    return str(path)


def presets(text: str, directory: Path) -> Presets:
    return read(written(text, directory), NAMES)


def section(text: str, directory: Path, name: str = "a", argv: Sequence[str] = ()) -> Options:
    """Returns the options of a model in a preset file."""
    found = presets(text, directory)
    return layered({}, [found.everywhere.layer, found.sections[name].layer], argv, files=False)
