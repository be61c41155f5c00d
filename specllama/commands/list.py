"""`specllama list`: lists the downloaded models, of the Hugging Face Hub and of registries."""

import argparse
import json
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from specllama.engine.catalog.hub_cache import CachedModel, cached_models
from specllama.engine.catalog.locations import hub_cache, registry_cache, shown_size
from specllama.engine.catalog.registry_cache import RegistryModel, registry_models

HUB, REGISTRY = "hub", "registry"


def main(argv: Sequence[str]) -> int:
    """Prints a line for each model. Returns 0."""
    parser = argparse.ArgumentParser(
        prog="specllama list",
        description="Lists the downloaded models of the Hugging Face Hub and of OCI registries. To "
        "serve a model of the hub: specllama -hf NAME. To serve a model of a registry: specllama "
        "-dr NAME.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    given = parser.parse_args(argv)
    models: list[tuple[str, CachedModel | RegistryModel]] = [
        *((HUB, model) for model in cached_models(hub_cache(os.environ))),
        *((REGISTRY, model) for model in registry_models(registry_cache(os.environ))),
    ]
    if given.json:
        rows = [{"from": source, **msgspec.to_builtins(model)} for source, model in models]
        print(json.dumps(rows, indent=2))
    elif models:
        width = max(len(model.name) for _, model in models)
        print(f"{'NAME':<{width}}  {'SIZE':>10}  {'FROM':<8}  DOWNLOADED")
        for source, model in models:
            size = shown_size(model.size)
            print(f"{model.name:<{width}}  {size:>10}  {source:<8}  {_downloaded(model)}")
    else:
        print("no models yet; specllama pull USER/REPO[:QUANT] downloads one")
    return 0


def _downloaded(model: CachedModel | RegistryModel) -> str:
    try:
        seconds = Path(model.path).stat().st_mtime
    except OSError:
        return "-"  # removed meanwhile
    return datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")
