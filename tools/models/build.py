"""`python -m tools.models.build`: writes the models of `recipes.py` as GGUF files.

Building is deterministic: the same library versions give the same bytes.
"""

import argparse
import hashlib
import os
from pathlib import Path

from tools.models import corpus, tokenizer
from tools.models.gguf_file import write_model
from tools.models.lora import ADAPTERS, write_adapter
from tools.models.recipes import RECIPES

TRAIN_TOKENIZER = "train-tokenizer"
SOURCES = {".py", ".txt", ".jinja"}
"""Suffixes of the files here that a built model depends on."""


def build(name: str, directory: Path) -> Path:
    """Writes the model `name` into `directory`. Raises KeyError for an unknown name."""
    recipe = RECIPES[name]
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{recipe.file_name}.gguf"
    write_model(recipe, path)
    return path


def ensure(name: str, directory: Path | None = None) -> Path:
    """Returns the path of the model `name` in `directory` (default: `cache_directory()`), and
    builds it if it is missing."""
    directory = directory or cache_directory()
    path = directory / f"{RECIPES[name].file_name}.gguf"
    return path if path.exists() else build(name, directory)


def ensure_adapter(name: str, directory: Path | None = None) -> Path:
    """Returns the path of the LoRA adapter `name` in `directory` (default: `cache_directory()`),
    and builds it if it is missing."""
    directory = directory or cache_directory()
    path = directory / f"{ADAPTERS[name].file_name}.gguf"
    if not path.exists():
        directory.mkdir(parents=True, exist_ok=True)
        write_adapter(ADAPTERS[name], path)
    return path


def cache_directory() -> Path:
    """Returns the directory of built models. Every version of the builder has a separate one."""
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    root = Path(base) if base else Path.home() / ".cache"
    return root / "specllama" / "models" / _fingerprint()


def _fingerprint() -> str:
    """Returns a short hash of all sources of the models."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for source in sorted(path for path in here.iterdir() if path.suffix in SOURCES):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.models.build",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="folder for the files (default: the cache)",
    )
    parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        choices=[*RECIPES, *ADAPTERS, TRAIN_TOKENIZER],
        help=f"{', '.join([*RECIPES, *ADAPTERS])}; or {TRAIN_TOKENIZER}, which renews merges.txt",
    )
    arguments = parser.parse_args()
    for name in arguments.names:
        if name == TRAIN_TOKENIZER:
            tokenizer.save_merges(tokenizer.train_merges(corpus.texts()))
            print(tokenizer.MERGES_FILE)
            continue
        if name in ADAPTERS:
            print(ensure_adapter(name, arguments.output))
            continue
        path = build(name, arguments.output or cache_directory())
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
