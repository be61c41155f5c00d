"""Grammars of arguments that a model writes one by one between tags, following a tool's JSON
schema.

Texts are written between the tags as they are, all other values in JSON. The parser reads an
argument as JSON if it is JSON of a type that the schema allows, else as a text. The grammar permits
the arguments that are valid when read this way. Keywords of a schema that can't be enforced between
tags are left out and reported.
"""

import json
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from specllama.engine.chat.grammar.argument_schemas import (
    ANNOTATIONS,
    TYPES,
    ArgumentSchemas,
    Branch,
    Schema,
    is_a,
    is_free,
    types_of,
)
from specllama.engine.chat.grammar.lark import (
    ANY,
    Lark,
    StringError,
    choice,
    literal,
    optional,
    regex,
    sequence,
    string_regex,
)
from specllama.engine.chat.syntax import BARE_KEY, KEY, TaggedArguments
from specllama.engine.formats.json_schema import OutOfWorkError

ANY_OBJECT = {"type": "object"}

_STRING_WORDS = frozenset({"minLength", "maxLength", "pattern", "format"})
_SCALARS = frozenset({"number", "integer", "boolean", "null"})
_SCALAR_WORDS = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
)
# The first characters of JSON of a type.
_FIRST = {
    **{"number": r"\-0-9", "integer": r"\-0-9", "boolean": "tf", "null": "n"},
    **{"array": r"\[", "object": r"\{"},
}
_QUOTES = ("'", '"')  # of literals that are also JSON
_KEY = "/[a-zA-Z_][a-zA-Z0-9_-]{0,63}/"


def tagged_arguments(
    lark: Lark, tags: TaggedArguments, what: str, parameters: Schema, at: str
) -> str:
    """Returns the symbol of all arguments of a tool; may be empty. Error messages call its schema,
    `parameters`, `what`; `at` is its location (`engine.params.NamedSchema`).

    A schema that takes too much work is left out. Raises EngineError (invalid_request_error) for
    one that is invalid or too large.
    """
    try:
        return _Arguments(lark, tags, ArgumentSchemas(lark, what, parameters, at)).symbol()
    except OutOfWorkError:
        lark.leave_out(at)
        anything = ArgumentSchemas(lark, what, ANY_OBJECT, at)
        return _Arguments(lark, tags, anything).symbol()


class _Values(NamedTuple):
    """The permitted values of an argument: any text if it is `free`, else texts and terminals of
    texts, each with the location of its schema; and schemas of other values."""

    free: bool
    texts: list[tuple[str, str]]
    patterns: list[tuple[str, str]]
    inner: list[Branch]


class _Arguments:
    def __init__(self, lark: Lark, tags: TaggedArguments, schemas: ArgumentSchemas) -> None:
        self._lark = lark
        self._tags = tags
        self._schemas = schemas
        self._literals: dict[str, str] = {}  # the rules for lists and objects

    def symbol(self) -> str:
        named, required, others = self._schemas.arguments()
        if not named:
            return "" if others is None else self._any_arguments(others)
        arguments = [
            (self._argument(key, branch), key in required)
            for key, branch in named.items()
            if self._can_be_written(key, branch, required)
        ]
        return self._row(arguments)

    def _can_be_written(self, key: str, branch: Branch, required: list[str]) -> bool:
        if branch.schema is False:
            if key in required:
                raise self._schemas.error(f"the property {key!r} can have no value")
            return False
        bare = not self._tags.begin.strip()
        if bare and not (key and BARE_KEY.fullmatch(key)):
            readable = False
        else:
            readable = self._tags.middle.strip() not in key and not any(c in key for c in "<>\n")
        if not readable:
            self._lark.leave_out(branch.at)
            return False
        return True

    def _row(self, arguments: list[tuple[str, bool]]) -> str:
        """Returns the symbol of arguments in their order; the optional ones may be missing."""
        separator = literal(self._tags.separator)
        # Symbols of the remaining arguments, at the start and after another argument.
        first, next_ = "", ""
        for symbol, is_required in reversed(arguments):
            begin, go_on = sequence(symbol, next_), sequence(separator, symbol, next_)
            if is_required:
                first, next_ = self._lark.rule(begin), self._lark.rule(go_on)
            else:
                first = optional(begin) if not first else f"({begin} | {first})"
                next_ = optional(go_on) if not next_ else f"({go_on} | {next_})"
                first, next_ = self._lark.rule(first), self._lark.rule(next_)
        return first

    def _any_arguments(self, branch: Branch) -> str:
        """Returns the symbol of arguments of any name."""
        tags = self._tags
        if branch.schema is False:
            return ""
        if KEY in tags.end:  # a grammar can't repeat a name that isn't fixed
            if branch.schema is not True:
                self._lark.leave_out(branch.at)
            return ""
        key = self._lark.terminal(_KEY)
        one = sequence(literal(tags.begin), key, self._announced("*", branch, ""))
        rule = self._lark.rule(one)
        return optional(f"{rule} ({sequence(literal(tags.separator), rule)})*")

    def _argument(self, key: str, branch: Branch) -> str:
        return self._lark.rule(self._announced(key, branch, self._tags.begin + key))

    def _announced(self, key: str, argument: Branch, begin: str) -> str:
        """Returns the symbol of `begin`, the text between a key and its value, and the value."""
        tags = self._tags
        if tags.json_strings or tags.quote in _QUOTES:
            end = literal(tags.after(key))
            return sequence(literal(begin + tags.middle), self._schemas.json(argument), end)
        branches = self._schemas.branches(argument)
        symbols = []
        for middle in dict.fromkeys(map(tags.before, TYPES)) if tags.middles else ():
            kinds = [name for name in TYPES if tags.before(name) == middle]
            narrowed = (self._schemas.narrowed(each, kinds) for each in branches)
            if possible := [each for each in narrowed if each is not None]:
                value = self._value(key, argument, possible)
                symbols.append(sequence(literal(begin + middle), value))
        if not symbols:
            value = self._value(key, argument, branches)
            symbols.append(sequence(literal(begin + tags.middle), value))
        return choice(symbols)

    # ---- values, each with the end tag ---------------------------------------------------

    def _value(self, key: str, argument: Branch, branches: list[Branch]) -> str:
        """Returns the symbol of a value of any of `branches`."""
        end = literal(self._tags.after(key))
        free, texts, patterns, inner = self._values(key, branches)
        if not (free or texts or patterns or inner):
            self._lark.leave_out(argument.at)
            free = True
        if self._tags.quote:
            return sequence(self._quoted(free, texts, patterns, inner), end)
        if patterns and any(name != "null" for each in inner for name in types_of(each.schema)):
            # Restricted texts can't be distinguished from other values.
            for _, at in patterns:
                self._lark.leave_out(at)
            free = True
        if free:
            return self._text_or_json(key, [each for each in inner if not is_free(each.schema)])
        symbols = [
            literal(text + self._tags.after(key)) for text in dict.fromkeys(t for t, _ in texts)
        ]
        symbols += [self._lark.lazily(f"{pattern} {end}") for pattern, _ in patterns]
        symbols += [sequence(self._schemas.json(each), end) for each in inner]
        return choice(symbols)

    def _values(self, key: str, branches: Iterable[Branch]) -> _Values:
        texts: list[tuple[str, str]] = []
        patterns: list[tuple[str, str]] = []
        inner: list[Branch] = []
        free = False
        for branch in branches:
            self._schemas.spend(1)
            types = types_of(branch.schema)
            if (fixed := self._schemas.fixed_values(branch)) is not None:
                texts += [(each, branch.at) for each in fixed if isinstance(each, str)]
                if rest := [each for each in fixed if not isinstance(each, str)]:
                    inner.append(Branch({"enum": rest}, branch.at))
                continue
            if "string" in types:
                pattern = self._string(key, branch)
                patterns += [(pattern, branch.at)] if pattern else []
                free |= not pattern
            if rest := [each for each in types if each != "string"]:
                schema = {**_without_strings(branch.schema), "type": rest}
                inner.append(Branch(schema, branch.at))
        texts = [(text, at) for text, at in texts if self._is_distinct(key, text, at, inner)]
        return _Values(free, texts, patterns, inner)

    def _is_distinct(self, key: str, text: str, at: str, inner: Iterable[Branch]) -> bool:
        """Returns whether a fixed text can be written, and isn't read as JSON."""
        distinct = self._end_tag(key) not in text
        if not self._tags.quote:
            distinct &= text == text.strip() and text[:1] != '"'
            with suppress(ValueError, RecursionError):
                value = json.loads(text)
                for each in inner:
                    fixed = each.schema.get("enum")
                    self._schemas.spend(1 + len(fixed) if isinstance(fixed, list) else 1)
                    if isinstance(fixed, list) and value in fixed:
                        return False  # the value is allowed as JSON
                    values = fixed if isinstance(fixed, list) else []
                    types = [name for one in values for name in TYPES if is_a(one, [name])]
                    distinct &= not is_a(value, types if values else types_of(each.schema))
        if not distinct:
            self._lark.leave_out(f"{at}/enum")
        return distinct

    def _text_or_json(self, key: str, restricted: list[Branch]) -> str:
        """Returns the symbol of any text that isn't JSON of the types in `restricted`, or of such
        JSON."""
        end = literal(self._tags.after(key))
        text = self._plain(key, ANY)
        types = {name for each in restricted for name in types_of(each.schema)}
        if types:
            starts = "".join(sorted({_FIRST[name] for name in types}))
            text = self._plain(key, f"/([^\\s{starts}](?s:.*))?/")
        symbols = [self._lark.lazily(f"{text} {end}")]
        symbols += [sequence(self._schemas.json(each), end) for each in restricted]
        return choice(symbols)

    def _plain(self, key: str, pattern: str) -> str:
        """Returns the terminal of a text like `pattern` that doesn't contain the end tag."""
        end = regex(self._end_tag(key))
        return self._lark.terminal(f"{pattern} & ~/(?s:.*){end}(?s:.*)/")

    def _end_tag(self, key: str) -> str:
        """Returns the text that ends a value: its quote, or the tag after it without the white
        space around it."""
        end = self._tags.after(key)
        return self._tags.quote or end.strip() or end

    def _string(self, key: str, branch: Branch) -> str:
        """Returns the terminal of the texts that a schema allows; "" for any text."""
        patterns: list[str] = []
        for word in sorted(_STRING_WORDS & branch.schema.keys()):
            try:
                patterns += string_regex({word: branch.schema[word]})
            except StringError:
                self._schemas.leave_out(branch, word)
        patterns = [pattern for pattern in patterns if pattern != ANY]
        if not patterns:
            return ""
        # The parser would read a text in quotes as JSON, without the quotes.
        return self._plain(key, " & ".join(['/([^\\s"](?s:.*))?/', *patterns]))

    # ---- values in the model's own quotes ------------------------------------------------

    def _quoted(
        self,
        free: bool,
        texts: list[tuple[str, str]],
        patterns: list[tuple[str, str]],
        inner: list[Branch],
    ) -> str:
        """Returns the symbol of a text in the model's own quotes, or of a literal that contains
        such texts."""
        quote = self._tags.quote
        symbols = [literal(quote + text + quote) for text in dict.fromkeys(t for t, _ in texts)]
        plain = [self._any_text()] if free else []
        for pattern in plain + [pattern for pattern, _ in patterns]:
            text = self._lark.lazily(f"{pattern} {literal(quote)}")
            symbols.append(sequence(literal(quote), text))
        for branch in inner:
            symbols += self._unquoted(branch)
        return choice(symbols)

    def _unquoted(self, branch: Branch) -> list[str]:
        """Returns the symbols of values other than texts. They are written in JSON if they contain
        neither texts nor keys."""
        if "enum" in branch.schema:
            plain = [each for each in branch.schema["enum"] if is_a(each, _SCALARS)]
            symbols = [self._schemas.json(Branch({"enum": plain}, branch.at))] if plain else []
            kinds = ("array", "object")
            rest = [kind for kind in kinds for each in branch.schema["enum"] if is_a(each, [kind])]
            if rest:
                self._schemas.leave_out(branch, "enum")
            return symbols + [self._literal(kind) for kind in dict.fromkeys(rest)]
        symbols = []
        for kind in types_of(branch.schema):
            if kind == "object" or (kind == "array" and not self._holds_scalars(branch.schema)):
                inside = branch.schema.keys() - ANNOTATIONS - _SCALAR_WORDS
                self._schemas.leave_out(branch, *sorted(inside))
                symbols.append(self._literal(kind))
            else:
                schema = {**branch.schema, "type": kind}
                symbols.append(self._schemas.json(Branch(schema, branch.at)))
        return symbols

    def _holds_scalars(self, schema: Schema) -> bool:
        """Returns whether the items of a list contain neither texts nor keys, so that they are
        JSON."""
        items = self._schemas.items(schema)
        return isinstance(items, dict) and "type" in items and _SCALARS.issuperset(types_of(items))

    def _literal(self, kind: str) -> str:
        """Returns a list or an object of any content; no schema applies to its content."""
        lark, quote = self._lark, literal(self._tags.quote)
        if not self._literals:
            text = sequence(quote, lark.lazily(f"{self._any_text()} {quote}"))
            scalar = lark.json("literals", {"type": ["number", "boolean", "null"]})
            value, array, members = lark.reserved(), lark.reserved(), lark.reserved()
            lark.define(value, choice([text, scalar, array, members]))
            lark.define(array, f'"[" ({value} ("," {value})*)? "]"')
            member = f'{lark.terminal(_KEY)} ":" {value}'
            lark.define(members, f'"{{" ({member} ("," {member})*)? "}}"')
            self._literals = {"array": array, "object": members}
        return self._literals[kind]

    def _any_text(self) -> str:
        """Returns the terminal of a text without the quote."""
        return self._lark.terminal(f"{ANY} & ~/(?s:.*){regex(self._tags.quote)}(?s:.*)/")


def _without_strings(schema: Schema) -> Schema:
    return {word: value for word, value in schema.items() if word not in _STRING_WORDS}
