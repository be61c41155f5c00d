"""`specllama list`: lists the models in the cache of the Hugging Face Hub."""

import argparse
import json
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from engine.catalog.cache import CachedModel, cached_models
from engine.catalog.locations import hub_cache
from engine.catalog.sizes import shown_size


def main(argv: Sequence[str]) -> int:
    """Prints a line for each model."""
    parser = argparse.ArgumentParser(
        prog="specllama list",
        description="Lists the downloaded models. Serve one with: specllama -hf NAME",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    models = cached_models(hub_cache(os.environ))
    if given.json:
        print(json.dumps(msgspec.to_builtins(models), indent=2))
    elif models:
        width = max(len(model.name) for model in models)
        print(f"{'NAME':<{width}}  {'SIZE':>10}  DOWNLOADED")
        for model in models:
            print(f"{model.name:<{width}}  {shown_size(model.size):>10}  {_downloaded(model)}")
    else:
        print("no models yet; specllama pull USER/REPO[:QUANT] downloads one")
    return 0


def _downloaded(model: CachedModel) -> str:
    try:
        seconds = Path(model.path).stat().st_mtime
    except OSError:
        return "-"  # removed meanwhile
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
