"""The catalog of all models that a server can serve."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from specllama.engine.catalog import assembly, removal
from specllama.engine.catalog.entry import CatalogEntry, wants_fetch
from specllama.engine.catalog.hub_cache import cached_models, named
from specllama.engine.catalog.locations import hub_cache
from specllama.engine.catalog.presets import RemotePreset
from specllama.engine.options import Given, Options, RouterOptions
from specllama.engine.shipped import MODEL_NAME

MAX_NEAR: Final = 5
LONGEST_NAME: Final = 128  # characters; comparing longer names is slow


class Catalog:
    """Models by name.

    If there is only one model, it answers requests with any name. With `router` False, no models
    are added later. With `is_complete`, a server is only ready with all models, as each of them is
    kept loaded. `default` is the name of the model for requests without a name.
    """

    def __init__(
        self,
        entries: Iterable[CatalogEntry],
        *,
        default: str,
        router: bool,
        is_complete: bool = False,
        read: Callable[..., tuple[list[CatalogEntry], str]] | None = None,
        cache: Path | None = None,
    ) -> None:
        """Names and aliases of all entries must be different. `read` reads the models again;
        `cache` is the directory of downloads."""
        self.router = router
        self.is_complete = is_complete or not router
        self._read = read
        self._cache = cache
        self.replace(entries, default)

    def replace(self, entries: Iterable[CatalogEntry], default: str) -> None:
        """Replaces the models, under the conditions of `__init__`. If the `default` model isn't
        among them, the first listed model becomes the default."""
        self.entries = {entry.name: entry for entry in sorted(entries, key=lambda e: e.name)}
        names = [entry.name for entry in self.listed()] or [*self.entries]
        self.default = default if default in self.entries else names[0]
        self._by_alias = {
            alias: entry for entry in self.entries.values() for alias in entry.aliases
        }

    def listed(self) -> list[CatalogEntry]:
        """Returns the models that clients can list, by name."""
        return [entry for entry in self.entries.values() if not entry.hidden]

    def read(self) -> tuple[list[CatalogEntry], str]:
        """Returns the current models, and the name of the default one, without changing the
        catalog. Reads the disk, so it may be slow. Raises OptionError."""
        if self._read is None:
            return list(self.entries.values()), self.default
        return self._read()

    def entry_to_download(self, name: str) -> CatalogEntry:
        """Returns the model of the repository `name` (user/repo or user/repo:QUANT) as it will be
        in the cache. Raises OptionError, and KeyError if the catalog has no source of models."""
        entries = self._read(download=name)[0] if self._read else []
        return {entry.name: entry for entry in entries}[name]

    def remove_files(self, name: str) -> None:
        """Removes the files of a download from the cache. Raises OSError."""
        if self._cache is not None:
            removal.remove(self._cache, name)

    def find(self, name: str) -> CatalogEntry | None:
        """Returns the model with this name or alias; `default` for an empty name. If only one model
        is listed, returns that one for any other name."""
        if not name:
            return self.entries[self.default]
        return self.named(name) or (self.entries[self.default] if len(self.listed()) == 1 else None)

    def named(self, name: str) -> CatalogEntry | None:
        """Returns the model with exactly this name or alias."""
        return self.entries.get(name) or self._by_alias.get(name)

    def near(self, name: str) -> list[str]:
        """Returns names of models that a misspelled `name` may mean, the most likely first: names
        that contain it, or are spelled similarly."""
        wanted = _plain(name[:LONGEST_NAME])
        if not wanted:
            return []
        owners: dict[str, list[str]] = {}
        for entry in self.listed():
            for text in (entry.name, *entry.aliases):
                owners.setdefault(_plain(text), []).append(entry.name)
        containing = sorted((text for text in owners if wanted in text), key=len)
        similar = difflib.get_close_matches(wanted, owners, n=MAX_NEAR, cutoff=0.6)
        found = [owner for text in (*containing, *similar) for owner in owners[text]]
        return list(dict.fromkeys(found))[:MAX_NEAR]

    def first(self) -> CatalogEntry | None:
        """Returns the model that is loaded when the server starts; None if all such models have to
        be downloaded first."""
        loaded = (entry for entry in self.entries.values() if entry.load_on_startup)
        return next((entry for entry in loaded if not wants_fetch(entry.options)), None)


def open_catalog(
    options: Options, router: RouterOptions, given: Given, remote: RemotePreset | None = None
) -> Catalog:
    """Returns the models that `options` or `router` name; these were read from `given`.

    If they name one model, it is the only one. Else the catalog contains the models of the Hub's
    cache, of --models-dir and of --models-preset, and the shipped one, which is hidden if there are
    others. If `options` name a repository of presets, its preset file `remote` replaces
    --models-preset. Only reads names of files, and logs a warning for each file that can't be used.
    Raises OptionError.
    """
    if options.names_model() and remote is None:
        entry = _single(options, given.environ)
        return Catalog([entry], default=entry.name, router=False)
    read = partial(assembly.assemble, options, router, given, remote=remote)
    entries, default = read()
    return Catalog(entries, default=default, router=True, read=read, cache=hub_cache(given.environ))


def _single(options: Options, environ: Mapping[str, str]) -> CatalogEntry:
    model, source = options.engine.model, options.source
    aliases = model.aliases()
    remote = [source.hf_repo, source.docker_repo, _last_component(source.model_url)]
    names = [*aliases, model.model, *remote]
    in_cache = not model.model and bool(source.hf_repo)
    return CatalogEntry(
        name=next(filter(None, names), MODEL_NAME),
        source="command_line",
        options=options,
        aliases=tuple(aliases),
        tags=options.entry.tags,
        load_on_startup=True,
        in_cache=in_cache and named(cached_models(hub_cache(environ)), source.hf_repo) is not None,
    )


def _last_component(url: str) -> str:
    """Returns the file's name in a URL; the URL itself if that ends with a slash."""
    path = url.partition("?")[0].partition("#")[0]
    return path.rpartition("/")[2] or url


def _plain(name: str) -> str:
    """Returns only the letters and digits, as people don't remember the characters between them."""
    return "".join(character for character in name.casefold() if character.isalnum())


# ---- The output of --cache-list.


def cache_list(environ: Mapping[str, str]) -> list[str]:
    """Returns the lines, as llama-server prints them: the number of models in the Hub's cache, then
    one line for each."""
    models = cached_models(hub_cache(environ))
    return [
        f"number of models in cache: {len(models)}",
        *(f"{i:4}. {m.name}" for i, m in enumerate(models, 1)),
    ]
