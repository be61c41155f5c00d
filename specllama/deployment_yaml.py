"""Reads YAML with messages that name the file and the line."""

from collections.abc import Sequence
from typing import Any, Final, NoReturn

import yaml

from specllama.engine.options.names import suggestion
from specllama.engine.options.values import legible

MAX_SIZE: Final = 1 << 20  # characters of a file
MAX_NUMBER: Final = 10_000


class DeploymentError(Exception):
    """The description of the deployment can't be used. The message is one line: the file, the line,
    what is wrong and what is right."""


class YamlReader:
    """Reads the nodes of a YAML file. Every method raises DeploymentError for a wrong value, which
    the message doesn't contain: it may be a secret."""

    def __init__(self, source: str) -> None:
        """`source` is the file's name, for messages."""
        self.source = source

    def root(self, text: str) -> yaml.Node | None:
        """Returns the content of a file; None if it is empty."""
        if len(text) > MAX_SIZE:
            raise DeploymentError(f"{self.source}: longer than {MAX_SIZE} characters")
        try:
            return yaml.compose(text, Loader=yaml.SafeLoader)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            line = f":{mark.line + 1}" if mark else ""
            problem = error.problem or error.context
        except yaml.reader.ReaderError as error:
            line = f":{text.count(chr(10), 0, error.position) + 1}"
            problem = f"the character {chr(error.character)!r} is not allowed"
        except RecursionError:
            line, problem = "", "it is nested too deeply"
        raise DeploymentError(f"{self.source}{line}: this is no valid YAML: {problem}")

    def entries(self, node: yaml.Node, what: str) -> dict[str, yaml.Node]:
        """Returns the entries of a mapping."""
        if isinstance(node, yaml.ScalarNode) and node.tag.endswith(":null"):
            return {}
        if not isinstance(node, yaml.MappingNode):
            self.fail(node, f"{what} has to be a mapping: lines of `name: value`")
        found: dict[str, yaml.Node] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self.fail(key, f"{what}: a name has to be a plain text")
            if key.tag.endswith(":merge"):
                self.fail(key, f"{what}: << can't be used here: repeat the lines")
            if (other := found.get(key.value)) is not None:
                line = other.start_mark.line + 1
                self.fail(key, f"{what}: {key.value} is there twice; it is in line {line}, too")
            found[key.value] = value
        return found

    def mapping(self, node: yaml.Node, what: str, known: Sequence[str]) -> dict[str, yaml.Node]:
        """Returns the entries of a mapping that has only `known` ones."""
        found = self.entries(node, what)
        for key, value in found.items():
            if key not in known:
                near = suggestion(key, {*known}) or f"; there are {', '.join(known)}"
                self.fail(value, f"{what}: {legible(key)} is unknown{near}")
        return found

    def texts(self, node: yaml.Node, what: str) -> list[str]:
        """Returns the texts of an option's value, as written: one, or those of a list."""
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        if not nodes:
            self.fail(node, f"{what}: the list is empty; leave the option out")
        for each in nodes:
            if not isinstance(each, yaml.ScalarNode):
                self.fail(each, f"{what} has to be a text, a number, or a list of these")
            if each.tag.endswith(":null"):
                self.fail(node, f"{what} has no value; write one, or leave the option out")
        return [each.value for each in nodes]

    def value(self, node: yaml.Node, what: str) -> Any:
        """Returns a value as YAML means it."""
        loader = yaml.SafeLoader("")
        try:
            return loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError, RecursionError):
            self.fail(node, f"{what}: this value can't be read")
        finally:
            loader.dispose()

    def number(
        self, node: yaml.Node | None, what: str, default: float = 0, *, least: float = 0
    ) -> float:
        """Returns a number of at least `least`."""
        if node is None:
            return default
        value = self.value(node, what)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and least <= value <= MAX_NUMBER):
            self.fail(node, f"{what} has to be a number from {least:g} to {MAX_NUMBER}")
        found: float = value
        return found

    def count(self, node: yaml.Node | None, what: str, default: int, *, least: int = 0) -> int:
        """Returns a whole number of at least `least`."""
        value = self.number(node, what, default, least=least)
        if node is not None and value != int(value):
            self.fail(node, f"{what} has to be a whole number")
        return int(value)

    def place(self, node: yaml.Node) -> str:
        """Returns the place of a node, for messages."""
        return f"{self.source}:{node.start_mark.line + 1}"

    def fail(self, node: yaml.Node, text: str) -> NoReturn:
        """Raises DeploymentError with the place of a node."""
        raise DeploymentError(f"{self.place(node)}: {text}")
