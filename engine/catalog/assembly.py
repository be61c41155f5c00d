"""Assembles a router's catalog: its models, and the options of each."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from specllama.engine.catalog import presets
from specllama.engine.catalog.directory import ModelFiles, models_in
from specllama.engine.catalog.entry import CatalogEntry, Source
from specllama.engine.catalog.hub_cache import CachedModel, cached_models, named
from specllama.engine.catalog.locations import hub_cache
from specllama.engine.catalog.presets import PresetRefused, Presets, RemotePreset, Section
from specllama.engine.catalog.removal import is_removable
from specllama.engine.options import (
    Given,
    Layer,
    Names,
    OptionError,
    Options,
    RouterOptions,
    Setting,
    layered,
    replaced,
    unchecked,
)
from specllama.engine.options.declaration import fields
from specllama.engine.options.values import legible, quote
from specllama.engine.shipped import MODEL_NAME

log = logging.getLogger("specllama.engine.catalog")

_IDENTITY: Final = (
    *("model", "hf_repo", "hf_file", "model_url", "docker_repo"),
    *("mmproj", "mmproj_url", "alias", "tags"),
)
"""Options that identify a model. Values from the command line and from variables are ignored, as
they would apply to all models."""


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """A model found on this machine; with source "preset", it is only named in the preset file."""

    name: str
    source: Source
    path: str = ""
    projector: str = ""
    hf_repo: str = ""
    removable: bool = False

    @property
    def layer(self) -> Layer:
        """The model's own options."""
        key, value = ("hf-repo", self.hf_repo) if self.hf_repo else ("model", self.path)
        return Layer(self.name, (Setting(key, value),) if value else ())


def assemble(
    options: Options,
    router: RouterOptions,
    given: Given,
    *,
    download: str = "",
    remote: RemotePreset | None = None,
) -> tuple[list[CatalogEntry], str]:
    """Returns all models, and the name of the default model. They include the repository
    `download`, if given, as it will be in the cache. A `remote` preset file replaces
    --models-preset.

    For each model, the command line overrides the model's section of the preset file, which
    overrides the section for all models, which overrides variables. The command line's --alias and
    --tags apply to the default model. Raises OptionError.
    """
    cache = hub_cache(given.environ)
    cached = cached_models(cache)
    found = _found(router.models_dir, cached, cache)
    if download and download not in found:
        found[download] = _Found(name=download, source="cache", hf_repo=download, removable=True)
    file = _presets(router.models_preset, remote, given.names)
    for warning in file.warnings:
        log.warning("%s", warning)
    sections = _sections(file, found, cached)
    refused = _refused(file, found, cached)
    maker = _EntryMaker(file.everywhere, cached, given)
    entries = {}
    for name in sorted(found.keys() | sections.keys() | refused.keys()):
        model = found.get(name) or _of_section(name, cached)
        entries[name] = maker.entry_or_fault(model, sections.get(name), refused.get(name))
        if entries[name].fault:
            log.error("the model %s can't be served: %s", legible(name), entries[name].fault)
            sections.pop(name, None)
    hidden = _doubles(entries, sections, cached)
    if len(entries) > 1 and not router.models_shipped and MODEL_NAME not in sections:
        hidden.append(MODEL_NAME)
    for name in hidden:
        entries[name] = msgspec.structs.replace(entries[name], hidden=True)
    default = _default(entries, sections)
    entries[default] = _with_names(entries[default], options)
    if default == MODEL_NAME:
        entries[default] = msgspec.structs.replace(entries[default], load_on_startup=True)
    _check_names(entries.values(), sections)
    return list(entries.values()), default


# ---- models on this machine ---------------------------------------------------------------


def _found(directory: str, cached: Iterable[CachedModel], cache: Path) -> dict[str, _Found]:
    """Returns the models found, by name. A directory's model hides one of the same name in the
    cache."""
    found = {
        model.name: msgspec.structs.replace(
            _in_cache(model.name, model), removable=is_removable(cache, model)
        )
        for model in cached
    }
    if directory:
        found |= {model.name: _in_directory(model) for model in models_in(directory)}
    if hidden := found.get(MODEL_NAME):
        log.warning("%s is ignored: the shipped model has its name", quote(hidden.path))
    found[MODEL_NAME] = _Found(name=MODEL_NAME, source="shipped")
    return found


def _in_directory(model: ModelFiles) -> _Found:
    return _Found(name=model.name, source="models_dir", path=model.path, projector=model.projector)


def _in_cache(name: str, model: CachedModel) -> _Found:
    return _Found(
        name=name,
        source="cache",
        path=model.path,
        projector=model.projector,
        hf_repo=model.name,
    )


def _of_section(name: str, cached: Sequence[CachedModel]) -> _Found:
    """Returns a section's model: the cached model whose repository is the section's name, or else a
    model that is only in the preset file."""
    model = named(cached, name)
    return _in_cache(name, model) if model else _Found(name=name, source="preset")


# ---- sections of the preset file ----------------------------------------------------------


def _presets(path: str, remote: RemotePreset | None, names: Names) -> Presets:
    if remote is not None:
        return presets.read(remote.path, names, remote.repository)
    if path:
        return presets.read(path, names)
    everywhere = Section(name=presets.EVERYWHERE, line=0, layer=Layer("no preset file"))
    return Presets(everywhere=everywhere, sections={})


def _sections(
    file: Presets, found: Mapping[str, _Found], cached: Sequence[CachedModel]
) -> dict[str, Section]:
    """Returns the sections in the order of the file, by their models' names.

    Raises OptionError for two sections of the same model.
    """
    sections: dict[str, Section] = {}
    for section in file.sections.values():
        name = _model_name(section.name, found, cached)
        if name in sections:
            raise OptionError(f"{section.place} is the same model as {sections[name].place}")
        sections[name] = section
    return sections


def _model_name(name: str, found: Mapping[str, _Found], cached: Sequence[CachedModel]) -> str:
    """Returns the name of a section's model. The quantization in the section may have another
    letter case."""
    if name not in found and ":" in name and (model := named(cached, name)):
        return model.name
    return name


def _refused(
    file: Presets, found: Mapping[str, _Found], cached: Sequence[CachedModel]
) -> dict[str, PresetRefused]:
    """Returns the sections that can't be used, by the names of their models. These models aren't
    served: without its section, a model would run with wrong options. Raises OptionError for a
    section of the shipped model."""
    refused = {_model_name(name, found, cached): each for name, each in file.refused.items()}
    if of_shipped := refused.get(MODEL_NAME):
        raise OptionError(of_shipped.reason)
    return refused


class _EntryMaker:
    """Combines the options of all models with those of one model."""

    def __init__(self, everywhere: Section, cached: Sequence[CachedModel], given: Given) -> None:
        """Raises OptionError if the section for all models names a model, or files that can't be
        read."""
        self._given = given
        self._nothing = Given(given.names, {}, ())
        if self._alone([everywhere.layer]).names_model():
            raise OptionError(f"{everywhere.place}: the section for all models can't name a model")
        self._everywhere = everywhere
        self._cached = cached
        self._options([everywhere.layer], everywhere, files=True)

    def entry_or_fault(
        self, found: _Found, section: Section | None, refused: PresetRefused | None
    ) -> CatalogEntry:
        """Returns the model with all its options, or, if its section can't be used, with a fault,
        so that only this model is unavailable. Raises OptionError if it is the shipped model."""
        if refused is not None:
            return self._faulty(found, refused.layer, refused.reason)
        try:
            return self._entry(found, section)
        except OptionError as error:
            if section is None or found.source == "shipped":
                raise
            return self._faulty(found, section.layer, str(error))

    def _faulty(self, found: _Found, layer: Layer, fault: str) -> CatalogEntry:
        """Returns a model that can't be loaded. Its options are those of its section, to be
        shown."""
        try:
            if unchecked(self._nothing, [layer]).names_model():
                found = _Found(name=found.name, source="preset")
            layers = [self._everywhere.layer, found.layer, layer]
            options, own = unchecked(self._given, layers), unchecked(self._nothing, layers)
        except OptionError:  # shortcuts that exclude each other
            layers = [self._everywhere.layer]
            options, own = unchecked(self._given, layers), unchecked(self._nothing, layers)
        identity = _identity(own, options, found)
        if not (identity["model"] or own.source.names_model()):
            identity["model"] = found.name  # else it would be the shipped model
        options = replaced(options, **identity)
        return CatalogEntry(name=found.name, source="preset", options=options, fault=fault)

    def _entry(self, found: _Found, section: Section | None) -> CatalogEntry:
        """Raises OptionError with the section."""
        if section is not None and self._alone([section.layer]).names_model():
            found = _Found(name=found.name, source="preset")
        elif section is not None and found.source == "preset":
            raise OptionError(
                f"{section.place}: there is no such model on this machine, so the section "
                "needs model, hf-repo, model-url or docker-repo"
            )
        layers = [self._everywhere.layer, found.layer]
        if section is not None:
            layers.append(section.layer)
        own = self._alone(layers)
        # Files in a directory are checked when they are loaded, as one bad file must not end the
        # server.
        options = self._options(layers, section, files=section is not None)
        said = section or self._everywhere
        named_by_preset = section is not None and found.source != "shipped"
        repository = own.source.hf_repo
        return CatalogEntry(
            name=found.name,
            source="preset" if named_by_preset else found.source,
            options=replaced(options, **_identity(own, options, found)),
            aliases=tuple(alias for alias in own.engine.model.aliases() if alias != found.name),
            tags=own.entry.tags,
            load_on_startup=said.load_on_startup,
            pin=said.pin,
            stop_timeout=said.stop_timeout,
            removable=found.removable and section is None,
            in_cache=bool(repository) and named(self._cached, repository) is not None,
        )

    def _options(self, layers: Sequence[Layer], said: Section | None, *, files: bool) -> Options:
        try:
            return layered(self._given, layers, files=files)
        except OptionError as e:
            raise OptionError(f"{said.place}: {e}" if said else str(e)) from None

    def _alone(self, layers: Sequence[Layer]) -> Options:
        """Returns the options of the layers, without variables and the command line."""
        return layered(self._nothing, layers, files=False)


def _identity(own: Options, options: Options, found: _Found) -> dict[str, Any]:
    """Returns the values of `_IDENTITY`, which only come from the model's `own` options."""
    identity = {name: fields(Options)[name].of(own) for name in _IDENTITY}
    if found.path:
        identity["model"] = found.path
    if options.source.mmproj_auto and not own.source.mmproj_url:
        identity["mmproj"] = own.engine.media.mmproj or found.projector
    return identity


def _doubles(
    entries: Mapping[str, CatalogEntry],
    sections: Mapping[str, Section],
    cached: Sequence[CachedModel],
) -> list[str]:
    """Returns the cached models that presets with `dedup-cache-models` also use, themselves or as
    draft models, to hide them."""
    sources = [
        entries[name].options.source
        for name, section in sections.items()
        if section.dedup_cache_models
    ]
    wanted = [repository for each in sources for repository in (each.hf_repo, each.hf_repo_draft)]
    doubles = [model.name for repository in wanted if (model := named(cached, repository))]
    return [name for name in doubles if entries[name].source == "cache" and name not in sections]


def _default(entries: Mapping[str, CatalogEntry], sections: Mapping[str, Section]) -> str:
    """Returns the default model: that of the first section with load-on-startup; else the only
    model in the directory and the preset file; else the shipped one if it is listed; else the first
    one that generates, of the preset file, then of the directory, then of the cache."""
    for name, section in sections.items():
        if section.load_on_startup:
            return name
    chosen = {name for name, entry in entries.items() if entry.source == "models_dir"}
    chosen = (chosen | sections.keys()) - {MODEL_NAME}
    if len(chosen) == 1:
        return chosen.pop()
    if not entries[MODEL_NAME].hidden:
        return MODEL_NAME

    def unfit(name: str) -> tuple[bool, ...]:
        entry = entries[name]
        return entry.hidden, bool(entry.fault), entry.options.engine.embedding.embeds()

    return min([*sections, *sorted(chosen), *entries], key=unfit)


def _with_names(entry: CatalogEntry, options: Options) -> CatalogEntry:
    """Returns `entry` with the names and tags of the command line added."""
    aliases = dict.fromkeys((*entry.aliases, *options.engine.model.aliases()))
    return msgspec.structs.replace(
        entry,
        aliases=tuple(alias for alias in aliases if alias != entry.name),
        tags=tuple(dict.fromkeys((*entry.tags, *options.entry.tags))),
    )


def _check_names(entries: Iterable[CatalogEntry], sections: Mapping[str, Section]) -> None:
    """Raises OptionError for a name or an alias of two models."""
    owners = {entry.name: entry for entry in entries}

    def place(entry: CatalogEntry) -> str:
        section = sections.get(entry.name)
        return section.place if section else f"the model {entry.name}"

    for entry in list(owners.values()):
        for alias in entry.aliases:
            other = owners.setdefault(alias, entry)
            if other is not entry:
                what = "name" if other.name == alias else "alias"
                raise OptionError(
                    f"{place(entry)}: the alias {quote(alias)} is the {what} of {place(other)}"
                )
