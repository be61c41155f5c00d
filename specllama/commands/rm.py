"""`specllama rm`: removes models from the cache of the Hugging Face Hub."""

import argparse
import os
import sys
from collections.abc import Sequence

from engine.catalog.cache import cached_models, named
from engine.catalog.locations import hub_cache
from engine.catalog.removal import remove
from engine.catalog.sizes import shown_size
from engine.options.values import legible


def main(argv: Sequence[str]) -> int:
    """Prints a line for each; 0, or 1 if one wasn't there or couldn't be removed."""
    parser = argparse.ArgumentParser(
        prog="specllama rm",
        description="Removes downloaded models. A server that has one loaded keeps it until it "
        "ends.",
    )
    parser.add_argument("names", nargs="+", metavar="NAME", help="as specllama list shows it")
    given = parser.parse_args(argv)
    cache, status = hub_cache(os.environ), 0
    for name in given.names:
        model = named(cached_models(cache), name)
        if model is None:
            status = _failed(f"there is no model {legible(name)}; specllama list shows all")
            continue
        try:
            remove(cache, model.name)
        except OSError as error:
            status = _failed(f"{model.name} can't be removed: {error.strerror}")
        else:
            print(f"removed {model.name} ({shown_size(model.size)})")
    return status


def _failed(message: str) -> int:
    print(f"specllama rm: error: {message}", file=sys.stderr)
    return 1
