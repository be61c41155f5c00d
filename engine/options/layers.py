"""Options from other sources than the command line and the environment, such as files. A layer is
one such source of a model's options."""

from collections.abc import Iterator, Sequence, Set

import msgspec

from specllama.engine.options import shortcuts, unavailable, values
from specllama.engine.options.declaration import Field
from specllama.engine.options.names import ChosenValues, Names, protects, suggestion
from specllama.engine.options.values import OptionError, legible


class Setting(msgspec.Struct, frozen=True):
    """An option as written: its key (any of its names without the leading dashes, or its variable),
    the text of its value, and its line (from 1; 0 if it has none)."""

    key: str
    value: str
    line: int = 0


class Layer(msgspec.Struct, frozen=True):
    """The settings of one source. A repeated option replaces the earlier value, or adds to it if it
    does so on the command line."""

    source: str  # for messages: a file's path, for example
    settings: Sequence[Setting] = ()

    def place(self, setting: Setting) -> str:
        """Returns the place of the setting, for messages."""
        return f"{self.source}:{setting.line}" if setting.line else self.source


def read_layer(chosen: ChosenValues, layer: Layer, *, whole_server: bool = False) -> None:
    """Adds the settings of a layer to `chosen`. Raises `OptionError` with the source and the line.

    Without `whole_server`, settings that concern the whole server are skipped; `layer_remarks`
    returns a warning for each.
    """
    chosen.begin_source()
    names = list(_shortcuts(layer))
    shortcuts.read(chosen, names, layer.source, whole_server=whole_server)
    chosen.begin_source()
    for setting in layer.settings:
        if setting.key in _SHORTCUTS:
            continue
        if not whole_server and chosen.names.key_concerns_server(setting.key):
            continue
        place = f"{layer.place(setting)}: {legible(setting.key)}"
        if option := _unavailable(setting.key):
            if option.refused:
                raise OptionError(f"{place} is not available: {option.why}")
            continue
        field, negated = _find(chosen.names, setting.key, place)
        chosen.read(field, place, _negation(setting.value, place) if negated else setting.value)


class ProtectingError(OptionError):
    """A key that was meant to protect the server, but has no effect in this place. The server must
    not start without its protection."""


def check_layer(names: Names, layer: Layer, allowed: Set[str] | None = None) -> None:
    """Raises `OptionError` for a key or a value that can't be used, whatever other layers contain:
    `ProtectingError` if it was meant to protect the server. With `allowed`, only these fields can
    be set."""
    for setting in layer.settings:
        if not protects(setting.key):
            continue
        place = f"{layer.place(setting)}: {legible(setting.key)}"
        if names.key_concerns_server(setting.key):
            raise ProtectingError(
                f"{place} protects the whole server and has no effect here: set it on the "
                "command line or in a variable"
            )
        if not _is_known(names, setting.key):
            raise ProtectingError(
                f"{place}: unknown key that may have been meant to protect the server"
            )
    for setting in layer.settings if allowed is not None else ():
        place = f"{layer.place(setting)}: {legible(setting.key)}"
        if setting.key in _SHORTCUTS or _unavailable(setting.key):
            continue  # models that the server itself names; ignored or rejected options
        if _find(names, setting.key, place)[0].name not in (allowed or ()):
            raise OptionError(f"{place} can't be set by a file from another machine")
    read_layer(ChosenValues(names), layer)


def layer_remarks(names: Names, layer: Layer) -> list[str]:
    """Returns a warning for each setting of a layer that has no effect."""
    found = [
        f"{layer.place(setting)}: {setting.key} has no effect here: it concerns the whole server"
        for setting in layer.settings
        if names.key_concerns_server(setting.key)
    ]
    return found + [
        unavailable.warning(f"{layer.place(setting)}: {setting.key}", option)
        for setting in layer.settings
        if (option := _unavailable(setting.key)) and not option.of_server
    ]


def _shortcuts(layer: Layer) -> Iterator[str]:
    """Yields the enabled shortcuts, as they are written on the command line."""
    for setting in layer.settings:
        if setting.key in _SHORTCUTS and _flag(
            setting.value, f"{layer.place(setting)}: {setting.key}"
        ):
            yield "--" + setting.key


_SHORTCUTS = {name.lstrip("-") for name in shortcuts.SHORTCUTS}


def _is_known(names: Names, key: str) -> bool:
    name = names.normal_key(key)
    known = name in names.by_key or name in names.by_negative_key
    return known or _unavailable(key) is not None


def _unavailable(key: str) -> unavailable.Unavailable | None:
    return unavailable.KEYS.get(key) or unavailable.KEYS.get(key.replace("_", "-"))


def _find(names: Names, key: str, place: str) -> tuple[Field, bool]:
    """Returns the option, and whether the key disables it.

    Raises `OptionError`.
    """
    name = names.normal_key(key)
    if name in names.by_key:
        return names.by_key[name], False
    if name in names.by_negative_key:
        return names.by_negative_key[name], True
    if name.startswith("-"):
        raise OptionError(f"{place}: write keys without leading dashes")
    known = names.by_key.keys() | names.by_negative_key.keys() | _SHORTCUTS
    raise OptionError(f"{place}: unknown key{suggestion(name, known, unavailable.KEYS.keys())}")


def _flag(text: str, place: str) -> bool:
    try:
        return values.flag(text)
    except OptionError as error:
        raise OptionError(f"{place}: {error}") from None


def _negation(text: str, place: str) -> str:
    return "off" if _flag(text, place) else "on"
