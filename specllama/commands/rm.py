"""`specllama rm`: removes downloaded models, of the Hugging Face Hub and of registries."""

import argparse
import os
import sys
from collections.abc import Sequence

from specllama.engine.catalog.hub_cache import CachedModel, cached_models, named
from specllama.engine.catalog.locations import hub_cache, registry_cache, shown_size
from specllama.engine.catalog.registry_cache import (
    RegistryModel,
    registry_model,
    remove_registry_model,
)
from specllama.engine.catalog.removal import remove
from specllama.engine.options.values import legible


def main(argv: Sequence[str]) -> int:
    """Prints a line for each model. Returns 0, or 1 if one doesn't exist or can't be removed."""
    parser = argparse.ArgumentParser(
        prog="specllama rm",
        description="Removes downloaded models. If a running server has loaded one of them, it "
        "continues to serve that model until it ends.",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="name in `specllama list`")
    parser.add_argument(
        "--docker", action="store_true", help="only models from a registry (pull --docker)"
    )
    given = parser.parse_args(argv)
    return max([_remove(name, registries_only=given.docker) for name in given.names])


def _remove(name: str, *, registries_only: bool) -> int:
    model: CachedModel | RegistryModel | None = None
    cache, act = hub_cache(os.environ), remove
    if not registries_only:
        model = named(cached_models(cache), name)
    if model is None:
        cache, act = registry_cache(os.environ), remove_registry_model
        model = registry_model(cache, name)
    if model is None:
        return _failed(f"there is no model {legible(name)}; specllama list shows all models")
    try:
        act(cache, model.name)
    except OSError as error:
        return _failed(f"{model.name} can't be removed: {error.strerror}")
    print(f"removed {model.name} ({shown_size(model.size)})")
    return 0


def _failed(message: str) -> int:
    print(f"specllama rm: error: {message}", file=sys.stderr)
    return 1
