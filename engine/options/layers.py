"""Options that stand in a file, or come from anywhere else but the command line and the
environment: one layer among those that make up a model's options."""

from collections.abc import Iterator, Sequence, Set

import msgspec

from specllama.engine.options import shortcuts, unavailable, values
from specllama.engine.options.declaration import Field
from specllama.engine.options.names import ChosenValues, Names, protects, suggestion
from specllama.engine.options.values import OptionError, legible


class Setting(msgspec.Struct, frozen=True):
    """An option as written: its key (any name of it, without the leading dashes, or its
    variable), the text of its value, and the line (from 1; 0 if it has none)."""

    key: str
    value: str
    line: int = 0


class Layer(msgspec.Struct, frozen=True):
    """Settings of one source; an option given again replaces the value given before, or adds
    to it where it does so on the command line."""

    source: str  # for messages: a file's path, for example
    settings: Sequence[Setting] = ()

    def place(self, setting: Setting) -> str:
        """Where the setting stands, for messages."""
        return f"{self.source}:{setting.line}" if setting.line else self.source


def read_layer(chosen: ChosenValues, layer: Layer) -> None:
    """Adds what a layer says. Raises `OptionError` that names its source and the line.

    Settings of the server as a whole are left out: `layer_remarks` tells of them.
    """
    chosen.begin_source()
    names = list(_shortcuts(layer))
    shortcuts.read(chosen, names, layer.source, whole_server=False)
    chosen.begin_source()
    for setting in layer.settings:
        if chosen.names.key_concerns_server(setting.key) or setting.key in _SHORTCUTS:
            continue
        place = f"{layer.place(setting)}: {legible(setting.key)}"
        if option := _unavailable(setting.key):
            if option.refused:
                raise OptionError(f"{place} is not available: {option.why}")
            continue
        field, negated = _find(chosen.names, setting.key, place)
        chosen.read(field, place, _negation(setting.value, place) if negated else setting.value)


class ProtectingError(OptionError):
    """A key that was meant to protect the server, where it can't: nothing may be served without."""


def check_layer(names: Names, layer: Layer, allowed: Set[str] | None = None) -> None:
    """Raises `OptionError` for a key or a value that can't be used, whatever other layers say:
    `ProtectingError` if it was meant to protect the server. With `allowed`, no options but those
    fields can be used.
    """
    for setting in layer.settings:
        if not protects(setting.key):
            continue
        place = f"{layer.place(setting)}: {legible(setting.key)}"
        if names.key_concerns_server(setting.key):
            raise ProtectingError(
                f"{place} protects the whole server, and nothing from here: it belongs on the "
                "command line or in a variable"
            )
        if not _is_known(names, setting.key):
            raise ProtectingError(
                f"{place}: unknown key, which could have been meant to protect the server"
            )
    for setting in layer.settings if allowed is not None else ():
        place = f"{layer.place(setting)}: {legible(setting.key)}"
        if setting.key in _SHORTCUTS or _unavailable(setting.key):
            continue  # models that the server names itself; what has no effect, or is refused
        if _find(names, setting.key, place)[0].name not in (allowed or ()):
            raise OptionError(f"{place} is not for a file from another machine to say")
    read_layer(ChosenValues(names), layer)


def layer_remarks(names: Names, layer: Layer) -> list[str]:
    """What stands in a layer in vain, each as a warning for the user."""
    found = [
        f"{layer.place(setting)}: {setting.key} has no effect here: it concerns the whole server"
        for setting in layer.settings
        if names.key_concerns_server(setting.key)
    ]
    return found + [
        unavailable.remark(f"{layer.place(setting)}: {setting.key}", option)
        for setting in layer.settings
        if (option := _unavailable(setting.key)) and not option.of_server
    ]


def _shortcuts(layer: Layer) -> Iterator[str]:
    """The shortcuts that are switched on, as they are written on the command line."""
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
    """The option, and whether the key is one of those that switch it off.

    Raises `OptionError`.
    """
    name = names.normal_key(key)
    if name in names.by_key:
        return names.by_key[name], False
    if name in names.by_negative_key:
        return names.by_negative_key[name], True
    if name.startswith("-"):
        raise OptionError(f"{place}: keys are options without the dashes before them")
    known = names.by_key.keys() | names.by_negative_key.keys() | _SHORTCUTS
    raise OptionError(f"{place}: unknown key{suggestion(name, known, unavailable.KEYS.keys())}")


def _flag(text: str, place: str) -> bool:
    try:
        return values.flag(text)
    except OptionError as error:
        raise OptionError(f"{place}: {error}") from None


def _negation(text: str, place: str) -> str:
    return "off" if _flag(text, place) else "on"
