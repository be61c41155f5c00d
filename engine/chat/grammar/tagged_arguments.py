"""Arguments that a model writes one by one between tags, following a tool's JSON schema.

Texts stand between the tags as they are, everything else is JSON. Who reads such an argument
takes it for JSON if it is JSON of a type that the schema allows, and for a text otherwise; what
is allowed here is what is valid when it is read like that.
"""

import json
from collections.abc import Iterable
from typing import Any

from engine.chat.grammar.lark import ANY, Lark, choice, literal, optional, regex, sequence
from engine.chat.grammar.string_regex import StringError, string_regex
from engine.chat.syntax import KEY, TaggedArguments
from engine.errors import EngineError, invalid_request

ANY_OBJECT = {"type": "object"}
MAX_DEPTH = 32  # of references and alternatives
MAX_PROPERTIES = 1000
MAX_BRANCHES = 200  # of one property

Schema = dict[str, Any]

_TYPES = ("string", "number", "integer", "boolean", "object", "array", "null")
_ANNOTATIONS = frozenset(
    [
        *("title", "description", "default", "examples", "$comment", "deprecated", "readOnly"),
        *("writeOnly", "type", "nullable", "example", "$schema", "$id", "$defs", "definitions"),
    ]
)
# Keywords of the whole object that choosing its properties one by one can't keep to.
_WHOLE = frozenset(
    [
        *("anyOf", "oneOf", "allOf", "not", "if", "patternProperties", "propertyNames"),
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
_QUOTES = ("'", '"')  # of literals that JSON is, too
_KEY = "/[a-zA-Z_][a-zA-Z0-9_-]{0,63}/"


def tagged_arguments(lark: Lark, tags: TaggedArguments, what: str, parameters: Any) -> str:
    """The symbol of all arguments of a tool; `what` is what error messages call its schema,
    `parameters`. May be empty.

    Raises EngineError (invalid_request_error) for a schema that can't be kept to.
    """
    return _Arguments(lark, tags, what, parameters).symbol()


class _Arguments:
    def __init__(self, lark: Lark, tags: TaggedArguments, what: str, parameters: Any) -> None:
        self._lark = lark
        self._tags = tags
        self._what = what
        self._literals: dict[str, str] = {}  # the rules for lists and objects
        self._root = parameters if isinstance(parameters, dict) else {}
        if not isinstance(parameters, dict):
            raise self._error("not a schema of objects")

    def symbol(self) -> str:
        schema = self._resolved(self._root)
        for word in _WHOLE & schema.keys():
            raise self._error(
                f"{word!r} is not supported where a model writes arguments one by one"
            )
        properties = self._mapping(schema, "properties")
        required = schema.get("required", [])
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise self._error("'required' is not a list of names")
        others = schema.get("additionalProperties", True)
        every = {**properties, **{name: others for name in required if name not in properties}}
        if len(every) > MAX_PROPERTIES:
            raise self._error(f"more than {MAX_PROPERTIES} properties")
        if not every:
            return self._any_arguments(others)
        arguments = [(self._argument(key, each), key in required) for key, each in every.items()]
        return self._row(arguments)

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

    def _any_arguments(self, schema: Any) -> str:
        """Arguments of any name."""
        tags = self._tags
        if schema is False or KEY in tags.end:
            return ""  # no grammar repeats a name that it doesn't know
        key = self._lark.terminal(_KEY)
        one = sequence(literal(tags.begin), key, self._announced("*", schema, ""))
        rule = self._lark.rule(one)
        return optional(f"{rule} ({sequence(literal(tags.separator), rule)})*")

    def _argument(self, key: str, schema: Any) -> str:
        tags = self._tags
        if tags.middle.strip() in key or any(c in key for c in "<>\n"):
            raise self._error(f"the property {key!r} can't be written between this model's tags")
        return self._lark.rule(self._announced(key, schema, tags.begin + key))

    def _announced(self, key: str, schema: Any, begin: str) -> str:
        """`begin`, what stands between a key and the value, and the value."""
        tags = self._tags
        if not tags.middles:
            return sequence(literal(begin + tags.middle), self._value(key, schema))
        symbols = []
        for middle in dict.fromkeys(map(tags.before, _TYPES)):
            kinds = [name for name in _TYPES if tags.before(name) == middle]
            branches = [_narrowed(each, kinds) for each in self._branches(key, schema, 0)]
            if possible := [each for each in branches if each is not None]:
                value = self._value(key, {"anyOf": possible})
                symbols.append(sequence(literal(begin + middle), value))
        if not symbols:
            raise self._error(f"the property {key!r} can have no value")
        return choice(symbols)

    # ---- values, each with the end tag ---------------------------------------------------

    def _value(self, key: str, schema: Any) -> str:
        end = literal(self._tags.after(key))
        if self._tags.json_strings or self._tags.quote in _QUOTES:
            return sequence(self._json(schema), end)
        texts: list[str] = []  # literals
        patterns: list[str] = []  # terminals
        inner: list[Schema] = []
        free = False  # any text
        for branch in self._branches(key, schema, 0):
            types = _types(branch)
            if "const" in branch or "enum" in branch:
                values = [branch["const"]] if "const" in branch else branch["enum"]
                self._check_only(key, branch, {"const", "enum"})
                values = [value for value in values if _is_a(value, types)]
                texts += [value for value in values if isinstance(value, str)]
                if rest := [value for value in values if not isinstance(value, str)]:
                    inner.append({"enum": rest})
            else:
                if "string" in types:
                    if restrictions := {w: branch[w] for w in _STRING_WORDS & branch.keys()}:
                        patterns.append(self._string(key, restrictions))
                    else:
                        free = True
                if rest := [each for each in types if each != "string"]:
                    inner.append({**_without_strings(branch), "type": rest})
        if self._tags.quote:
            return sequence(self._quoted(key, free, texts, patterns, inner), end)
        restricted = [each for each in inner if not _is_free(each)]
        if free:
            return self._text_or_json(key, restricted)
        if (texts or patterns) and any(_types(each) for each in inner):
            self._check_apart(key, texts, patterns, inner)
        symbols = [self._fixed(key, text) for text in dict.fromkeys(texts)]
        symbols += [self._lark.lazily(f"{pattern} {end}") for pattern in patterns]
        symbols += [sequence(self._json(each), end) for each in inner]
        if not symbols:
            raise self._error(f"the property {key!r} can have no value")
        return choice(symbols)

    def _quoted(
        self, key: str, free: bool, texts: list[str], patterns: list[str], inner: list[Schema]
    ) -> str:
        """A text in the model's own quotes, or a literal with such texts in it."""
        quote = self._tags.quote
        if any(quote in text for text in texts):
            raise self._error(f"the property {key!r}: a model can't write the text {quote!r}")
        symbols = [literal(quote + text + quote) for text in dict.fromkeys(texts)]
        plain = [self._lark.terminal(f"{ANY} & ~/(?s:.*){regex(quote)}(?s:.*)/")] if free else []
        for pattern in plain + patterns:
            text = self._lark.lazily(f"{pattern} {literal(quote)}")
            symbols.append(sequence(literal(quote), text))
        for schema in inner:
            for kind in _types(schema):
                if kind == "object" or (kind == "array" and not self._holds_scalars(schema)):
                    symbols.append(self._literal(kind))
                else:
                    symbols.append(self._json({**schema, "type": kind}))
        return choice(symbols)

    def _holds_scalars(self, schema: Schema) -> bool:
        """Whether the items of a list have neither texts nor keys, and so are JSON."""
        items = schema.get("items")
        if not isinstance(items, dict) or "prefixItems" in schema:
            return False
        resolved = self._resolved(items)
        plain = {"number", "integer", "boolean", "null"}
        return "type" in resolved and plain.issuperset(_types(resolved))

    def _literal(self, kind: str) -> str:
        """A list or an object of anything: what is further inside follows no schema."""
        quote, lark = self._tags.quote, self._lark
        if not self._literals:
            plain = lark.terminal(f"{ANY} & ~/(?s:.*){regex(quote)}(?s:.*)/")
            text = sequence(literal(quote), lark.lazily(f"{plain} {literal(quote)}"))
            scalar = self._json({"type": ["number", "boolean", "null"]})
            value, array, members = lark.reserved(), lark.reserved(), lark.reserved()
            lark.define(value, choice([text, scalar, array, members]))
            lark.define(array, f'"[" ({value} ("," {value})*)? "]"')
            member = f'{lark.terminal(_KEY)} ":" {value}'
            lark.define(members, f'"{{" ({member} ("," {member})*)? "}}"')
            self._literals = {"array": array, "object": members}
        return self._literals[kind]

    def _text_or_json(self, key: str, restricted: list[Schema]) -> str:
        """Any text that isn't JSON of the types in `restricted`, or such JSON."""
        end = literal(self._tags.after(key))
        text = self._plain(key, ANY)
        types = {name for schema in restricted for name in _types(schema)}
        if types:
            starts = "".join(sorted({_FIRST[name] for name in types}))
            text = self._plain(key, f"/([^\\s{starts}](?s:.*))?/")
        symbols = [self._lark.lazily(f"{text} {end}")]
        symbols += [sequence(self._json(schema), end) for schema in restricted]
        return choice(symbols)

    def _plain(self, key: str, pattern: str) -> str:
        """A text like `pattern` without the end tag in it."""
        end = regex(self._end_tag(key))
        return self._lark.terminal(f"{pattern} & ~/(?s:.*){end}(?s:.*)/")

    def _end_tag(self, key: str) -> str:
        """A text ends where the tag after it begins, whatever white space is around that; or with
        its quote."""
        end = self._tags.after(key)
        return self._tags.quote or end.strip() or end

    def _string(self, key: str, restrictions: Schema) -> str:
        try:
            patterns = string_regex(restrictions)
        except StringError as error:
            raise self._error(f"the property {key!r}: {error}") from None
        # In quotes it would be read as JSON, which is shorter.
        return self._plain(key, " & ".join(['/([^\\s"](?s:.*))?/', *patterns]))

    def _fixed(self, key: str, text: str) -> str:
        if self._end_tag(key) in text or text != text.strip() or text[:1] == '"':
            raise self._error(f"the property {key!r}: a model can't write the text {text[:80]!r}")
        return literal(text + self._tags.after(key))

    def _check_apart(
        self, key: str, texts: Iterable[str], patterns: Iterable[str], inner: list[Schema]
    ) -> None:
        """That no text is taken for JSON of another type, and the other way round."""
        types = [name for schema in inner for name in _types(schema)]
        if list(patterns) and types != ["null"]:
            raise self._error(
                f"the property {key!r}: texts that are restricted can't be told from other values"
            )
        for text in texts:
            try:
                value = json.loads(text)
            except ValueError:
                continue
            if _is_a(value, types):
                raise self._error(f"the property {key!r}: {text!r} can't be told from other values")

    def _json(self, schema: Any) -> str:
        if isinstance(schema, dict):
            carried = {
                word: self._root[word] for word in ("$defs", "definitions") if word in self._root
            }
            if carried and '"$ref"' in _dumped(schema):
                schema = {**carried, **schema}
        elif schema is True:
            schema = {"type": list(_TYPES)}
        return self._lark.json(self._what, schema)

    # ---- schemas -------------------------------------------------------------------------

    def _branches(self, key: str, schema: Any, depth: int) -> list[Schema]:
        """Schemas of which the value follows any."""
        if schema is True:
            return [{}]
        if schema is False or depth > MAX_DEPTH:
            raise self._error(f"the property {key!r} can have no value")
        schema = self._resolved(schema)
        for word in ("anyOf", "oneOf", "allOf"):
            parts = schema.get(word)
            if parts is None:
                continue
            if not isinstance(parts, list) or (word == "allOf" and len(parts) != 1):
                if "string" in _types(schema):
                    raise self._error(f"the property {key!r}: {word!r} is not supported here")
                return [schema]
            common = {name: value for name, value in schema.items() if name != word}
            if common.keys() - _ANNOTATIONS and "string" in _types(schema):
                raise self._error(f"the property {key!r}: {word!r} beside {sorted(common)}")
            if common.keys() - _ANNOTATIONS or "string" not in _types(schema):
                return [schema]
            found: list[Schema] = []
            for part in parts:
                if len(found) > MAX_BRANCHES:
                    raise self._error(f"the property {key!r}: more than {MAX_BRANCHES} branches")
                for branch in self._branches(key, part, depth + 1):
                    types = [name for name in _types(branch) if name in _types(schema)]
                    found.append({**branch, "type": types})
            return found
        return [schema]

    def _resolved(self, schema: Any) -> Schema:
        """`schema`, or what it refers to."""
        for _ in range(MAX_DEPTH):
            if not isinstance(schema, dict):
                break
            reference = schema.get("$ref")
            if reference is None:
                return schema
            if schema.keys() - _ANNOTATIONS - {"$ref"}:
                raise self._error(f"{reference!r} with other keywords beside it")
            schema = self._at(reference)
        raise self._error("a reference that leads to no schema")

    def _at(self, reference: Any) -> Any:
        parts = reference.split("/") if isinstance(reference, str) else []
        if len(parts) == 3 and parts[0] == "#" and parts[1] in ("$defs", "definitions"):
            name = parts[2].replace("~1", "/").replace("~0", "~")
            return self._mapping(self._root, parts[1]).get(name)
        return None

    def _mapping(self, schema: Schema, word: str) -> Schema:
        value = schema.get(word, {})
        if not isinstance(value, dict):
            raise self._error(f"{word!r} is not an object")
        return value

    def _check_only(self, key: str, schema: Schema, words: set[str]) -> None:
        if extra := sorted(schema.keys() - _ANNOTATIONS - words):
            raise self._error(f"the property {key!r}: {extra[0]!r} beside fixed values")

    def _error(self, why: str) -> EngineError:
        return invalid_request(f"Failed to parse {self._what}: {why}")


def _narrowed(schema: Schema, kinds: list[str]) -> Schema | None:
    """`schema` for values of these types, if it allows any."""
    types = [name for name in _types(schema) if name in kinds]
    narrowed = {**schema, "type": types}
    if "const" in schema and not _is_a(schema["const"], types):
        return None
    if "enum" in schema:
        narrowed["enum"] = [value for value in schema["enum"] if _is_a(value, types)]
        if not narrowed["enum"]:
            return None
    return narrowed if types else None


def _types(schema: Schema) -> list[str]:
    types = schema.get("type", list(_TYPES))
    return types if isinstance(types, list) else [types]


def _is_free(schema: Schema) -> bool:
    """Whether all values of its types are allowed."""
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
