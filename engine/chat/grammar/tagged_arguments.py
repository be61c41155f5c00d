"""Arguments that a model writes one by one between tags, following a tool's JSON schema.

Texts stand between the tags as they are, everything else is JSON. Who reads such an argument
takes it for JSON if it is JSON of a type that the schema allows, and for a text otherwise; what
is allowed here is what is valid when it is read like that. Keywords of a schema that can't be kept
to between tags are left out, and told.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, NamedTuple

from engine.chat.grammar.lark import ANY, Lark, choice, literal, optional, regex, sequence
from engine.chat.grammar.string_regex import StringError, string_regex
from engine.chat.syntax import TaggedArguments
from engine.errors import EngineError, invalid_request
from engine.formats.json_schema import at_pointer, escaped, implied_type, says_type

ANY_OBJECT = {"type": "object"}
MAX_DEPTH = 32  # of references and alternatives
MAX_PROPERTIES = 1000
MAX_BRANCHES = 200  # of one property
MAX_NESTING = 8  # of parts that name properties

Schema = dict[str, Any]

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "$comment", "deprecated", "readOnly"),
        *("writeOnly", "type", "nullable", "example", "$schema", "$id", "$defs", "definitions"),
    ]
)
_PARTS = ("allOf", "anyOf", "oneOf")
# Keywords of the whole object that choosing its properties one by one can't keep to.
_WHOLE = frozenset(
    [
        *(*_PARTS, "not", "if", "patternProperties", "propertyNames"),
        *("minProperties", "maxProperties", "dependentRequired", "dependentSchemas"),
        *("dependencies", "enum", "const", "unevaluatedProperties"),
    ]
)
_STRING_WORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
# What JSON of a type begins with.
_FIRST = {
    **{"number": r"\-0-9", "integer": r"\-0-9", "boolean": "tf", "null": "n"},
    **{"array": r"\[", "object": r"\{"},
}
_KEY = "/[a-zA-Z_][a-zA-Z0-9_-]{0,63}/"


def tagged_arguments(
    lark: Lark, tags: TaggedArguments, what: str, parameters: Schema, at: str
) -> str:
    """The symbol of all arguments of a tool; `what` is what error messages call its schema,
    `parameters`, and `at` is where that stands (`engine.params.NamedSchema`). May be empty.

    Raises EngineError (invalid_request_error) for a schema that is wrong or too large.
    """
    return _Arguments(lark, tags, what, parameters, at).symbol()


class _Branch(NamedTuple):
    """A schema, and where it stands."""

    schema: Any
    at: str


class _Arguments:
    def __init__(
        self, lark: Lark, tags: TaggedArguments, what: str, parameters: Schema, at: str
    ) -> None:
        self._lark = lark
        self._tags = tags
        self._what = what
        self._root = parameters
        self._at_root = at
        # A text ends where the tag after it begins, whatever white space is around that.
        self._end_tag = tags.end.strip() or tags.end

    def _leave_out(self, branch: _Branch, *words: str) -> None:
        for word in words:
            self._lark.leave_out(f"{branch.at}/{escaped(word)}")

    def symbol(self) -> str:
        whole = self._resolved(_Branch(self._root, self._at_root))
        schema = whole.schema
        self._leave_out(whole, *sorted(_WHOLE & schema.keys()))
        properties = self._properties(whole, 0)
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            self._leave_out(whole, "required")
            required = []
        others = schema.get("additionalProperties", True)
        other = _Branch(others, f"{whole.at}/additionalProperties")
        every = {**properties, **{name: other for name in required if name not in properties}}
        if len(every) > MAX_PROPERTIES:
            raise self._error(f"more than {MAX_PROPERTIES} properties")
        if not every:
            is_closed = "properties" in schema and "additionalProperties" not in schema
            return "" if is_closed else self._any_arguments(other)
        arguments = [
            (self._argument(key, branch), key in required)
            for key, branch in every.items()
            if self._can_be_written(key, branch, required)
        ]
        return self._row(arguments)

    def _properties(self, whole: _Branch, depth: int) -> dict[str, _Branch]:
        """The properties that the schema names, also in its parts."""
        found = {
            name: _Branch(each, f"{whole.at}/properties/{escaped(name)}")
            for name, each in self._mapping(whole.schema, "properties").items()
        }
        for word in _PARTS:
            parts = whole.schema.get(word)
            for i, part in enumerate(parts if isinstance(parts, list) else []):
                if isinstance(part, dict) and depth < MAX_NESTING and len(found) <= MAX_PROPERTIES:
                    inner = self._resolved(_Branch(part, f"{whole.at}/{word}/{i}"))
                    found = {**self._properties(inner, depth + 1), **found}
        return found

    def _can_be_written(self, key: str, branch: _Branch, required: list[str]) -> bool:
        if branch.schema is False:
            if key in required:
                raise self._error(f"the property {key!r} can have no value")
            return False
        if self._tags.middle.strip() in key or any(c in key for c in "<>\n"):
            self._lark.leave_out(branch.at)
            return False
        return True

    def _row(self, arguments: list[tuple[str, bool]]) -> str:
        """Arguments in their order, those that are not required left out or not."""
        separator = literal(self._tags.separator)
        first, next_ = "", ""  # what may follow if there is nothing before it, and if there is
        for symbol, is_required in reversed(arguments):
            begin, go_on = sequence(symbol, next_), sequence(separator, symbol, next_)
            if is_required:
                first, next_ = self._lark.rule(begin), self._lark.rule(go_on)
            else:
                first = optional(begin) if not first else f"({begin} | {first})"
                next_ = optional(go_on) if not next_ else f"({go_on} | {next_})"
                first, next_ = self._lark.rule(first), self._lark.rule(next_)
        return first

    def _any_arguments(self, branch: _Branch) -> str:
        """Arguments of any name."""
        if branch.schema is False:
            return ""
        tags = self._tags
        key = self._lark.terminal(_KEY)
        one = sequence(literal(tags.begin), key, literal(tags.middle), self._value(branch))
        rule = self._lark.rule(one)
        return optional(f"{rule} ({sequence(literal(tags.separator), rule)})*")

    def _argument(self, key: str, branch: _Branch) -> str:
        begin = literal(self._tags.begin + key + self._tags.middle)
        return self._lark.rule(sequence(begin, self._value(branch)))

    # ---- values, each with the end tag ---------------------------------------------------

    def _value(self, argument: _Branch) -> str:
        end = literal(self._tags.end)
        if self._tags.json_strings:
            return sequence(self._json(argument), end)
        texts: list[tuple[str, str]] = []  # and where each stands
        patterns: list[tuple[str, str]] = []  # terminals
        inner: list[_Branch] = []
        free = False  # any text
        for branch in self._branches(argument, 0):
            types = _types(branch.schema)
            if (fixed := self._fixed_values(branch)) is not None:
                texts += [(each, branch.at) for each in fixed if isinstance(each, str)]
                if rest := [each for each in fixed if not isinstance(each, str)]:
                    inner.append(_Branch({"enum": rest}, branch.at))
                continue
            if "string" in types:
                pattern = self._string(branch)
                patterns += [(pattern, branch.at)] if pattern else []
                free |= not pattern
            if rest := [each for each in types if each != "string"]:
                schema = {**_without_strings(branch.schema), "type": rest}
                inner.append(_Branch(schema, branch.at))
        texts = [(text, at) for text, at in texts if self._can_be_told(text, at, inner)]
        if patterns and any(name != "null" for each in inner for name in _types(each.schema)):
            # Texts that are restricted can't be told from other values.
            for _, at in patterns:
                self._lark.leave_out(at)
            free = True
        if free or not (texts or patterns or inner):
            if not free:
                self._lark.leave_out(argument.at)
            return self._text_or_json([each for each in inner if not _is_free(each.schema)])
        symbols = [literal(text + self._tags.end) for text in dict.fromkeys(t for t, _ in texts)]
        symbols += [self._lark.lazily(f"{pattern} {end}") for pattern, _ in patterns]
        symbols += [sequence(self._json(each), end) for each in inner]
        return choice(symbols)

    def _fixed_values(self, branch: _Branch) -> list[Any] | None:
        """The only values of a schema; None if it has others."""
        schema = branch.schema
        if "const" in schema:
            values = [schema["const"]]
        elif isinstance(schema.get("enum"), list) and schema["enum"]:
            values = schema["enum"]
        else:
            return None
        self._leave_out(branch, *sorted(schema.keys() - _ANNOTATIONS - {"const", "enum"}))
        fitting = [value for value in values if _is_a(value, _types(schema))]
        if not fitting:
            self._leave_out(branch, "type")
        return fitting or values

    def _can_be_told(self, text: str, at: str, inner: Iterable[_Branch]) -> bool:
        """Whether a fixed text can be written, and isn't taken for JSON."""
        told = not (self._end_tag in text or text != text.strip() or text[:1] == '"')
        with suppress(ValueError, RecursionError):
            value = json.loads(text)
            for each in inner:
                fixed = each.schema.get("enum")
                if isinstance(fixed, list) and value in fixed:
                    return False  # which is allowed, and written there
                values = fixed if isinstance(fixed, list) else []
                types = [name for one in values for name in _TYPES if _is_a(one, [name])]
                told &= not _is_a(value, types if values else _types(each.schema))
        if not told:
            self._lark.leave_out(f"{at}/enum")
        return told

    def _text_or_json(self, restricted: list[_Branch]) -> str:
        """Any text that isn't JSON of the types in `restricted`, or such JSON."""
        end = literal(self._tags.end)
        text = self._plain(ANY)
        types = {name for each in restricted for name in _types(each.schema)}
        if types:
            starts = "".join(sorted({_FIRST[name] for name in types}))
            text = self._plain(f"/([^\\s{starts}](?s:.*))?/")
        symbols = [self._lark.lazily(f"{text} {end}")]
        symbols += [sequence(self._json(each), end) for each in restricted]
        return choice(symbols)

    def _plain(self, pattern: str) -> str:
        """A text like `pattern` without the end tag in it."""
        return self._lark.terminal(f"{pattern} & ~/(?s:.*){regex(self._end_tag)}(?s:.*)/")

    def _string(self, branch: _Branch) -> str:
        """The terminal of the texts that a schema allows; "" if those are all."""
        patterns: list[str] = []
        for word in sorted(_STRING_WORDS & branch.schema.keys()):
            try:
                patterns += string_regex({word: branch.schema[word]})
            except StringError:
                self._leave_out(branch, word)
        patterns = [pattern for pattern in patterns if pattern != ANY]
        if not patterns:
            return ""
        # In quotes it would be read as JSON, which is shorter.
        return self._plain(" & ".join(['/([^\\s"](?s:.*))?/', *patterns]))

    def _json(self, branch: _Branch) -> str:
        schema: Any = branch.schema
        if isinstance(schema, dict):
            carried = {
                word: self._root[word] for word in ("$defs", "definitions") if word in self._root
            }
            if carried and '"$ref"' in _dumped(schema):
                schema = {**carried, **schema}
        elif schema is True:
            schema = {"type": list(_TYPES)}
        return self._lark.json(self._what, schema, branch.at)

    # ---- schemas -------------------------------------------------------------------------

    def _branches(self, branch: _Branch, depth: int) -> list[_Branch]:
        """Schemas of which the value follows any."""
        if branch.schema is True:
            return [_Branch({}, branch.at)]
        if branch.schema is False:
            return []
        if depth > MAX_DEPTH:
            self._lark.leave_out(branch.at)
            return [_Branch({}, branch.at)]
        branch = self._resolved(branch)
        schema = branch.schema
        for word in (word for word in ("anyOf", "oneOf", "allOf") if word in schema):
            if "string" not in _types(schema):
                return [branch]
            parts = schema[word]
            if not isinstance(parts, list) or (word == "allOf" and len(parts) != 1):
                self._leave_out(branch, word)
                schema = {name: value for name, value in schema.items() if name != word}
                continue
            self._leave_out(branch, *sorted(schema.keys() - _ANNOTATIONS - {word}))
            return self._alternatives(branch, word, depth)
        if not says_type(schema) and (kind := implied_type(schema)):
            schema = {**schema, "type": kind}
        return [_Branch(schema, branch.at)]

    def _alternatives(self, branch: _Branch, word: str, depth: int) -> list[_Branch]:
        found: list[_Branch] = []
        for i, part in enumerate(branch.schema[word]):
            for each in self._branches(_Branch(part, f"{branch.at}/{word}/{i}"), depth + 1):
                types = [name for name in _types(each.schema) if name in _types(branch.schema)]
                if types:
                    found.append(_Branch({**each.schema, "type": types}, each.at))
            if len(found) > MAX_BRANCHES:
                self._leave_out(branch, word)
                return [_Branch({}, branch.at)]
        return found

    def _resolved(self, branch: _Branch) -> _Branch:
        """`branch`, or what it refers to."""
        for _ in range(MAX_DEPTH):
            schema = branch.schema
            if not isinstance(schema, dict):
                raise self._error("schema must be an object")
            reference = schema.get("$ref")
            if reference is None:
                return branch
            self._leave_out(branch, *sorted(schema.keys() - _ANNOTATIONS - {"$ref"}))
            place = self._at_root.partition("#")[0]
            branch = _Branch(self._at(reference), f"{place}{reference}")
        raise self._error("a reference that leads to no schema")

    def _at(self, reference: Any) -> Any:
        target = at_pointer(self._root, reference) if isinstance(reference, str) else None
        if target is None:
            raise self._error(f"cannot resolve $ref {str(reference)[:80]}")
        return target

    def _mapping(self, schema: Schema, word: str) -> Schema:
        value = schema.get(word, {})
        if not isinstance(value, dict):
            raise self._error(f"{word!r} is not an object")
        return value

    def _error(self, why: str) -> EngineError:
        return invalid_request(f"Failed to parse {self._what}: {why}")


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", list(_TYPES))
    return types if isinstance(types, list) else [types]


def _is_free(schema: Schema) -> bool:
    """True if all values of its types are allowed."""
    return not schema.keys() - _ANNOTATIONS


def _without_strings(schema: Schema) -> Schema:
    return {word: value for word, value in schema.items() if word not in _STRING_WORDS}


def _is_a(value: Any, types: Iterable[str]) -> bool:
    match value:
        case None:
            names = {"null"}
        case bool():
            names = {"boolean"}
        case int():
            names = {"integer", "number"}
        case float():
            names = {"number", "integer"} if value.is_integer() else {"number"}
        case str():
            names = {"string"}
        case list():
            names = {"array"}
        case _:
            names = {"object"}
    return bool(names & set(types))


def _dumped(schema: Schema) -> str:
    try:
        return json.dumps(schema)
    except RecursionError:
        return '"$ref"'  # too deep, as will be found out
