"""Translates a source to a grammar that compiles, and leaves out as few keywords as possible."""

from collections.abc import Callable, Mapping

from specllama.engine.grammars.compiling import (
    GrammarSource,
    SchemaError,
    alone,
    named_schemas,
    prepared,
    text_alone,
    translated,
)
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.grammars.json_schema import Prepared, more_lenient, prepare
from specllama.engine.params import NamedSchema

Check = Callable[[str], None]
"""Compiles a grammar, or raises GrammarError."""


def compilable(
    source: GrammarSource,
    check: Check,
    token_id: Callable[[str], int | None],
    *,
    leniently: bool = False,
) -> tuple[str, tuple[str, ...]]:
    """`source` in llguidance's notation, and the places of the keywords that are left out; with
    `leniently`, these include all costly ones. `token_id` is as in `gbnf.to_lark`. Raises
    GrammarError and SchemaError."""
    schemas = prepared(source, leniently=leniently)
    _check_texts(check, source)
    grammar = translated(source, schemas, token_id)
    try:
        check(grammar)
    except GrammarError as error:
        schemas = _relaxed(check, source, schemas, error)
        grammar = translated(source, schemas, token_id)
        check(grammar)
    relaxed = (where for schema in schemas.values() for where in schema.relaxed)
    return grammar, tuple(dict.fromkeys(relaxed))


def _check_texts(check: Check, source: GrammarSource) -> None:
    """Raises SchemaError if a grammar that the source refers to is invalid or too large."""
    for named in source.grammars.values():
        for text in (named.lark, named.in_json):
            try:
                check(text_alone(text))
            except GrammarError as fault:
                raise SchemaError(f"Failed to parse {named.name}: {fault}") from None


def _relaxed(
    check: Check, source: GrammarSource, schemas: Mapping[str, Prepared], error: GrammarError
) -> dict[str, Prepared]:
    """`schemas`, in which schemas that don't compile are relaxed. Raises SchemaError if a schema
    can't be relaxed enough, and `error` if every schema compiles by itself."""
    relaxed = dict(schemas)
    for name, named in named_schemas(source).items():
        try:
            relaxed[name] = _compilable(check, source, named, schemas[name])
        except GrammarError as fault:
            raise SchemaError(f"Failed to parse {named.name}: {fault}") from None
    if relaxed == schemas:
        raise error
    return relaxed


def _compilable(
    check: Check, source: GrammarSource, named: NamedSchema, schema: Prepared
) -> Prepared:
    """`schema`, relaxed as little as necessary to compile. Raises GrammarError."""
    try:
        check(alone(schema, source.whitespace))
    except GrammarError as error:
        reason = error
        for leniency in more_lenient(named.schema, error):
            try:
                lenient = prepare(named.schema, named.at, leniency)
                check(alone(lenient, source.whitespace))
            except GrammarError as other:
                # An unsatisfiable schema is a better reason than a limit of the compiler.
                if "nsatisfiable" in str(other):
                    reason = other
                continue
            return lenient
        raise reason from None
    return schema
