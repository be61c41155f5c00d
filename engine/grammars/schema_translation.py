"""Translates a JSON schema for llguidance, and records the keywords that it leaves out.

llguidance is exact for most of JSON Schema, but not for all of it: it treats patterns as Rust's
regular expressions, supports few forms of `oneOf`, rounds large numbers, and reads options from the
schema. Keywords that can't be enforced are left out of the result; all others stay.

In two cases it follows llama-server instead of a validator: keywords for one type imply that type
if no type is given, and properties that a schema doesn't name are not generated unless
`additionalProperties` allows them. Both only narrow the output.
"""

from collections.abc import Collection
from typing import Any, NamedTuple

from specllama.engine.formats.json_schema import (
    OutOfWorkError,
    Work,
    escaped,
    implied_type,
    says_type,
)
from specllama.engine.grammars.gbnf import GrammarError
from specllama.engine.grammars.schema_branches import exclude_each_other
from specllama.engine.grammars.schema_keywords import Keywords
from specllama.engine.grammars.schema_references import References, base_of
from specllama.engine.grammars.schema_surroundings import (
    Name,
    Surroundings,
    surroundings,
)
from specllama.engine.grammars.schema_values import invalid, rust_pattern, short

MAX_SCHEMAS = 200_000  # in the result, which may contain several variants of a schema
MAX_WORK = 100_000  # steps of each analysis

Schema = dict[str, Any]

# Unsupported keywords that restrict values, each with its values that have no effect.
_UNSUPPORTED: dict[str, list[Any]] = {
    "not": [False],
    "if": [True, {}],
    "contains": [],
    "uniqueItems": [False],
    "propertyNames": [True, {}, {"type": "string"}],
    "dependentRequired": [{}],
    "dependentSchemas": [{}],
    "dependencies": [{}],
    "unevaluatedItems": [True, {}],
    "unevaluatedProperties": [True, {}],
    "$dynamicRef": [],
    "$recursiveRef": [],
}
_UNIONS = ("anyOf", "oneOf")
_PARTS = {"allOf", *_UNIONS}
_BESIDE = {
    "unevaluatedProperties",
    *_PARTS,
}  # make a reference a part of a conjunction


class _Place(NamedTuple):
    """The place of a schema: the other schemas that apply to its value.

    `closes`: objects in the place only get named properties; `names` are the ones that other
    schemas name. `ends`: the list of properties is closed even if `names` is empty. `whole`: the
    schema is the only one or a branch, and not a part of a conjunction. `typed`: another schema
    gives the type. `base` is the base of its references.
    """

    closes: bool
    base: str = ""
    names: frozenset[Name] = frozenset()
    ends: bool = False
    whole: bool = True
    typed: bool = False


class Translation:
    """The translation of one document, including the targets of its references. `at` is its place
    in the client's request. `without` are keywords to leave out everywhere. With `literal`, the
    schema has exactly its meaning for a validator, without implied restrictions. With `alone`,
    keywords next to a reference are ignored, as in llama-server."""

    def __init__(
        self,
        document: Schema,
        *,
        at: str,
        without: Collection[str] = (),
        literal: bool = False,
        alone: bool = False,
    ) -> None:
        self._document = document
        self._references = References(document)
        self._at = at
        self._without = frozenset(without)
        self._literal = literal
        self._alone = alone
        self._left_out: dict[str, None] = {}
        self._variants: dict[tuple[int, _Place], str] = {}
        self._waiting: list[tuple[str, Any, str, _Place]] = []
        self._n_schemas = 0
        self._closing_work, self._branches_work = Work(MAX_WORK), Work(MAX_WORK)

    def result(self) -> Schema:
        """The translated schema. Raises GrammarError; without `literal`, also OutOfWorkError."""
        result: Schema = self._translated(self._document, self._at, _Place(not self._literal))
        definitions: Schema = {}
        while self._waiting:
            name, schema, at, place = self._waiting.pop()
            definitions[name] = self._translated(schema, at, place)
        return {**result, "$defs": definitions} if definitions else result

    @property
    def left_out(self) -> tuple[str, ...]:
        """The places of keywords that are not in the result, as JSON pointers."""
        return tuple(self._left_out)

    def _leave_out(self, where: str) -> None:
        self._left_out[where] = None

    def _translated(self, schema: Any, at: str, place: _Place) -> Any:
        """The translation of `schema`, which is at `at`."""
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise invalid(at, "schema must be an object")
        self._n_schemas += 1
        if self._n_schemas > MAX_SCHEMAS:
            raise GrammarError("it is too large") if self._literal else OutOfWorkError
        place = place._replace(base=base_of(schema, place.base))
        here = self._surroundings(schema, place.base)
        result: Schema = {}
        keywords = Keywords(
            schema, at, result, lambda keyword: self._leave_out(f"{at}/{escaped(keyword)}")
        )
        for keyword in schema:
            if keyword in self._without:
                self._leave_out(f"{at}/{escaped(keyword)}")
            elif keyword not in _UNSUPPORTED:
                keywords.read(keyword)
            elif self._restricts(schema, keyword, place, here):
                self._leave_out(f"{at}/{escaped(keyword)}")
        self._read_items(schema, at, result, place.base)
        self._read_properties(schema, at, result, place.base)
        if (whole := self._one_part(schema, at, result, place)) is not None:
            return whole
        self._read_parts(schema, at, result, place, here)
        if here is not None:
            self._add_what_is_meant(result, here, place)
        return result

    def _surroundings(self, schema: Any, base: str) -> Surroundings | None:
        if self._literal:
            return None
        return surroundings(schema, base, self._references, self._closing_work)

    def _restricts(
        self, schema: Schema, keyword: str, place: _Place, here: Surroundings | None
    ) -> bool:
        value = schema[keyword]
        if any(value is v or (value == v and isinstance(v, dict)) for v in _UNSUPPORTED[keyword]):
            return False
        if keyword == "if":
            return bool({"then", "else"} & schema.keys())
        if keyword == "unevaluatedProperties" and value is False:
            closed = here is not None and here.closed and place.whole and not place.names
            return not closed
        return True

    def _add_what_is_meant(self, result: Schema, here: Surroundings, place: _Place) -> None:
        """Add the type that keywords imply, and close the list of properties: once in each place,
        or in each of its branches, which are narrower."""
        if not place.whole:
            return
        if here.hint and not (place.typed or here.typed or here.typed_branch):
            result["type"] = here.hint
        if not place.closes or here.branches or here.opened or "additionalProperties" in result:
            return
        if not _is_closed(here, place) or not _allows_objects(result):
            return
        end = self._end(here.names | place.names)
        if "allOf" in result:
            result["allOf"].append(end)  # its first parts set the order of properties
            return
        for keyword in ("properties", "patternProperties"):
            for name, inner in end.pop(keyword, {}).items():
                result.setdefault(keyword, {}).setdefault(name, inner)
        result.update(end)

    def _end(self, names: frozenset[Name]) -> Schema:
        """A schema of objects that have only the properties `names`."""
        self._closing_work.spend(len(names))
        end: Schema = {"additionalProperties": False}
        for keyword, name in sorted(names):
            written = name if keyword == "properties" else rust_pattern(name, keyword)
            if written is not None and keyword not in self._without:
                end.setdefault(keyword, {})[written] = True
        return end

    # ---- keywords with schemas in them ---------------------------------------------------

    def _inner(self, schema: Any, at: str, base: str) -> Any:
        """The translation of a schema for a part of the value."""
        return self._translated(schema, at, _Place(not self._literal, base))

    def _read_items(self, schema: Schema, at: str, result: Schema, base: str) -> None:
        first_key, rest_key = "prefixItems", "items"
        if isinstance(schema.get("items"), list):  # a tuple, in older drafts
            first_key, rest_key = "items", "additionalItems"
        elif not isinstance(schema.get(first_key, []), list) and "items" not in schema:
            rest_key = first_key
        first, rest = schema.get(first_key), schema.get(rest_key)
        if rest is not None:
            result["items"] = self._inner(rest, f"{at}/{rest_key}", base)
        if isinstance(first, list) and first:
            result["prefixItems"] = [
                self._inner(each, f"{at}/{first_key}/{i}", base) for i, each in enumerate(first)
            ]
            if rest is None and not self._literal:
                # A tuple has exactly its items.
                result["items"] = False
                if result.get("maxItems", len(first)) >= len(first):
                    result.setdefault("minItems", len(first))

    def _read_properties(self, schema: Schema, at: str, result: Schema, base: str) -> None:
        if "properties" in schema:
            if not isinstance(schema["properties"], dict):
                raise invalid(at, "properties must be an object")
            result["properties"] = {
                name: self._inner(each, f"{at}/properties/{escaped(name)}", base)
                for name, each in schema["properties"].items()
            }
        if "additionalProperties" in schema:
            value = schema["additionalProperties"]
            if not isinstance(value, bool | dict):
                raise invalid(at, "additionalProperties must be a boolean or a schema")
            result["additionalProperties"] = self._inner(value, f"{at}/additionalProperties", base)
        patterns = schema.get("patternProperties")
        if patterns is None or "patternProperties" in self._without:
            return
        if not isinstance(patterns, dict):
            self._leave_out(f"{at}/patternProperties")
            return
        kept: Schema = {}
        for pattern, each in patterns.items():
            where = f"{at}/patternProperties/{escaped(pattern)}"
            translated = rust_pattern(pattern, at)
            if translated is None:
                self._leave_out(where)
            else:
                kept[translated] = self._inner(each, where, base)
        if kept:
            result["patternProperties"] = kept

    def _one_part(self, schema: Schema, at: str, result: Schema, place: _Place) -> Any:
        """The translation of a conjunction with a single part; None for others. With `alone`, a
        reference is the single part."""
        beside = result.keys() | (_BESIDE & schema.keys())
        if "$ref" in schema and (self._alone or not beside):
            for keyword in beside:
                self._leave_out(f"{at}/{escaped(keyword)}")
            return {"$ref": self._variant(schema["$ref"], at, place)}
        parts = schema.get("allOf")
        if not isinstance(parts, list) or "$ref" in schema:
            return None
        if len(parts) == 1 and beside == {"allOf"}:
            return self._translated(parts[0], f"{at}/allOf/0", place)
        for i, part in enumerate(parts) if self._alone else ():
            if isinstance(part, dict) and "$ref" in part:
                for keyword in beside:
                    self._leave_out(f"{at}/{escaped(keyword)}")
                return self._translated(part, f"{at}/allOf/{i}", place)
        return None

    def _read_parts(
        self, schema: Schema, at: str, result: Schema, place: _Place, here: Surroundings | None
    ) -> None:
        """Translates the parts of a conjunction: `allOf`, each union, and the reference."""
        parts: list[Any] = []
        for i, part in enumerate(_list(schema, "allOf", at)):
            inside = self._part(schema, part, place, here)
            parts.append(self._translated(part, f"{at}/allOf/{i}", inside))
        if "$ref" in schema:
            inside = self._part(schema, "$ref", place, here)
            parts.append({"$ref": self._variant(schema["$ref"], at, inside)})
        for word in _UNIONS:
            if word not in schema:
                continue
            branches = _list(schema, word, at)
            inside = self._part(schema, word, place, here)._replace(whole=True)
            found = [
                self._translated(branch, f"{at}/{word}/{i}", inside)
                for i, branch in enumerate(branches)
            ]
            if word == "oneOf" and not self._exclude(schema.get("type"), branches, inside):
                self._leave_out(f"{at}/oneOf")
            parts.append({"anyOf": found})
        if len(parts) == 1 and "anyOf" in parts[0] and "allOf" not in result:
            result["anyOf"] = parts[0]["anyOf"]
        elif parts:
            result["allOf"] = [*result.get("allOf", []), *parts]

    def _part(self, schema: Schema, part: Any, place: _Place, here: Surroundings | None) -> _Place:
        """The place of one part of `schema`: a part of `allOf`, a keyword with branches, or
        "$ref"."""
        if here is None:
            return _Place(closes=False, base=place.base, whole=False, typed=True)
        names, typed = place.names, place.typed or says_type(schema) or here.hint is not None
        for other in _components(schema):
            if other is part or (isinstance(part, str) and part in other):
                continue
            around = self._surroundings(other, place.base)
            if around is not None:
                names |= around.names
                typed = typed or around.typed
        closes = place.closes and not here.opened
        if not here.branches:
            names = frozenset()  # not needed
        ends = here.branches and (here.closed or place.ends)
        return _Place(closes, place.base, names, ends, whole=False, typed=typed)

    def _exclude(self, kind: Any, branches: list[Any], place: _Place) -> bool:
        """True if it is proven that no value generated for one of `branches` matches another one.
        `kind` is the `type` next to them."""
        if kind is None and not (self._literal or place.typed):
            meant = {implied_type(each) if isinstance(each, dict) else None for each in branches}
            kind = meant.pop() if len(meant) == 1 else None
        generated = [self._generated(branch, place) for branch in branches]
        narrowed = [{"type": kind, "allOf": [branch]} for branch in branches]

        def resolve(reference: str) -> Any:
            return self._references.target(reference, place.base)[0]

        try:
            return exclude_each_other(narrowed, generated, resolve, self._branches_work)
        except OutOfWorkError:
            return False

    def _generated(self, branch: Any, place: _Place) -> frozenset[str] | None:
        """The only property names of objects generated for a branch; None: any names."""
        here = self._surroundings(branch, place.base)
        if here is None or not place.closes or not _is_closed(here, place):
            return None
        names = here.names | place.names
        self._closing_work.spend(len(names))
        if here.opened or any(keyword != "properties" for keyword, _ in names):
            return None
        return frozenset(name for _, name in names)

    def _variant(self, reference: Any, at: str, place: _Place) -> str:
        """A reference to the translation of the target of `reference` in `place`."""
        if not isinstance(reference, str):
            raise invalid(at, "$ref must be a string")
        target, base = self._references.target(reference, place.base)
        if target is None:
            why = f"cannot resolve $ref {short(reference)}"
            if not reference.startswith("#"):
                why = f"unsupported $ref {short(reference)}, only references into the same "
                why += "document are supported"
            raise invalid(at, why)
        place = place._replace(base=base)
        key = id(target), place
        if key not in self._variants:
            self._variants[key] = f"d{len(self._variants)}"
            whose = self._at.partition("#")[0]
            where = whose + (reference if reference.startswith("#") else f"#{reference}")
            self._waiting.append((self._variants[key], target, where, place))
        return f"#/$defs/{self._variants[key]}"


def _components(schema: Schema) -> list[Schema]:
    """The parts that all apply to a value: the schema's own keywords, each part of `allOf`, each
    union, and the reference."""
    own = {word: value for word, value in schema.items() if word not in {"$ref", *_PARTS}}
    unions = [{word: schema[word]} for word in ("$ref", *_UNIONS) if word in schema]
    parts = schema.get("allOf")
    return [own, *unions, *(parts if isinstance(parts, list) else [])]


def _is_closed(here: Surroundings, place: _Place) -> bool:
    return here.closed or place.ends or bool(place.names)


def _allows_objects(schema: Schema) -> bool:
    names = schema.get("type", "object")
    return names == "object" or (isinstance(names, list) and "object" in names)


def _list(schema: Schema, keyword: str, at: str) -> list[Any]:
    if keyword not in schema:
        return []
    value = schema[keyword]
    if not isinstance(value, list):
        raise invalid(f"{at}/{keyword}", "must be an array of schemas")
    if not value:
        raise invalid(f"{at}/{keyword}", "must not be empty")
    return value
