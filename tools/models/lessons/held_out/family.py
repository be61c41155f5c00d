"""A task of the evaluation, and a family of such tasks: what a family consists of."""

from dataclasses import dataclass
from typing import Any, Literal

JSON = Any
Schema = dict[str, Any]
Call = tuple[str, dict[str, JSON]]
"""The name of a tool, and the arguments."""

TOOLS, EXTRACTION = "tools", "extraction"
"""The abilities of the families, as in `calling` and in `extraction`."""
TEXT: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
TRUTH: Schema = {"type": "boolean"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A request, and its only right answer: the calls of a request with tools (without any, if
    no tool fits), or the object of an extraction."""

    request: str
    calls: tuple[Call, ...] = ()
    fields: dict[str, JSON] | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """Tasks that are alike in what they hold out of the training.

    `holds_out` says what that is. `markers` are the phrasings that make a task one of this
    family: words in lower case without punctuation. Each of its tasks has at least one of them, if
    it is phrasings that are held out. `shapes` are those of `barrier.shapes_of`: each task has one
    of them, if it is schemas that are held out. The words of values are always held out. Each
    request offers all `tools`. `nullable` fields may be null in a requested schema.
    """

    name: str
    ability: str
    holds_out: Literal["phrasings", "words", "schemas"]
    tasks: tuple[Task, ...]
    markers: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    tools: tuple[dict[str, JSON], ...] = ()
    nullable: bool = False


def one_of(*options: JSON) -> Schema:
    return {"type": "string", "enum": list(options)}


def an_object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def tool(
    name: str, description: str, *, required: tuple[str, ...] | None = None, **properties: Schema
) -> dict[str, JSON]:
    """Returns a tool's definition. All parameters are required, or `required` ones."""
    parameters = an_object(**properties)
    if required is not None:
        parameters["required"] = list(required)
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def call(request: str, name: str, **arguments: JSON) -> Task:
    return Task(request=request, calls=((name, arguments),))


ASK = "Extract {keys}: {text}"
"""A phrasing that the training has, for tasks that hold out something else."""


def fields(text: str, *, ask: str = ASK, **wanted: JSON) -> Task:
    """Returns the task to extract these fields from a text."""
    *first, last = wanted
    keys = f"{', '.join(first)} and {last}" if first else last
    return Task(request=ask.format(keys=keys, text=text), fields=wanted)
