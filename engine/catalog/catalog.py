"""All models that a server can serve."""

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
LONGEST_NAME: Final = 128  # characters; comparing longer ones takes long


class Catalog:
    """Models by name.

    Where there is one model, it answers whatever name a request gives. With `router` False there
    will never be another one. `default` is the name of the model for requests that give none.
    """

    def __init__(
        self,
        entries: Iterable[CatalogEntry],
        *,
        default: str,
        router: bool,
        read: Callable[..., tuple[list[CatalogEntry], str]] | None = None,
        cache: Path | None = None,
    ) -> None:
        """Names and aliases of all entries must be different. `read` looks for them again; `cache`
        is where downloads are."""
        self.router = router
        self._read = read
        self._cache = cache
        self.replace(entries, default)

    def replace(self, entries: Iterable[CatalogEntry], default: str) -> None:
        """Hold these models from now on, under the conditions of `__init__`; without the `default`
        one, the first that is listed takes its place."""
        self.entries = {entry.name: entry for entry in sorted(entries, key=lambda e: e.name)}
        names = [entry.name for entry in self.listed()] or [*self.entries]
        self.default = default if default in self.entries else names[0]
        self._by_alias = {
            alias: entry for entry in self.entries.values() for alias in entry.aliases
        }

    def listed(self) -> list[CatalogEntry]:
        """The models that clients are told of, by name."""
        return [entry for entry in self.entries.values() if not entry.hidden]

    def read(self) -> tuple[list[CatalogEntry], str]:
        """The models that there are now, and the name of the default one; changes nothing. Looks
        at the disk, so it takes its time. Raises OptionError."""
        if self._read is None:
            return list(self.entries.values()), self.default
        return self._read()

    def entry_to_download(self, name: str) -> CatalogEntry:
        """The model of the repository `name` (user/repo or user/repo:QUANT) as it will be in the
        cache. Raises OptionError, and KeyError if there is nowhere to look for models."""
        entries = self._read(download=name)[0] if self._read else []
        return {entry.name: entry for entry in entries}[name]

    def remove_files(self, name: str) -> None:
        """Remove the files of a download from the cache. Raises OSError."""
        if self._cache is not None:
            removal.remove(self._cache, name)

    def find(self, name: str) -> CatalogEntry | None:
        """The model of that name or alias; `default` for an empty name, and, where one model alone
        is listed, that one for any other."""
        if not name:
            return self.entries[self.default]
        return self.named(name) or (self.entries[self.default] if len(self.listed()) == 1 else None)

    def named(self, name: str) -> CatalogEntry | None:
        """The model that has exactly this name or alias."""
        return self.entries.get(name) or self._by_alias.get(name)

    def near(self, name: str) -> list[str]:
        """Names of models that a misspelled `name` may stand for, the likeliest first: those that
        contain it, or are spelled like it."""
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
        """The model that is loaded when the server starts, if there is one that needs no download
        before."""
        loaded = (entry for entry in self.entries.values() if entry.load_on_startup)
        return next((entry for entry in loaded if not wants_fetch(entry.options)), None)


def open_catalog(
    options: Options, router: RouterOptions, given: Given, remote: RemotePreset | None = None
) -> Catalog:
    """The models that `options` or `router` name, which were read from what is `given`.

    If they name one model, it is the only one; else there are those of the hub's cache, of
    --models-dir and of --models-preset, and the shipped one, which is hidden beside
    others. If that "model" is a repository of presets, `remote` takes the place of both. Looks at
    names of files only, and logs a warning for each file that can't be used. Raises OptionError.
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
    """The file's name in a URL; the URL itself if that ends with a slash."""
    path = url.partition("?")[0].partition("#")[0]
    return path.rpartition("/")[2] or url


def _plain(name: str) -> str:
    """Letters and digits alone: people don't remember what stands between them."""
    return "".join(character for character in name.casefold() if character.isalnum())


# ---- The output of --cache-list.


def cache_list(environ: Mapping[str, str]) -> list[str]:
    """The lines, as llama-server prints them: how many models the hub's cache holds, then one for
    each."""
    models = cached_models(hub_cache(environ))
    return [
        f"number of models in cache: {len(models)}",
        *(f"{i:4}. {m.name}" for i, m in enumerate(models, 1)),
    ]
