"""The file that describes a deployment on several machines: the server's options, and the models
with their replicas.

    server:                       # options of `specllama`, without the dashes
      port: 8080
      keys-file: /etc/specllama/keys.toml
    ingress:                      # the processes that answer HTTP
      replicas: 1
    models:
      specllama-tiny:             # the name in requests
        replicas: 2
        cpus: 1
        options:                  # as in a preset file
          ctx-size: 4096

Every process of the deployment reads the same text. Relative paths in it are those of the machine
on which the process runs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import yaml

from specllama.deployment_yaml import DeploymentError as DeploymentError
from specllama.deployment_yaml import YamlReader
from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.options import (
    Given,
    Layer,
    OptionError,
    Options,
    RouterOptions,
    Setting,
    check_layer,
)
from specllama.engine.options.declaration import Field, compose, fields
from specllama.engine.options.layers import read_layer
from specllama.engine.options.names import ChosenValues
from specllama.engine.options.parser import layered
from specllama.engine.options.values import legible, quote
from specllama.engine.shipped import MODEL_NAME
from specllama.handlers.options import ServerOptions
from specllama.handlers.options.composition import NAMES
from specllama.handlers.options.parser import check_server, check_server_files
from specllama.handlers.options.tables.general import GeneralOptions
from specllama.handlers.options.tables.log import LogOptions

INGRESS: Final = "ingress"
"""The section of the processes that answer HTTP, and their name at Ray Serve."""
PROCESS_KEYS: Final = {
    "replicas": "number of processes (default: 1)",
    "autoscaling": "instead of replicas: min_replicas, max_replicas and other settings of Ray "
    "Serve's autoscaling_config; min_replicas 0 lets a model sleep",
    "cpus": "CPUs that each process reserves; parts of one are possible (default: 1)",
    "gpus": "GPUs that each process reserves (default: 0)",
    "resources": "other resources that each process reserves, by their names at the nodes",
    "surge": "percentage of additional processes during an update, which start before old ones "
    "stop (default: 0)",
}
"""The keys of a section about processes, and their meanings."""
AUTOSCALING_KEYS: Final = (
    "min_replicas",
    "max_replicas",
    "initial_replicas",
    "target_ongoing_requests",
    "metrics_interval_s",
    "look_back_period_s",
    "smoothing_factor",
    "upscale_smoothing_factor",
    "downscale_smoothing_factor",
    "upscaling_factor",
    "downscaling_factor",
    "upscale_delay_s",
    "downscale_delay_s",
    "downscale_to_zero_delay_s",
    "aggregation_function",
    "policy",
)
"""Ray Serve's settings of the autoscaling. It ignores others, without a message."""
_OF_ALL_MODELS: Final = ("metrics", "props", "max_queue", "max_queue_tokens")
"""Options of a model that a server with several models has as well."""


class Processes(msgspec.Struct, frozen=True, kw_only=True):
    """How many processes of one kind there are, and what each of them reserves on its machine.
    `place` is where the file describes them. With `autoscaling`, their number follows the load, by
    the settings of Ray Serve. `surge` is the percentage of additional processes during an update,
    which start before old ones stop."""

    place: str
    replicas: int = 1
    autoscaling: Mapping[str, Any] | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = {}
    surge: int = 0

    @property
    def may_be_none(self) -> bool:
        """True if there are no processes while there are no requests."""
        return self.autoscaling is not None and self.autoscaling.get("min_replicas") == 0

    @property
    def n_first(self) -> int:
        """The number of processes at the start."""
        if self.autoscaling is None:
            return self.replicas
        first = self.autoscaling.get("initial_replicas")
        least = self.autoscaling.get("min_replicas", 1)
        return int(least if first is None else first)

    def reserved(self) -> dict[str, float]:
        """Returns what a process reserves, by Ray's names of the resources."""
        found = {"CPU": self.cpus, "GPU": self.gpus, **self.resources}
        return {name: n for name, n in found.items() if n}


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """A deployment: the options of its server, the `models` by name, with the options of each in
    the `catalog`, and their processes."""

    server: ServerOptions
    ingress: Processes
    models: dict[str, Processes]
    options: dict[str, Options]

    def catalog(self) -> Catalog:
        """Returns the models as those of a server, which loads all of them at its start."""
        entries = [
            CatalogEntry(
                name=name,
                source="preset",
                options=options,
                aliases=tuple(a for a in options.engine.model.aliases() if a != name),
                tags=options.entry.tags,
                load_on_startup=True,
                pin=True,
            )
            for name, options in self.options.items()
        ]
        router = len(entries) > 1
        return Catalog(entries, default=entries[0].name, router=router, is_complete=True)


def read(
    text: str, source: str, *, server_files: bool = False, model_files: bool = False
) -> Deployment:
    """Returns the deployment that the YAML in `text` describes; `source` is the file's name, for
    messages. Checks the files that the options of the server or of the models name, on the machine
    that has them. Raises DeploymentError."""
    return _Reader(source, server_files, model_files).read(text)


def part(text: str, model: str | None = None) -> str:
    """Returns the part of a deployment on which the replicas of a model depend or, without
    `model`, the processes of the ingress. A change of the rest of the text doesn't change it.
    `read` has to accept the text."""
    sections = dict(_named(yaml.compose(text, Loader=yaml.SafeLoader)))
    models = [
        (name, _only(node, lambda key: key == "options"))
        for name, node in _named(sections["models"])
        if model is None or name == model
    ]
    found: list[tuple[str, yaml.Node]] = [("models", _mapping(models))]
    if "server" in sections:
        server = sections["server"]
        found.insert(0, ("server", server if model is None else _only(server, _is_of_log)))
    return yaml.serialize(_mapping(found))


def _is_of_log(option: str) -> bool:
    key = NAMES.normal_key(option)
    found = NAMES.by_key.get(key) or NAMES.by_negative_key.get(key)
    return found is not None and found.name in fields(LogOptions)


def _named(node: yaml.Node | None) -> list[tuple[str, yaml.Node]]:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return [(key.value, value) for key, value in pairs]


def _mapping(entries: Sequence[tuple[str, yaml.Node]]) -> yaml.MappingNode:
    name = "tag:yaml.org,2002:str"
    pairs = [(yaml.ScalarNode(name, key), value) for key, value in entries]
    return yaml.MappingNode("tag:yaml.org,2002:map", pairs)


def _only(node: yaml.Node, is_wanted: Callable[[str], bool]) -> yaml.Node:
    return _mapping([(name, value) for name, value in _named(node) if is_wanted(name)])


class _Reader(YamlReader):
    def __init__(self, source: str, server_files: bool, model_files: bool) -> None:
        super().__init__(source)
        self._server_files = server_files
        self._model_files = model_files

    def read(self, text: str) -> Deployment:
        root = self.root(text)
        if root is None:
            raise DeploymentError(f"{self.source}: the file is empty; it needs models")
        parts = self.mapping(root, "the file", ("server", INGRESS, "models"))
        if "models" not in parts:
            self.fail(root, "models is missing: the models to serve, by name")
        models = self.entries(parts["models"], "models")
        if not models:
            self.fail(parts["models"], "models is empty: it needs a model, by its name")
        everything = {name: self._model(name, node) for name, node in models.items()}
        if INGRESS in models:
            self.fail(models[INGRESS], f"models.{INGRESS}: this name is taken; give another one")
        self._check_names(models, {name: options for name, (_, options) in everything.items()})
        ingress = self._processes(parts.get(INGRESS), root, INGRESS)
        if ingress.may_be_none:
            self.fail(
                parts[INGRESS],
                f"{INGRESS}: min_replicas has to be at least 1: without a process, no request has "
                "an answer",
            )
        return Deployment(
            server=self._server(parts.get("server")),
            ingress=ingress,
            models={name: processes for name, (processes, _) in everything.items()},
            options={name: options for name, (_, options) in everything.items()},
        )

    # ---- parts -----------------------------------------------------------------------------

    def _server(self, node: yaml.Node | None) -> ServerOptions:
        layer = self._layer(node, "server")
        self._check_server_keys(layer)
        chosen = ChosenValues(NAMES)
        self._checked(lambda: read_layer(chosen, layer, whole_server=True), node, layer)
        options = compose(ServerOptions, chosen.values)
        self._checked(lambda: check_server(options), node, layer)
        if self._server_files:
            self._checked(lambda: check_server_files(options), node, layer)
        return options

    def _model(self, name: str, node: yaml.Node) -> tuple[Processes, Options]:
        what = f"models.{name}"
        if not name.strip() or not name.isprintable():
            self.fail(node, f"models: {quote(name)} is no name of a model")
        parts = self.mapping(node, what, (*PROCESS_KEYS, "options"))
        given = parts.pop("options", None)
        layer = self._layer(given, f"{what}.options")
        self._check_model_keys(layer)
        self._checked(lambda: check_layer(NAMES, layer))
        nothing = Given(NAMES, {}, ())
        options = self._checked(
            lambda: layered(nothing, [layer], files=self._model_files), given or node, layer
        )
        if not options.names_model() and name != MODEL_NAME:
            self.fail(
                node,
                f"{what}: options has to name the model: model (a path), hf-repo, model-url or "
                "docker-repo",
            )
        return self._processes_of(parts, node, what), options

    def _check_server_keys(self, layer: Layer) -> None:
        """Raises DeploymentError for an option without effect in the section of the server."""
        for setting, field in self._known(layer):
            if field is None:
                continue  # `read_layer` finds the error
            if field.name in fields(RouterOptions):
                why = "has no effect: the section models lists the models, which all stay loaded"
            elif field.name in fields(GeneralOptions):
                why = "is for the command line: it prints something instead of starting a server"
            elif NAMES.concerns_model(field) and field.name not in _OF_ALL_MODELS:
                why = "is an option of a model: write it into models.NAME.options"
            else:
                continue
            raise DeploymentError(f"{layer.place(setting)}: {setting.key} {why}")

    def _check_model_keys(self, layer: Layer) -> None:
        """Raises DeploymentError for an option without effect among those of a model."""
        for setting, field in self._known(layer):
            if NAMES.key_concerns_server(setting.key):
                why = "concerns the whole server: write it into the section server"
            elif field is not None and field.name == "sleep_idle_seconds":
                why = (
                    "has no effect here: autoscaling with min_replicas: 0 unloads a model that is "
                    "not used"
                )
            else:
                continue
            raise DeploymentError(f"{layer.place(setting)}: {setting.key} {why}")

    def _known(self, layer: Layer) -> Iterator[tuple[Setting, Field | None]]:
        """Yields the settings of a layer, and their options; None for an unknown key."""
        for setting in layer.settings:
            yield setting, _field(setting.key)

    def _check_names(self, models: Mapping[str, yaml.Node], options: Mapping[str, Options]) -> None:
        """Raises DeploymentError if two models have the same name or alias."""
        owners = {name: name for name in models}
        for name, each in options.items():
            for alias in each.engine.model.aliases():
                if (owner := owners.setdefault(alias, name)) != name:
                    text = (
                        f"models.{name}: the alias {legible(alias)} is a name of the model {owner}"
                    )
                    self.fail(models[name], text)

    def _processes(self, node: yaml.Node | None, parent: yaml.Node, what: str) -> Processes:
        parts = {} if node is None else self.mapping(node, what, tuple(PROCESS_KEYS))
        return self._processes_of(parts, node or parent, what)

    def _processes_of(
        self, parts: Mapping[str, yaml.Node], node: yaml.Node, what: str
    ) -> Processes:
        if "replicas" in parts and "autoscaling" in parts:
            self.fail(parts["autoscaling"], f"{what}: replicas and autoscaling exclude each other")
        autoscaling = None
        if "autoscaling" in parts:
            autoscaling = self._autoscaling(parts["autoscaling"], f"{what}.autoscaling")
        resources = {}
        if "resources" in parts:
            entries = self.entries(parts["resources"], f"{what}.resources")
            resources = {
                key: self.number(each, f"{what}.resources.{key}") for key, each in entries.items()
            }
        return Processes(
            place=self.place(node),
            replicas=self.count(parts.get("replicas"), f"{what}.replicas", 1, least=1),
            autoscaling=autoscaling,
            cpus=self.number(parts.get("cpus"), f"{what}.cpus", 1),
            gpus=self.number(parts.get("gpus"), f"{what}.gpus", 0),
            resources=resources,
            surge=self._surge(parts.get("surge"), f"{what}.surge"),
        )

    def _autoscaling(self, node: yaml.Node, what: str) -> dict[str, Any]:
        entries = self.mapping(node, what, AUTOSCALING_KEYS)
        found = {key: self.value(each, f"{what}.{key}") for key, each in entries.items()}
        counts = {
            key: self.count(entries.get(key), f"{what}.{key}", default)
            for key, default in (("min_replicas", 1), ("max_replicas", 1))
        }
        if counts["max_replicas"] < max(1, counts["min_replicas"]):
            self.fail(
                node,
                f"{what}: max_replicas is {counts['max_replicas']}; it has to be at least 1, and "
                f"at least min_replicas, which is {counts['min_replicas']}",
            )
        return found

    def _surge(self, node: yaml.Node | None, what: str) -> int:
        value = self.number(node, what)
        if node is not None and (value > 100 or value != int(value)):
            self.fail(node, f"{what} has to be a whole percentage from 0 to 100")
        return int(value)

    def _layer(self, node: yaml.Node | None, what: str) -> Layer:
        """Returns the options of a section. A list stands for several occurrences of an option, if
        these add up, or for values that are separated by commas."""
        entries = {} if node is None else self.entries(node, what)
        settings: list[Setting] = []
        lines: dict[str, Setting] = {}
        for key, each in entries.items():
            field = _field(key)
            texts = self.texts(each, f"{what}.{key}")
            if field is None or not field.opt.repeats:
                texts = [",".join(texts)]
            found = [Setting(key, text, each.start_mark.line + 1) for text in texts]
            other = lines.setdefault(field.name, found[0]) if field is not None else found[0]
            if other is not found[0]:
                self.fail(
                    each,
                    f"{what}: {key} is the same option as {other.key} in line {other.line}; remove "
                    "one of them",
                )
            settings += found
        return Layer(self.source, tuple(settings))

    def _checked(
        self, call: Callable[[], Any], node: yaml.Node | None = None, layer: Layer | None = None
    ) -> Any:
        """Calls a function. Its OptionError gets a place: that of the option in `layer` with which
        the message begins, or of `node`."""
        try:
            return call()
        except OptionError as error:
            text = str(error)
            if node is not None and not text.startswith(self.source):
                text = f"{_line(text, layer) or self.place(node)}: {text}"
            raise DeploymentError(text) from None


def _field(key: str) -> Field | None:
    name = NAMES.normal_key(key)
    return NAMES.by_key.get(name) or NAMES.by_negative_key.get(name)


def _line(text: str, layer: Layer | None) -> str:
    """Returns the place in `layer` of the option with which a message begins; "" without one."""
    field = NAMES.by_name.get(text.partition(" ")[0].rstrip(":,"))
    for setting in layer.settings if layer is not None and field is not None else ():
        if _field(setting.key) is field:
            return layer.place(setting) if layer is not None else ""
    return ""
