"""Converts a JSON Schema error to one sentence that helps a client's author.

    messages[0].content[0].type: "nope" is not one of "text", "image_url"

A large invalid instance is reduced first, so that explaining it is cheap: a validator lists every
error of every branch of a union, at some ten microseconds each, which is minutes for an array of a
million invalid items. One of them is enough for a sentence.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from jsonschema_rs import Draft202012Validator, ValidationError, ValidationErrorKind

Path = tuple[str | int, ...]

FEW = 32  # items of an array that isn't reduced any further
MANY = 512  # items or properties that can be explained in an acceptable time
LONG = 4096  # characters
DEPTH = 8  # levels below which values aren't reduced
TRIALS = 256  # maximum number of validations to find the error
DEEP = 64  # levels of values that can be explained: a validator's errors reach at most 255 levels


class Shrunk:
    """A part of `instance` (which is consumed) that is as invalid as the whole.

    `offsets` maps the path of each reduced array to the index of its first remaining item.
    `crowded` is the path and the length of an array that is invalid only because it has too many
    items: each part of it is valid.
    """

    def __init__(self, instance: Any, is_valid: Callable[[Any], bool]) -> None:
        self.offsets: dict[Path, int] = {}
        self.crowded: tuple[Path, int] | None = None
        self._root = [instance]
        self._is_valid = is_valid
        self._trials = TRIALS
        self._cut(self._root, 0, ())
        _flatten(self._root)

    @property
    def instance(self) -> Any:
        return self._root[0]

    def _still_invalid(self) -> bool:
        self._trials -= 1
        return not self._is_valid(self._root[0])

    def _cut(self, parent: Any, key: Any, path: Path) -> None:
        node = parent[key]
        if self._trials <= 0 or len(path) > DEPTH or self.crowded is not None:
            return
        if isinstance(node, str):
            if len(node) > LONG:
                parent[key] = node[:LONG]
                if not self._still_invalid():
                    parent[key] = node
        elif isinstance(node, list):
            if len(node) > FEW:
                self._cut_array(parent, key, path)
            for index in range(len(parent[key])):
                self._cut(parent[key], index, (*path, index))
        elif isinstance(node, dict):
            if len(node) > MANY and path:
                self._cut_object(parent, key)
            for name in list(parent[key]):
                self._cut(parent[key], name, (*path, name))

    def _cut_array(self, parent: Any, key: Any, path: Path) -> None:
        items = parent[key]
        start = self._halve(parent, key, len(items), FEW, lambda a, b: items[a:b])
        if start:
            self.offsets[path] = start
        if len(parent[key]) > MANY:
            self.crowded = (path, len(items))

    def _cut_object(self, parent: Any, key: Any) -> None:
        pairs = list(parent[key].items())
        self._halve(parent, key, len(pairs), MANY, lambda a, b: dict(pairs[a:b]))

    def _halve(
        self, parent: Any, key: Any, size: int, enough: int, part: Callable[[int, int], Any]
    ) -> int:
        """Replaces the value by its smallest invalid part, found by repeated halving; returns its
        start."""
        start, end = 0, size
        while end - start > enough and self._trials > 0:
            middle = (start + end) // 2
            for a, b in ((start, middle), (middle, end)):
                parent[key] = part(a, b)
                if self._still_invalid():
                    start, end = a, b
                    break
            else:
                break
        parent[key] = part(start, end)
        return start


def _flatten(outermost: list[Any]) -> None:
    """Empties the objects and arrays below `DEEP` levels, which no schema describes."""
    level: list[Any] = [outermost]
    for _ in range(DEEP + 1):
        inner = [each.values() if isinstance(each, dict) else each for each in level]
        level = [each for many in inner for each in many if isinstance(each, dict | list)]
    for each in level:
        each.clear()


Kind = ValidationErrorKind

_ECHO = re.compile("\x00.*?\x01", re.DOTALL)
"""Encloses texts from the client."""
_NO_MARKS = {0: None, 1: None}

MAX_VALUE = 60  # characters of a value in a message
MAX_NAMES = 12  # alternatives in a message
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NOUNS = {
    "array": "an array",
    "boolean": "a boolean",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}


class Sentence(str):
    """A sentence about a client's input; `discreet` is the same without text from the client."""

    discreet: str

    @classmethod
    def of(cls, marked: str) -> "Sentence":
        """Returns the sentence of a text in which texts from the client are marked."""
        return cls.from_forms(marked.translate(_NO_MARKS), _ECHO.sub("the value", marked))

    @classmethod
    def from_forms(cls, text: str, discreet: str) -> "Sentence":
        """Returns the sentence with these two forms."""
        made = cls(text)
        made.discreet = discreet
        return made


def sentence(validator: Draft202012Validator, instance: Any, name: str = "") -> Sentence:
    """Returns the deepest, and so most specific, error of an invalid instance, with its place. The
    instance is consumed.

    `name` is the name of the whole instance (a parameter); a body has no name.
    """
    shrunk = Shrunk(instance, validator.is_valid)
    if shrunk.crowded is not None:
        path, count = shrunk.crowded
        text = f"{count} items are too many"
    else:
        explained = [_explain(error) for error in validator.iter_errors(shrunk.instance)]
        path, text = max(explained, key=lambda found: len(found[0]))
    where = _dotted(path, name, shrunk.offsets)
    return Sentence.of(f"{where}: {text}" if where else text)


def _dotted(path: Path, name: str, offsets: Mapping[Path, int]) -> str:
    parts = [name]
    for depth, step in enumerate(path):
        if isinstance(step, int):
            parts.append(f"[{step + offsets.get(path[:depth], 0)}]")
        elif _PLAIN.fullmatch(step):
            parts.append(f".{step}" if parts != [""] else step)
        else:
            parts.append(f"[{shorten(step)}]")
    return "".join(parts)


def _explain(error: ValidationError) -> tuple[Path, str]:
    match error.kind:
        case Kind.AnyOf(context=branches) | Kind.OneOfNotValid(context=branches):
            return _of_union(error, branches)
    return tuple(error.instance_path), _text(error)


def _of_union(
    error: ValidationError, branches: Sequence[Sequence[ValidationError]]
) -> tuple[Path, str]:
    """Returns the most helpful error of a union: that of the branch which was probably meant."""
    depth = len(error.instance_path)
    meant = [branch for branch in branches if not _is_other_type(branch, depth)]
    if not meant:
        types = _unique(name for branch in branches for name in _types(branch, depth))
        return tuple(error.instance_path), _expected(error.instance, types)
    # In unions of objects, an enum one level deeper distinguishes the branches.
    tagged = [branch for branch in meant if not _is_other_tag(branch, depth + 1)]
    if not tagged:
        return _of_tags(meant, depth + 1)
    explained = [_explain(e) for branch in tagged for e in branch]
    path, text = max(explained, key=lambda found: len(found[0]))
    if len(path) == depth and all(_is_enum(branch) for branch in tagged):
        return path, _not_one_of(error.instance, _options(tagged, depth))
    return path, text


def _of_tags(branches: Sequence[Sequence[ValidationError]], depth: int) -> tuple[Path, str]:
    options = _options(branches, depth)
    for branch in branches:
        for error in branch:
            if len(error.instance_path) == depth and _is_choice(error):
                return tuple(error.instance_path), _not_one_of(error.instance, options)
    raise AssertionError("each of the branches has such an error")


def _options(branches: Sequence[Sequence[ValidationError]], depth: int) -> list[Any]:
    return _unique(
        option
        for branch in branches
        for error in branch
        if len(error.instance_path) == depth
        for option in _choices(error)
    )


def _choices(error: ValidationError) -> list[Any]:
    match error.kind:
        case Kind.Enum(options=options):
            return list(options)
        case Kind.Constant(expected_value=value):
            return [value]
    return []


def _is_choice(error: ValidationError) -> bool:
    return isinstance(error.kind, Kind.Enum | Kind.Constant)


def _is_enum(branch: Sequence[ValidationError]) -> bool:
    return any(_is_choice(error) for error in branch)


def _is_other_type(branch: Sequence[ValidationError], depth: int) -> bool:
    return bool(_types(branch, depth))


def _types(branch: Sequence[ValidationError], depth: int) -> list[str]:
    """Returns the types that a branch accepts, if the instance at `depth` has another type."""
    return [
        name for error in branch if len(error.instance_path) == depth for name in _type_names(error)
    ]


def _type_names(error: ValidationError) -> list[str]:
    match error.kind:
        case Kind.Type(types=types):
            return list(types)
        case Kind.AnyOf(context=branches) | Kind.OneOfNotValid(context=branches):
            depth = len(error.instance_path)
            if all(_is_other_type(branch, depth) for branch in branches):
                return [name for branch in branches for name in _types(branch, depth)]
    return []


def _is_other_tag(branch: Sequence[ValidationError], depth: int) -> bool:
    return any(len(error.instance_path) == depth and _is_choice(error) for error in branch)


def _unique(items: Iterable[Any]) -> list[Any]:
    result: list[Any] = []
    for item in items:
        if item not in result:
            result.append(item)
    return result


def _text(error: ValidationError) -> str:
    value = _echo(error.instance)
    match error.kind:
        case Kind.Type(types=types):
            return _expected(error.instance, list(types))
        case Kind.Enum() | Kind.Constant():
            return _not_one_of(error.instance, _choices(error))
        case Kind.Required(property=name):
            return f"{shorten(name)} is a required property"
        case Kind.Minimum(limit=limit):
            return f"{value} is less than the minimum of {limit}"
        case Kind.Maximum(limit=limit):
            return f"{value} is greater than the maximum of {limit}"
        case Kind.ExclusiveMinimum(limit=limit):
            return f"{value} is not greater than {limit}"
        case Kind.ExclusiveMaximum(limit=limit):
            return f"{value} is not less than {limit}"
        case Kind.MinLength(limit=limit):
            return f"{value} is shorter than {_count(limit, 'character')}"
        case Kind.MaxLength(limit=limit):
            return f"{value} is longer than {_count(limit, 'character')}"
        case Kind.MinItems(limit=limit):
            return f"it has {_count(_size(error), 'item')}, but needs at least {limit}"
        case Kind.MaxItems(limit=limit):
            return f"it has {_count(_size(error), 'item')}, but may have at most {limit}"
        case Kind.MinProperties(limit=limit):
            return f"it has too few properties, at least {limit} are needed"
        case Kind.MaxProperties(limit=limit):
            return f"it has too many properties, at most {limit} are allowed"
        case Kind.MultipleOf(multiple_of=unit):
            return f"{value} is not a multiple of {unit}"
        case Kind.Pattern(pattern=pattern):
            return f"{value} does not match {pattern}"
        case Kind.UniqueItems():
            return "the items are not all different"
        case Kind.AdditionalProperties(unexpected=names):
            return f"{_marked(_listed(names))} not allowed here"
    # Other keywords: the library's own message, which may quote the whole instance.
    return _marked(_cut(error.message, 4 * MAX_VALUE))


def _expected(instance: Any, types: Sequence[str]) -> str:
    # Every integer is a number.
    kept = [name for name in types if not (name == "integer" and "number" in types)]
    nouns = [_NOUNS[name] for name in sorted(kept, key=lambda name: name == "null")]
    return f"{_echo(instance)} is not {' or '.join(nouns)}"


def _not_one_of(instance: Any, options: Sequence[Any]) -> str:
    if len(options) == 1:
        return f"{_echo(instance)} is not {shorten(options[0])}"
    return f"{_echo(instance)} is not one of {_listed(options)}"


def _listed(options: Sequence[Any]) -> str:
    shown = ", ".join(shorten(option) for option in options[:MAX_NAMES])
    return shown if len(options) <= MAX_NAMES else f"{shown}, ..."


def _size(error: ValidationError) -> int:
    assert isinstance(error.instance, list | dict), "these keywords are about nothing else"
    return len(error.instance)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _echo(instance: Any) -> str:
    return _marked(shorten(instance))


def _marked(text: str) -> str:
    return f"\x00{text.translate(_NO_MARKS)}\x01"


def shorten(value: Any) -> str:
    """Returns a value as JSON, cut to a length that fits a message."""
    if isinstance(value, str):
        return msgspec.json.encode(_cut(value, MAX_VALUE)).decode()
    if isinstance(value, list) and len(value) > MAX_VALUE:
        value = value[:MAX_VALUE]  # avoids encoding a long list to show its beginning
    try:
        text = msgspec.json.encode(value).decode()
    except (OverflowError, RecursionError):
        return "a value that is too large" if isinstance(value, int) else "a deeply nested value"
    return _cut(text, MAX_VALUE)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else text[:length] + "..."
