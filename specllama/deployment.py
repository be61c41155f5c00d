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

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import msgspec
import yaml

from specllama.engine.catalog.catalog import Catalog
from specllama.engine.catalog.entry import CatalogEntry
from specllama.engine.options import Given, Layer, OptionError, Options, Setting, check_layer
from specllama.engine.options.checks import check
from specllama.engine.options.declaration import compose, fields
from specllama.engine.options.layers import read_layer
from specllama.engine.options.names import ChosenValues, suggestion
from specllama.engine.options.parser import layered
from specllama.engine.shipped import MODEL_NAME
from specllama.handlers.options import ServerOptions
from specllama.handlers.options.composition import NAMES
from specllama.handlers.options.parser import check_server, check_server_files
from specllama.handlers.options.tables.log import LogOptions

MAX_SIZE: Final = 1 << 20  # characters of the text
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


class DeploymentError(Exception):
    """The description of the deployment can't be used. The message is one line: the file, the line,
    what is wrong and what is right."""


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
        return Catalog(entries, default=entries[0].name, router=len(entries) > 1)


def read(text: str, source: str, *, files: bool = True) -> Deployment:
    """Returns the deployment that the YAML in `text` describes; `source` is the file's name, for
    messages. `files`: check the files that the options name. Raises DeploymentError."""
    return _Reader(source, files=files).read(text)


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


class _Reader:
    def __init__(self, source: str, *, files: bool) -> None:
        self._source = source
        self._files = files

    def read(self, text: str) -> Deployment:
        if len(text) > MAX_SIZE:
            raise DeploymentError(f"{self._source}: longer than {MAX_SIZE} characters")
        try:
            root = yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark else ""
            raise DeploymentError(f"{self._source}{line}: {error.problem or error}") from None
        except yaml.YAMLError as error:
            raise DeploymentError(f"{self._source}: {' '.join(str(error).split())}") from None
        if root is None:
            raise DeploymentError(f"{self._source}: the file is empty; it needs models")
        parts = self._mapping(root, "the file", ("server", INGRESS, "models"))
        if "models" not in parts:
            self._fail(root, "models is missing: the models to serve, by name")
        models = self._entries(parts["models"], "models")
        if not models:
            self._fail(parts["models"], "models is empty; it needs one model at least")
        everything = {name: self._model(name, node) for name, node in models.items()}
        if INGRESS in models:
            self._fail(models[INGRESS], f"models.{INGRESS}: this name is taken; give another one")
        ingress = self._processes(parts.get(INGRESS), root, INGRESS)
        return Deployment(
            server=self._server(parts.get("server")),
            ingress=ingress,
            models={name: processes for name, (processes, _) in everything.items()},
            options={name: options for name, (_, options) in everything.items()},
        )

    # ---- parts -----------------------------------------------------------------------------

    def _server(self, node: yaml.Node | None) -> ServerOptions:
        chosen = ChosenValues(NAMES)
        layer = self._layer(node, "server")
        self._checked(lambda: read_layer(chosen, layer, whole_server=True))
        options = compose(ServerOptions, chosen.values)
        self._checked(lambda: check_server(options))
        if self._files:
            self._checked(lambda: check_server_files(options))
        return options

    def _model(self, name: str, node: yaml.Node) -> tuple[Processes, Options]:
        what = f"models.{name}"
        parts = self._mapping(node, what, (*PROCESS_KEYS, "options"))
        layer = self._layer(parts.pop("options", None), f"{what}.options")
        self._checked(lambda: check_layer(NAMES, layer))
        nothing = Given(NAMES, {}, ())
        options = self._checked(lambda: layered(nothing, [layer], files=self._files), node)
        if not options.names_model() and name != MODEL_NAME:
            self._fail(
                node,
                f"{what}: options has to name the model: model (a path), hf-repo, model-url or "
                "docker-repo",
            )
        self._checked(lambda: check(options), node)
        return self._processes_of(parts, node, what), options

    def _processes(self, node: yaml.Node | None, parent: yaml.Node, what: str) -> Processes:
        parts = {} if node is None else self._mapping(node, what, tuple(PROCESS_KEYS))
        return self._processes_of(parts, node or parent, what)

    def _processes_of(
        self, parts: Mapping[str, yaml.Node], node: yaml.Node, what: str
    ) -> Processes:
        if "replicas" in parts and "autoscaling" in parts:
            self._fail(parts["autoscaling"], f"{what}: replicas and autoscaling exclude each other")
        autoscaling = None
        if "autoscaling" in parts:
            entries = self._entries(parts["autoscaling"], f"{what}.autoscaling")
            autoscaling = {key: self._value(each) for key, each in entries.items()}
        resources = {}
        if "resources" in parts:
            entries = self._entries(parts["resources"], f"{what}.resources")
            resources = {key: self._number(each, key) for key, each in entries.items()}
        return Processes(
            place=self._place(node),
            replicas=int(self._number(parts.get("replicas"), f"{what}.replicas", 1, least=1)),
            autoscaling=autoscaling,
            cpus=self._number(parts.get("cpus"), f"{what}.cpus", 1),
            gpus=self._number(parts.get("gpus"), f"{what}.gpus", 0),
            resources=resources,
            surge=self._surge(parts.get("surge"), f"{what}.surge"),
        )

    def _surge(self, node: yaml.Node | None, what: str) -> int:
        value = self._number(node, what)
        if node is not None and (value > 100 or value != int(value)):
            self._fail(node, f"{what} has to be a whole percentage from 0 to 100")
        return int(value)

    def _layer(self, node: yaml.Node | None, what: str) -> Layer:
        entries = {} if node is None else self._entries(node, what)
        settings = [
            Setting(key, self._text(each), each.start_mark.line + 1)
            for key, each in entries.items()
        ]
        return Layer(self._source, tuple(settings))

    # ---- values ----------------------------------------------------------------------------

    def _entries(self, node: yaml.Node, what: str) -> dict[str, yaml.Node]:
        """Returns the entries of a mapping."""
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            return {}
        if not isinstance(node, yaml.MappingNode):
            self._fail(node, f"{what} has to be a mapping: lines of `name: value`")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._fail(key, f"{what}: a name has to be a plain text")
            if key.value in found:
                self._fail(key, f"{what}: {key.value} is there twice")
            found[key.value] = value
        return found

    def _mapping(self, node: yaml.Node, what: str, known: Sequence[str]) -> dict[str, yaml.Node]:
        """Returns the entries of a mapping that has only `known` ones."""
        found = self._entries(node, what)
        for key, value in found.items():
            if key not in known:
                near = suggestion(key, {*known}) or f"; there are {', '.join(known)}"
                self._fail(value, f"{what}: {key} is unknown{near}")
        return found

    def _text(self, node: yaml.Node) -> str:
        """Returns the text of an option's value, as written; a list is joined by commas."""
        if isinstance(node, yaml.SequenceNode):
            return ",".join(map(self._text, node.value))
        if not isinstance(node, yaml.ScalarNode):
            self._fail(node, "the value of an option has to be a text, a number or a list")
        text: str = node.value
        return text

    def _value(self, node: yaml.Node) -> Any:
        """Returns a value as YAML means it."""
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node, deep=True)
        finally:
            loader.dispose()

    def _number(
        self, node: yaml.Node | None, what: str, default: float = 0, *, least: float = 0
    ) -> float:
        if node is None:
            return default
        value = self._value(node)
        if not isinstance(value, int | float) or isinstance(value, bool) or value < least:
            self._fail(node, f"{what} has to be a number from {least:g} on")
        return value

    def _place(self, node: yaml.Node) -> str:
        return f"{self._source}:{node.start_mark.line + 1}"

    def _fail(self, node: yaml.Node, text: str) -> NoReturn:
        raise DeploymentError(f"{self._place(node)}: {text}")

    def _checked(self, call: Callable[[], Any], node: yaml.Node | None = None) -> Any:
        try:
            return call()
        except OptionError as error:
            text = str(error)
            if node is not None and not text.startswith(self._source):
                text = f"{self._place(node)}: {text}"
            raise DeploymentError(text) from None
